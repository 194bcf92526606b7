"""Chapter 14, errors: what makes no sense is refused, not answered."""

from functools import partial

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError, guarded
from attention_conformance.spec.cases import Case, MaskKind, Sharing
from attention_conformance.spec.problem import Array
from attention_conformance.tests.harness.judge.clause_tests import clause, group
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed
from attention_conformance.tests.report.verdict import FailureKind


def _shorter(rows: Array) -> Array:
    """One row less, in a longer buffer: to read beyond the end does not crash."""
    return rows[..., :-1, :]


@clause("errors.key-value-length")
def test_key_value_length(judge: Judge) -> None:
    for case in judge.cases(Case(), Case()):
        problem = judge.problem(case).forward_only()
        if problem.sharing is not Sharing.NONE:
            judge.unsupported.append("key and value are one input")
            continue
        for name in ("key", "value"):
            passed = problem.fresh()
            wrong = passed.with_arrays({name: _shorter(passed.arrays()[name])})
            judge.assert_refuses(case, wrong, f"a {name} sequence one shorter than the other", as_is=True)


@clause("errors.width")
def test_width(judge: Judge) -> None:
    for case in judge.cases(*(Case().sized(d_k=width, d_v=width) for width in (5, 8))):
        problem = changed(judge.problem(case).forward_only(), query=lambda query: query[..., :-1])
        judge.assert_refuses(case, problem, "a query one narrower than the key")


@clause("errors.batch")
def test_batch(judge: Judge) -> None:
    for case in judge.cases(Case().sized(batch=3)):
        problem = judge.problem(case).forward_only()
        if problem.sharing is Sharing.SELF:
            judge.unsupported.append("query and key are one input")
            continue
        for names in (("query",), ("key", "value")):
            wrong = changed(problem, **dict.fromkeys(names, lambda rows: rows[:-1]))
            judge.assert_refuses(case, wrong, f"2 samples of {' and '.join(names)}, 3 of the others")


@clause("errors.mask-shape")
def test_mask_shape(judge: Judge) -> None:
    for case in judge.cases(Case(mask=MaskKind.BOOL)):
        problem = judge.problem(case).forward_only()
        for axis in (-1, -2):
            wrong = changed(problem, attn_mask=partial(np.repeat, repeats=2, axis=axis))
            judge.assert_refuses(case, wrong, "a mask that broadcasts to no (B, H, Lq, Lk)")


def _assert_refuses_widths(judge: Judge, refused: tuple[tuple[int, int], ...]) -> None:
    """The constructor refuses these numbers of heads with these widths."""
    construct = judge.implementation.construct
    if construct is None:
        judge.unsupported.append("its constructor takes the width of one head")
        return
    for num_heads, width in refused:
        judge.settle()
        try:
            guarded(partial(construct, num_heads, width))
        except CandidateError as error:
            judge.record_refusal(Case(), error)
        else:
            message = f"{num_heads} heads for a width of {width} was accepted"
            judge.assert_that(Case(), False, message, kind=FailureKind.ACCEPTED)


CLAUSES = group(
    _assert_refuses_widths,
    {"errors.heads": ((3, 8), (5, 12), (0, 8)), "errors.negative-heads": ((-1, 8), (-2, 8))},
)
