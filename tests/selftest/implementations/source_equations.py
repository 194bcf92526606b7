"""What the code of the sources is compared with: the reference's answer to the same numbers, with its bounds."""

import math
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from attention_conformance.implementations.adapters.tensors import to_array
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Problem, dtype_name
from attention_conformance.tests.harness.judge.comparison import Comparison, compare

M = TypeVar("M", bound=nn.Module)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Seeded standard normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def seeded(module: M) -> M:
    """The module in float64 with seeded normal parameters of standard deviation 1 / sqrt(fan-in)."""
    module.double()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=100 + seed) / math.sqrt(parameter.shape[-1]))
    return module


def expected_of(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None = None
) -> Mapping[str, Expected]:
    """Output (B, Lq, width) and weights (B, H, Lq, Lk) of a module whose linears are those of q, k, v and the output.

    `keep` broadcasts to (B, H, Lq, Lk); True = may attend.
    """
    parameters = {}
    linears = [child for child in module.children() if isinstance(child, nn.Linear)]
    for role, linear in zip("qkvo", linears, strict=False):
        parameters[f"w_{role}"] = to_array(linear.weight.T)
        if linear.bias is not None:
            parameters[f"b_{role}"] = to_array(linear.bias)
    heads = getattr(module, "num_heads", 1)
    mask = None if keep is None else to_array(keep)
    q, k, v = (to_array(x) for x in (query, key, value))
    problem = Problem(Scope.MODULE, q, k, v, heads, parameters, attn_mask=mask)
    return solve(problem, returned=("weights",)).parts


def compared(actual: Tensor, expected: Expected) -> Comparison:
    array = to_array(actual)
    return compare("output", array, expected, dtype_name(array))


def assert_within(actual: Tensor, expected: Expected) -> None:
    """Within the bounds, which are narrow enough to prove something."""
    comparison = compared(actual, expected)
    assert not comparison.message
    assert not comparison.inconclusive
