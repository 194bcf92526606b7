"""An attention of our own: axes (B, L, H, d), and True in a mask hides a key."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["attention"]


def attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None, causal: bool = False) -> Tensor:
    """Attention with the default scale.

    Args:
        q: (B, Lq, H, d_k).
        k: (B, Lk, H, d_k).
        v: (B, Lk, H, d_v).
        hidden: broadcasts to (B, H, Lq, Lk); True hides a key from a query.
        causal: hides later keys; queries and keys start at the same position.

    Returns:
        (B, Lq, H, d_v); zeros for a query from which all keys are hidden.
    """
    queries, keys, values = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    scores = queries @ keys.mT / q.shape[-1] ** 0.5
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    empty = (scores == float("-inf")).all(dim=-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)
    output: Tensor = weights @ values
    return output.transpose(1, 2)
