"""Chapter 8, causal: no query sees a later key, in either alignment, alone and with other masks."""

from dataclasses import replace
from functools import partial
from operator import itemgetter

import numpy as np

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Scores
from attention_conformance.spec.conventions import Alignment, CausalWithMask
from attention_conformance.spec.problem import Array
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed, deep

SQUARE = Case(causal=True).sized(query_length=7, key_length=7)
MASKS = (
    (MaskKind.BOOL, MaskShape.FULL),
    (MaskKind.BOOL, MaskShape.SAMPLE),
    (MaskKind.BOOL, MaskShape.HEAD),
    (MaskKind.BOOL, MaskShape.SHARED),
    (MaskKind.BOOL, MaskShape.KEYS),
    (MaskKind.FLOAT, MaskShape.FULL),
    (MaskKind.FLOAT, MaskShape.SHARED),
    (MaskKind.INFINITE, MaskShape.SAMPLE),
)
"""Masks that are combined with the causal flag."""
UNLIKE = (
    (MaskKind.BOOL, 0.3, 7, 5),
    (MaskKind.FLOAT, 1.7, 7, 5),
    (MaskKind.BOOL, 1.7, 3, 7),
    (MaskKind.FLOAT, 0.3, 3, 7),
)
"""Masks, scales, and different numbers of queries and keys: the mask has them, and the flag has to find them."""
PADDED = replace(SQUARE, padding=Padding.RIGHT)

CLAUSES = table(
    row("causal.square", SQUARE, *(SQUARE.sized(query_length=n, key_length=n) for n in (1, 2, 17, 33))),
    row(
        "causal.alignment",
        *(SQUARE.sized(query_length=q, key_length=k) for q, k in ((3, 7), (1, 7), (7, 8), (5, 33))),
    ),
    row("causal.empty-rows", *(SQUARE.sized(query_length=q, key_length=k) for q, k in ((7, 3), (9, 8), (5, 1)))),
    row(
        "causal.any-scale",
        *(replace(SQUARE, scale=scale) for scale in (0.0, -0.7)),
        *(replace(SQUARE, scale=scale, seed=1).sized(query_length=3) for scale in (0.0, -0.7)),
        context="a causal flag and scale {case.scale:g}",
    ),
    row(
        "causal.any-scores",
        lambda claimed: deep(claimed.empty_row_causal, replace(SQUARE, scores=Scores.VERY_NEGATIVE)),
        *(replace(SQUARE, scores=kind) for kind in (Scores.ONE_HOT, Scores.RISING)),
        context="a causal flag and {case.scores} scores",
    ),
    row("causal.with-padding", PADDED, PADDED.sized(batch=4), PADDED.sized(query_length=17, key_length=17)),
)


@clause("causal.no-future")
def test_no_future(judge: Judge) -> None:
    for case in judge.cases(SQUARE, SQUARE.sized(query_length=33, key_length=33)):
        own = case.sizes.query_length // 2
        top_left = judge.conventions.causal_alignment is Alignment.TOP_LEFT
        now = own if top_left else own + case.sizes.key_length - case.sizes.query_length

        def other_future(rows: Array, now: int = now) -> Array:
            rows[..., now:, :] = rows[..., now:, :] * -2 + 3
            return rows

        other_queries = partial(other_future, now=own)
        problem = changed(judge.problem(case).forward_only(), query=other_queries, key=other_future, value=other_future)
        context = f"everything from position {now} on was changed; the rows before it may not know"
        past = itemgetter((..., slice(own), slice(None)))
        judge.assert_answers(case, problem, judge.expected(case)["output"], context, of=past)


@clause("causal.with-mask")
def test_with_mask(judge: Judge) -> None:
    policy, masked = judge.conventions.causal_with_mask, [replace(SQUARE, mask=kind, mask_shape=s) for kind, s in MASKS]
    if judge.conventions.causal_alignment is Alignment.TOP_LEFT:  # no row is emptied, whichever is longer
        masked += [
            replace(SQUARE, mask=kind, scale=scale, seed=n).sized(query_length=queries, key_length=keys)
            for n, (kind, scale, queries, keys) in enumerate(UNLIKE)
        ]
    for case in judge.cases(*masked):
        if policy is CausalWithMask.ERROR:
            judge.assert_refuses(case, judge.problem(case).forward_only(), "a causal flag combined with a mask")
        elif policy is CausalWithMask.EITHER:
            judge.assert_conforms_or_refuses(case)
        else:
            judge.assert_conforms(case)


@clause("causal.empty-row-with-mask")
def test_emptied_with_mask(judge: Judge) -> None:
    claimed = judge.conventions
    answers = {MaskKind.BOOL: claimed.empty_row_bool, MaskKind.INFINITE: claimed.empty_row_float}
    kinds = [kind for kind, answer in answers.items() if answer is claimed.empty_row_causal]
    if _one_decides(judge):
        kinds = []
    elif not kinds:
        judge.unsupported.append("claims two answers for a row that flag and mask empty together")
    for case in judge.cases(*(replace(SQUARE, mask=kind, pattern=Pattern.LAST_KEY) for kind in kinds)):
        both = claimed.causal_with_mask is CausalWithMask.INTERSECT
        check = judge.assert_conforms if both else judge.assert_conforms_or_refuses
        check(case, context="the mask leaves only the last key, the flag hides it")


@clause("causal.emptied-no-future", ("float64", "float32"), anywhere=True)
def test_emptied_no_future(judge: Judge) -> None:
    kinds = () if _one_decides(judge) else (MaskKind.BOOL, MaskKind.INFINITE)
    for case in judge.cases(*(replace(SQUARE, mask=kind, pattern=Pattern.LAST_KEY) for kind in kinds)):
        problem, past = judge.problem(case).forward_only(), itemgetter((..., slice(0, -1), slice(None)))
        means = solve(problem, judge.conventions.claiming({"empty-row": "uniform"}), returned=()).parts["output"]
        try:
            output = judge.run(problem).output
        except CandidateError as error:
            judge.record_refusal(case, error)
            continue
        if not judge.fits(case, Result(output), means.value.shape):
            continue
        if not compare("output", past(output), means.only(past), judge.dtype).message:
            judge.assert_that(case, True, "every emptied row is the mean of all values")
            continue
        own = Expected(output.astype(np.float64), 2.0 * means.bound)  # of two answers, each off by its roundings
        problem = changed(problem, query=_other_last, key=_other_last, value=_other_last)
        judge.assert_answers(case, problem, own, "the last token was changed, which the flag hides", of=past)


def _one_decides(judge: Judge) -> bool:
    """Whether flag or mask takes the place of the other one, so that they empty no row together."""
    alone = judge.conventions.causal_with_mask in (CausalWithMask.MASK_ALONE, CausalWithMask.FLAG_ALONE)
    if alone:
        judge.unsupported.append("claims that flag or mask takes the place of the other one")
    return alone


def _other_last(rows: Array) -> Array:
    rows[..., -1:, :] = rows[..., -1:, :] * -2 + 3
    return rows


@clause("causal.padded-start")
def test_padded_start(judge: Judge) -> None:
    if judge.conventions.empty_row_causal is not judge.conventions.empty_row_padding:
        judge.unsupported.append("claims two answers for a row that flag and padding empty together")
        return
    padded = [replace(SQUARE, padding=padding) for padding in (Padding.LEFT, Padding.HOLES)]
    for case in judge.cases(*padded, *(case.sized(query_length=17, key_length=17) for case in padded)):
        judge.assert_conforms(case, context="the first keys are padding")
