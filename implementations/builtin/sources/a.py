"""Source A: multi-head self-attention in PyTorch whose key and value widths are totals over the heads.

Corrected:

- sizes were checked by ``assert``, which ``python -O`` removes: they raise a ValueError that names them;
- nothing checked that there is a head at all: every size has to be at least 1.

The source lacks, and so does this module: an output projection (its text says that the outputs of the heads
are merged, its code only concatenates them), a mask, dropout, returned weights, a second input sequence.
"""

import math

from torch import Tensor, nn

from attention_conformance.implementations.builtin.sources.shapes import (
    merge_heads,
    require_divisible,
    require_positive,
    require_tokens,
    split_heads,
)


class MultiHeadSelfAttention(nn.Module):
    """Concat(head_1, ..., head_H) with head_h = softmax(Q_h K_h^T / sqrt(d_k)) V_h.

    Source A; Vaswani 2017, 3.2. ``dim_k`` and ``dim_v`` are total widths, of which every head has its share.
    Raises ValueError if a size is below 1, or if ``num_heads`` does not divide ``dim_k`` and ``dim_v``.
    """

    def __init__(self, dim_in: int, dim_k: int, dim_v: int, num_heads: int = 8) -> None:
        super().__init__()
        require_positive(dim_in=dim_in, dim_k=dim_k, dim_v=dim_v, num_heads=num_heads)
        require_divisible(num_heads, dim_k=dim_k, dim_v=dim_v)
        self.dim_in, self.dim_k, self.dim_v, self.num_heads = dim_in, dim_k, dim_v, num_heads
        self.linear_q = nn.Linear(dim_in, dim_k, bias=False)
        self.linear_k = nn.Linear(dim_in, dim_k, bias=False)
        self.linear_v = nn.Linear(dim_in, dim_v, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, n, dim_in) -> (B, n, dim_v). Raises ValueError if ``x`` has another shape."""
        require_tokens("x", x, self.dim_in)
        projections = self.linear_q, self.linear_k, self.linear_v
        q, k, v = (split_heads(project(x), self.num_heads) for project in projections)
        # The query is scaled, not the score: in float16 an unscaled score overflows first.
        scores = (q / math.sqrt(q.shape[-1])) @ k.mT
        return merge_heads(scores.softmax(dim=-1) @ v)
