"""The in-house implementations: they answer as the reference does, and refuse what has no meaning."""

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.inhouse import INHOUSE
from attention_conformance.spec.cases import Case, MaskKind
from attention_conformance.tests.harness.judge.judge import Judge


@pytest.fixture(params=INHOUSE, ids=lambda each: each.name)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    each: Implementation = request.param
    return each


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
