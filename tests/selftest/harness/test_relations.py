"""Relations compare two calls within their bounds: the bits need not be equal."""

from typing import Any

import pytest
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

OP = frozenset({Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.VALUE_WIDTH, Feature.CAUSAL})
DTYPES = ("float64", "float32", "float16")


def rounded_by_sign(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Right, in two parts that round differently where the sum of the values is negative."""
    part = value / 3 if value.sum() < 0 else value / 5
    return Steps()(query, key, part, **options) + Steps()(query, key, value - part, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_may_be_rounded_otherwise_once_they_are_scaled(dtype: str) -> None:
    implementation = Implementation("by-the-sign", Claims(Scope.OP, OP), torch_op(rounded_by_sign))
    (verdict,) = run(implementation, ("relations.linear-values",), (dtype,))
    assert verdict.status is Status.PASS, verdict.failure
    assert verdict.checks == 2
    assert verdict.worst is not None
    assert 0.0 < verdict.worst < 1.0


def test_alternatives_are_compared_in_the_claimed_parts() -> None:
    """Alternatives of torch.nn.MultiheadAttention return averaged weights, which are not claimed."""
    adapter = candidate("torch.nn:MultiheadAttention", {}, "cpu")
    (verdict,) = run(adapter, ("relations.alternatives",), ("float64",))
    assert verdict.status is Status.PASS
    assert verdict.checks
