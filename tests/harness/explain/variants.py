"""Variants: stages that do something else than they should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from attention_conformance.tests.harness.explain.changes import OfTensor
from attention_conformance.tests.harness.explain.staged import INFINITY, State

TILES = (2, 4, 8, 16, 32, 64, 128)


def variants() -> Iterator[tuple[str, str, str, Callable[[State], State]]]:
    """The stage, what it does instead, how it is repaired, and the entries that it makes."""
    normalise = "Normalise the exponentials of each row by their sum over the keys."
    for axis, words in ((-2, "queries"), (-3, "heads"), (-4, "samples")):
        yield "softmax", f"softmax over the {words}", normalise, partial(_softmax, of=partial(torch.softmax, dim=axis))
    for words, of in SOFTMAXES.items():
        yield "softmax", words, normalise, partial(_softmax, of=of)
    for tile, (words, repair, tiled) in product(TILES, TILED):
        of = partial(tiled, tile=tile)
        yield "softmax", words.format(tile), repair.format(tile), partial(_softmax, of=of)
    largest = "Subtract the largest score of each row."
    for words, by in SHIFTS.items():
        yield "softmax", f"scores shifted by {words}", largest, partial(_softmax, of=partial(_shifted, by=by))
    on_queries = "Hide the keys that are padding, not the queries."
    yield "padding mask", "padding mask applied to the queries", on_queries, _padded_queries
    for words, change in POOLS.items():
        yield "relative bias", words, "Add the entry of each distance, the outermost ones for all beyond.", change


def _softmax(state: State, of: OfTensor) -> State:
    scores = state["scores"]
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    weights = of(scores.masked_fill(empty, 0.0)).masked_fill(empty, 0.0)
    log = torch.logsumexp(scores, -1)
    return {"scores": weights, "log_sum_exp": log, "soft": True}


def _exponentials(scores: Tensor) -> Tensor:
    return (scores - scores.amax(-1, keepdim=True).detach()).exp()


def _shifted(scores: Tensor, by: OfTensor) -> Tensor:
    powers = (scores - by(scores).detach()).exp()
    weights: Tensor = powers / powers.sum(-1, keepdim=True)
    return weights


SHIFTS: dict[str, OfTensor] = {
    "nothing": lambda x: torch.zeros(()),
    "their mean": lambda x: torch.nanmean(x.masked_fill(x == -INFINITY, float("nan")), -1, keepdim=True),
    "the largest of all": lambda x: x.amax(),
    "the largest of a head": lambda x: x.amax((-2, -1), keepdim=True),
    "the first score": lambda x: x[..., :1],
    "their least": lambda x: x.masked_fill(x == -INFINITY, INFINITY).amin(-1, keepdim=True),
}


def _padded_queries(state: State) -> State:
    return {"scores": state["scores"].masked_fill(~state["key_padding_mask"][:, None, :, None], state["hidden"])}


def _whole(scores: Tensor, tile: int) -> Tensor:
    hidden = torch.arange(scores.shape[-1]) >= scores.shape[-1] // tile * tile
    return torch.softmax(scores.masked_fill(hidden, -INFINITY), -1)


def _last(scores: Tensor, tile: int) -> Tensor:
    hidden = torch.arange(scores.shape[-1]) < (scores.shape[-1] - 1) // tile * tile
    return torch.softmax(scores.masked_fill(hidden, -INFINITY), -1)


def _filled(scores: Tensor, tile: int) -> Tensor:
    zeros = torch.nn.functional.pad(scores, (0, -scores.shape[-1] % tile))
    return torch.softmax(zeros, -1)[..., : scores.shape[-1]]


def _not_rescaled(scores: Tensor, tile: int) -> Tensor:
    tiles = torch.nn.functional.pad(scores, (0, -scores.shape[-1] % tile), value=-INFINITY).unflatten(-1, (-1, tile))
    top = tiles.amax(-1, keepdim=True).cummax(-2).values
    made = (tiles - top).exp().flatten(-2)[..., : scores.shape[-1]]
    weights: Tensor = made / made.sum(-1, keepdim=True)
    return weights


RESCALED = "Multiply what is accumulated by the exponential of the old maximum less the new one."
TILED: tuple[tuple[str, str, Callable[..., Tensor]], ...] = (
    (
        "keys after the last whole tile of {} ignored",
        "Read all keys, where their number is no multiple of {}, too.",
        _whole,
    ),
    ("zero scores up to a multiple of {} keys", "Hide the keys that fill up the last tile.", _filled),
    ("tiles of {} keys not rescaled to a new maximum", RESCALED, _not_rescaled),
    ("last tile of {} keys alone", RESCALED, _last),
)
"""Softmax in tiles: what it does instead, and how it is repaired."""

SOFTMAXES: dict[str, OfTensor] = {
    "softmax replaced by a sigmoid": torch.sigmoid,
    "softmax not normalised": _exponentials,
    "softmax of powers of 2": lambda x: torch.softmax(x * 0.6931471805599453, -1),
    "1 added to the sum of the exponentials": lambda x: x.exp() / (1.0 + x.exp().sum(-1, keepdim=True)),
    "1 added to the sum of the exponentials less the maximum": lambda x: (
        _exponentials(x) / (1.0 + _exponentials(x).sum(-1, keepdim=True))
    ),
    "logarithm of the softmax": lambda x: torch.log_softmax(x, -1),
    "all weight on the largest score": lambda x: (x == x.amax(-1, keepdim=True)).double() + 0.0 * x,
    "softmax applied twice": lambda x: torch.softmax(torch.softmax(x, -1), -1),
    "softmax with a constant for its sum": lambda x: torch.exp(x - torch.logsumexp(x, -1, keepdim=True).detach()),
    "softmax over all queries and keys": lambda x: torch.softmax(x.flatten(-2), -1).view_as(x),
}


def _beyond(state: State, filling: bool) -> State:
    table, most = state["relative_bias"], state["relative_bias"].shape[-1] // 2
    ahead = (state["key_places"][:, None, None, :] - state["query_places"][:, None, :, None])[:, 0]
    entries = (ahead.clamp(-most, most) + most) if filling else ahead.clamp(-most, most) % table.shape[-1]
    bias = table[:, entries].transpose(0, 1)
    bias = bias.masked_fill((ahead.abs() > most)[:, None], 0.0) if filling else bias
    scores, keys = state["scores"], state["keys"]
    return {"scores": torch.cat([scores[..., :keys] + bias, scores[..., keys:]], -1)}


POOLS: dict[str, Callable[[State], State]] = {
    "relative bias of far keys left out": partial(_beyond, filling=True),
    "table of biases read from its middle": partial(_beyond, filling=False),
}
