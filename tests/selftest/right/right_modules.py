"""Right implementations of head gates, and right modules that keep, save and differentiate in ways of their own."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_conformance.implementations.adapters.modes import module_modes, op_modes
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.stepwise.extended_layers import (
    GATED_FEATURES,
    UnbatchedLayer,
    call_gated,
)
from attention_conformance.implementations.builtin.stepwise.layer import LAYER_PLACES, Layer
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps
from attention_conformance.implementations.defects.head_gates import GATES, LOGITS
from attention_conformance.implementations.defects.modules import MODES
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.reference.family_styles import gated_weights
from attention_conformance.tests.selftest.right.right import BOTH, module, op

GATED = GATES | {Feature.GROUPED}


def values_gated(query: Tensor, key: Tensor, value: Tensor, head_gates: Tensor | None = None, **o: Any) -> Tensor:
    """The gates multiply the values of every head before they are mixed."""

    def mix(weights: Tensor, v: Tensor) -> Tensor:
        return weights @ (v if head_gates is None else v * head_gates.to(v.dtype)[:, None, None])

    return Steps(mix=mix)(query, key, value, **o)


def closed_heads_skipped(
    query: Tensor, key: Tensor, value: Tensor, head_gates: Tensor | None = None, **o: Any
) -> Tensor:
    """Where no gradient is wanted, heads behind closed gates are not computed."""
    if head_gates is None or torch.is_grad_enabled() or key.shape[1] != query.shape[1]:
        return Steps()(query, key, value, head_gates=head_gates, **o)
    at = head_gates.nonzero()[:, 0]
    mask = o.get("attn_mask")
    if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1:
        o["attn_mask"] = mask.index_select(mask.ndim - 3, at)
    answer = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    answer[:, at] = Steps()(query[:, at], key[:, at], value[:, at], head_gates=head_gates[at], **o)
    return answer


def opened_by_tanh(heads: Tensor, logits: Tensor) -> Tensor:
    """The sigmoid as a hyperbolic tangent of half the logit."""
    return heads * (0.5 + 0.5 * torch.tanh(0.5 * logits))


def opened_after_storing(query: Tensor, key: Tensor, value: Tensor, **o: Any) -> Tensor:
    """The output is stored before its gates, which are computed and stored in the working dtype."""
    logits: Tensor | None = o.pop("gate_logits", None)
    heads: Tensor = Steps()(query, key, value, **o)
    return heads if logits is None else heads.mul(logits.sigmoid())


def weights_opened(query: Tensor, key: Tensor, value: Tensor, **o: Any) -> Tensor:
    """One gate for all channels multiplies the weights; gates of channels come behind."""
    logits = o.get("gate_logits")
    if logits is None or logits.shape[-1] != 1:
        return Steps()(query, key, value, **o)

    def mix(weights: Tensor, v: Tensor) -> Tensor:
        opened: Tensor = weights * logits.to(v.dtype).sigmoid()
        return opened @ v

    return Steps(mix=mix, open_output=lambda heads, _: heads)(query, key, value, **o)


class RowsGated(Layer):
    """The gates multiply the rows of the output matrix."""

    gates: Tensor | None = None

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, head_gates: Tensor | None = None, **options: Any
    ) -> Any:
        self.gates = head_gates
        try:
            return super().forward(query, key, value, **options)
        finally:
            self.gates = None

    def output(self, merged: Tensor) -> Tensor:
        if self.gates is None:
            return super().output(merged)
        rows = self.gates.repeat_interleave(merged.shape[-1] // len(self.gates))
        return F.linear(merged, self.o.weight * rows, self.o.bias)


class MatrixKeptWhileItHolds(UnbatchedLayer):
    """A scaled copy of the query matrix serves inference, until the matrix changes or is another one."""

    kept: tuple[object, Tensor] | None = None

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.q.weight, self.k(key), self.v(value)
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return self.q(query), k, v
        state = (id(q), q.data_ptr(), q._version)
        if self.kept is None or self.kept[0] != state:
            self.kept = (state, q.detach().clone())
        return F.linear(query, self.kept[1], self.q.bias), k, v

    def __getstate__(self) -> dict[str, Any]:
        return {name: held for name, held in self.__dict__.items() if name != "kept"}


class SavedAsOne(Layer):
    """The state has names of its own and holds each projection with its bias in one tensor."""

    def state_dict(self, *args: Any, **options: Any) -> Any:
        return {f"projection_{name}": _joined(layer) for name, layer in self.named_children()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        for name, layer in self.named_children():
            held, bias = state_dict[f"projection_{name}"], layer.bias is not None
            parts = {"weight": held[:, :-1] if bias else held, **({"bias": held[:, -1]} if bias else {})}
            layer.load_state_dict(parts, strict, assign)


def _joined(layer: nn.Module) -> Tensor:
    weight, bias = layer.get_parameter("weight").detach(), getattr(layer, "bias", None)
    return weight.clone() if bias is None else torch.cat([weight, bias.detach()[:, None]], 1)


class _Softmax(torch.autograd.Function):
    """A softmax with a gradient of its own, which can be differentiated because it is made of the saved output."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor) -> Tensor:
        top = scores.amax(-1, keepdim=True)
        e = (scores - torch.where(top == -INFINITY, 0.0, top)).exp()
        whole = e.sum(-1, keepdim=True)
        weights: Tensor = e / torch.where(whole == 0.0, 1.0, whole)
        return weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        weighted = weights * gradients[0]
        gradient: Tensor = weighted - weights * weighted.sum(-1, keepdim=True)
        return gradient


def gradient_of_its_own(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    empty = key.shape[-2] == 0
    steps = Steps() if empty else Steps(softmax=_Softmax.apply)
    return steps(query, key, value, **options)


RIGHT_GATES = (
    op("gates.values", values_gated, GATED),
    op("gates.mixing", gated_weights(Steps()), GATED, extras=BOTH),
    op("gates.skipped", closed_heads_skipped, GATED),
    op("gates.tanh", Steps(open_output=opened_by_tanh), LOGITS),
    op("gates.stored", opened_after_storing, LOGITS),
    op("gates.weights", weights_opened, LOGITS),
    module("gates.rows", RowsGated, call_gated, GATED_FEATURES),
)


def _in_modes(name: str, kind: type[Layer], *modes: Feature) -> Implementation:
    runs = module_modes(kind, call_gated, LAYER_PLACES, *modes)
    return module(f"module.{name}", kind, call_gated, MODES | set(modes), modes=runs)


STATES = (Feature.SAVED, Feature.COPIED, Feature.NO_GRAD)
DIFFERENTIATED = (Feature.DOUBLE_BACKWARD, Feature.VMAP, Feature.AUTOCAST)
DIFFERENTIATED_RUNS = op_modes(gradient_of_its_own, *DIFFERENTIATED)
RIGHT_MODULES = (
    _in_modes("kept-while-it-holds", MatrixKeptWhileItHolds, *STATES, Feature.UNBATCHED, Feature.DOUBLE_BACKWARD),
    _in_modes("saved-as-one", SavedAsOne, *STATES, Feature.AUTOCAST, Feature.VMAP, Feature.EXPORTED),
    op("op.gradient-of-its-own", gradient_of_its_own, set(DIFFERENTIATED), modes=DIFFERENTIATED_RUNS),
)
