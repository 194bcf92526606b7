"""The in-house implementations: they answer as the reference does, and refuse what has no meaning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.inhouse import INHOUSE
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, Layout, MaskKind, MaskShape, Padding, Pattern, Poison, Scores, Sizes
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Problem
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import part_of

CASES = (
    Case(),
    Case(scale=-0.4),
    Case(mask=MaskKind.BOOL, mask_shape=MaskShape.HEAD, pattern=Pattern.EMPTY_ROW),
    Case(mask=MaskKind.FLOAT, mask_shape=MaskShape.SAMPLE),
    Case(mask=MaskKind.INFINITE, pattern=Pattern.EMPTY_ROW),
    Case(mask=MaskKind.INFINITE, mask_shape=MaskShape.SHARED, padding=Padding.RIGHT, causal=True),
    Case(padding=Padding.EMPTY_SAMPLE),
    Case(padding=Padding.LEFT, causal=True),
    Case(mask=MaskKind.BOOL, padding=Padding.HOLES, causal=True),
    Case(padding=Padding.RIGHT, poison=Poison.NAN),
    Case(scores=Scores.VERY_NEGATIVE, mask=MaskKind.BOOL),
    Case(layout=Layout.TRANSPOSED, score_std=5.0),
    Case(sizes=Sizes(key_length=0)),
    Case(sizes=Sizes(batch=0)),
)


@pytest.fixture(params=INHOUSE, ids=lambda each: each.name)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    found: Implementation = request.param
    return found


def posed(implementation: Implementation, case: Case, dtype: str) -> tuple[Case, Problem]:
    """The case as the implementation can be asked it, and its problem with the gradients that are claimed."""
    fitted = fit(case, implementation.claims)
    assert not isinstance(fitted, Unsupported)
    problem = build(fitted, dtype)
    differentiable = Feature.GRADIENTS in implementation.claims and case.poison is Poison.NONE
    return fitted, problem if differentiable else problem.forward_only()


def parts_of(implementation: Implementation, problem: Problem) -> list[str]:
    extras = {Feature.WEIGHTS: "weights", Feature.LOG_SUM_EXP: "log_sum_exp"}
    claimed = [part for feature, part in extras.items() if feature in implementation.claims]
    return ["output", *claimed, *(f"gradients.{name}" for name in problem.needs)]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_conforms(implementation: Implementation, case: Case, dtype: str) -> None:
    _, problem = posed(implementation, case, dtype)
    expected = solve(problem, implementation.claims.conventions).parts
    result = implementation.run(problem.fresh(), "cpu")
    for part in parts_of(implementation, problem):
        comparison = compare(part, part_of(result, part), expected[part], dtype)
        assert not comparison.message, f"{part}: {comparison.message}"


def test_names() -> None:
    assert [each.name for each in INHOUSE] == [
        "inhouse.fused",
        "inhouse.fused.weights",
        "inhouse.numpy",
        "inhouse.tiled",
        "inhouse.fused.averaged",
    ]


def test_a_wrong_mask_is_refused(implementation: Implementation) -> None:
    _, problem = posed(implementation, Case(mask=MaskKind.BOOL), "float32")
    with pytest.raises(ValueError, match="broadcast"):
        implementation.run(replace(problem, attn_mask=np.ones((2, 3, 5, 6), bool)).forward_only(), "cpu")
