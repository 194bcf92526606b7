# /// script
# requires-python = ">=3.11"
# dependencies = ["transformers==5.23.0", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["sdpa", "bert", "gpt2", "llama", "gemma2"]
# ///
"""Transformers: the functions to which its models hand query, key and value, for `sdpa` and in the eager forms."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.bert import modeling_bert
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.llama import modeling_llama

from attention_conformance import (
    PLAIN_FEATURES,
    Case,
    Claims,
    Conventions,
    Feature,
    Implementation,
    MaskKind,
    Scope,
    Unsupported,
    torch_op,
)

Tensor = torch.Tensor
DIFFERENTIABLE = frozenset({Feature.GRADIENTS, Feature.MASK_GRADIENT, Feature.VIEWS})
ADDED = PLAIN_FEATURES - {Feature.BOOL_MASK, Feature.CAUSAL} | DIFFERENTIABLE | {Feature.WEIGHTS}
"""Of eager forms: masks are added, and hold the future where a model is causal."""


def _module(query: Tensor, key: Tensor) -> SimpleNamespace:
    """What the functions read from the module that calls them."""
    groups = query.shape[1] // key.shape[1]
    return SimpleNamespace(num_key_value_groups=groups, training=False, is_causal=False)


def of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, (B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v)."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        **options: Any,
    ) -> Any:
        scaling = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
        module = _module(query, key)
        output, weights = function(module, query, key, value, attn_mask, scaling=scaling, **options)
        output = output.transpose(1, 2)
        return output if weights is None else (output, weights)

    return attention


def _prefill(case: Case) -> Case | Unsupported:
    """A flag without a mask, and more than one query: a single query is a step of decoding, which sees all keys."""
    if case.causal and (case.mask is not MaskKind.NONE or case.sizes.query_length == 1):
        return Unsupported("takes a mask or the causal flag, which is none for a single query")
    return case


def _eager(name: str, function: Callable[..., Any], about: str, *added: Feature, **settings: str) -> Implementation:
    conventions = Conventions().claiming({"empty-row": "nan"} | {k.replace("_", "-"): v for k, v in settings.items()})
    claims = Claims(Scope.OP, ADDED.union(added), conventions)
    return Implementation(f"transformers.eager.{name}", claims, torch_op(of(function), extras=("weights",)), about)


sdpa = Implementation(
    "transformers.sdpa",
    Claims(Scope.OP, PLAIN_FEATURES | DIFFERENTIABLE | {Feature.GROUPED}, fit=_prefill),
    torch_op(of(sdpa_attention_forward)),
    "what attn_implementation='sdpa' calls",
)
bert = _eager("bert", modeling_bert.eager_attention_forward, "of BERT, and of most encoders")
gpt2 = _eager("gpt2", modeling_gpt2.eager_attention_forward, "of GPT-2")
llama = _eager(
    "llama",
    modeling_llama.eager_attention_forward,
    "of Llama, Mistral, Qwen and most decoders",
    Feature.GROUPED,
    softmax_precision="float32",
)
gemma2 = _eager(
    "gemma2",
    modeling_gemma2.eager_attention_forward,
    "of Gemma 2, with bounded scores",
    Feature.GROUPED,
    Feature.SOFTCAP,
    softmax_precision="float32",
)
__all__ = ["bert", "gemma2", "gpt2", "llama", "sdpa"]
