"""Backward: stages whose numbers are right and whose gradients are those of another computation."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor

from attention_conformance.spec.conventions import GroupOrder
from attention_conformance.tests.harness.explain.stages.accumulated import TILES
from attention_conformance.tests.harness.explain.stages.emptied import answered_rows
from attention_conformance.tests.harness.explain.stages.staged import INFINITY, STAGE, State

Surrogate: TypeAlias = Callable[[Tensor, Tensor], Tensor]
LEFT_OUT: tuple[str, ...] = ("scale", "softcap", "head gates", "gates of the output")
LEFT_OUT += tuple(f"{step} of the {entry}" for step in ("norm", "rotation") for entry in ("query", "key"))
LEFT_OUT += ("rotation of the query by tables", "rotation of the key by tables")
"""Stages with one input, whose derivative may be forgotten."""


def straight(right: Tensor, other: Tensor) -> Tensor:
    """The numbers of one with the gradient of the other."""
    return torch.where(right == other, other, other + (right - other).detach())


def backwards() -> Iterator[tuple[str, str, str, Callable[[State], State]]]:
    """The stage, how its gradient is wrong, how it is repaired, and the entries that it makes."""
    for name in LEFT_OUT:
        yield name, f"{name} left out in the gradient", f"Differentiate the {name}, too.", partial(_left_out, name)
    own = "Use the same scale in the backward pass."
    yield "scale", "gradient by the default scale where another is given", own, _by_default
    for words, surrogate in SOFTMAXES.items():
        repair = "The gradient of scores is P * (dP - D), D the sum of P * dP over the keys."
        yield "softmax", f"gradient of the softmax {words}", repair, partial(_softmax, surrogate)
    for words, slope in SLOPES.items():
        repair = "Multiply the gradient of the scores by 1 - t^2, where t is the tanh."
        yield "softcap", f"gradient of the softcap {words}", repair, partial(_capped, slope)
    for entry, (words, of) in product(("key", "value"), GROUPS.items()):
        name, repair = f"repetition of the {entry} heads", "Add up the gradients of all heads of a group."
        yield name, f"gradient of the {entry} {words}", repair, partial(_repeated, entry, of)
    for tile, entries in product(TILES, LOST):
        words = f"gradient of the {' and '.join(entries)} lost after the first {tile} tokens"
        yield "product", words, "Write the gradients of all tiles.", partial(_lost, tile, entries)
    added = "Add up the gradients of all tiles."
    for tile, first, (name, words, of_tile) in product(TILES, (True, False), TILED):
        yield name, words.format("first" if first else "last", tile), added, partial(of_tile, tile, first)


LOST: tuple[tuple[str, ...], ...] = (("query",), ("key",), ("value",), ("key", "value"), ("query", "key", "value"))


def _left_out(name: str, state: State) -> State:
    ((entry, right),) = STAGE[name].change(state).items()
    return {entry: straight(right, state[entry])}


def _by_default(state: State) -> State:
    scores = state["scores"]
    return {"scores": straight(scores * state["scale"], scores * state["key"].shape[-1] ** -0.5)}


def _softmax(surrogate: Surrogate, state: State) -> State:
    made, scores = STAGE["softmax"].change(state), state["scores"]
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    finite = scores.masked_fill(scores == -INFINITY, 0.0)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).detach()
    return made | {"scores": answered_rows(straight(weights, surrogate(weights, finite)), empty, state)}


SOFTMAXES: dict[str, Surrogate] = {
    "with its sum over the queries": lambda p, x: p * (x - (p * x).sum(-2, keepdim=True)),
    "with its sum over the heads": lambda p, x: p * (x - (p * x).sum(1, keepdim=True)),
    "with its sum not multiplied by the weights": lambda p, x: p * (x - x.sum(-1, keepdim=True)),
    "with the weights on its sum alone": lambda p, x: x - p * (p * x).sum(-1, keepdim=True),
    "not multiplied by the weights": lambda p, x: x - p * x.sum(-1, keepdim=True),
}
"""Of weights that are constants, and scores: what has the gradient that is taken for that of the softmax."""


def _capped(slope: Callable[[Tensor, float], Tensor], state: State) -> State:
    scores, cap = state["scores"], state["softcap"]
    held = slope(torch.tanh(scores.detach() / cap), cap)
    return {"scores": straight(STAGE["softcap"].change(state)["scores"], scores * held)}


SLOPES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "by 1 - t in place of 1 - t^2, t the tanh": lambda t, cap: 1.0 - t,
    "by t^2 in place of 1 - t^2, t the tanh": lambda t, cap: t * t,
    "by 1 + t^2 in place of 1 - t^2, t the tanh": lambda t, cap: 1.0 + t * t,
    "of the capped scores that are not divided by it": lambda t, cap: 1.0 - (cap * t) ** 2,
    "of the tanh of the tanh": lambda t, cap: 1.0 - torch.tanh(t) ** 2,
    "multiplied by it once more": lambda t, cap: cap * (1.0 - t * t),
    "divided by it once more": lambda t, cap: (1.0 - t * t) / cap,
}
"""Of the tanh and the cap: what is taken for the derivative of capped scores."""


def _repeated(entry: str, of: Callable[[Tensor, Tensor, bool], Tensor], state: State) -> State:
    rows, made = state[entry], STAGE[f"repetition of the {entry} heads"].change(state)
    if not made:
        return made
    tiled = state["conventions"].group_order is GroupOrder.TILED
    return {entry: straight(made[entry], of(rows, made[entry], tiled))}


def _in_the_other_order(rows: Tensor, right: Tensor, tiled: bool) -> Tensor:
    times = right.shape[1] // rows.shape[1]
    return rows.repeat_interleave(times, 1) if tiled else rows.repeat(1, times, 1, 1)


def _one_of_a_group(rows: Tensor, right: Tensor, tiled: bool, last: bool) -> Tensor:
    kinds, times = rows.shape[1], right.shape[1] // rows.shape[1]
    heads = torch.arange(right.shape[1])
    number = heads // kinds if tiled else heads % times
    return right * (number == (times - 1 if last else 0)).double()[:, None, None]


GROUPS: dict[str, Callable[[Tensor, Tensor, bool], Tensor]] = {
    "added up over heads in another order": _in_the_other_order,
    "averaged over a group": lambda rows, right, tiled: right * (rows.shape[1] / right.shape[1]),
    "of the last head of a group alone": partial(_one_of_a_group, last=True),
    "of the first head of a group alone": partial(_one_of_a_group, last=False),
}


def _lost(tile: int, entries: tuple[str, ...], state: State) -> State:
    rows = {entry: state[entry] for entry in entries}
    kept = {name: torch.cat([x[..., :tile, :], x[..., tile:, :].detach()], -2) for name, x in rows.items()}
    return kept | STAGE["product"].change(state | kept)


def _joined(tile: int, first: bool, parts: Callable[[slice, bool], Tensor], extent: int, axis: int) -> Tensor:
    """One tile, the first or the last one, with its gradient, and the others without."""
    start = 0 if first else max(extent - 1, 0) // tile * tile
    end = min(tile, extent) if first else extent
    pieces = ((slice(0, start), False), (slice(start, end), True), (slice(end, extent), False))
    return torch.cat([parts(*piece) for piece in pieces], axis)


def _queries(tile: int, first: bool, state: State) -> State:
    query, key = state["query"], state["key"].mT
    parts: Callable[[slice, bool], Tensor] = lambda own, kept: (query if kept else query.detach()) @ key[..., own]  # noqa: E731
    return {"scores": _joined(tile, first, parts, key.shape[-1], -1)}


def _keys(tile: int, first: bool, state: State) -> State:
    query, key = state["query"], state["key"].mT
    parts: Callable[[slice, bool], Tensor] = lambda own, kept: query[..., own, :] @ (key if kept else key.detach())  # noqa: E731
    return {"scores": _joined(tile, first, parts, query.shape[-2], -2)}


def _values(tile: int, first: bool, state: State) -> State:
    made, value = STAGE["weighted sum"].change(state), state["value"]
    weights = made["weights"]
    parts: Callable[[slice, bool], Tensor] = lambda n, kept: weights[..., n, :] @ (value if kept else value.detach())  # noqa: E731
    return made | {"heads": _joined(tile, first, parts, weights.shape[-2], -2)}


TILED: tuple[tuple[str, str, Callable[[int, bool, State], State]], ...] = (
    ("product", "gradient of the query from the {} tile of {} keys alone", _queries),
    ("product", "gradient of the key from the {} tile of {} queries alone", _keys),
    ("weighted sum", "gradient of the value from the {} tile of {} queries alone", _values),
)
"""Gradients to which one tile alone adds, as where each overwrites what was before."""
