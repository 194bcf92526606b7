"""Attention of this project's own: right by the specification's defaults, and plain enough for an example."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from implementations.contract import Claims, Implementation, Result
from implementations.inhouse.fused import FusedAttention
from implementations.inhouse.numpy_attention import attention
from implementations.inhouse.tiled import tiled_attention
from implementations.mha import MHA_FEATURES, PLACES, build_mha, inputs_of
from implementations.modules import torch_module
from implementations.ops import numpy_op, torch_op
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
_TILED = SDPA_FEATURES | {
    Feature.KEY_PADDING,
    Feature.LOG_SUM_EXP,
    Feature.WAYS,
    Feature.CONTAINMENT,
    Feature.GROUPED,
    Feature.DROPOUT,
    Feature.WINDOW,
    Feature.SOFTCAP,
    Feature.ROTARY,
    Feature.ALIBI,
    Feature.RELATIVE_BIAS,
    Feature.SINKS,
    Feature.ZERO_ATTN,
    Feature.QUERY_START,
    Feature.SEGMENTS,
    Feature.CUMULATIVE_LENGTHS,
    Feature.HEAD_GATES,
}


def _in_tiles(size: int) -> Callable[[Problem, str], Result]:
    return torch_op(partial(tiled_attention, tile=size), extras=("log_sum_exp",))


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
    Implementation(
        "inhouse.tiled",
        Claims(Scope.OP, _TILED),
        _in_tiles(64),
        "online softmax over tiles of keys in torch, which keeps no weights for its way back",
        ways={f"in tiles of {size}": _in_tiles(size) for size in (1, 3)},
    ),
)
"""The in-house implementations, with every claim that they can stand for."""
