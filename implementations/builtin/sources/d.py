"""Source D: the multi-head attention of "Dive into Deep Learning" (10.3), ported from Java (DJL) to PyTorch.

Corrected:

- the listing lost lines, so that it did not compile: the constructor takes the number of heads again, and
  the second half of the transformation of the queries, the concatenation of the heads and the repetition of
  the valid lengths are back; a length is repeated next to itself, once for each head of its sample;
- the shape of the output (``getOutputShapes``) was left open: it is (B, nq, num_hiddens).

Where the source is silent: masked scores are minus infinity, not a large negative number, and a query whose
valid length is 0 attends to nothing: its weights and its mixed values are zeros, and it adds nothing to the
gradients.

The source lacks, and so does this module: masks other than valid lengths, and what its exercises ask for, a
picture of the weights (``attention_weights`` gives the numbers) and a measure of the importance of a head.
"""

import math

import torch
from torch import Tensor, nn

from attention_conformance.implementations.builtin.sources.shapes import (
    merge_heads,
    require_divisible,
    require_positive,
    require_tokens,
    split_heads,
)
from attention_conformance.implementations.builtin.sources.softmax import masked_softmax


class MultiHeadAttention(nn.Module):
    """W_o [h_1; ...; h_H], h_i = f(W_i^(q) q, W_i^(k) k, W_i^(v) v) (source D, equations 10.3.1 and 10.3.2).

    f is scaled dot-product attention with dropout on its weights. A width of an input that is not given is
    ``num_hiddens``. Raises ValueError if a size is below 1, or if ``num_heads`` does not divide
    ``num_hiddens``.
    """

    def __init__(
        self,
        num_hiddens: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = False,
        query_size: int | None = None,
        key_size: int | None = None,
        value_size: int | None = None,
    ) -> None:
        super().__init__()
        query_size, key_size, value_size = (
            num_hiddens if size is None else size for size in (query_size, key_size, value_size)
        )
        require_positive(num_hiddens=num_hiddens, num_heads=num_heads)
        require_positive(query_size=query_size, key_size=key_size, value_size=value_size)
        require_divisible(num_heads, num_hiddens=num_hiddens)
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
        self.W_q = nn.Linear(query_size, num_hiddens, bias=bias)
        self.W_k = nn.Linear(key_size, num_hiddens, bias=bias)
        self.W_v = nn.Linear(value_size, num_hiddens, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        """(B, nq, query_size), (B, nkv, key_size), (B, nkv, value_size) -> (B, nq, num_hiddens).

        ``valid_lens`` (B,) or (B, nq) is how many of the leading keys a query sees. Raises ValueError if the
        shapes do not fit.
        """
        require_tokens("values", values, self.W_v.in_features)
        if keys.shape[:2] != values.shape[:2]:
            shapes = f"{tuple(keys.shape)} and {tuple(values.shape)}"
            raise ValueError(f"keys and values must agree in (B, nkv), got {shapes}")
        weights = self.dropout(self.attention_weights(queries, keys, valid_lens))
        mixed = weights @ self._to_heads(self.W_v(values))
        output: Tensor = self.W_o(self._from_heads(mixed))
        return output

    def attention_weights(self, queries: Tensor, keys: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        """The weights (B * H, nq, nkv) that ``forward`` uses for these arguments, before dropout.

        Row b * H + h belongs to head h of sample b. Raises ValueError if the shapes do not fit.
        """
        require_tokens("queries", queries, self.W_q.in_features)
        require_tokens("keys", keys, self.W_k.in_features)
        if len(queries) != len(keys):
            raise ValueError(f"queries and keys must agree in B, got {len(queries)} and {len(keys)}")
        q, k = self._to_heads(self.W_q(queries)), self._to_heads(self.W_k(keys))
        # The query is scaled, not the score: in float16 an unscaled score overflows first.
        scores = (q / math.sqrt(q.shape[-1])) @ k.mT
        return masked_softmax(scores, None if valid_lens is None else self._keep(valid_lens, queries, keys))

    def _keep(self, valid_lens: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        """The keys that a query sees, (B * H, 1 or nq, nkv)."""
        batch, nq = queries.shape[:2]
        if valid_lens.shape not in ((batch,), (batch, nq)):
            shape = tuple(valid_lens.shape)
            raise ValueError(f"valid_lens must have shape {(batch,)} or {(batch, nq)}, got {shape}")
        lens = valid_lens if valid_lens.dim() == 2 else valid_lens.unsqueeze(1)
        # Repeat each, not tile: the heads of one sample are neighbours on the merged axis.
        lens = lens.repeat_interleave(self.num_heads, dim=0).unsqueeze(-1)
        return torch.arange(keys.shape[1], device=keys.device) < lens

    def _to_heads(self, x: Tensor) -> Tensor:
        """(B, n, p) -> (B * H, n, p / H)."""
        return split_heads(x, self.num_heads).flatten(0, 1)

    def _from_heads(self, x: Tensor) -> Tensor:
        """(B * H, n, p / H) -> (B, n, p), the exact inverse of ``_to_heads``."""
        return merge_heads(x.reshape(len(x) // self.num_heads, self.num_heads, *x.shape[1:]))
