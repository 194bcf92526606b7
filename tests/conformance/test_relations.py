"""Chapter 12, relations: changes that must not matter, or matter in a known way. No reference is needed for most."""

from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.expected import Expected
from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Case, Embedding, MaskKind, MaskShape, Padding, Poison, Scores, Sharing
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.comparison import RETURNED_AS, compare, part_of
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.merging import assert_merges
from attention_conformance.tests.harness.judge.observed_conventions import returns_more
from attention_conformance.tests.harness.judge.relations import (
    Change,
    changed,
    take_heads,
    take_keys,
    take_queries,
    take_samples,
    take_tokens,
    taking,
)
from attention_conformance.tests.harness.judge.search import claimed_combinations

ALTERNATIVES = (
    Case(seed=111),
    Case(seed=112),
    Case(seed=113, mask=MaskKind.BOOL),
    Case(seed=114, mask=MaskKind.FLOAT, mask_shape=MaskShape.KEYS),
    Case(seed=115, mask=MaskKind.FLOAT, mask_shape=MaskShape.SHARED),
    Case(seed=116, mask=MaskKind.INFINITE, mask_shape=MaskShape.HEAD),
    Case(seed=117, mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED).sized(query_length=7),
    Case(seed=118, padding=Padding.LEFT),
    Case(seed=119, padding=Padding.LENGTHS),
    Case(seed=120, causal=True).sized(query_length=7),
    Case(seed=121, causal=True, padding=Padding.RIGHT).sized(query_length=7),
    Case(seed=122, scale=0.3, score_std=3.0),
    Case(seed=123, score_std=3.0).sized(query_length=33, key_length=65),
    Case(seed=124, mask=MaskKind.BOOL, padding=Padding.RIGHT),
    Case(seed=125).sized(batch=1, num_heads=1),
    Case(seed=125, mask=MaskKind.FLOAT, padding=Padding.LEFT),
    Case(seed=128, mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS),
    Case(seed=130, mask=MaskKind.BOOL, mask_shape=MaskShape.SAMPLE).sized(batch=3, num_heads=2),
    Case(seed=131, mask=MaskKind.FLOAT, mask_shape=MaskShape.FULL).sized(num_heads=4),
    Case(seed=129).sized(query_length=7).extended(window_left=3, window_right=3),
    Case(seed=132).extended(sinks=True),
    Case(seed=133, score_std=3.0).extended(softcap=2.0),
    Case(seed=134).sized(num_heads=6, num_kv_heads=3),
    Case(seed=135, causal=True).sized(query_length=7).extended(alibi=True),
    Case(seed=136).sized(query_length=7),
    Case(seed=137, causal=True).sized(query_length=19, key_length=19),
)
OF_SAMPLES = Case(seed=126, causal=True, padding=Padding.LENGTHS).sized(batch=3, query_length=2, key_length=11)
WITH_LENGTHS = (OF_SAMPLES, replace(OF_SAMPLES, seed=127).extended(page_size=4))


def _assert_same(judge: Judge, case: Case, first: Problem, second: Problem, context: str, of_first: Change) -> None:
    """What `of_first` makes of the first problem's output is the second's output, within both their bounds."""
    if own := judge.own(case, first):
        judge.assert_answers(case, second.forward_only(), own.only(of_first), context)


def _reversed(length: int) -> Array:
    return np.roll(np.arange(length)[::-1], 1)


@clause("relations.permute-keys")
def test_permute_keys(judge: Judge) -> None:
    masked = (Case(seed=72, mask=MaskKind.BOOL), Case(seed=73, mask=MaskKind.FLOAT), Case(padding=Padding.LEFT))
    for case in judge.cases(Case(seed=71), *masked):
        problem, order = judge.problem(case), _reversed(case.sizes.key_length)
        if problem.sharing is Sharing.SELF:
            reordered = take_tokens(problem, order)
            _assert_same(judge, case, problem, reordered, "tokens in another order", taking(order, -2))
        else:
            reordered = take_keys(problem, order)
            _assert_same(judge, case, problem, reordered, "keys and values in another order", np.asarray)


@clause("relations.permute-queries")
def test_permute_queries(judge: Judge) -> None:
    for case in judge.cases(Case(seed=74), Case(seed=75, mask=MaskKind.BOOL), Case(seed=76).sized(query_length=17)):
        problem, order = judge.problem(case), _reversed(case.sizes.query_length)
        take = take_tokens if problem.sharing is Sharing.SELF else take_queries
        _assert_same(judge, case, problem, take(problem, order), "queries in another order", taking(order, -2))


@clause("relations.batch")
def test_batch(judge: Judge) -> None:
    padded = (Case(seed=79, padding=Padding.HOLES), Case(padding=Padding.LENGTHS))
    for case in judge.cases(*(c.sized(batch=3) for c in (Case(seed=77), Case(seed=78, mask=MaskKind.BOOL), *padded))):
        problem = judge.problem(case)
        for sample in range(case.sizes.batch if judge.allows(case.sized(batch=1)) else 0):
            alone = take_samples(problem, np.array([sample]))
            _assert_same(judge, case, problem, alone, f"sample {sample} alone", taking(np.array([sample]), 0))


@clause("relations.permute-heads")
def test_permute_heads(judge: Judge) -> None:
    for case in judge.cases(Case(seed=80), Case(seed=81, mask=MaskKind.BOOL)):
        problem, order = judge.problem(case), _reversed(case.sizes.num_heads)
        _assert_same(judge, case, problem, take_heads(problem, order), "heads in another order", taking(order, 1))


