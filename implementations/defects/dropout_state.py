"""Mistakes of chapter 17 in when dropout acts, in what it shares, and in the generator that it draws from."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.mha_interface import MHA_FEATURES
from attention_conformance.implementations.builtin.stepwise.extended_layers import DroppingLayer
from attention_conformance.implementations.builtin.stepwise.steps import Steps, drop, softmax
from attention_conformance.implementations.defects.breaking import GRADIENT, NAN, STATE, breaks, breaks_layer, github
from attention_conformance.implementations.defects.dropout import DROPOUT, chosen
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

MODES = MHA_FEATURES | {Feature.DROPOUT, Feature.EVALUATION}
_OWN = torch.Generator().manual_seed(0)


def shared(weights: Tensor, rate: float, *axes: int) -> Tensor:
    """Dropout whose choice is the same along these axes."""
    part = weights
    for axis in axes:
        part = part.narrow(axis, 0, 1)
    return weights * chosen(part, rate) / (1.0 - rate)


breaks_dropout = partial(breaks, claims=DROPOUT)
breaks_drop = partial(breaks_dropout, step="drop")


@breaks_drop("dropout.independent", holds=("dropout.factors", "dropout.whole-key", "dropout.rate-zero")).entry(
    does="Drops the same weights in all heads.",
    repair="Draw for (B, H, Lq, Lk), and not for a part of it that is broadcast.",
    hides="A single head; checks of the mean.",
    matters="Heads cannot stand in for one another, which is what dropout should teach them.",
)
def same_choice_for_all_heads(weights: Tensor, rate: float) -> Tensor:
    return shared(weights, rate, 1)


@breaks_drop("dropout.independent", holds=("dropout.factors", "dropout.whole-key", "dropout.rate-zero")).entry(
    does="Drops the same weights in all samples.",
    repair="Draw for (B, H, Lq, Lk), and not for a part of it that is broadcast.",
    hides="A batch of one; checks of the mean.",
)
def same_choice_for_all_samples(weights: Tensor, rate: float) -> Tensor:
    return shared(weights, rate, 0)


@breaks_drop("dropout.independent", holds=("dropout.factors", "dropout.whole-key", "dropout.rate-zero")).entry(
    does="Drops whole keys, for all queries of a head.",
    repair="Draw for (B, H, Lq, Lk), and not for a part of it that is broadcast.",
    hides="A single query; checks of the mean.",
)
def same_choice_for_all_queries(weights: Tensor, rate: float) -> Tensor:
    return shared(weights, rate, 2)


@breaks_drop("dropout.independent", holds=("dropout.factors", "dropout.whole-key", "dropout.rate-zero")).entry(
    does="Drops whole rows, or nothing of them.",
    repair="Draw for every key, too.",
    hides="A single key; checks of the mean.",
)
def same_choice_for_all_keys(weights: Tensor, rate: float) -> Tensor:
    return shared(weights, rate, 3)


@breaks_drop(
    "dropout.independent", holds=("dropout.factors", "dropout.rate", "dropout.seed", "dropout.next-call")
).entry(
    does="Draws the same numbers for every tile of 64 queries.",
    repair="Let the offset into the generator's sequence depend on the tile.",
    hides="Sequences within a tile.",
)
def same_choice_for_all_tiles(weights: Tensor, rate: float) -> Tensor:
    tile = chosen(weights[:, :, :64], rate)
    tiles = tile.repeat(1, 1, -(-weights.shape[2] // 64), 1)[:, :, : weights.shape[2]]
    return weights * tiles / (1.0 - rate)


@breaks_drop(
    "dropout.next-call", holds=("dropout.seed", "dropout.independent", "dropout.factors"), severity=STATE
).entry(
    does="Leaves the generator where it was.",
    repair="Move the generator on by as many numbers as were drawn.",
    hides="A single call; calls that are seeded each.",
    links=github("Dao-AILab/flash-attention/issues/314"),
)
def generator_not_moved_on(weights: Tensor, rate: float) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        return drop(weights, rate)


@breaks_drop(
    "dropout.next-call", holds=("dropout.seed", "dropout.independent", "dropout.factors"), severity=STATE
).entry(
    does="Moves the generator on by one number, however many it has drawn.",
    repair="Move the generator on by as many numbers as were drawn.",
    hides="A single call; checks that the next call differs.",
)
def generator_moved_on_by_one(weights: Tensor, rate: float) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        dropped = weights * chosen(weights, rate) / (1.0 - rate)
    torch.rand(1)
    return dropped


@breaks_drop(
    "dropout.seed",
    "dropout.next-call",
    holds=("dropout.independent", "dropout.factors", "dropout.rate"),
    severity=STATE,
).entry(
    does="Draws from a generator that it seeds with a number of its own in each call.",
    repair="Draw from the generator that the caller can seed.",
    hides="A single call.",
)
def own_generator_seeded_in_each_call(weights: Tensor, rate: float) -> Tensor:
    own = torch.Generator().manual_seed(42)
    return weights * (torch.rand(weights.shape, generator=own) >= rate) / (1.0 - rate)


@breaks_drop(
    "dropout.seed",
    holds=("dropout.next-call", "dropout.independent", "dropout.factors", "dropout.rate"),
    severity=STATE,
).entry(
    does="Draws from a generator of its own, which the caller cannot seed.",
    repair="Draw from the generator that the caller can seed.",
    hides="Programs that are run once.",
    matters="A run cannot be repeated, and recomputed activations are not those that were discarded.",
)
def own_generator_never_seeded(weights: Tensor, rate: float) -> Tensor:
    return weights * (torch.rand(weights.shape, generator=_OWN) >= rate) / (1.0 - rate)


@breaks_drop("dropout.rate-one", holds=("dropout.factors", "dropout.rate", "dropout.gradients"), severity=NAN).entry(
    does="Divides by 1 - p where p is 1.",
    repair="Answer zeros where p is 1, before anything is divided.",
    hides="Probabilities below 1.",
    links=github("pytorch/pytorch/issues/190057"),
)
def divided_by_no_chance_to_stay(weights: Tensor, rate: float) -> Tensor:
    return weights * chosen(weights, rate) / torch.tensor(1.0 - rate, dtype=weights.dtype)


@breaks_dropout(
    "dropout.rate-zero", holds=("dropout.factors", "dropout.rate", "effects.global-state"), severity=STATE
).entry(
    does="Draws random numbers for a probability of 0.",
    repair="Draw only where there is something to drop.",
    hides="Checks of the answer; calls that do not name a dropout.",
    matters="Two runs part ways where one names a dropout of 0 and the other none.",
)
def numbers_drawn_for_nothing(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if options.get("dropout_p") == 0.0:
        torch.rand(1)
    return Steps()(query, key, value, **options)


@breaks_dropout(
    "dropout.factors", "dropout.rate", holds=("dropout.gradients", "dropout.rate-zero", "dropout.rate-one")
).entry(
    does="Drops only where gradients are recorded.",
    repair="Let the given probability decide, or the mode of the module.",
    hides="Training.",
    matters="Code that draws several answers to measure their variance gets the same one each time.",
)
def dropout_with_gradients_only(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not torch.is_grad_enabled() and options.get("dropout_p") != 1.0:
        options.pop("dropout_p", None)
    return Steps()(query, key, value, **options)


breaks_modes = partial(breaks_layer, features=MODES)


@breaks_modes("dropout.evaluation", holds=("dropout.factors", "dropout.rate-zero", "dropout.seed")).entry(
    does="Passes its dropout to the function in training and in evaluation.",
    repair="Pass 0 in evaluation mode: the function does not know of modes.",
    hides="A dropout of 0, in tests and configurations.",
    matters="A model that is served answers otherwise each time, and worse.",
    links=github(
        "pytorch/pytorch/issues/124464",
        "huggingface/pytorch-image-models/pull/1978",
        "meta-pytorch/torchtune/issues/1791",
        "NVIDIA/torch-harmonics/pull/221",
    ),
)
class DropoutInEvaluation(DroppingLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return self.steps(q, k, v, dropout_p=self.rate, **options)


@breaks_modes("dropout.rate", "dropout.factors", holds=("dropout.rate-zero", "dropout.evaluation")).entry(
    does="Computes dropout, and continues with the weights from before.",
    repair="Continue with what dropout returns.",
    hides="Tests without dropout, or without randomness.",
    links=github("jenkspt/gpt-jax/issues/1", "zhouhaoyi/Informer2020/issues/97"),
)
class ResultOfDropoutUnused(DroppingLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        def weights(scores: Tensor) -> Tensor:
            found = softmax(scores)
            torch.dropout(found, self.rate, self.training)
            return found

        return (Steps(softmax=weights) if self.rate else self.steps)(q, k, v, **options)


@breaks_modes(
    "dropout.evaluation", "dropout.factors", holds=("dropout.rate", "dropout.rate-zero", "dropout.independent")
).entry(
    does="Makes the weights smaller in evaluation mode, instead of larger while it is trained.",
    repair="Divide the weights that stay by 1 - p in training, and leave them alone in evaluation.",
    hides="A dropout of 0.",
)
class WeightsScaledInEvaluation(DroppingLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        def weights(scores: Tensor) -> Tensor:
            found = softmax(scores)
            return found * (chosen(found, self.rate) if self.training else 1.0 - self.rate)

        return (Steps(softmax=weights) if self.rate else self.steps)(q, k, v, **options)


@breaks_modes(
    "dropout.evaluation", holds=("dropout.factors", "dropout.rate-zero", "dropout.next-call"), severity=STATE
).entry(
    does="Draws random numbers in evaluation mode, and does not use them.",
    repair="Draw only where there is something to drop.",
    hides="Checks of the answer.",
    matters="Whether a model is evaluated in between changes its further training.",
)
class NumbersDrawnInEvaluation(DroppingLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if self.rate and not self.training:
            torch.rand(1)
        return super().attend(q, k, v, **options)


@breaks_modes("dropout.rate-zero", holds=("dropout.factors", "dropout.evaluation")).entry(
    does="Takes a dropout of 0 for no given dropout, and drops a tenth.",
    repair="Test whether a dropout is given, and not whether it is truthy.",
    hides="Any other dropout; layers that are built without naming one.",
)
class ZeroTakenForNotGiven(DroppingLayer):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        if problem.extension.has_dropout:
            self.rate = problem.extension.dropout or 0.1


class _OtherOrder(torch.autograd.Function):
    """Draws tile by tile, and the same numbers again in the backward pass, from the last tile to the first."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, rate: float) -> Tensor:
        ctx.rate, ctx.state = rate, torch.get_rng_state()
        return torch.cat([drop(tile, rate) for tile in weights.split(64, -1)], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            tiles = [drop(tile, ctx.rate) for tile in reversed(gradient.split(64, -1))]
        return torch.cat(tiles[::-1], -1), None


@breaks_drop(
    "dropout.gradients", holds=("dropout.factors", "dropout.independent", "gradients.value"), severity=GRADIENT
).entry(
    does="Draws the same numbers again in the backward pass, but reads its tiles of 64 keys in another order.",
    repair="Derive what is drawn from the place of the weight, and not from the order of the tiles.",
    hides="Keys that fit into one tile.",
)
def tiles_drawn_in_another_order_in_backward(weights: Tensor, rate: float) -> Tensor:
    found: Tensor = _OtherOrder.apply(weights, rate)  # type: ignore[no-untyped-call]
    return found
