"""torch.nn.MultiheadAttention: every path through it that computes differently is a variant of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from attention_conformance.implementations.adapters.code_path import OnPath
from attention_conformance.implementations.adapters.mha_interface import (
    MHA_FEATURES,
    PLACES,
    build_mha,
    call_mha,
    inputs_of,
    mask_options,
    one_mask,
)
from attention_conformance.implementations.adapters.modes import module_modes
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import torch_module
from attention_conformance.implementations.api.contract import Claims, ExpectedFailure, Implementation, Unsupported
from attention_conformance.implementations.builtin.sdpa import NAN_SWALLOWED
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions, Polarity, ReturnedWeights
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem


class Functional(nn.Module):
    """The parameters of nn.MultiheadAttention, given to nn.functional.multi_head_attention_forward."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(Lq, B, E), (Lk, B, E), (Lk, B, E) -> (Lq, B, E)."""
        return F.multi_head_attention_forward(
            query,
            key,
            value,
            query.shape[-1],
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=0.0,
            out_proj_weight=self.out_proj.weight,
            out_proj_bias=self.out_proj.bias,
            training=False,
            **options,
        )


def _eval_mha(problem: Problem) -> nn.Module:
    return build_mha(nn.MultiheadAttention, batch_first=True)(problem).eval()


CONSTRUCTOR_FEATURES = (Feature.BIAS_KV, Feature.ZERO_ATTN, Feature.DROPOUT, Feature.EVALUATION)
"""What the constructor and the mode of the module add to the features of its call."""


def _claims(*added: Feature, without: tuple[Feature, ...] = ()) -> Claims:
    features = MHA_FEATURES.union(added).difference(without)
    conventions = Conventions(bool_mask=Polarity.MASKED_OUT, returned_weights=ReturnedWeights.AFTER_DROPOUT)
    return Claims(Scope.MODULE, features, conventions, fit=one_mask)


_FAST_PATH_LACKS = (
    Feature.CROSS,
    Feature.KEY_VALUE,
    Feature.GRADIENTS,
    Feature.MASK_GRADIENT,
    Feature.FLOAT_MASK,
)
"""With any of these torch takes its other path."""


def _fast_path_fit(case: Case) -> Case | Unsupported:
    """The fast path takes even numbers of heads only."""
    return one_mask(case.sized(num_heads=case.sizes.num_heads + case.sizes.num_heads % 2))


def _construct(num_heads: int, width: int) -> object:
    return nn.MultiheadAttention(width, num_heads)


@dataclass(frozen=True)
class FastCall:
    """The inference path: one tensor for query, key and value, and no gradients recorded."""

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> torch.Tensor:
        """The output."""
        with torch.no_grad():
            return self.bound_call(module, given, problem)()

    def bound_call(self, module: nn.Module, given: Tensors, problem: Problem) -> Callable[[], torch.Tensor]:
        """The same, with masks converted; to be called where no gradients are recorded."""
        masks = mask_options(given, problem, Polarity.MASKED_OUT)
        call = partial(module, *inputs_of(given), need_weights=False, **masks)
        return lambda: call()[0]


EMPTY_ROW_LINK = "https://github.com/pytorch/pytorch/issues/160064"
FAST_PATH_LINK = "https://github.com/pytorch/pytorch/pull/190486"


def _nan_for(reason: str, link: str, *clauses: str) -> tuple[ExpectedFailure, ...]:
    return tuple(ExpectedFailure(clause, reason, link) for clause in clauses)


_EMPTY_ROWS = (
    "masks.empty-row-bool",
    "masks.empty-row-float",
    "masks.empty-row-padding",
    "gradients.empty-row",
    "causal.padded-start",
)
_NAN_REASON = "a row without keys is NaN where weights are returned"
_NAN_WEIGHTS = _nan_for(_NAN_REASON, EMPTY_ROW_LINK, *_EMPTY_ROWS)

_CAPABILITIES: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # older releases state none
_OF_TILES = ExpectedFailure(
    "conventions.empty-row",
    "among many tokens products of tiles carry the NaN of a row without keys to the row beside it",
    FAST_PATH_LINK,
    dtypes=("bfloat16",),
    device="cpu",
)
_SPREADING = (_OF_TILES,) if _CAPABILITIES.get("amx_bf16") else ()
"""Where the processor has products of tiles; with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 that row is right there, too."""

