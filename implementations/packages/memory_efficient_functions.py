# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "memory-efficient-attention-pytorch==0.1.6",
#     "einops==0.8.2",
#     "torch==2.13.0",
#     "numpy==2.4.6",
#     "ml_dtypes>=0.5",
# ]
#
# [tool.attention-conformance]
# implementations = ["regular", "chunked"]
#
# [tool.attention-conformance.findings]
# chunked = """
# A chunk of keys that a mask of minus infinity hides as a whole makes the row NaN, although it sees keys of other
# chunks. No report was found.
# """
# ///
"""memory-efficient-attention-pytorch: its regular attention, and the one in chunks, of 5 queries by 7 keys here.

The gradients of the chunks are by reentrant checkpoints, which torch.autograd.grad refuses: they are not claimed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from memory_efficient_attention_pytorch.memory_efficient_attention import attention as whole
from memory_efficient_attention_pytorch.memory_efficient_attention import memory_efficient_attention

from attention_conformance import (
    Alignment,
    Claims,
    Conventions,
    EmptyRow,
    Feature,
    Implementation,
    Scope,
    torch_op,
)

QUERIES, KEYS = 5, 7
FEATURES = frozenset(
    {
        Feature.CORE,
        Feature.HEADS,
        Feature.VALUE_WIDTH,
        Feature.CROSS,
        Feature.KEY_VALUE,
        Feature.FLOAT_MASK,
        Feature.KEY_PADDING,
        Feature.CAUSAL,
        Feature.GRADIENTS,
        Feature.MASK_GRADIENT,
    }
)


def _of(function: Callable[..., torch.Tensor]) -> Any:
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        shape = (*query.shape[:-1], key.shape[-2])
        bias = None if attn_mask is None else attn_mask.expand(shape)
        return function(query, key, value, mask=key_padding_mask, causal=is_causal, attn_bias=bias)

    return torch_op(attention)


regular = Implementation(
    "memory_efficient.regular",
    Claims(
        Scope.OP,
        FEATURES,
        Conventions(
            causal_alignment=Alignment.BOTTOM_RIGHT,
            empty_row_float=EmptyRow.NAN,
            empty_row_padding=EmptyRow.UNIFORM,
            empty_row_causal=EmptyRow.UNIFORM,
        ),
    ),
    _of(whole),
    "attention",
)
chunked = Implementation(
    "memory_efficient.chunked",
    Claims(
        Scope.OP,
        FEATURES - {Feature.GRADIENTS, Feature.MASK_GRADIENT},
        Conventions(empty_row_float=EmptyRow.NAN, empty_row_padding=EmptyRow.UNIFORM),
    ),
    _of(partial(memory_efficient_attention, q_bucket_size=QUERIES, k_bucket_size=KEYS)),
    "memory_efficient_attention",
)
