# /// script
# requires-python = ">=3.11"
# dependencies = ["transformers==5.23.0", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["Llama", "Qwen3", "Bart", "Whisper", "CLIP"]
# ///
"""Transformers: attention modules of more models in their eager form, each built for a width and a number of heads.

What their models add is left out: they are given tables that rotate nothing.
"""

from typing import Any

import torch
from transformers import BartConfig, CLIPVisionConfig, LlamaConfig, Qwen3Config, WhisperConfig
from transformers.models.bart.modeling_bart import BartAttention
from transformers.models.clip.modeling_clip import CLIPAttention
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention
from transformers.models.whisper.modeling_whisper import WhisperAttention

Tensor = torch.Tensor
Answer = tuple[Tensor, Tensor]
EAGER: dict[str, Any] = {"attn_implementation": "eager"}


def _decoder(embed_dim: int, num_heads: int, num_kv_heads: int) -> dict[str, Any]:
    """The settings of a decoder with these sizes."""
    heads = {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads}
    return {"hidden_size": embed_dim, "head_dim": embed_dim // num_heads, **heads, **EAGER}


def _unrotated(hidden_states: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines of 1 and sines of 0."""
    ones = hidden_states.new_ones(*hidden_states.shape[:2], head_dim)
    return ones, torch.zeros_like(ones)


class Llama(LlamaAttention):
    """LlamaAttention with biases."""

    def __init__(self, embed_dim: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__(LlamaConfig(attention_bias=True, **_decoder(embed_dim, num_heads, num_kv_heads)), 0)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Answer:
        """`attention_mask`: (B, 1, Lq, Lk), added."""
        return super().forward(hidden_states, _unrotated(hidden_states, self.head_dim), attention_mask)  # type: ignore[no-any-return]


class Qwen3(Qwen3Attention):
    """Qwen3Attention, with its norms of queries and keys."""

    def __init__(self, embed_dim: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__(Qwen3Config(attention_bias=True, **_decoder(embed_dim, num_heads, num_kv_heads)), 0)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Answer:
        """`attention_mask`: (B, 1, Lq, Lk), added."""
        return super().forward(hidden_states, _unrotated(hidden_states, self.head_dim), attention_mask)  # type: ignore[no-any-return]


class Bart(BartAttention):
    """BartAttention, to itself or to other states."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__(embed_dim, num_heads, config=BartConfig(**EAGER))

    def forward(
        self, hidden_states: Tensor, key_value_states: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Answer:
        """`attention_mask`: (B, 1, Lq, Lk), added."""
        return super().forward(hidden_states, key_value_states, attention_mask=attention_mask)  # type: ignore[no-any-return]


class Whisper(WhisperAttention):
    """WhisperAttention, whose keys have no bias."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__(embed_dim, num_heads, config=WhisperConfig(**EAGER))

    def forward(
        self, hidden_states: Tensor, key_value_states: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Answer:
        """`attention_mask`: (B, 1, Lq, Lk), added."""
        return super().forward(hidden_states, key_value_states, attention_mask=attention_mask)[:2]  # type: ignore[no-any-return]


class CLIP(CLIPAttention):
    """CLIPAttention."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__(CLIPVisionConfig(hidden_size=embed_dim, num_attention_heads=num_heads, **EAGER))

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Answer:
        """`attention_mask`: (B, 1, Lq, Lk), added."""
        return super().forward(hidden_states, attention_mask)  # type: ignore[no-any-return]


__all__ = ["CLIP", "Bart", "Llama", "Qwen3", "Whisper"]