_NOT_TWICE = ExpectedFailure(
    "modules.double-backward",
    "the gradient of the CPU flash kernel has no derivative",
    "https://github.com/pytorch/pytorch/issues/181177",
    device="cpu",
)
_BUILD, _CALL = build_mha(nn.MultiheadAttention, batch_first=True), call_mha(need_weights=False)
_HIDDEN_KEYS = tuple(
    ExpectedFailure(
        clause,
        "without weights the causal flag goes on alone, and hides the key that was added at the end",
        "https://github.com/pytorch/pytorch/pull/178588",
    )
    for clause in ("sinks.zero-attn-causal", "sinks.bias-kv-causal")
)

_CALL_PER_HEAD = call_mha(need_weights=True, average_attn_weights=False)
_MODES = module_modes(_BUILD, _CALL, PLACES)
_MODES_PER_HEAD = module_modes(
    _BUILD, _CALL_PER_HEAD, PLACES, Feature.UNBATCHED, Feature.VMAP, Feature.DOUBLE_BACKWARD, extras=["weights"]
)
TORCH_MODULES = (
    Implementation(
        "torch.mha",
        _claims(*CONSTRUCTOR_FEATURES, *_MODES),
        torch_module(_BUILD, _CALL, PLACES),
        "nn.MultiheadAttention, batch first, no weights",
        (NAN_SWALLOWED, _NOT_TWICE, *_HIDDEN_KEYS),
        construct=_construct,
        modes=_MODES,
    ),
    Implementation(
        "torch.mha.weights",
        _claims(Feature.WEIGHTS, *CONSTRUCTOR_FEATURES, *_MODES_PER_HEAD),
        torch_module(_BUILD, _CALL_PER_HEAD, PLACES, extras=["weights"]),
        "nn.MultiheadAttention that returns the weights of each head",
        (*_NAN_WEIGHTS, *_nan_for(_NAN_REASON, EMPTY_ROW_LINK, "modules.double-backward")),
        modes=_MODES_PER_HEAD,
    ),
    Implementation(
        "torch.mha.averaged",
        _claims(Feature.AVERAGED_WEIGHTS, *CONSTRUCTOR_FEATURES),
        torch_module(
            build_mha(nn.MultiheadAttention, batch_first=True),
            call_mha(need_weights=True),
            PLACES,
            extras=["averaged_weights"],
        ),
        "nn.MultiheadAttention that returns the mean of the weights over the heads",
        _NAN_WEIGHTS,
    ),
    Implementation(
        "torch.mha.length-first",
        _claims(),
        torch_module(build_mha(nn.MultiheadAttention), call_mha(length_first=True, need_weights=False), PLACES),
        "nn.MultiheadAttention, (L, B, E)",
        (NAN_SWALLOWED,),
    ),
    Implementation(
        "torch.mha.kdim-vdim",
        _claims(Feature.INPUT_WIDTHS, Feature.BIAS_KV, Feature.ZERO_ATTN),
        torch_module(build_mha(nn.MultiheadAttention, batch_first=True), call_mha(need_weights=False), PLACES),
        "nn.MultiheadAttention with separate key and value widths",
        (NAN_SWALLOWED, *_HIDDEN_KEYS),
    ),
    Implementation(
        "torch.mha.fast-path",
        replace(_claims(without=_FAST_PATH_LACKS), fit=_fast_path_fit),
        OnPath(torch_module(_eval_mha, FastCall(), PLACES), "aten::_native_multi_head_attention"),
        "nn.MultiheadAttention in eval mode without gradients, with an even number of heads: the fused inference path",
        (
            *_nan_for(
                "a row without keys is NaN on the fast path",
                FAST_PATH_LINK,
                "masks.empty-row-bool",
                "masks.empty-row-padding",
                "causal.padded-start",
            ),
            *_SPREADING,
        ),
    ),
    Implementation(
        "torch.mha.functional",
        _claims(),
        torch_module(build_mha(Functional), call_mha(length_first=True, need_weights=False), PLACES),
        "nn.functional.multi_head_attention_forward",
        (NAN_SWALLOWED,),
    ),
)

_BY_INDUCTOR = module_modes(_BUILD, _CALL, PLACES, Feature.COMPILED, backend="inductor")
MHA_INDUCTOR = Implementation(
    "torch.mha.inductor",
    replace(_claims(*_BY_INDUCTOR), dtypes=("float32",)),
    torch_module(_BUILD, _CALL, PLACES),
    "nn.MultiheadAttention, compiled to machine code in chapter modules",
    (NAN_SWALLOWED,),
    modes=_BY_INDUCTOR,
)
"""It takes a C++ compiler and half a minute."""
