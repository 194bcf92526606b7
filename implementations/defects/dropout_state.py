"""Mistakes of chapter 17 in when dropout acts, in what it shares, and in the generator that it draws from."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.mha_interface import MHA_FEATURES
from attention_conformance.implementations.builtin.stepwise.extended_layers import DroppingLayer
from attention_conformance.implementations.builtin.stepwise.steps import Steps, drop, softmax
from attention_conformance.implementations.defects.breaking import GRADIENT, NAN, STATE, breaks, breaks_layer
from attention_conformance.implementations.defects.dropout import DROPOUT, chosen
from attention_conformance.implementations.defects.gradients import distorted
from attention_conformance.spec.conventions import Conventions, DropoutSharing, FullDropout
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

MODES = MHA_FEATURES | {Feature.DROPOUT, Feature.EVALUATION}
SHARED = Conventions(dropout_sharing=DropoutSharing.HEADS)
REFUSED = Conventions(full_dropout=FullDropout.ERROR)
_OWN = torch.Generator().manual_seed(0)


def shared(weights: Tensor, rate: float, axis: int) -> Tensor:
    """Dropout whose choice is the same along this axis."""
    return weights * chosen(weights.narrow(axis, 0, 1), rate) / (1.0 - rate)


breaks_dropout = partial(breaks, claims=DROPOUT)
breaks_drop = partial(breaks_dropout, step="drop")
breaks_shared = partial(
    breaks_drop, "dropout.independent", holds=("dropout.factors", "dropout.whole-key", "dropout.rate-zero")
)
breaks_state = partial(breaks_drop, severity=STATE)


@breaks_drop(
    "dropout.independent", conventions=SHARED, holds=("dropout.factors", "dropout.seed"), follows="dropout-sharing=none"
)
def choices_apart_that_are_claimed_to_be_shared(weights: Tensor, rate: float) -> Tensor:
    return drop(weights, rate)


@breaks_drop(
    "dropout.rate-one", conventions=REFUSED, holds=("dropout.factors", "dropout.rate"), follows="full-dropout=zeros"
)
def full_dropout_not_refused(weights: Tensor, rate: float) -> Tensor:
    return drop(weights, rate)


@breaks_shared(follows="dropout-sharing=heads")
def same_choice_for_all_heads(weights: Tensor, rate: float) -> Tensor:
    return shared(weights, rate, 1)


@breaks_shared(follows="dropout-sharing=samples")
def same_choice_for_all_samples(weights: Tensor, rate: float) -> Tensor:
    return shared(weights, rate, 0)


@breaks_shared()
def same_choice_for_all_queries(weights: Tensor, rate: float) -> Tensor:
    return shared(weights, rate, 2)


@breaks_shared()
def same_choice_for_all_keys(weights: Tensor, rate: float) -> Tensor:
    return shared(weights, rate, 3)


@breaks_drop("dropout.independent", holds=("dropout.factors", "dropout.rate", "dropout.seed", "dropout.next-call"))
def same_choice_for_all_tiles(weights: Tensor, rate: float) -> Tensor:
    tile = chosen(weights[:, :, :64], rate)
    tiles = tile.repeat(1, 1, -(-weights.shape[2] // 64), 1)[:, :, : weights.shape[2]]
    return weights * tiles / (1.0 - rate)


@breaks_state("dropout.next-call", holds=("dropout.seed", "dropout.independent", "dropout.factors"))
def generator_not_moved_on(weights: Tensor, rate: float) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        return drop(weights, rate)


@breaks_state("dropout.next-call", holds=("dropout.seed", "dropout.independent", "dropout.factors"))
def generator_moved_on_by_one(weights: Tensor, rate: float) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        dropped = weights * chosen(weights, rate) / (1.0 - rate)
    torch.rand(1)
    return dropped


@breaks_state("dropout.seed", "dropout.next-call", holds=("dropout.independent", "dropout.factors", "dropout.rate"))
def own_generator_seeded_in_each_call(weights: Tensor, rate: float) -> Tensor:
    own = torch.Generator().manual_seed(42)
    return weights * (torch.rand(weights.shape, generator=own) >= rate) / (1.0 - rate)


@breaks_state("dropout.seed", holds=("dropout.next-call", "dropout.independent", "dropout.factors", "dropout.rate"))
def own_generator_never_seeded(weights: Tensor, rate: float) -> Tensor:
    return weights * (torch.rand(weights.shape, generator=_OWN) >= rate) / (1.0 - rate)


@breaks_drop("dropout.rate-one", holds=("dropout.factors", "dropout.rate", "dropout.gradients"), severity=NAN)
def divided_by_no_chance_to_stay(weights: Tensor, rate: float) -> Tensor:
    return weights * chosen(weights, rate) / torch.tensor(1.0 - rate, dtype=weights.dtype)


@breaks_dropout("dropout.rate-zero", holds=("dropout.factors", "dropout.rate", "effects.global-state"), severity=STATE)
def numbers_drawn_for_nothing(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if options.get("dropout_p") == 0.0:
        torch.rand(1)
    return Steps()(query, key, value, **options)


@breaks_dropout("dropout.factors", "dropout.rate", holds=("dropout.gradients", "dropout.rate-zero", "dropout.rate-one"))
def dropout_with_gradients_only(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not torch.is_grad_enabled() and options.get("dropout_p") != 1.0:
        options.pop("dropout_p", None)
    return Steps()(query, key, value, **options)


breaks_modes = partial(breaks_layer, features=MODES)


@breaks_modes("dropout.evaluation", holds=("dropout.factors", "dropout.rate-zero", "dropout.seed"))
class DropoutInEvaluation(DroppingLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return self.steps(q, k, v, dropout_p=self.rate, **options)


@breaks_modes("dropout.rate", "dropout.factors", holds=("dropout.rate-zero", "dropout.evaluation"))
class ResultOfDropoutUnused(DroppingLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        def weights(scores: Tensor) -> Tensor:
            result = softmax(scores)
            torch.dropout(result, self.rate, self.training)
            return result

        return (Steps(softmax=weights) if self.rate else self.steps)(q, k, v, **options)


@breaks_modes(
    "dropout.evaluation", "dropout.factors", holds=("dropout.rate", "dropout.rate-zero", "dropout.independent")
)
class WeightsScaledInEvaluation(DroppingLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        def weights(scores: Tensor) -> Tensor:
            result = softmax(scores)
            return result * (chosen(result, self.rate) if self.training else 1.0 - self.rate)

        return (Steps(softmax=weights) if self.rate else self.steps)(q, k, v, **options)


@breaks_modes("dropout.evaluation", holds=("dropout.factors", "dropout.rate-zero", "dropout.next-call"), severity=STATE)
class NumbersDrawnInEvaluation(DroppingLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if self.rate and not self.training:
            torch.rand(1)
        return super().attend(q, k, v, **options)


@breaks_modes("dropout.evaluation", holds=("dropout.factors", "dropout.rate-zero"), severity=STATE)
class DropoutGoneAfterEvaluation(DroppingLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        self.rate = self.rate if self.training else 0.0
        return super().attend(q, k, v, **options)


@breaks_modes("dropout.rate-zero", holds=("dropout.factors", "dropout.evaluation"))
class ZeroTakenForNotGiven(DroppingLayer):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        if problem.extension.has_dropout:
            self.rate = problem.extension.dropout or 0.1


@breaks_drop(
    "dropout.gradients", holds=("dropout.factors", "dropout.independent", "gradients.value"), severity=GRADIENT
)
def tiles_drawn_in_another_order_in_backward(weights: Tensor, rate: float) -> Tensor:
    state = torch.get_rng_state()

    def forward(weights: Tensor) -> Tensor:
        return torch.cat([drop(tile, rate) for tile in weights.split(64, -1)], -1)

    def backward(gradient: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            tiles = [drop(tile, rate) for tile in reversed(gradient.split(64, -1))]
        return torch.cat(tiles[::-1], -1)

    return distorted(weights, backward, forward)


@breaks_drop("dropout.gradients", holds=("dropout.factors", "dropout.independent", "gradients.value"), severity=STATE)
def generator_put_back_by_the_backward_pass(weights: Tensor, rate: float) -> Tensor:
    state = torch.get_rng_state()

    def backward(gradient: Tensor) -> Tensor:
        torch.set_rng_state(state)
        return drop(gradient, rate)

    return distorted(weights, backward, lambda weights: drop(weights, rate))
