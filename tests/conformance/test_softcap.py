"""Chapter 20, softcap: scores below a bound, after the scale and before all that is added."""

from __future__ import annotations

from dataclasses import replace

from attention_conformance.reference.expected import Expected
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Scores
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.judge import Judge

CAPPED = Case(score_std=6.0).extended(softcap=1.5)
LOW = Case(score_std=3.0).extended(softcap=1.0)
"""With this cap a key that is masked too early has a weight near that of the others."""
FAR = (
    Case(score_std=1e4).extended(softcap=1.0),
    Case(scores=Scores.ONE_HOT).extended(softcap=0.25),
    Case(scores=Scores.VERY_NEGATIVE).extended(softcap=2.0),
    Case(scores=Scores.MOST_NEGATIVE).extended(softcap=2.0),
)
"""Scores of thousands of times the cap and more."""


@clause("softcap.formula")
def test_formula(judge: Judge) -> None:
    gentle = Case(score_std=1.0).sized(key_length=4).extended(softcap=0.5)
    others = (gentle, Case(score_std=100.0).extended(softcap=30.0))
    longer = CAPPED.sized(query_length=17, key_length=33, d_k=9)
    for case in judge.cases(CAPPED, *others, longer, CAPPED.sized(query_length=1)):
        judge.assert_conforms(case, context=f"softcap {case.extension.softcap:g}")


@clause("softcap.explicit-scale")
def test_explicit_scale(judge: Judge) -> None:
    for case in judge.cases(*(replace(CAPPED, scale=scale, seed=81) for scale in (0.3, 2.0, -0.7, 0.0))):
        judge.assert_conforms(case, context=f"softcap {case.extension.softcap:g} and scale {case.scale:g}")


@clause("softcap.large-scores")
def test_large_scores(judge: Judge) -> None:
    for case in judge.cases(*FAR):
        judge.assert_conforms(case, context=f"scores far beyond the softcap {case.extension.softcap:g}")


@clause("softcap.small-scores", dtypes=("float64", "float32"))
def test_small_scores(judge: Judge) -> None:
    """Held against the answer without a cap; the cap's own roundings of a score are no more than all the others."""
    for case in judge.cases(*(Case(seed=n).extended(softcap=2.0**power) for n, power in enumerate((30, 40)))):
        plain = judge.expected(case.extended(softcap=None))["output"]
        expected = Expected(plain.value, 2.0 * plain.bound)
        context = f"scores far below the softcap {case.extension.softcap:g} are as they are without it"
        judge.assert_answers(case, judge.problem(case).forward_only(), expected, context)


@clause("softcap.mask")
def test_mask(judge: Judge) -> None:
    masked = replace(LOW, mask=MaskKind.BOOL)
    shapes = (replace(masked, mask_shape=shape) for shape in (MaskShape.FULL, MaskShape.KEYS))
    patterns = (Pattern.SINGLE_KEY, Pattern.FIRST_TILE, Pattern.EMPTY_ROW)
    for case in judge.cases(*shapes, *(replace(masked, pattern=pattern) for pattern in patterns)):
        judge.assert_conforms(case, context=f"softcap {case.extension.softcap:g} and a mask")


@clause("softcap.causal")
def test_causal(judge: Judge) -> None:
    flag = replace(LOW, causal=True)
    for case in judge.cases(flag.sized(query_length=7), flag.sized(query_length=3)):
        judge.assert_conforms(case, context=f"softcap {case.extension.softcap:g} and the causal flag")


@clause("softcap.padding")
def test_padding(judge: Judge) -> None:
    kinds = (Padding.RIGHT, Padding.LEFT, Padding.HOLES, Padding.EMPTY_SAMPLE)
    for case in judge.cases(*(replace(LOW, padding=padding) for padding in kinds)):
        judge.assert_conforms(case, context=f"softcap {case.extension.softcap:g} and padding ({case.padding})")


@clause("softcap.float-mask")
def test_float_mask(judge: Judge) -> None:
    masked = replace(LOW, mask=MaskKind.FLOAT)
    shared = replace(CAPPED, mask=MaskKind.FLOAT, mask_shape=MaskShape.SHARED)
    for case in judge.cases(masked, shared, replace(masked, mask=MaskKind.INFINITE)):
        judge.assert_conforms(case, context=f"softcap {case.extension.softcap:g} and a float mask")


@clause("softcap.gradients")
def test_gradients(judge: Judge) -> None:
    kinds = (replace(CAPPED, mask=kind) for kind in (MaskKind.FLOAT, MaskKind.BOOL))
    gentle = Case(score_std=0.5).sized(key_length=4).extended(softcap=0.5)
    for case in judge.cases(CAPPED, *kinds, gentle, *FAR[:2]):
        judge.assert_conforms(case, "gradients")


@clause("softcap.log-sum-exp")
def test_log_sum_exp(judge: Judge) -> None:
    for case in judge.cases(CAPPED, replace(LOW, mask=MaskKind.BOOL), replace(LOW, mask=MaskKind.FLOAT), *FAR[:2]):
        judge.assert_conforms(case, "log_sum_exp")
