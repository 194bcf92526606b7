# /// script
# requires-python = ">=3.11"
# dependencies = ["torchscale==0.3.0", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["Attention"]
#
# [tool.attention-conformance.findings]
# Attention = """
# Its names are those of torch.nn.MultiheadAttention, but numbers of heads that do not divide the width are accepted
# by the constructor, and a boolean attn_mask, which is not claimed here, is added. No report was found.
# """
# ///
"""torchscale: its MultiheadAttention as its encoders and decoders attend to other states."""

import torch
from torchscale.architecture.config import EncoderConfig
from torchscale.component.multihead_attention import MultiheadAttention


class Attention(MultiheadAttention):
    """MultiheadAttention(encoder_decoder_attention=True)."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__(EncoderConfig(), embed_dim, num_heads, encoder_decoder_attention=True)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        attn_bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`key_padding_mask`: True hides a key; `attn_bias`: (Lq, Lk), its attn_mask, which is added."""
        answer = super().forward(query, key, value, key_padding_mask=key_padding_mask, attn_mask=attn_bias)
        return answer[0]  # type: ignore[no-any-return]


__all__ = ["Attention"]
