"""Mistakes of chapter 25: gates of heads and of the output, their gradients, and what is left when one is closed."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.extended_layers import GATED_FEATURES, call_gated
from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import Steps, gate, open_output
from attention_conformance.implementations.defects.breaking import GRADIENT, NAN, PRECISION, breaks, breaks_layer
from attention_conformance.spec.features import Feature

GATES = frozenset({Feature.HEAD_GATES})
LEARNED = ("head-gates.gradient", "head-gates.importance", "head-gates.ablation")
"""The clauses of the gradients of gates, and of what follows from them."""
breaks_gates = partial(breaks, claims=GATES)
breaks_gate = partial(breaks_gates, step="gate")
breaks_gated_layer = partial(breaks_layer, features=GATED_FEATURES, call=call_gated)
breaks_gradients = partial(breaks_gate, severity=GRADIENT)
LOGITS = frozenset({Feature.OUTPUT_GATES, Feature.GROUPED})
OPENED = ("head-gates.sigmoid", "head-gates.sigmoid-shared")
breaks_output = partial(breaks, claims=LOGITS)
breaks_opening = partial(breaks_output, step="open_output")


@breaks_gate("head-gates.factor", *LEARNED, holds=("head-gates.open", "head-gates.closed"))
def gates_multiplied_twice(heads: Tensor, gates: Tensor) -> Tensor:
    return gate(gate(heads, gates), gates)


@breaks_gates("head-gates.factor", "head-gates.closed", *LEARNED, holds=("head-gates.open", "scores.dot-product"))
def gates_multiply_the_scores(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    gates = options.pop("head_gates", None)
    gated = query if gates is None else gate(query, gates)
    return Steps()(gated, key, value, **options)


@breaks_gate(
    "head-gates.factor", "head-gates.closed", *LEARNED, holds=("head-gates.open", "head-gates.weights"), raises=True
)
def gates_ignored(heads: Tensor, gates: Tensor) -> Tensor:
    return heads


@breaks_gate(
    "head-gates.factor", "head-gates.gradient", holds=("head-gates.open", "head-gates.closed", "head-gates.ablation")
)
def gates_cut_off(heads: Tensor, gates: Tensor) -> Tensor:
    return gate(heads, gates.clamp(0.0, 1.0))


@breaks_gate(
    "head-gates.open",
    "head-gates.factor",
    "head-gates.closed",
    *LEARNED,
    holds=("head-gates.weights", "scores.dot-product"),
)
def gates_through_a_sigmoid(heads: Tensor, gates: Tensor) -> Tensor:
    return gate(heads, gates.sigmoid())


@breaks_gate("head-gates.closed", "head-gates.factor", *LEARNED, holds=("head-gates.open", "head-gates.weights"))
def others_scaled_up_by_gates(heads: Tensor, gates: Tensor) -> Tensor:
    return gate(heads, gates * len(gates) / gates.abs().sum())


@breaks_gate(
    "head-gates.closed", "head-gates.gradient", holds=("head-gates.factor", "head-gates.open"), severity=PRECISION
)
def closed_gate_not_quite(heads: Tensor, gates: Tensor) -> Tensor:
    least = 1e-9 if heads.dtype is torch.float64 else 1e-6
    return gate(heads, torch.where(gates == 0.0, gates + least, gates))


@breaks(
    "head-gates.factor",
    "head-gates.gradient",
    claims=GATES | {Feature.GROUPED},
    holds=("head-gates.open", "grouped.order"),
)
def gates_in_another_order_of_groups(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "head_gates" in options:
        options["head_gates"] = options["head_gates"].unflatten(0, (key.shape[1], -1)).T.flatten()
    return Steps()(query, key, value, **options)


@breaks_gradients(*LEARNED, holds=("head-gates.factor", "head-gates.closed"), raises=True)
def gates_out_of_the_graph(heads: Tensor, gates: Tensor) -> Tensor:
    return gate(heads, gates.detach())


@breaks_gradients("head-gates.gradient", "head-gates.ablation", holds=("head-gates.factor", "head-gates.importance"))
def gradient_of_gates_averaged(heads: Tensor, gates: Tensor) -> Tensor:
    averaged = gates / max(1, len(heads))
    return gate(heads, averaged + (gates - averaged).detach())


@breaks_gates(*LEARNED, holds=("head-gates.factor", "head-gates.closed"), severity=GRADIENT)
def gradient_of_gates_from_the_last_query(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    gates = options.pop("head_gates", None)
    heads = Steps()(query, key, value, **options)
    if gates is None:
        return heads
    gates = gates.to(heads.dtype)
    return torch.cat([gate(heads[:, :, :-1], gates.detach()), gate(heads[:, :, -1:], gates)], 2)


@breaks_gates("head-gates.weights", extras=("weights",), holds=("head-gates.factor", "head-gates.gradient"))
def returned_weights_gated(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, gate(weights, options["head_gates"]) if "head_gates" in options else weights


@breaks_opening(*OPENED, "head-gates.sigmoid-far", "head-gates.sigmoid-gradient", holds=("scores.dot-product",))
def logits_taken_for_gates(heads: Tensor, logits: Tensor) -> Tensor:
    return heads * logits


@breaks_opening(*OPENED, "head-gates.sigmoid-far", "head-gates.sigmoid-gradient", holds=("scores.dot-product",))
def output_opened_by_silu(heads: Tensor, logits: Tensor) -> Tensor:
    return heads * torch.nn.functional.silu(logits)


@breaks_opening(
    *OPENED, "head-gates.sigmoid-gradient", holds=("scores.dot-product", "head-gates.sigmoid-weights"), raises=True
)
def logits_ignored(heads: Tensor, logits: Tensor) -> Tensor:
    return heads


@breaks_opening("head-gates.sigmoid", "head-gates.sigmoid-gradient", holds=("head-gates.sigmoid-shared",))
def first_channel_opens_all(heads: Tensor, logits: Tensor) -> Tensor:
    return heads * logits[..., :1].sigmoid()


@breaks_opening(*OPENED, "head-gates.sigmoid-gradient", holds=("head-gates.sigmoid-weights",))
def first_head_opens_all(heads: Tensor, logits: Tensor) -> Tensor:
    return heads * logits[:, :1].sigmoid()


@breaks_opening(*OPENED, "head-gates.sigmoid-gradient", holds=("head-gates.sigmoid-weights",))
def logits_in_another_layout(heads: Tensor, logits: Tensor) -> Tensor:
    return heads * logits.transpose(1, 2).reshape(logits.shape).sigmoid()


@breaks_output(*OPENED, "head-gates.sigmoid-gradient", holds=("scores.dot-product",))
def output_opened_twice(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    heads = Steps()(query, key, value, **options)
    return open_output(heads, options["gate_logits"].to(heads.dtype)) if "gate_logits" in options else heads


@breaks_opening("head-gates.sigmoid-far", holds=OPENED, severity=NAN)
def opened_by_exponentials_that_overflow(heads: Tensor, logits: Tensor) -> Tensor:
    grown = logits.exp()
    return heads * (grown / (1.0 + grown))


@breaks_opening("head-gates.sigmoid-gradient", holds=OPENED, severity=GRADIENT)
def gradient_of_logits_without_slope(heads: Tensor, logits: Tensor) -> Tensor:
    return heads * (logits + (logits.sigmoid() - logits).detach())


@breaks_output("head-gates.sigmoid-weights", extras=("weights",), holds=("head-gates.sigmoid",))
def returned_weights_opened(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    logits = options.get("gate_logits")
    return output, weights if logits is None else weights * logits.to(weights.dtype).sigmoid().mean(-1, keepdim=True)


@breaks_gated_layer(
    "head-gates.factor",
    "head-gates.closed",
    "head-gates.rows",
    "head-gates.gradient",
    "head-gates.importance",
    holds=("head-gates.open", "heads.split"),
)
class GatesTiledOverTheWidth(Layer):
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
        gates = self.gates
        gated = merged if gates is None else merged * gates.repeat(merged.shape[-1] // len(gates))
        return super().output(gated)


@breaks_gated_layer(
    "head-gates.rows",
    "head-gates.factor",
    "head-gates.closed",
    "head-gates.gradient",
    "head-gates.importance",
    holds=("head-gates.open", "projections.output-bias"),
)
class BiasSharedOutToHeads(Layer):
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, head_gates: Tensor | None = None, **options: Any
    ) -> Any:
        if head_gates is None:
            return super().forward(query, key, value, **options)
        answer: Tensor = super().forward(query, key, value, head_gates=head_gates, **options)
        return answer + self.o.bias * (head_gates.mean() - 1.0)