@clause("relations.linear-values")
def test_linear_values(judge: Judge) -> None:
    for case in judge.cases(Case(seed=82), Case(seed=83, causal=True).sized(query_length=7)):
        first = changed(judge.problem(case), b_o=lambda bias: bias * 0)
        scaled = dict.fromkeys(["value"] if first.scope is Scope.OP else ["w_v", "b_v"], lambda array: array * -4)
        _assert_same(judge, case, first, changed(first, **scaled), "values times -4", lambda o: o * -4.0)


@clause("relations.convex-hull")
def test_convex_hull(judge: Judge) -> None:
    equal = Case(scores=Scores.EQUAL, mask=MaskKind.BOOL)
    for case in judge.cases(Case(scores=Scores.RISING), Case(scores=Scores.FAR_ROWS), equal):
        own = judge.own(case, judge.problem(case), judge.expected(case)["output"].bound)
        if own is None:
            continue
        heads, bound = _per_head(case, own.value), _per_head(case, own.bound)
        low, high = _hull(judge, case)
        inside = bool(((heads >= low - bound) & (heads <= high + bound)).all())
        judge.assert_that(case, inside, "an output lies outside the range of the values that its query may see")


def _per_head(case: Case, output: Array) -> Array:
    """(B, H, Lq, d_v) of an output whose output projection, if any, picks the joined heads."""
    if case.module is None:
        return output
    assert case.module.embedding is not Embedding.RANDOM
    joined = output[..., : case.sizes.num_heads * case.sizes.d_v]
    return joined.reshape(*output.shape[:2], case.sizes.num_heads, -1).swapaxes(1, 2)


def _hull(judge: Judge, case: Case) -> tuple[Array, Array]:
    trace = judge.solution(case).trace
    allowed, value = trace.seen.allowed[..., None], trace.value[:, :, None]
    return np.where(allowed, value, np.inf).min(3), np.where(allowed, value, -np.inf).max(3)


@clause("relations.shift-keys")
def test_shift_keys(judge: Judge) -> None:
    def coarse(key: Array) -> Array:
        return np.round(key.astype(np.float64) * 8) / 8

    for case in judge.cases(Case(seed=84), Case(seed=85, mask=MaskKind.BOOL)):
        first = changed(judge.problem(case), key=coarse)
        second = changed(first, key=lambda key: key.astype(np.float64) + 2.0)
        # The bounds differ, because the scores do.
        bounds = [judge.solve(problem).parts["output"].bound for problem in (first, second)]
        if own := judge.own(case, first, bounds[0] + bounds[1]):
            judge.assert_answers(case, second.forward_only(), own, "the same vector added to every key")


@clause("relations.causal-prefix")
def test_causal_prefix(judge: Judge) -> None:
    for case in judge.cases(Case(seed=86, causal=True).sized(query_length=9, key_length=9)):
        problem = judge.problem(case)
        for length in (1, 4, 8):
            tokens = np.arange(min(length, case.sizes.key_length))
            if judge.allows(case.sized(query_length=len(tokens), key_length=len(tokens))):
                context = f"the first {len(tokens)} tokens alone"
                _assert_same(judge, case, problem, take_tokens(problem, tokens), context, taking(tokens, -2))


@clause("relations.padding-extension")
def test_padding_extension(judge: Judge) -> None:
    """The same keys, with and without more of them that are masked."""
    masked = Case(seed=87, mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS)
    for case in judge.cases(masked, replace(masked, seed=88, poison=Poison.LARGE)):
        problem = take_samples(judge.problem(case), np.array([0]))
        assert problem.attn_mask is not None
        real = np.flatnonzero(problem.attn_mask[0, 0, 0])
        whole = judge.expected(case)["output"]
        expected = Expected(whole.value[:1], 2.0 * whole.bound[:1])
        alone = case.sized(batch=1)
        if judge.allows(alone) and judge.allows(alone.sized(key_length=len(real))):
            judge.assert_answers(case, take_keys(problem, real).forward_only(), expected, "without the masked keys")
            judge.assert_answers(case, problem.forward_only(), expected, "with the masked keys")


@clause("relations.grad-mode")
def test_recording(judge: Judge) -> None:
    for case in judge.cases(*claimed_combinations(judge)):
        expected = judge.expected(case, gradients=True)["output"]
        judge.assert_answers(case, judge.problem(case).forward_only(), expected, "where no gradient is recorded")


@clause("relations.alternatives")
def test_alternatives(judge: Judge) -> None:
    for name in judge.implementation.alternatives:
        along = judge.along(name)
        for case in along.cases(*ALTERNATIVES, *(WITH_LENGTHS if Feature.VALID_LENS in judge.claims else ())):
            _assert_returned(along, case, name)


def _assert_returned(judge: Judge, case: Case, context: str) -> None:
    """The output, and what is returned with it, also where only this way of calling returns it."""
    problem = judge.problem(case).forward_only()
    try:
        result = judge.run(problem)
    except CandidateError as error:
        judge.record_error(case, error, context)
        return
    if returns_more(result) is not bool(judge.returned) and not allowed_keys(problem, judge.conventions).any(-1).all():
        return
    for part in dict.fromkeys(("output", *RETURNED_AS)):
        got = part_of(result, part)
        if got is not None or part == "output":
            judge.record(case, compare(part, got, judge.expected(case, also=(part,))[part], judge.dtype), context)


@clause("relations.merge")
def test_merge(judge: Judge) -> None:
    for case in judge.cases(Case(seed=89), Case(seed=90, score_std=5.0).sized(key_length=17)):
        assert_merges(judge, case, split=3)
