"""The in-house implementations: they answer as the reference does, and refuse what has no meaning."""

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.inhouse import INHOUSE
from attention_conformance.spec.cases import Case, Layout, MaskKind, MaskShape, Padding, Pattern, Poison, Scores, Sizes
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.selftest.reference.test_family import assert_agrees

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
    each: Implementation = request.param
    return each


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_conforms(implementation: Implementation, case: Case, dtype: str) -> None:
    assert_agrees(implementation, dtype, case)


def test_names() -> None:
    assert [each.name for each in INHOUSE] == [
        "inhouse.fused",
        "inhouse.fused.weights",
        "inhouse.numpy",
        "inhouse.tiled",
        "inhouse.fused.averaged",
    ]


def test_a_wrong_mask_is_refused(implementation: Implementation) -> None:
    judge = Judge(implementation, "float32")
    (case,) = judge.cases(Case(mask=MaskKind.BOOL))
    with pytest.raises(ValueError, match="broadcast"):
        implementation.run(replace(judge.problem(case), attn_mask=np.ones((2, 3, 5, 6), bool)).forward_only(), "cpu")
