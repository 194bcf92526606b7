"""What the code of the sources is held against: the equations written out once more, on seeded numbers."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

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


def projected(linear: nn.Linear, x: Tensor, heads: int) -> Tensor:
    """(B, n, in) -> (B, n, H, d) by the block of rows of the weight that belongs to each head."""
    weight = linear.weight.reshape(heads, -1, linear.in_features)
    bias = 0.0 if linear.bias is None else linear.bias.reshape(heads, -1)
    return torch.einsum("bni,hdi->bnhd", x, weight) + bias


def mixed(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The equation on (B, n, H, d): concatenated heads (B, Lq, H * d_v) and weights (B, H, Lq, Lk)."""
    exp = torch.exp(torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1]))
    exp = exp if keep is None else exp * keep
    weights = exp / exp.sum(dim=-1, keepdim=True)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(start_dim=2), weights


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    """In float64, but for a few dozen roundings."""
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=64 * torch.finfo(torch.float64).eps)
