"""Chapter 8, causal: no query sees a later key, in either alignment, alone and with other masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from reference.solving import Expected
from spec.cases import Case, MaskKind, MaskShape, Padding
from spec.features import CausalWithMask
from spec.problems import Array
from tests.harness.judge import CandidateError, Judge
from tests.harness.relations import changed, taking
from tests.harness.suite import clause

SQUARE = Case(causal=True).sized(query_length=7, key_length=7)


@clause("causal.square")
def test_square(judge: Judge) -> None:
    for case in judge.cases(SQUARE, *(SQUARE.sized(query_length=n, key_length=n) for n in (1, 2, 17, 33))):
        judge.assert_conforms(case)


@clause("causal.no-future")
def test_no_future(judge: Judge) -> None:
    for case in judge.cases(SQUARE, SQUARE.sized(query_length=33, key_length=33)):
        now = case.sizes.key_length // 2

        def other_future(rows: Array, now: int = now) -> Array:
            rows[..., now:, :] = rows[..., now:, :] * -2 + 3
            return rows

        problem = changed(judge.problem(case).forward_only(), query=other_future, key=other_future, value=other_future)
        whole = judge.expected(case)["output"]
        past = Expected(whole.value[..., :now, :], whole.bound[..., :now, :])
        said = f"everything from position {now} on was changed; the rows before it may not know"
        judge.assert_answers(case, problem, past, said, of=taking(np.arange(now), -2))


@clause("causal.alignment")
def test_alignment(judge: Judge) -> None:
    flag = Case(causal=True)
    lengths = ((3, 7), (1, 7), (7, 8), (5, 33))
    for case in judge.cases(*(flag.sized(query_length=q, key_length=k) for q, k in lengths)):
        judge.assert_conforms(case)


@clause("causal.empty-rows")
def test_empty_rows(judge: Judge) -> None:
    for case in judge.cases(
        *(Case(causal=True).sized(query_length=q, key_length=k) for q, k in ((7, 3), (9, 8), (5, 1)))
    ):
        judge.assert_conforms(case)


@clause("causal.any-scale")
def test_any_scale(judge: Judge) -> None:
    for case in judge.cases(*(replace(SQUARE, scale=scale, seed=n) for n, scale in enumerate((0.0, 0.0, -0.7, -0.7)))):
        judge.assert_conforms(case, said=f"a causal flag and scale {case.scale:g}")


@clause("causal.with-mask")
def test_with_mask(judge: Judge) -> None:
    policy = judge.conventions.causal_with_mask
    for case in judge.cases(
        *(
            Case(causal=True, mask=MaskKind.BOOL, mask_shape=s).sized(query_length=7)
            for s in MaskShape
            if s is not MaskShape.QUERIES
        )
    ):
        problem = judge.problem(case).forward_only()
        if policy is CausalWithMask.ERROR or (policy is CausalWithMask.EITHER and _refuses(judge, case)):
            judge.assert_refuses(case, problem, "a causal flag beside a mask")
        else:
            judge.assert_conforms(case)


def _refuses(judge: Judge, case: Case) -> bool:
    try:
        judge.ask(judge.problem(case).forward_only())
    except CandidateError:
        return True
    return False


@clause("causal.with-padding")
def test_with_padding(judge: Judge) -> None:
    for case in judge.cases(
        Case(causal=True, padding=Padding.RIGHT).sized(query_length=7),
        Case(causal=True, padding=Padding.RIGHT, seed=3).sized(query_length=17, key_length=17),
    ):
        judge.assert_conforms(case)
