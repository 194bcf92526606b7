"""Attention of this project's own: right by the specification's defaults, and plain enough for an example."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from attention_conformance.implementations.adapters.as_built import AsBuilt
from attention_conformance.implementations.adapters.cached import chunked
from attention_conformance.implementations.adapters.mha_interface import (
    MHA_FEATURES,
    PLACES,
    build_mha,
    inputs_of,
    polarised,
)
from attention_conformance.implementations.adapters.modes import Modes, module_modes, op_modes
from attention_conformance.implementations.adapters.native import WITHOUT_WEIGHTS
from attention_conformance.implementations.adapters.numpy_op import numpy_op
from attention_conformance.implementations.adapters.op_options import extra_options
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import torch_module
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.implementations.builtin.inhouse.fused import FusedAttention
from attention_conformance.implementations.builtin.inhouse.kernels import Kernel
from attention_conformance.implementations.builtin.inhouse.numpy_attention import attention
from attention_conformance.implementations.builtin.inhouse.tiled import tiled_attention
from attention_conformance.implementations.builtin.sdpa import NAN_SWALLOWED, SDPA_FEATURES
from attention_conformance.spec.conventions import Conventions, Polarity, SoftmaxPrecision
from attention_conformance.spec.features import Feature, QkNorm, Scope
from attention_conformance.spec.problem import Problem

_NO_GRADIENTS = {Feature.GRADIENTS, Feature.MASK_GRADIENT}
_ROTARY = {Feature.ROTARY, Feature.PARTIAL_ROTARY, Feature.POSITION_IDS, Feature.ROTARY_TABLES}
_STARTS = {Feature.QUERY_START, Feature.QUERY_STARTS, Feature.QUERY_LENS}
_BY_POSITION = _ROTARY | _STARTS | {Feature.WINDOW, Feature.ALIBI, Feature.ALIBI_SAMPLES, Feature.RELATIVE_BIAS}
_OF_SOFTMAX = {Feature.SOFTCAP, Feature.SINKS, Feature.ZERO_ATTN, Feature.DROPOUT}
_NORMS = {Feature.QK_NORM, Feature.NORM_EPSILON}
EXTENSIONS = frozenset(_BY_POSITION | _OF_SOFTMAX | _NORMS | {Feature.GROUPED, Feature.SEGMENTS, Feature.HEAD_GATES})
_SIZES = {Feature.INPUT_WIDTHS, Feature.EMPTY_SIZES}
_OF_MODULE = _SIZES | {Feature.SCALE, Feature.CONTAINMENT, Feature.BIAS_KV, Feature.EVALUATION}
_FUSED = MHA_FEATURES | EXTENSIONS | _OF_MODULE
_AVERAGED = (MHA_FEATURES | _OF_MODULE | {Feature.AVERAGED_WEIGHTS, Feature.DROPOUT, Feature.ZERO_ATTN}) - _NO_GRADIENTS
_MODES = {Feature.SAVED, Feature.COPIED, Feature.UNBATCHED, Feature.AUTOCAST, Feature.VMAP, Feature.NO_GRAD}
_BY_NAME = {Feature.CUMULATIVE_LENGTHS, Feature.KEY_PADDING, Feature.VALID_LENS, Feature.LOG_SUM_EXP}
_OF_OPS = SDPA_FEATURES | EXTENSIONS | _BY_NAME | {Feature.ALTERNATIVES, Feature.CONTAINMENT, Feature.OUTPUT_GATES}
_BUCKETS = {Feature.BUCKETED_BIAS, Feature.BUCKET_DISTANCE, Feature.BUCKET_DIRECTIONS}
_NUMPY = (
    (_OF_OPS | _BUCKETS | {Feature.WEIGHTS, Feature.CACHE, Feature.LINEAR_MEMORY, Feature.KEY_SPLITS})
    - _NO_GRADIENTS
    - {Feature.DROPOUT}
)
_TILED = _OF_OPS | {Feature.NO_GRAD, Feature.AUTOCAST, Feature.LINEAR_MEMORY}
_LEARNED = ("bias_k", "bias_v", "relative_bias", "sinks", "head_gates", "query_norm", "key_norm")
_PLACES = {**PLACES, **{name: name for name in _LEARNED}}
_PASSED = (
    "query_start",
    "query_starts",
    "query_lens",
    "query_positions",
    "key_positions",
    "rotary_cos",
    "rotary_sin",
    "alibi_slopes",
    "query_segments",
    "key_segments",
    "cu_seqlens_q",
    "cu_seqlens_k",
)


def _in_tiles(size: int) -> Callable[[Problem, str], Result]:
    return torch_op(partial(tiled_attention, tile=size), extras=("log_sum_exp",))


def _equipped(problem: Problem) -> torch.nn.Module:
    """With parts that no option of a call asks for."""
    return build_mha(FusedAttention, batch_first=True, sinks=True, head_gates=True, qk_norm=str(QkNorm.HEAD))(problem)


def _build(problem: Problem, kernel: Kernel | None = None) -> FusedAttention:
    extension = problem.extension
    build = build_mha(
        FusedAttention,
        kernel=kernel,
        batch_first=True,
        num_kv_heads=problem.num_kv_heads,
        window_size=tuple(-1 if side is None else side for side in (extension.window_left, extension.window_right)),
        softcap=extension.softcap,
        rotary_base=extension.rotary_base,
        rotary_dim=extension.rotary_dim,
        relative_bias=extension.relative_bias,
        sinks=extension.sinks,
        head_gates=extension.head_gates,
        qk_norm=None if extension.qk_norm is QkNorm.NONE else str(extension.qk_norm),
        norm_epsilon=extension.norm_epsilon,
    )
    module = build(problem)
    assert isinstance(module, FusedAttention)
    return module


@dataclass(frozen=True)
class Call:
    """Calls the module; `returned`: the options for the weights."""

    returned: Mapping[str, bool]

    def __call__(self, module: torch.nn.Module, given: Tensors, problem: Problem) -> tuple[torch.Tensor, ...]:
        """Output, and weights if any."""
        return self.bound_call(module, given, problem)()

    def bound_call(
        self, module: torch.nn.Module, given: Tensors, problem: Problem
    ) -> Callable[[], tuple[torch.Tensor, ...]]:
        """The same, with masks and options converted."""
        options = {n: polarised(given[n], Polarity.MASKED_OUT) for n in ("attn_mask", "key_padding_mask") if n in given}
        passed = {name: o for name, o in extra_options(problem, given).items() if name in _PASSED}
        plain = {"is_causal": problem.causal, "scale": problem.scale}
        call = partial(module, *inputs_of(given), **options, **passed, **plain, **self.returned)
        return lambda: tuple(part for part in call() if part is not None)


def _whole(call: Call, modes: Set[Feature]) -> Modes:
    run = AsBuilt(_equipped, call, unordered=True, trained=True)
    run = replace(run, otherwise={"built without sinks, gates and norms": AsBuilt(_build, call, unordered=True)})
    return {Feature.AS_BUILT: run} if Feature.AS_BUILT in modes else {}


def _fused(
    name: str, about: str, features: Set[Feature], modes: Set[Feature], extras: tuple[str, ...] = (), **passed: Any
) -> Implementation:
    call = Call({"need_weights": bool(extras), "average_attn_weights": "averaged_weights" in extras})
    return Implementation(
        name,
        Claims(Scope.MODULE, frozenset(features | modes), Conventions(bool_mask=Polarity.MASKED_OUT)),
        torch_module(_build, call, _PLACES, extras=extras),
        about,
        construct=_construct,
        modes=module_modes(_build, call, _PLACES, *modes, extras=extras) | _whole(call, modes) if modes else {},
        **passed,
    )


def _by(kernel: Kernel) -> Callable[[Problem, str], Result]:
    return torch_module(partial(_build, kernel=kernel), Call({"need_weights": False}), _PLACES)


def _construct(num_heads: int, width: int) -> object:
    return FusedAttention(width, num_heads)


INHOUSE = (
    _fused(
        "inhouse.fused",
        "a module with one fused projection, over torch's scaled_dot_product_attention",
        _FUSED | {Feature.ALTERNATIVES},
        _MODES | {Feature.COMPILED, Feature.EXPORTED, Feature.AS_BUILT},
        expected_failures=(NAN_SWALLOWED,),
        alternatives={f"by the kernel {kernel}": _by(kernel) for kernel in Kernel},
    ),
    _fused(
        "inhouse.fused.weights",
        "the same module, which returns the weights of each head",
        _FUSED | {Feature.WEIGHTS},
        _MODES | {Feature.DOUBLE_BACKWARD},
        extras=("weights",),
    ),
    Implementation(
        "inhouse.numpy",
        Claims(Scope.OP, _NUMPY, Conventions(softmax_precision=SoftmaxPrecision.FLOAT32)),
        chunked(numpy_op(partial(attention, need_weights=True), extras=("log_sum_exp", "weights"))),
        "online softmax over tiles in NumPy, in float32 for all dtypes",
        alternatives={
            WITHOUT_WEIGHTS: numpy_op(attention, extras=("log_sum_exp",)),
            "in tiles of 3": numpy_op(partial(attention, tile=3), extras=("log_sum_exp",)),
        },
    ),
    Implementation(
        "inhouse.tiled",
        Claims(Scope.OP, _TILED),
        _in_tiles(64),
        "online softmax over tiles of keys in torch, which keeps no weights for its way back",
        alternatives={f"in tiles of {size}": _in_tiles(size) for size in (1, 3)},
        modes=op_modes(tiled_attention, Feature.NO_GRAD, Feature.AUTOCAST, extras=("log_sum_exp",)),
    ),
    _fused(
        "inhouse.fused.averaged",
        "the first module, which returns the mean of the weights over the heads",
        _AVERAGED,
        set(),
        extras=("averaged_weights",),
    ),
)
"""The in-house implementations, with every claim that they can stand for."""
