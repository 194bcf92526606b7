"""Accumulated: softmax from the first tile of keys to the last, with sums that are rescaled wrongly."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import log

import torch
from torch import Tensor

from attention_conformance.tests.harness.explain.stages.emptied import answered_rows
from attention_conformance.tests.harness.explain.stages.staged import INFINITY, State

TILES = (2, 4, 8, 16, 32, 64, 128)
RESCALED = "Multiply what is accumulated by the exponential of the old maximum less the new one."
BOTH, SUM, OUTPUT = "tiles of {} keys", "sum of the exponentials of tiles of {} keys", "output of tiles of {} keys"
POWERS = {
    "not rescaled to a new maximum": 0.0,
    "rescaled by powers of 2 instead of e": log(2.0),
    "rescaled by powers of e instead of 2": 1.0 / log(2.0),
}
"""The factor of a difference of maxima: 1 is right."""


def accumulated() -> Iterator[tuple[str, Callable[[State], State]]]:
    """What is wrong, and the softmax: of the two that are accumulated, both or one."""
    for tile, (words, power), which in product(TILES, POWERS.items(), (BOTH, SUM, OUTPUT)):
        yield f"{which.format(tile)} {words}", partial(_softmax, which, tile, power)


def exponentials(scores: Tensor) -> Tensor:
    """Those of scores less the largest one of each row."""
    return (scores - scores.amax(-1, keepdim=True)).exp()


def _softmax(which: str, tile: int, power: float, state: State) -> State:
    scores = state["scores"]
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    finite = scores.masked_fill(empty, 0.0)
    right, own = exponentials(finite), _rescaled(finite, tile, power)
    output, summed = (right if which == SUM else own), (right if which == OUTPUT else own)
    total, top = summed.sum(-1, keepdim=True), finite.amax(-1, keepdim=True)
    log_sum = (top + total.log())[..., 0].masked_fill(empty[..., 0], -INFINITY)
    return {"scores": answered_rows(output / total, empty, state), "log_sum_exp": log_sum, "soft": True}


def _rescaled(scores: Tensor, tile: int, power: float) -> Tensor:
    """Exponentials less the largest score up to their own tile, so rescaled to the largest of all."""
    tiles = torch.nn.functional.pad(scores, (0, -scores.shape[-1] % tile), value=-INFINITY).unflatten(-1, (-1, tile))
    running = tiles.amax(-1, keepdim=True).cummax(-2).values
    running = running.masked_fill(running == -INFINITY, 0.0)
    factors = (power * (running - running[..., -1:, :])).exp()
    made: Tensor = ((tiles - running).exp() * factors).flatten(-2)[..., : scores.shape[-1]]
    return made
