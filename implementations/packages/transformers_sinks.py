# /// script
# requires-python = ">=3.11"
# dependencies = ["transformers==5.23.0", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["gpt_oss"]
# ///
"""Transformers: the eager form of gpt-oss, whose heads have a sink each."""

from typing import Any

import torch
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from attention_conformance import PLAIN_FEATURES, Claims, Conventions, Feature, Implementation, Scope, torch_op
from attention_conformance.implementations.packages._called_by_module import called_by_module

LEFT_OUT = {Feature.BOOL_MASK, Feature.CAUSAL}
"""Masks are added, and hold the future."""
ADDED = {Feature.GRADIENTS, Feature.MASK_GRADIENT, Feature.VIEWS, Feature.GROUPED, Feature.SINKS}


def attention(*inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    """The output alone: the weights are those of the keys, without the share of the sinks."""
    output: torch.Tensor = called_by_module(eager_attention_forward)(*inputs, **options)[0]
    return output


gpt_oss = Implementation(
    "transformers.eager.gpt_oss",
    Claims(Scope.OP, PLAIN_FEATURES - LEFT_OUT | ADDED, Conventions().claiming({"empty-row": "nan"})),
    torch_op(attention),
    "of gpt-oss, with sinks",
)
