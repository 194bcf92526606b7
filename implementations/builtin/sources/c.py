"""Source C: multi-head self-attention in PyTorch that returns its weights with the head axis first.

Corrected:

- it did not run: ``nn.module`` and ``torch.nn.funcational`` do not exist, ``W_keys`` was called where
  ``W_key`` was defined (and the same for the values), ``torch.view`` was called without a tensor;
- one view took (B, n, H * s) to (H, B, n, s), which mixes tokens, batches and heads: the last axis is split
  into (H, s), and only then is the head axis moved to the front;
- divisibility was an ``assert`` inside ``forward``: it is a ValueError of the constructor.

The source lacks, and so does this module: the last linear map that its text announces after the concatenation
(its code ends there), a mask, dropout, a second input sequence.
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


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_H) with head_h = softmax(Q_h K_h^T / sqrt(s)) V_h.

    Source C; Vaswani 2017, 3.2. ``attention_head_size`` is, against its name, the total width over the
    heads; a head is s = ``attention_head_size / num_heads`` wide. Raises ValueError if a size is below 1,
    or if ``num_heads`` does not divide ``attention_head_size``.
    """

    def __init__(self, embeded_size: int, num_heads: int, attention_head_size: int) -> None:
        super().__init__()
        require_positive(embeded_size=embeded_size, num_heads=num_heads)
        require_positive(attention_head_size=attention_head_size)
        require_divisible(num_heads, attention_head_size=attention_head_size)
        self.num_heads = num_heads
        self.W_query = nn.Linear(embeded_size, attention_head_size)
        self.W_key = nn.Linear(embeded_size, attention_head_size)
        self.W_value = nn.Linear(embeded_size, attention_head_size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, n, embeded_size) -> output (B, n, attention_head_size) and weights (H, B, n, n).

        Raises ValueError if ``x`` has another shape.
        """
        require_tokens("x", x, self.W_query.in_features)
        projections = self.W_query, self.W_key, self.W_value
        q, k, v = (self._heads_first(project(x)) for project in projections)
        # The query is scaled, not the score: in float16 an unscaled score overflows first.
        scores = (q / math.sqrt(q.shape[-1])) @ k.mT
        weights = scores.softmax(dim=-1)
        return merge_heads((weights @ v).transpose(0, 1)), weights

    def _heads_first(self, x: Tensor) -> Tensor:
        """(B, n, H * s) -> (H, B, n, s)."""
        return split_heads(x, self.num_heads).transpose(0, 1)
