"""Source B: single-head self-attention, in NumPy with tokens as columns and in PyTorch with tokens as rows.

Corrected:

- NumPy: the division by sqrt(d) came after the softmax, on the output: it comes before the softmax;
- NumPy: the maximum that was subtracted was that of the whole matrix, so that a column far below it
  underflowed to 0 / 0: it is the maximum of each column;
- PyTorch: the softmax came first and 1 / sqrt(d_k) after it, so that the weights of a row summed to
  1 / sqrt(d_k): the division comes before the softmax, and the weights sum to 1.

Its text says that the output is as wide as the input. That is so only where d_v says so: here d_v is free,
as in the source's own PyTorch example.

The source lacks, and so does this module: heads and an output projection (its text has eight heads and W^O,
its code neither), a mask (its text describes the causal one), positional encoding and encoder-decoder
attention (text only), dropout, returned weights.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from attention_conformance.implementations.builtin.sources.shapes import require_positive, require_tokens

Array = NDArray[np.floating[Any]]


def column_self_attention(x: Array, w_q: Array, w_k: Array, w_v: Array) -> Array:
    """V softmax(K^T Q / sqrt(d_k)) with Q = w_q x, K = w_k x, V = w_v x, tokens being columns (source B).

    ``x`` is (d, n), ``w_q`` and ``w_k`` are (d_k, d), ``w_v`` is (d_v, d); the result is (d_v, n) in the same
    dtype. Raises ValueError if the shapes do not fit.
    """
    _require_columns(x, w_q, w_k, w_v)
    q, k, v = w_q @ x, w_k @ x, w_v @ x
    # The query is scaled, not the score: in float16 an unscaled score overflows first.
    scores = k.T @ (q / math.sqrt(len(q)))
    output: Array = v @ column_softmax(scores)
    return output


def column_softmax(scores: Array) -> Array:
    """Softmax over axis 0 of ``scores`` (Lk, Lq): every column of the result sums to 1 (source B)."""
    # At least float32 inside: 4096 ones added up one by one in float16 make 2048.
    wide = scores.astype(np.promote_types(scores.dtype, np.float32))
    weights = np.exp(wide - wide.max(axis=0, keepdims=True, initial=-np.inf))
    normalised: Array = weights / weights.sum(axis=0, keepdims=True)
    return normalised.astype(scores.dtype)


def _require_columns(x: Array, w_q: Array, w_k: Array, w_v: Array) -> None:
    """ValueError unless ``x`` is (d, n) and the weights are (d_k, d), (d_k, d) and (d_v, d)."""
    if x.ndim != 2 or len(x) == 0:
        raise ValueError(f"x must have shape (d, n) with d at least 1, got {x.shape}")
    for name, w in (("w_q", w_q), ("w_k", w_k), ("w_v", w_v)):
        if w.ndim != 2 or len(w) == 0 or w.shape[1] != len(x):
            raise ValueError(f"{name} must have shape (rows, {len(x)}) with rows at least 1, got {w.shape}")
    if len(w_q) != len(w_k):
        raise ValueError(f"w_q and w_k must have equally many rows, got {len(w_q)} and {len(w_k)}")


class Self_Attention(nn.Module):  # spelt as in the source
    """softmax(Q K^T / sqrt(d_k)) V with one head and biased projections (source B; Vaswani 2017, 3.2.1).

    Raises ValueError if a size is below 1.
    """

    def __init__(self, input_dim: int, dim_k: int, dim_v: int) -> None:
        super().__init__()
        require_positive(input_dim=input_dim, dim_k=dim_k, dim_v=dim_v)
        self.q = nn.Linear(input_dim, dim_k)
        self.k = nn.Linear(input_dim, dim_k)
        self.v = nn.Linear(input_dim, dim_v)

    def forward(self, x: Tensor) -> Tensor:
        """(B, n, input_dim) -> (B, n, dim_v). Raises ValueError if ``x`` has another shape."""
        require_tokens("x", x, self.q.in_features)
        q: Tensor = self.q(x)
        k: Tensor = self.k(x)
        v: Tensor = self.v(x)
        scores = (q / math.sqrt(q.shape[-1])) @ k.mT
        return scores.softmax(dim=-1) @ v
