"""Chapter 4, heads: how they are split and merged, and that they are independent of each other."""

from attention_conformance.spec.cases import Case, Scores, Sizes
from attention_conformance.spec.conventions import NormSpan
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import Change, changed

FITS_BOTH_WAYS = Sizes(batch=2, num_heads=3, query_length=3, key_length=3, d_k=3, d_v=3)


@clause("heads.independent")
def test_independent(judge: Judge) -> None:
    for case in judge.cases(Case(), Case(score_std=4.0).sized(query_length=3, num_heads=2)):
        problem = judge.problem(case).forward_only()
        if problem.scope is Scope.OP:
            _assert_op_heads_independent(judge, case, problem)
        else:
            _assert_module_heads_independent(judge, case, problem)


def _assert_op_heads_independent(judge: Judge, case: Case, problem: Problem) -> None:
    def other_last_head(array: Array) -> Array:
        array[:, -1] = array[:, -1][..., ::-1, :] * 2
        return array

    shared = problem.num_kv_heads < problem.num_heads
    own = ("value",) if _normed_together(judge) else ("query",) if shared else ("key", "value")
    if shared and own != ("query",):
        return  # others see a shared head
    other, context = changed(problem, **dict.fromkeys(own, other_last_head)), "only the last head was changed"
    judge.assert_answers(case, other, judge.expected(case)["output"], context, of=lambda o: o[:, :-1])


def _normed_together(judge: Judge) -> bool:
    """Whether the queries and keys of all heads are divided by one size, through which each head sees the others."""
    return judge.claims.premises.qk_norm and judge.conventions.norm_span is NormSpan.WIDTH


def _assert_module_heads_independent(judge: Judge, case: Case, problem: Problem) -> None:
    """The last head is cut off from the output; what its key and value projections hold is then all the same."""
    d_k, d_v = case.sizes.d_k, case.sizes.d_v

    def cut(w_o: Array) -> Array:
        w_o[-d_v:] = 0
        return w_o

    def doubled(width: int) -> Change:
        def change(weight: Array) -> Array:
            weight[..., -width:] *= 2
            return weight

        return change

    cut_off = changed(problem, w_o=cut)
    shared = problem.num_kv_heads < problem.num_heads
    if shared and _normed_together(judge):
        return
    if _normed_together(judge):
        other = changed(cut_off, w_v=doubled(d_v))
    elif shared:
        other = changed(cut_off, w_q=doubled(d_k))
    else:
        other = changed(cut_off, w_k=doubled(d_k), w_v=doubled(d_v))
    shown = slice(None) if "w_o" in problem.parameters else slice(-d_v)
    if own := judge.own(case, cut_off):
        context = "only the last head, which the output does not show, was changed"
        judge.assert_answers(case, other, own, context, of=lambda o: o[..., shown])


CLAUSES = table(
    row(
        "heads.split",
        *(Case(), Case(FITS_BOTH_WAYS), Case(score_std=4.0).sized(batch=1, num_heads=2)),
        context="head h takes columns h * d .. (h + 1) * d - 1 of each projection",
    ),
    # With equal scores every query of a head has the same output, so that only the merge can go wrong.
    row(
        "heads.merge",
        *(Case(scores=Scores.EQUAL), Case(scores=Scores.EQUAL).sized(num_heads=2, key_length=4)),
        context="head h gives columns h * d_v .. (h + 1) * d_v - 1 of the joined heads",
    ),
    row("heads.merge", Case(seed=7)),
)
