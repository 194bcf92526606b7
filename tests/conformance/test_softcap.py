"""Chapter 20, softcap: scores below a bound, after the scale and before all that is added."""

from dataclasses import replace

from attention_conformance.reference.expected import Expected
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Scores
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.judge import Judge

CAPPED = Case(score_std=6.0).extended(softcap=1.5)
LOW = Case(score_std=3.0).extended(softcap=1.0)
"""With this cap a key that is masked too early has a weight close to that of the others."""
FAR = (
    Case(score_std=1e4).extended(softcap=1.0),
    Case(scores=Scores.ONE_HOT).extended(softcap=0.25),
    Case(scores=Scores.VERY_NEGATIVE).extended(softcap=2.0),
    Case(scores=Scores.MOST_NEGATIVE).extended(softcap=2.0),
)
"""Scores of thousands of times the cap and more."""
GENTLE = Case(score_std=1.0).sized(key_length=4).extended(softcap=0.5)
GENTLER = replace(GENTLE, score_std=0.5)
BOOL, FLOAT = (replace(LOW, mask=kind) for kind in (MaskKind.BOOL, MaskKind.FLOAT))
CAP = "softcap {case.extension.softcap:g}"

CLAUSES = table(
    row(
        "softcap.formula",
        *(CAPPED, GENTLE, Case(score_std=100.0).extended(softcap=30.0)),
        *(CAPPED.sized(query_length=17, key_length=33, d_k=9), CAPPED.sized(query_length=1)),
        context=CAP,
    ),
    row(
        "softcap.explicit-scale",
        *(replace(CAPPED, scale=scale, seed=81) for scale in (0.3, 2.0, -0.7, 0.0)),
        context=CAP + " and scale {case.scale:g}",
    ),
    row("softcap.large-scores", *FAR, context="scores far beyond the " + CAP),
    row(
        "softcap.mask",
        *(BOOL, replace(BOOL, mask_shape=MaskShape.KEYS), replace(BOOL, mask=MaskKind.INFINITE)),
        *(replace(BOOL, pattern=each) for each in (Pattern.SINGLE_KEY, Pattern.FIRST_TILE, Pattern.EMPTY_ROW)),
        context=CAP + " and a mask",
    ),
    row(
        "softcap.causal",
        *(replace(LOW, causal=True).sized(query_length=n) for n in (7, 3)),
        context=CAP + " and the causal flag",
    ),
    row(
        "softcap.padding",
        *(replace(LOW, padding=each) for each in (Padding.RIGHT, Padding.LEFT, Padding.HOLES, Padding.EMPTY_SAMPLE)),
        context=CAP + " and padding ({case.padding})",
    ),
    row(
        "softcap.float-mask",
        *(FLOAT, replace(CAPPED, mask=MaskKind.FLOAT, mask_shape=MaskShape.SHARED)),
        replace(LOW, mask=MaskKind.INFINITE),
        context=CAP + " and a float mask",
    ),
    row(
        "softcap.gradients",
        *(CAPPED, *(replace(CAPPED, mask=kind) for kind in (MaskKind.FLOAT, MaskKind.BOOL)), GENTLER, *FAR[:2]),
        parts=("gradients",),
    ),
    row("softcap.log-sum-exp", CAPPED, BOOL, FLOAT, *FAR[:2], parts=("log_sum_exp",)),
)


@clause("softcap.small-scores", dtypes=("float64", "float32"))
def test_small_scores(judge: Judge) -> None:
    """Compared with the answer without a cap; the cap's own roundings of a score are no more than all the others."""
    for case in judge.cases(*(Case(seed=n).extended(softcap=2.0**power) for n, power in enumerate((30, 40)))):
        plain = judge.expected(case.extended(softcap=None))["output"]
        expected = Expected(plain.value, 2.0 * plain.bound)
        context = f"scores far below the softcap {case.extension.softcap:g} are as they are without it"
        judge.assert_answers(case, judge.problem(case).forward_only(), expected, context)
