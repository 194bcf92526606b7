"""Mistakes of chapter 17 in what dropout does to the weights, and in its gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, drop, softmax
from attention_conformance.implementations.defects.breaking import GRADIENT, breaks, github
from attention_conformance.spec.features import Feature

DROPOUT = frozenset({Feature.DROPOUT})


def chosen(like: Tensor, rate: float) -> Tensor:
    """1 where an element is kept, 0 where it is dropped."""
    return (torch.rand(like.shape) >= rate).to(like.dtype)


breaks_dropout = partial(breaks, claims=DROPOUT)
breaks_drop = partial(breaks_dropout, step="drop")
breaks_drop_gradients = partial(
    breaks_drop,
    holds=("dropout.factors", "dropout.independent", "gradients.query", "gradients.value"),
    severity=GRADIENT,
)


@breaks_drop("dropout.rate", "dropout.factors", "dropout.seed", holds=("dropout.rate-zero", "dropout.whole-key")).entry(
    does="Takes a probability of dropout, and drops nothing.",
    repair="Drop the weights, or refuse a probability above 0.",
    hides="Tests with a dropout of 0.",
    links=github("pytorch/pytorch/pull/184126"),
)
def dropout_ignored(weights: Tensor, rate: float) -> Tensor:
    return weights


@breaks_drop(
    "dropout.factors", holds=("dropout.whole-key", "dropout.rate", "dropout.independent", "dropout.rate-zero")
).entry(
    does="Drops weights, and leaves the others as they are.",
    repair="Divide the weights that stay by 1 - p.",
    hides="A dropout of 0; checks of which weights are 0.",
    matters="Outputs in training are too small on average, and jump when dropout is switched off.",
)
def remaining_weights_not_rescaled(weights: Tensor, rate: float) -> Tensor:
    return weights * chosen(weights, rate)


@breaks_drop(
    "dropout.factors", holds=("dropout.whole-key", "dropout.rate", "dropout.independent", "dropout.rate-zero")
).entry(
    does="Divides the weights that stay by p.",
    repair="Divide them by 1 - p, the probability to stay.",
    hides="A dropout of 0.5, where both are the same.",
)
def rescaled_by_the_rate(weights: Tensor, rate: float) -> Tensor:
    return weights * chosen(weights, rate) / rate


@breaks_drop(
    "dropout.factors", holds=("dropout.whole-key", "dropout.rate", "dropout.independent", "dropout.rate-zero")
).entry(
    does="Normalises the rows again after it has dropped some of their weights.",
    repair="Divide by 1 - p, the same for every row.",
    hides="Means over many draws, which come out nearly right.",
    matters="Another regularisation than the one that is claimed; a row that loses all its weights is 0/0.",
)
def rows_normalised_after_dropout(weights: Tensor, rate: float) -> Tensor:
    left = weights * chosen(weights, rate)
    whole = left.sum(-1, keepdim=True)
    return left / torch.where(whole == 0, 1.0, whole)


@breaks_dropout("dropout.factors", "dropout.rate", holds=("dropout.rate-zero", "dropout.whole-key")).entry(
    does="Drops scores, before the softmax.",
    repair="Apply the softmax first, and drop weights.",
    hides="A dropout of 0.",
    matters="A score of 0 is no missing key: dropped keys keep a weight, and may gain some.",
    links=github("facebookresearch/fairseq/issues/351"),
)
def dropout_of_the_scores(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **options: Any) -> Tensor:
    def weights(scores: Tensor) -> Tensor:
        return softmax(torch.where(scores.isinf(), scores, drop(scores, dropout_p)))

    return (Steps(softmax=weights) if dropout_p else Steps())(query, key, value, **options)


@breaks_dropout(
    "dropout.whole-key",
    "dropout.gradients",
    holds=("dropout.rate", "dropout.independent", "dropout.factors", "dropout.rate-zero"),
).entry(
    does="Drops components of the output.",
    repair="Drop the weights, before they meet the values.",
    hides="Statistics of the output over many draws.",
    matters="A query loses single components, and never a key: nothing trains it to use other keys.",
    links=github("typoverflow/UtilsRL/issues/32"),
)
def dropout_of_the_output(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    return drop(output, dropout_p) if dropout_p else output


@breaks_dropout("dropout.whole-key", "dropout.independent", holds=("dropout.rate-zero", "dropout.factors")).entry(
    does="Drops components of the values.",
    repair="Drop the weights.",
    hides="Statistics of the output over many draws.",
)
def dropout_of_the_values(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **options: Any) -> Tensor:
    return Steps()(query, key, drop(value, dropout_p) if dropout_p else value, **options)


@breaks_drop(
    "dropout.rate", holds=("dropout.factors", "dropout.independent", "dropout.whole-key", "dropout.gradients")
).entry(
    does="Takes the probability to drop a weight for that to keep it.",
    repair="Keep a weight with the probability 1 - p.",
    hides="A dropout of 0.5.",
)
def rate_taken_for_its_complement(weights: Tensor, rate: float) -> Tensor:
    return weights * chosen(weights, 1.0 - rate) / (1.0 - rate)


@breaks_drop("dropout.rate", holds=("dropout.factors", "dropout.independent", "dropout.gradients")).entry(
    does="Keeps the probability in three bits, rounded down.",
    repair="Draw numbers fine enough for the probabilities that are in use.",
    hides="A dropout of 0.25 or 0.5.",
    matters="A dropout of 0.1 drops nothing, and what is left is enlarged all the same.",
)
def rate_in_eighths(weights: Tensor, rate: float) -> Tensor:
    return weights * chosen(weights, int(rate * 8) / 8) / (1.0 - rate)


@breaks_dropout("dropout.with-masks", holds=("dropout.factors", "dropout.rate", "dropout.rate-zero")).entry(
    does="Drops nothing where there is a mask.",
    repair="Pass the dropout to every path.",
    hides="Calls without a mask.",
)
def dropout_lost_with_a_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if options.keys() & {"attn_mask", "key_padding_mask"}:
        options.pop("dropout_p", None)
    return Steps()(query, key, value, **options)


@breaks_dropout("dropout.with-masks", holds=("dropout.factors", "dropout.rate", "masks.bool")).entry(
    does="Normalises the rows again after dropout where there is a mask.",
    repair="Mask the scores, apply the softmax, and drop what it gives.",
    hides="Calls without a mask, and masks without dropout.",
    matters="A path that masks weights late gives what dropout removes to the other keys.",
)
def normalised_after_dropout_with_a_mask(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **options: Any
) -> Tensor:
    def weights(scores: Tensor) -> Tensor:
        dropped = drop(softmax(scores), dropout_p)
        if not scores.isinf().any():
            return dropped
        whole = dropped.sum(-1, keepdim=True)
        return dropped / torch.where(whole == 0, 1.0, whole)

    return (Steps(softmax=weights) if dropout_p else Steps())(query, key, value, **options)


class _OtherChoice(torch.autograd.Function):
    """Drops in the forward pass, and draws anew in the backward pass."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, rate: float) -> Tensor:
        ctx.rate = rate
        return drop(weights, rate)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return drop(gradient, ctx.rate), None


