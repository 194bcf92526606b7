"""Softmax over the positions that a mask keeps."""

import math

from torch import Tensor


def masked_softmax(scores: Tensor, keep: Tensor | None = None) -> Tensor:
    """Softmax over the last axis of ``scores`` (..., Lk), restricted to the positions where ``keep`` is true.

    ``keep`` is boolean and broadcasts to ``scores``; None keeps everything. The weight of a position not kept
    is exactly 0, whatever its score, and so is its gradient. A row that keeps nothing gives zeros.
    """
    if keep is None:
        return scores.softmax(dim=-1)
    empty = ~keep.any(dim=-1, keepdim=True)
    # An empty row is made harmless before the softmax and zeroed after it, so that no NaN arises, not even
    # inside the backward pass, where only the first fill would stop it (and anomaly detection would object).
    filled = scores.masked_fill(~keep, -math.inf).masked_fill(empty, 0.0)
    return filled.softmax(dim=-1).masked_fill(~keep, 0.0)
