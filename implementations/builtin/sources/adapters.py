"""The sources as implementations: each module is called through its own interface, and claims what it has."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.mha_interface import inputs_of
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import linears, torch_module
from attention_conformance.implementations.api.contract import Claims, Implementation, Result, Unsupported
from attention_conformance.implementations.builtin.sources import a, b, c, d, e
from attention_conformance.spec.cases import Case, MaskKind, Padding
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array, Problem

MODULE = frozenset({Feature.CORE, Feature.PROJECTIONS, Feature.MODEL_WIDTH, Feature.VIEWS})
TRAINED = MODULE | {Feature.GRADIENTS}


def _claims(*added: Feature) -> Claims:
    return Claims(Scope.MODULE, TRAINED.union(added))


def _totals(problem: Problem) -> tuple[int, int]:
    """H * d_k and H * d_v."""
    return problem.parameters["w_q"].shape[1], problem.parameters["w_v"].shape[1]


def _build_a(problem: Problem) -> nn.Module:
    return a.MultiHeadSelfAttention(problem.query.shape[-1], *_totals(problem), problem.num_heads)


def _run_columns(problem: Problem, device: str) -> Result:
    """Tokens are columns, and there is no batch: one sample after the other."""
    weights = (problem.parameters[name].T for name in ("w_q", "w_k", "w_v"))
    w_q, w_k, w_v = (np.ascontiguousarray(w) for w in weights)
    samples: list[Array] = [b.column_self_attention(x.T, w_q, w_k, w_v).T for x in problem.query]
    return Result(np.stack(samples))


def _build_b(problem: Problem) -> nn.Module:
    return b.Self_Attention(problem.query.shape[-1], *_totals(problem))


def _build_c(problem: Problem) -> nn.Module:
    return c.MultiHeadAttention(problem.query.shape[-1], problem.num_heads, _totals(problem)[0])


def _call_c(module: nn.Module, given: Tensors, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    output, weights = module(given["query"])
    return output, weights.transpose(0, 1)


def _build_d(problem: Problem) -> nn.Module:
    sizes = (x.shape[-1] for x in (problem.query, problem.key, problem.value))
    bias = "b_q" in problem.parameters
    return d.MultiHeadAttention(_totals(problem)[0], problem.num_heads, 0.0, bias, *sizes)


@dataclass(frozen=True)
class CallD:
    """Source D hands its weights out in a second call, which is made only where they are judged."""

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and weights."""
        assert isinstance(module, d.MultiHeadAttention)
        query, key, _ = inputs_of(given)
        weights = module.attention_weights(query, key, given.get("valid_lens"))
        return self.bound_call(module, given, problem)(), weights.reshape(-1, problem.num_heads, *weights.shape[1:])

    def bound_call(self, module: nn.Module, given: Tensors, problem: Problem) -> Callable[[], torch.Tensor]:
        """The output alone."""
        return partial(module, *inputs_of(given), given.get("valid_lens"))


def _fit_d(case: Case) -> Case:
    """The output of source D is as wide as its heads together."""
    assert case.module is not None
    return replace(case, module=replace(case.module, out_dim=case.sizes.num_heads * case.sizes.d_k))


def _head_widths(problem: Problem) -> tuple[int, int]:
    return _totals(problem)[0] // problem.num_heads, _totals(problem)[1] // problem.num_heads


def _build_e(problem: Problem) -> nn.Module:
    return e.MultiHeadAttention(problem.query.shape[-1], *_head_widths(problem), problem.num_heads)


def _build_e_cross(problem: Problem) -> nn.Module:
    widths = problem.query.shape[-1], problem.key.shape[-1]
    return e.CrossAttention(*widths, *_head_widths(problem), problem.num_heads)


def _mask_e(given: Tensors) -> torch.Tensor | None:
    mask = given.get("attn_mask")
    if mask is not None and mask.dim() == 2:
        mask = mask[None, None]  # two axes mean (B, Lk) to source E
    return given.get("key_padding_mask", mask)


