"""Compositions: attention as it is written down in a few lines, to compare others with. They take part when named."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_conformance.implementations.adapters.mha_interface import MHA_FEATURES, inputs_of
from attention_conformance.implementations.adapters.numpy_op import numpy_op
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import linears, torch_module
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, ExpectedFailure, Implementation, Unsupported
from attention_conformance.implementations.builtin.sdpa import NAN_SWALLOWED, SDPA_FEATURES
from attention_conformance.spec.cases import Case, Padding
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array, Problem


def eager(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale * Q K^T + mask) V, one operation of torch after the other; a row without keys is NaN."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1) @ value


def in_numpy(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """The same, one operation of NumPy after the other."""
    if enable_gqa:
        key, value = (np.repeat(x, query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.swapaxes(-2, -1) * query.dtype.type(query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    mixed: Array = (weights / weights.sum(-1, keepdims=True)).astype(query.dtype) @ value
    return mixed


class Composed(nn.Module):
    """Projections by nn.Linear around one of the functions; grouped heads where there are fewer of keys."""

    def __init__(self, problem: Problem, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.attend = problem.num_heads, problem.num_kv_heads, attend
        weights = problem.parameters
        self.q, self.k, self.v, self.o = (nn.Linear(*weights[name].shape) for name in ("w_q", "w_k", "w_v", "w_o"))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor | None, causal: bool) -> Tensor:
        """(B, Lq, query_dim), (B, Lk, key_dim), (B, Lk, value_dim) -> (B, Lq, out_dim); `real` (B, Lk) keys count."""
        counts = (self.heads, self.kv_heads, self.kv_heads)
        projected = (self.q(query), self.k(key), self.v(value))
        heads = (x.unflatten(-1, (count, -1)).transpose(1, 2) for x, count in zip(projected, counts, strict=True))
        options = {} if real is None else {"attn_mask": real[:, None, None]}
        grouped = {"enable_gqa": True} if self.heads != self.kv_heads else {}
        mixed = self.attend(*heads, is_causal=causal, **options, **grouped)
        output: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return output


def _call(module: nn.Module, given: Tensors, problem: Problem) -> Tensor:
    output: Tensor = module(*inputs_of(given), given.get("key_padding_mask"), problem.causal)
    return output


def _one_mask(case: Case) -> Case | Unsupported:
    if case.causal and case.padding is not Padding.NONE:
        return Unsupported("it takes a causal flag or a mask")
    return case


def _module(
    name: str, attend: Callable[..., Tensor], about: str, claims: Claims, *known: ExpectedFailure
) -> Implementation:
    run = torch_module(lambda problem: Composed(problem, attend), _call, linears(q="q", k="k", v="v", o="o"))
    return Implementation(name, claims, run, about, known)


_OF_MODULES = MHA_FEATURES - {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.MASK_GRADIENT} | {
    Feature.GROUPED,
    Feature.INPUT_WIDTHS,
}
_OF_OPS = SDPA_FEATURES - {Feature.EMPTY_SIZES} | {Feature.GROUPED}

_NAN = Conventions().claiming({"empty-row": "nan"})

COMPOSITIONS = (
    Implementation("compose.eager", Claims(Scope.OP, _OF_OPS, _NAN), torch_op(eager), "a few operations of torch"),
    Implementation(
        "compose.numpy",
        Claims(Scope.OP, _OF_OPS - {Feature.GRADIENTS, Feature.MASK_GRADIENT}, _NAN, dtypes=("float64", "float32")),
        numpy_op(in_numpy),
        "a few operations of NumPy",
    ),
    _module(
        "compose.module.eager",
        eager,
        "projections around a few operations of torch",
        Claims(Scope.MODULE, _OF_MODULES, _NAN, fit=_one_mask),
    ),
    _module(
        "compose.module.sdpa",
        F.scaled_dot_product_attention,
        "projections around scaled_dot_product_attention",
        Claims(Scope.MODULE, _OF_MODULES, fit=_one_mask),
        NAN_SWALLOWED,
    ),
)
