"""Mistakes of chapter 25: gates of heads, their gradients, and what is left when one is closed."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.extended_layers import GATED_FEATURES, call_gated
from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import Steps, gate
from attention_conformance.implementations.defects.breaking import GRADIENT, PRECISION, breaks, breaks_layer, github
from attention_conformance.spec.features import Feature

GATES = frozenset({Feature.HEAD_GATES})
LEARNED = ("head-gates.gradient", "head-gates.importance", "head-gates.ablation")
"""The clauses of the gradients of gates, and of what follows from them."""
breaks_gates = partial(breaks, claims=GATES)
breaks_gate = partial(breaks_gates, step="gate")


@breaks_gate("head-gates.factor", *LEARNED, holds=("head-gates.open", "head-gates.closed")).entry(
    does="Multiplies by the gates twice: the values, and the output.",
    repair="Multiply once, after the values are mixed.",
    hides="Gates of 0 and 1.",
)
def gates_multiplied_twice(heads: Tensor, gates: Tensor) -> Tensor:
    return gate(gate(heads, gates), gates)


@breaks_gates(
    "head-gates.factor", "head-gates.closed", *LEARNED, holds=("head-gates.open", "scores.dot-product")
).entry(
    does="Multiplies the scores by the gates, and not the output.",
    repair="Multiply the output of each head.",
    hides="Gates of 1.",
    links=github("huggingface/transformers/pull/9853"),
)
def gates_multiply_the_scores(
    query: Tensor, key: Tensor, value: Tensor, head_gates: Tensor | None = None, **options: Any
) -> Tensor:
    gated = query if head_gates is None else gate(query, head_gates)
    return Steps()(gated, key, value, **options)


@breaks_gate(
    "head-gates.factor", "head-gates.closed", *LEARNED, holds=("head-gates.open", "head-gates.weights"), raises=True
).entry(
    does="Accepts gates and ignores them.",
    repair="Multiply the output of each head by its gate, or refuse gates.",
    hides="Gates of 1; checks that a model with gates runs.",
    matters="An ablation study finds that no head matters.",
    links=github("huggingface/transformers/pull/9853"),
)
def gates_ignored(heads: Tensor, gates: Tensor) -> Tensor:
    return heads


@breaks_gate(
    "head-gates.factor", "head-gates.gradient", holds=("head-gates.open", "head-gates.closed", "head-gates.ablation")
).entry(
    does="Cuts gates off below 0 and above 1.",
    repair="Use gates as they are; a range is up to the caller.",
    hides="Gates between 0 and 1.",
    matters="A learned gate that leaves the range stops learning, and heads cannot be amplified.",
)
def gates_cut_off(heads: Tensor, gates: Tensor) -> Tensor:
    return gate(heads, gates.clamp(0.0, 1.0))


@breaks_gate(
    "head-gates.open",
    "head-gates.factor",
    "head-gates.closed",
    *LEARNED,
    holds=("head-gates.weights", "scores.dot-product"),
).entry(
    does="Sends the gates through a sigmoid.",
    repair="Multiply by the gates that are given; make them elsewhere from what is learned.",
    hides="Calls without gates.",
    matters="No gate is fully open or closed: a pruned model still uses every head.",
)
def gates_through_a_sigmoid(heads: Tensor, gates: Tensor) -> Tensor:
    return gate(heads, gates.sigmoid())


@breaks_gate("head-gates.closed", "head-gates.factor", *LEARNED, holds=("head-gates.open", "head-gates.weights")).entry(
    does="Scales the heads up by what the gates leave, as dropout does.",
    repair="Leave the other heads alone: a gate is no dropout.",
    hides="Gates of 1, and any that add up to the number of heads.",
    matters="Closing one head changes all others, and the measured importance is not that of the head.",
)
def others_scaled_up_by_gates(heads: Tensor, gates: Tensor) -> Tensor:
    return gate(heads, gates * len(gates) / gates.abs().sum())


@breaks_gate(
    "head-gates.closed", "head-gates.gradient", holds=("head-gates.factor", "head-gates.open"), severity=PRECISION
).entry(
    does="Lets a closed gate leave a billionth of its head.",
    repair="Multiply by 0 where the gate is 0.",
    hides="Tolerances of any kind, and gates that are not 0.",
    matters="Nothing is exactly 0, so that nothing shows which heads can be left out; a NaN in the head stays.",
)
def closed_gate_not_quite(heads: Tensor, gates: Tensor) -> Tensor:
    least = 1e-9 if heads.dtype is torch.float64 else 1e-6
    return gate(heads, torch.where(gates == 0.0, gates + least, gates))


@breaks(
    "head-gates.factor",
    "head-gates.gradient",
    claims=GATES | {Feature.GROUPED},
    holds=("head-gates.open", "grouped.order"),
).entry(
    does="Gates grouped heads in the order of another layout: first the first head of each group.",
    repair="Give gate h to query head h, in the order of the query.",
    hides="As many key heads as query heads; gates that are all the same.",
    links=github("onnxsim/onnxsim/pull/932"),
)
def gates_in_another_order_of_groups(
    query: Tensor, key: Tensor, value: Tensor, head_gates: Tensor | None = None, **options: Any
) -> Tensor:
    if head_gates is not None:
        options["head_gates"] = head_gates.unflatten(0, (key.shape[1], -1)).T.flatten()
    return Steps()(query, key, value, **options)


@breaks_gate(*LEARNED, holds=("head-gates.factor", "head-gates.closed"), severity=GRADIENT, raises=True).entry(
    does="Takes the gates for constants.",
    repair="Keep the gates in the graph.",
    hides="Answers; gradients of everything else.",
)
def gates_out_of_the_graph(heads: Tensor, gates: Tensor) -> Tensor:
    return gate(heads, gates.detach())


@breaks_gate(
    "head-gates.gradient",
    "head-gates.ablation",
    holds=("head-gates.factor", "head-gates.importance"),
    severity=GRADIENT,
).entry(
    does="Averages the gradients of the gates over the samples.",
    repair="Sum over samples and queries, as for every other parameter.",
    hides="Batches of one sample.",
    matters="Importances depend on the batch size, and the ablation is not the one predicted.",
)
def gradient_of_gates_averaged(heads: Tensor, gates: Tensor) -> Tensor:
    repeat_kv = gates / max(1, len(heads))
    return gate(heads, repeat_kv + (gates - repeat_kv).detach())


@breaks_gates(*LEARNED, holds=("head-gates.factor", "head-gates.closed"), severity=GRADIENT).entry(
    does="Sums the gradient of a gate over the last query only.",
    repair="Sum over all queries of all samples.",
    hides="A single query.",
)
def gradient_of_gates_from_the_last_query(
    query: Tensor, key: Tensor, value: Tensor, head_gates: Tensor | None = None, **options: Any
) -> Tensor:
    heads = Steps()(query, key, value, **options)
    if head_gates is None:
        return heads
    gates = head_gates.to(heads.dtype)
    return torch.cat([gate(heads[:, :, :-1], gates.detach()), gate(heads[:, :, -1:], gates)], 2)


@breaks_gates("head-gates.weights", extras=("weights",), holds=("head-gates.factor", "head-gates.gradient")).entry(
    does="Multiplies the returned weights by the gates, too.",
    repair="Return the weights of the softmax.",
    hides="Gates of 1, and callers that read the output only.",
    matters="The rows of a heat map sum to the gate, and a closed head seems to attend to nothing.",
)
def returned_weights_gated(
    query: Tensor, key: Tensor, value: Tensor, head_gates: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    output, weights, _ = Steps().answer(query, key, value, head_gates=head_gates, **options)
    return output, weights if head_gates is None else gate(weights, head_gates)


@breaks_layer(
    "head-gates.factor",
    "head-gates.closed",
    "head-gates.rows",
    "head-gates.gradient",
    "head-gates.importance",
    features=GATED_FEATURES,
    call=call_gated,
    holds=("head-gates.open", "heads.split"),
).entry(
    does="Multiplies the joined heads by the gates in sequence, component by component.",
    repair="Multiply before the heads are joined, or repeat each gate over the width of its head.",
    hides="Heads of width 1; gates that are all the same.",
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


@breaks_layer(
    "head-gates.rows",
    "head-gates.factor",
    "head-gates.closed",
    "head-gates.gradient",
    "head-gates.importance",
    features=GATED_FEATURES,
    call=call_gated,
    holds=("head-gates.open", "projections.output-bias"),
).entry(
    does="Splits the bias of the output projection among the heads, so that the gates scale it.",
    repair="Leave the bias alone: it belongs to no head.",
    hides="Projections without bias, and gates that are 1 on average.",
    matters="A module whose rows are really cut out answers otherwise than the gates predicted.",
)
class BiasSharedOutToHeads(Layer):
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, head_gates: Tensor | None = None, **options: Any
    ) -> Any:
        if head_gates is None:
            return super().forward(query, key, value, **options)
        answer: Tensor = super().forward(query, key, value, head_gates=head_gates, **options)
        return answer + self.o.bias * (head_gates.mean() - 1.0)