def _call_e(module: nn.Module, given: Tensors, problem: Problem) -> torch.Tensor:
    output: torch.Tensor = module(given["query"], _mask_e(given))
    return output


def _call_e_cross(module: nn.Module, given: Tensors, problem: Problem) -> torch.Tensor:
    output: torch.Tensor = module(given["query"], given["key"], _mask_e(given))
    return output


def _one_mask_e(case: Case) -> Case | Unsupported:
    if case.mask is not MaskKind.NONE and case.padding is not Padding.NONE:
        return Unsupported("it takes one mask, for padding or for pairs")
    return case


_E = (Feature.HEADS, Feature.VALUE_WIDTH, Feature.OUTPUT_PROJECTION, Feature.OUTPUT_BIAS)
_E_MASKS = (Feature.BOOL_MASK, Feature.KEY_PADDING)
_D = (Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.INPUT_WIDTHS, Feature.OUTPUT_PROJECTION)
_D_READS = (Feature.VALID_LENS, Feature.WEIGHTS)
_D_RUN = torch_module(_build_d, CallD(), linears(q="W_q", k="W_k", v="W_v", o="W_o"), extras=["weights"])
_PLACES_E = linears(q="proj_q", k="proj_k", v="proj_v", o="proj_o")
_PLACES_E_CROSS = linears(q="proj_q1", k="proj_k2", v="proj_v2", o="proj_o")

SOURCES = (
    Implementation(
        "source.a",
        _claims(Feature.HEADS, Feature.VALUE_WIDTH),
        torch_module(
            _build_a,
            lambda module, given, problem: module(given["query"]),
            linears(q="linear_q", k="linear_k", v="linear_v"),
        ),
        "A, MultiHeadSelfAttention, corrected",
        construct=lambda num_heads, width: a.MultiHeadSelfAttention(width, width, width, num_heads),
    ),
    Implementation(
        "source.b.columns",
        Claims(Scope.MODULE, MODULE | {Feature.VALUE_WIDTH}, dtypes=("float64", "float32")),
        _run_columns,
        "B, NumPy self-attention with tokens as columns, corrected",
    ),
    Implementation(
        "source.b",
        _claims(Feature.VALUE_WIDTH, Feature.BIAS),
        torch_module(_build_b, lambda module, given, problem: module(given["query"]), linears(q="q", k="k", v="v")),
        "B, Self_Attention, corrected",
    ),
    Implementation(
        "source.c",
        _claims(Feature.HEADS, Feature.BIAS, Feature.WEIGHTS),
        torch_module(_build_c, _call_c, linears(q="W_query", k="W_key", v="W_value"), extras=["weights"]),
        "C, MultiHeadAttention, corrected",
        construct=lambda num_heads, width: c.MultiHeadAttention(width, num_heads, width),
    ),
    Implementation(
        "source.d",
        replace(_claims(*_D, *_D_READS, Feature.BIAS, Feature.OUTPUT_BIAS), fit=_fit_d),
        _D_RUN,
        "D, multi-head attention with valid lengths, ported to torch, corrected, with biases",
        construct=lambda num_heads, width: d.MultiHeadAttention(width, num_heads),
    ),
    Implementation(
        "source.d.no-bias",
        replace(_claims(*_D, *_D_READS), fit=_fit_d),
        _D_RUN,
        "D, without biases",
        construct=lambda num_heads, width: d.MultiHeadAttention(width, num_heads),
    ),
    Implementation(
        "source.e",
        replace(_claims(*_E, *_E_MASKS), fit=_one_mask_e),
        torch_module(_build_e, _call_e, _PLACES_E),
        "E, MultiHeadAttention, corrected",
    ),
    Implementation(
        "source.e.cross",
        replace(_claims(*_E, *_E_MASKS, Feature.CROSS, Feature.INPUT_WIDTHS), fit=_one_mask_e),
        torch_module(_build_e_cross, _call_e_cross, _PLACES_E_CROSS),
        "E, CrossAttention, corrected",
    ),
)
"""The adapters; E has no `construct`, because its constructors take the width of one head."""