@breaks_drop_gradients("dropout.gradients").entry(
    does="Draws again in the backward pass, from where the generator is by then.",
    repair="Keep what was drawn, or the state of the generator from before.",
    hides="Checks of the output, and of gradients without dropout.",
    links=github("pytorch/pytorch/pull/188015"),
)
def other_weights_dropped_in_the_backward_pass(weights: Tensor, rate: float) -> Tensor:
    found: Tensor = _OtherChoice.apply(weights, rate)  # type: ignore[no-untyped-call]
    return found


@breaks_drop_gradients("dropout.gradients").entry(
    does="Passes the gradient through dropout as if nothing were dropped.",
    repair="Multiply the gradient by the same factors as the weights.",
    hides="Checks of the output, and of gradients without dropout.",
)
def gradient_past_dropout(weights: Tensor, rate: float) -> Tensor:
    return weights + (drop(weights, rate) - weights).detach()


@breaks_drop_gradients("dropout.gradients").entry(
    does="Forgets the factor 1 / (1 - p) in the backward pass.",
    repair="Multiply the gradient by the same factors as the weights.",
    hides="Checks of the output, and of gradients without dropout.",
    links=github("NVIDIA/apex/pull/816"),
)
def gradient_not_rescaled(weights: Tensor, rate: float) -> Tensor:
    kept = chosen(weights, rate)
    return weights * kept + (weights * kept * (1.0 / (1.0 - rate) - 1.0)).detach()


class _DroppedForWhole(torch.autograd.Function):
    """Softmax and dropout in one, whose backward pass has kept the weights after dropout only."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, rate: float) -> Tensor:
        dropped = drop(softmax(scores), rate)
        ctx.save_for_backward(dropped)
        return dropped

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (dropped,) = ctx.saved_tensors
        return dropped * (gradient - (gradient * dropped).sum(-1, keepdim=True)), None


@breaks_dropout(
    "dropout.gradients", holds=("dropout.factors", "gradients.query", "gradients.value"), severity=GRADIENT
).entry(
    does="Takes the weights after dropout for those of the softmax, when it goes back through the softmax.",
    repair="Use the weights before dropout in the derivative of the softmax.",
    hides="Gradients without dropout, and the gradient of the values.",
    matters="Dropped keys get no gradient through the normalisation that they take part in.",
    links=github("aws-neuron/nki-samples/pull/81"),
)
def dropped_weights_in_the_derivative(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **options: Any
) -> Tensor:
    def weights(scores: Tensor) -> Tensor:
        found: Tensor = _DroppedForWhole.apply(scores, dropout_p)  # type: ignore[no-untyped-call]
        return found

    return (Steps(softmax=weights) if dropout_p else Steps())(query, key, value, **options)
