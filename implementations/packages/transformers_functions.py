# /// script
# requires-python = ">=3.11"
# dependencies = ["transformers==5.23.0", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["sdpa", "bert", "gpt2", "llama", "gemma2"]
# ///
"""Transformers: the functions to which its models hand query, key and value, for `sdpa` and in the eager forms."""

from collections.abc import Callable
from typing import Any

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
from attention_conformance.implementations.packages._called_by_module import called_by_module

DIFFERENTIABLE = frozenset({Feature.GRADIENTS, Feature.MASK_GRADIENT, Feature.VIEWS})
ADDED = PLAIN_FEATURES - {Feature.BOOL_MASK, Feature.CAUSAL} | DIFFERENTIABLE | {Feature.WEIGHTS}
"""Of eager forms: masks are added, and hold the future where a model is causal."""


def _prefill(case: Case) -> Case | Unsupported:
    """A flag without a mask, and more than one query: a single query is a step of decoding, which sees all keys."""
    if case.causal and (case.mask is not MaskKind.NONE or case.sizes.query_length == 1):
        return Unsupported("takes a mask or the causal flag, which is none for a single query")
    return case


def _eager(name: str, function: Callable[..., Any], about: str, *added: Feature, **settings: str) -> Implementation:
    conventions = Conventions().claiming({"empty-row": "nan"} | {k.replace("_", "-"): v for k, v in settings.items()})
    claims = Claims(Scope.OP, ADDED.union(added), conventions)
    return Implementation(
        f"transformers.eager.{name}", claims, torch_op(called_by_module(function), extras=("weights",)), about
    )


sdpa = Implementation(
    "transformers.sdpa",
    Claims(Scope.OP, PLAIN_FEATURES | DIFFERENTIABLE | {Feature.GROUPED}, fit=_prefill),
    torch_op(called_by_module(sdpa_attention_forward)),
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
