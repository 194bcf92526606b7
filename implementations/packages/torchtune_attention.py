# /// script
# requires-python = ">=3.11"
# dependencies = ["torchtune==0.6.1", "torchao==0.10.0", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["Attention"]
# ///
"""torchtune: its MultiHeadAttention, which is given its projections, with those that its recipes give it."""

import torch
from torch import nn
from torchtune.modules import MultiHeadAttention


class Attention(nn.Module):
    """MultiHeadAttention(is_causal=False), to itself or to a context."""

    def __init__(self, embed_dim: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        head_dim = embed_dim // num_heads
        self.q_proj, self.output_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
        self.k_proj, self.v_proj = (nn.Linear(embed_dim, num_kv_heads * head_dim) for _ in range(2))
        self.attention = MultiHeadAttention(
            embed_dim=embed_dim,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            q_proj=self.q_proj,
            k_proj=self.k_proj,
            v_proj=self.v_proj,
            output_proj=self.output_proj,
            is_causal=False,
        )

    def forward(self, x: torch.Tensor, context: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """`mask`: (B, Lq, Lk), True where a query may attend."""
        return self.attention(x, context, mask=mask)  # type: ignore[no-any-return]


__all__ = ["Attention"]
