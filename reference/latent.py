"""Latent attention: keys and values of each head, expanded from what all heads share (chapter latent)."""

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.spec.problem import Problem


def expanded(problem: Problem, sizes: bool = False) -> tuple[Floats, Floats]:
    """Key (B, H, Lk, d_k) and value (B, H, Lk, d_v); `sizes`: sums of absolute values instead."""
    rows, up_key, up_value = (
        np.asarray(x, dtype=np.float64) for x in (problem.key, problem.extras["w_uk"], problem.extras["w_uv"])
    )
    if sizes:
        rows, up_key, up_value = np.abs(rows), np.abs(up_key), np.abs(up_value)
    rank, heads = up_key.shape[-1], problem.num_heads
    key, value = (rows[..., :rank] @ up[..., None, :, :, :].swapaxes(-1, -2) for up in (up_key, up_value))
    shared = np.repeat(rows[..., rank:], heads, axis=-3)
    return np.concatenate([key, shared], axis=-1), value


def of_latents(problem: Problem, key: Floats, value: Floats) -> dict[str, Floats]:
    """The gradients of rows and matrices, of those of expanded keys (B, H, Lk, d_k) and values (B, H, Lk, d_v)."""
    rows, up_key, up_value = (
        np.asarray(x, dtype=np.float64) for x in (problem.key, problem.extras["w_uk"], problem.extras["w_uv"])
    )
    width, rank = up_key.shape[-2:]
    by_latent = key[..., :width] @ up_key[..., None, :, :, :] + value @ up_value[..., None, :, :, :]
    by_row = np.concatenate([by_latent, key[..., width:]], axis=-1).sum(-3, keepdims=True)
    matrices = ((each.swapaxes(-1, -2) @ rows[..., :rank]).sum(-4) for each in (key[..., :width], value))
    return dict(zip(("key", "w_uk", "w_uv"), (by_row, *matrices), strict=True))
