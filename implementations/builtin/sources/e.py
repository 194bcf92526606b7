"""Source E: multi-head self-attention and cross-attention in PyTorch, with widths per head and a mask.

Corrected:

- a masked score was -1e9, which float16 cannot represent, and which averages over all keys, masked ones
  too, where every key of a row is masked: it is minus infinity, as the text says. A row without keys has
  zero weights and adds nothing to gradients;
- the (B, Lk) padding mask was to be unsqueezed to (B, 1, Lk), which puts the batch on the head axis of the
  scores: an error, or silently wrong where B == H. It becomes (B, 1, 1, Lk), and (B, Lq, Lk) becomes
  (B, 1, Lq, Lk);
- a mask of an unfit shape raises a ValueError that names it, and so do sizes below 1 and unfit inputs.

Where text and code disagree, the code is followed: in cross-attention keys and values have a projection
each (the text ties them), scores are divided by the root of a head's key width, the output is as wide as
x1, and x1 and x2 may differ in length. The text says that the input is split into heads: its projection is.
The text says that the example mask [[1, 1, 1], [1, 0, 0]] hides positions 1 and 3 of the second sequence:
it hides positions 2 and 3.

The source lacks, and so does this module: dropout, returned weights.
"""

import math

from torch import Tensor, nn

from attention_conformance.implementations.builtin.sources.shapes import (
    merge_heads,
    require_positive,
    require_tokens,
    split_heads,
)
from attention_conformance.implementations.builtin.sources.softmax import masked_softmax


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_H) W^O with head_i = softmax(Q_i K_i^T / sqrt(k_dim)) V_i.

    Source E; Vaswani 2017, 3.2.2. ``k_dim`` and ``v_dim`` are the widths of one head. Raises ValueError if
    a size is below 1.
    """

    def __init__(self, in_dim: int, k_dim: int, v_dim: int, num_heads: int) -> None:
        super().__init__()
        require_positive(in_dim=in_dim, k_dim=k_dim, v_dim=v_dim, num_heads=num_heads)
        self.num_heads = num_heads
        self.proj_q = nn.Linear(in_dim, k_dim * num_heads, bias=False)
        self.proj_k = nn.Linear(in_dim, k_dim * num_heads, bias=False)
        self.proj_v = nn.Linear(in_dim, v_dim * num_heads, bias=False)
        self.proj_o = nn.Linear(v_dim * num_heads, in_dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, L, in_dim) -> (B, L, in_dim).

        ``mask`` is one of ``mask_to_keep`` with Lq = Lk = L. Raises ValueError if a shape does not fit.
        """
        require_tokens("x", x, self.proj_q.in_features)
        mixed = _attend(self.proj_q(x), self.proj_k(x), self.proj_v(x), self.num_heads, mask)
        output: Tensor = self.proj_o(mixed)
        return output


class CrossAttention(nn.Module):
    """Multi-head attention with the queries from one sequence, keys and values from another (source E).

    ``k_dim`` and ``v_dim`` are the widths of one head. Raises ValueError if a size is below 1.
    """

    def __init__(self, in_dim1: int, in_dim2: int, k_dim: int, v_dim: int, num_heads: int) -> None:
        super().__init__()
        require_positive(in_dim1=in_dim1, in_dim2=in_dim2, k_dim=k_dim, v_dim=v_dim, num_heads=num_heads)
        self.num_heads = num_heads
        self.proj_q1 = nn.Linear(in_dim1, k_dim * num_heads, bias=False)
        self.proj_k2 = nn.Linear(in_dim2, k_dim * num_heads, bias=False)
        self.proj_v2 = nn.Linear(in_dim2, v_dim * num_heads, bias=False)
        self.proj_o = nn.Linear(v_dim * num_heads, in_dim1)

    def forward(self, x1: Tensor, x2: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, Lq, in_dim1) and (B, Lk, in_dim2) -> (B, Lq, in_dim1).

        ``mask`` is one of ``mask_to_keep``. Raises ValueError if a shape does not fit.
        """
        require_tokens("x1", x1, self.proj_q1.in_features)
        require_tokens("x2", x2, self.proj_k2.in_features)
        if len(x1) != len(x2):
            raise ValueError(f"x1 and x2 must agree in B, got {len(x1)} and {len(x2)}")
        mixed = _attend(self.proj_q1(x1), self.proj_k2(x2), self.proj_v2(x2), self.num_heads, mask)
        output: Tensor = self.proj_o(mixed)
        return output


def mask_to_keep(mask: Tensor, batch: int, heads: int, lq: int, lk: int) -> Tensor:
    """The boolean form of a mask that is 0 where a key is removed: it broadcasts to (B, H, Lq, Lk).

    ``mask`` is a padding mask (B, Lk), or (B, Lq, Lk), or (B, 1, Lk), which is what the source's
    unsqueeze(1) makes of a padding mask, or has four axes that broadcast to (B, H, Lq, Lk). Two axes are
    always sample and key, never query and key, and the first of three is always the sample. Raises
    ValueError for any other shape.
    """
    scores = batch, heads, lq, lk
    if mask.shape == (batch, lk):
        return mask[:, None, None, :] != 0
    if mask.shape in ((batch, lq, lk), (batch, 1, lk)):
        return mask[:, None, :, :] != 0
    if mask.dim() == 4 and all(size in (1, limit) for size, limit in zip(mask.shape, scores, strict=True)):
        return mask != 0
    raise ValueError(
        f"mask has shape {tuple(mask.shape)}, but must have shape (B, Lk) = {(batch, lk)} or "
        f"(B, Lq, Lk) = {(batch, lq, lk)}, or four axes that broadcast to (B, H, Lq, Lk) = {scores}"
    )


def _attend(q: Tensor, k: Tensor, v: Tensor, num_heads: int, mask: Tensor | None) -> Tensor:
    """Projections (B, Lq, H * d_k), (B, Lk, H * d_k), (B, Lk, H * d_v) -> merged heads (B, Lq, H * d_v)."""
    q, k, v = (split_heads(x, num_heads) for x in (q, k, v))
    # The query is scaled, not the score: in float16 an unscaled score overflows first.
    scores = (q / math.sqrt(q.shape[-1])) @ k.mT
    keep = None if mask is None else mask_to_keep(mask, *scores.shape)
    return merge_heads(masked_softmax(scores, keep) @ v)
