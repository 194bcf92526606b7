"""The samples by which torch tests its own scaled_dot_product_attention, as problems of the specification."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attention_conformance.implementations.adapters.tensors import to_array
from attention_conformance.reference.expected import solve
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import DTYPES, Array, Problem
from attention_conformance.tests.harness.judge.comparison import compare

OPERATOR = "nn.functional.scaled_dot_product_attention"
SEED = 1
LONG = 2.0**14
"""Times a weight of 2 it is still within float16."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample: query, key and value, and the keyword arguments."""

    name: str
    dtype: str
    inputs: tuple[Tensor, Tensor, Tensor]
    options: dict[str, Any]


def torch_samples() -> Iterator[Sample]:
    """Those of every dtype of the suite.

    Raises:
        ImportError: the package expecttest, which torch's own tests need, is not installed.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    (operator,) = (each for each in op_db if each.name == OPERATOR)
    for dtype in DTYPES:
        samples = operator.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False)
        for number, sample in enumerate(samples):
            key, value = sample.args[:2]
            yield Sample(f"{dtype} {number}", dtype, (sample.input, key, value), dict(sample.kwargs))


def sample_difference(sample: Sample) -> str:
    """How torch's answer differs from the reference, beyond its rounding bound; empty if it does not."""
    answer, rate = _answer(sample, sample.inputs[2]), sample.options.get("dropout_p", 0.0)
    kept = None
    if rate:
        # The draw does not depend on the values: long unit vectors show which weights are left, the smallest ones too.
        value = sample.inputs[2]
        units = LONG * torch.eye(value.shape[-2], dtype=value.dtype).expand(*value.shape[:-1], -1)
        kept = (_four(to_array(_answer(sample, units))) != 0.0) / (1.0 - rate)
    expected = solve(problem_of(sample), kept=kept).parts["output"]
    differs = compare("output", _four(to_array(answer)), expected, sample.dtype)
    return "" if differs.kind is None else differs.message


def _answer(sample: Sample, value: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return scaled_dot_product_attention(*sample.inputs[:2], value, **sample.options)


def problem_of(sample: Sample) -> Problem:
    """The problem of the sample, without its dropout."""
    arrays = [_four(to_array(x)) for x in sample.inputs]
    leading = np.broadcast_shapes(*(x.shape[:2] for x in arrays))
    query, key, value = (np.broadcast_to(x, (*leading, *x.shape[2:])) for x in arrays)
    mask = sample.options.get("attn_mask")
    return Problem(
        scope=Scope.OP,
        query=query,
        key=key,
        value=value,
        num_heads=query.shape[1],
        attn_mask=None if mask is None else to_array(mask),
        causal=sample.options.get("is_causal", False),
        scale=sample.options.get("scale"),
    )


def _four(array: Array) -> Array:
    """With four axes: one sample where there are three."""
    return array[(None,) * (4 - array.ndim)]
