"""Attention of this project's own: right by the specification's defaults, and plain enough for an example."""

from __future__ import annotations

from typing import Any

import torch

from implementations.contract import Claims, Implementation
from implementations.inhouse.fused import FusedAttention
from implementations.inhouse.numpy_attention import attention
from implementations.mha import MHA_FEATURES, PLACES, build_mha, inputs_of
from implementations.modules import torch_module
from implementations.ops import numpy_op
from implementations.tensors import Tensors
from implementations.torch_ops import NAN_SWALLOWED, SDPA_FEATURES
from spec.features import Feature, Scope
from spec.problems import Problem

_MORE = {Feature.SCALE, Feature.INPUT_WIDTHS, Feature.EMPTY_SIZES, Feature.CONTAINMENT}
_FUSED = Claims(Scope.MODULE, MHA_FEATURES | _MORE)
_NUMPY = SDPA_FEATURES - {Feature.GRADIENTS, Feature.MASK_GRADIENT} | {
    Feature.KEY_PADDING,
    Feature.WEIGHTS,
    Feature.LOG_SUM_EXP,
    Feature.CONTAINMENT,
}


def _call(module: torch.nn.Module, given: Tensors, problem: Problem) -> torch.Tensor:
    output: torch.Tensor = module(*inputs_of(given), **_options(given, problem))[0]
    return output


def _call_for_weights(module: torch.nn.Module, given: Tensors, problem: Problem) -> tuple[torch.Tensor, ...]:
    options = _options(given, problem)
    answer: tuple[torch.Tensor, ...] = module(*inputs_of(given), **options, need_weights=True)
    return answer


def _options(given: Tensors, problem: Problem) -> dict[str, Any]:
    masks: dict[str, Any] = {n: given[n] for n in ("attn_mask", "key_padding_mask") if n in given}
    return {**masks, "is_causal": problem.causal, "scale": problem.scale}


def _construct(num_heads: int, width: int) -> object:
    return FusedAttention(width, num_heads)


INHOUSE = (
    Implementation(
        "inhouse.fused",
        _FUSED,
        torch_module(build_mha(FusedAttention), _call, PLACES),
        "a module with one fused projection, over torch's scaled_dot_product_attention",
        (NAN_SWALLOWED,),
        construct=_construct,
    ),
    Implementation(
        "inhouse.fused.weights",
        Claims(Scope.MODULE, _FUSED.features | {Feature.WEIGHTS}),
        torch_module(build_mha(FusedAttention), _call_for_weights, PLACES, extras=["weights"]),
        "the same module, asked for the weights of each head",
        construct=_construct,
    ),
    Implementation(
        "inhouse.numpy",
        Claims(Scope.OP, _NUMPY),
        numpy_op(attention, extras=("weights", "log_sum_exp")),
        "a function in NumPy that returns output, weights and log-sum-exp",
    ),
)
"""The in-house implementations, with every claim that they can stand for."""
