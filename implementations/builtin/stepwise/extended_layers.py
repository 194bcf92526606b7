"""Layers with more than `Layer` has: fewer key heads, dropout, gates, extra keys, inputs without a batch axis."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_conformance.implementations.adapters.mha_interface import MHA_FEATURES, inputs_of
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.builtin.stepwise.layer import LAYER_PLACES, Layer
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

GATED_FEATURES = frozenset(MHA_FEATURES | {Feature.HEAD_GATES})
KEYED_PLACES = {**LAYER_PLACES, "bias_k": "bias_k", "bias_v": "bias_v"}
KEYED_FEATURES = MHA_FEATURES | {Feature.BIAS_KV, Feature.ZERO_ATTN}


class GroupedLayer(Layer):
    """The layer with fewer heads of keys and values; right, unless a subclass replaces a step."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.num_kv_heads = problem.num_kv_heads

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """(B, L, width) in and out."""
        q, *given = self.projected(query, key, value)
        k, v = (x.unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2) for x in given)
        return self.output(self.merge(self.attend(self.split(q), k, v, **options)))


class DroppingLayer(Layer):
    """Multi-head attention with dropout on the weights while it is trained."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.rate = problem.extension.dropout

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return self.steps(q, k, v, dropout_p=self.rate if self.training else 0.0, **options)


class UnbatchedLayer(Layer):
    """It takes inputs without a batch axis; right, unless a subclass replaces `batched`."""

    def batched(self, masks: dict[str, Any]) -> dict[str, Any]:
        """The masks with a batch axis."""
        padding = {n: m[None] for n, m in masks.items() if n == "key_padding_mask"}
        return masks | padding

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        if query.ndim == 3:
            return super().forward(query, key, value, **options)
        answer: Tensor = super().forward(query[None], key[None], value[None], **self.batched(options))
        return answer[0]


def call_gated(module: nn.Module, given: Tensors, problem: Problem) -> Any:
    names = ("attn_mask", "key_padding_mask", "head_gates")
    return module(*inputs_of(given), **{n: given[n] for n in names if n in given}, is_causal=problem.causal)


class KeyedLayer(Layer):
    """A layer whose keys may be followed by a learned one and by zeros; right, unless a subclass replaces a step."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        for name in ("bias_k", "bias_v"):
            if name in problem.parameters:
                self.register_parameter(name, nn.Parameter(torch.zeros(len(problem.parameters[name]))))

    def learned(self, rows: Tensor, bias: Tensor) -> Tensor:
        """(B, H, 1, d), to follow rows (B, H, Lk, d)."""
        return bias.view(1, rows.shape[1], 1, -1).expand(len(rows), -1, -1, -1)

    def followed(self, rows: Tensor, name: str, zero: bool) -> Tensor:
        """Keys or values (B, H, Lk, d) with those that follow."""
        if hasattr(self, name):
            rows = torch.cat([rows, self.learned(rows, getattr(self, name))], -2)
        return F.pad(rows, (0, 0, 0, 1)) if zero else rows

    def joined(
        self,
        added: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """All masks as one that is added; `added` holds zeros, (B, H, Lq, Lk)."""
        if attn_mask is not None:
            boolean = attn_mask.dtype is torch.bool
            added = added.masked_fill(~attn_mask, -INFINITY) if boolean else added + attn_mask
        if key_padding_mask is not None:
            added = added.masked_fill(~key_padding_mask[:, None, None, :], -INFINITY)
        return added.masked_fill(torch.ones_like(added).triu(1).bool(), -INFINITY) if is_causal else added

    def lengthened(self, mask: Tensor, count: int) -> Tensor:
        """The mask for so many extra keys."""
        return F.pad(mask, (0, count))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, add_zero_attn: bool = False, **masks: Any
    ) -> tuple[Tensor, Tensor]:
        """Output (B, Lq, width), and the weights (B, H, Lq, Lk), extra keys counted."""
        q, k, v = (self.split(x) for x in self.projected(query, key, value))
        mask = self.joined(q.new_zeros(*q.shape[:-1], k.shape[-2]), **masks)
        k, v = self.followed(k, "bias_k", add_zero_attn), self.followed(v, "bias_v", add_zero_attn)
        mask = self.lengthened(mask, k.shape[-2] - mask.shape[-1])
        heads, weights, _ = self.steps.answer(q, k, v, attn_mask=mask)
        return self.output(self.merge(heads)), weights


def call_keyed(module: nn.Module, given: Tensors, problem: Problem) -> Any:
    masks: dict[str, Any] = {n: given[n] for n in ("attn_mask", "key_padding_mask") if n in given}
    return module(*inputs_of(given), **masks, is_causal=problem.causal, add_zero_attn=problem.extension.zero_attn)
