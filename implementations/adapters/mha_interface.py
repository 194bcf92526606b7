"""Modules with the interface of torch.nn.MultiheadAttention: how they are built, loaded and called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.adapters.op_options import inputs_of as inputs_of
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import Packed, Places
from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.spec.cases import Case, MaskKind
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

_INPUTS = {Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.VIEWS, Feature.GRADIENTS}
_MASKS = {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.MASK_GRADIENT, Feature.KEY_PADDING, Feature.CAUSAL}
_PROJECTIONS = {Feature.PROJECTIONS, Feature.BIAS, Feature.OUTPUT_PROJECTION, Feature.OUTPUT_BIAS}
MHA_FEATURES = frozenset(_INPUTS | _MASKS | _PROJECTIONS)
"""What the interface offers, apart from kdim and vdim and the returned weights."""

PLACES: Places = {
    "in_proj_weight": Packed(("w_q", "w_k", "w_v")),
    "in_proj_bias": Packed(("b_q", "b_k", "b_v")),
    "q_proj_weight": "w_q",
    "k_proj_weight": "w_k",
    "v_proj_weight": "w_v",
    "out_proj.weight": "w_o",
    "out_proj.bias": "b_o",
    "bias_k": "bias_k",
    "bias_v": "bias_v",
}

Answer = torch.Tensor | tuple[torch.Tensor, ...]


def one_mask(case: Case) -> Case | Unsupported:
    """The fit of an interface whose causal flag is a hint about its one attention mask."""
    if case.causal and case.mask is not MaskKind.NONE:
        return Unsupported("its causal flag describes its attention mask: it takes one of the two")
    return case


def build_mha(kind: Callable[..., nn.Module], **options: Any) -> Callable[[Problem], nn.Module]:
    """A `build` that gives widths, num_heads, dropout, bias_kv and zero_attn to the constructor."""

    def build(problem: Problem) -> nn.Module:
        query_dim, key_dim, value_dim = (x.shape[-1] for x in (problem.query, problem.key, problem.value))
        widths = {} if query_dim == key_dim == value_dim else {"kdim": key_dim, "vdim": value_dim}
        extension = problem.extension
        dropout = {"dropout": extension.dropout} if extension.has_dropout else {}
        flags = {"add_bias_kv": extension.bias_kv, "add_zero_attn": extension.zero_attn}
        extra_kv = {name: True for name, needed in flags.items() if needed}
        return kind(query_dim, problem.num_heads, **widths, **dropout, **extra_kv, **options)

    return build


def call_mha(*, polarity: Polarity = Polarity.MASKED_OUT, length_first: bool = False, **options: Any) -> MhaCall:
    """A `call` for such a module, with `options` passed on; returned weights that are None are left out."""
    return MhaCall(polarity, length_first, options)


@dataclass(frozen=True)
class MhaCall:
    """The `call` that `call_mha` makes, see there."""

    polarity: Polarity
    length_first: bool
    options: Mapping[str, Any]

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Answer:
        """The module's answer to the problem's tensors."""
        return self.bound_call(module, given, problem)()

    def bound_call(self, module: nn.Module, given: Tensors, problem: Problem) -> Callable[[], Answer]:
        """The same, with layout and masks converted."""
        inputs = dict.fromkeys(inputs_of(given))
        rotated = {x: x.transpose(0, 1) if self.length_first else x for x in inputs}
        masks = mask_options(given, problem, self.polarity)
        call = partial(module, *(rotated[x] for x in inputs_of(given)), **masks, **self.options)
        return lambda: self._arranged(call())

    def _arranged(self, answer: Any) -> Answer:
        output, *weights = answer if isinstance(answer, tuple) else (answer,)
        output = output.transpose(0, 1) if self.length_first else output
        return (output, *(w for w in weights if w is not None))


def mask_options(
    given: Tensors, problem: Problem, polarity: Polarity, padding_added: bool = False
) -> Mapping[str, Any]:
    """attn_mask (B * H, Lq, Lk), key_padding_mask (B, Lk) and is_causal, as far as the problem has them.

    `padding_added`: numbers that are added to the scores of a key, (B, 1, 1, Lk), come as the key_padding_mask.
    """
    if padding_added and _of_keys(given, problem):
        return {"key_padding_mask": given["attn_mask"][:, 0, 0]}
    options: dict[str, Any] = {}
    length, keys = problem.query.shape[-2], problem.key.shape[-2]
    if "attn_mask" in given:
        shape = (problem.query.shape[0], problem.num_heads, length, keys)
        options["attn_mask"] = polarised(given["attn_mask"], polarity).expand(shape).flatten(0, 1)
    if problem.causal:
        allowed = torch.ones(length, keys, dtype=torch.bool, device=given["query"].device).tril()
        options |= {"attn_mask": polarised(allowed, polarity), "is_causal": True}
    if "key_padding_mask" in given:
        padding = given["key_padding_mask"]
        added = options.get("attn_mask")
        if added is not None and added.dtype is not torch.bool:
            zeros = torch.zeros(padding.shape, dtype=added.dtype, device=padding.device)
            options["key_padding_mask"] = zeros.masked_fill(~padding, float("-inf"))
        else:
            options["key_padding_mask"] = polarised(padding, polarity)
    return options


def _of_keys(given: Tensors, problem: Problem) -> bool:
    """Whether the only mask is one of numbers for the keys of each sample."""
    mask = given.get("attn_mask")
    if mask is None or "key_padding_mask" in given or problem.causal:
        return False
    return mask.is_floating_point() and mask.ndim == 4 and mask.shape[1:3] == (1, 1)


def polarised(mask: torch.Tensor, polarity: Polarity) -> torch.Tensor:
    """The mask, where True in a boolean mask has the meaning of the polarity."""
    return ~mask if mask.dtype is torch.bool and polarity is Polarity.MASKED_OUT else mask
