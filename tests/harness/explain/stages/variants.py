"""Variants: stages that do something else than they should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from attention_conformance.spec.problem import HALF
from attention_conformance.tests.harness.explain.stages.accumulated import RESCALED, TILES, accumulated, exponentials
from attention_conformance.tests.harness.explain.stages.changes import OfTensor
from attention_conformance.tests.harness.explain.stages.emptied import answered_rows
from attention_conformance.tests.harness.explain.stages.staged import INFINITY, STAGE, State


def variants() -> Iterator[tuple[str, str, str, Callable[[State], State]]]:
    """The stage, what it does instead, how it is repaired, and the entries that it makes."""
    normalise = "Normalise the exponentials of each row by their sum over the keys."
    for axis, words in ((-2, "queries"), (-3, "heads"), (-4, "samples")):
        yield "softmax", f"softmax over the {words}", normalise, partial(_softmax, of=partial(torch.softmax, dim=axis))
        along = partial(_divided, axis=axis)
        yield "softmax", f"exponentials divided by their sum over the {words}", normalise, along
    for words, of in SOFTMAXES.items():
        yield "softmax", words, normalise, partial(_softmax, of=of)
    for tile, (words, repair, tiled) in product(TILES, TILED):
        of = partial(tiled, tile=tile)
        yield "softmax", words.format(tile), repair.format(tile), partial(_softmax, of=of)
    largest = "Subtract the largest score of each row."
    for words, by in SHIFTS.items():
        yield "softmax", f"scores shifted by {words}", largest, partial(_softmax_shifted, by=by)
        for narrow in HALF:
            own = partial(_shifted_in, narrow=narrow, by=by)
            yield "softmax", f"scores shifted by {words}, in {narrow}", largest, own
    on_queries = "Hide the keys that are padding, not the queries."
    yield "padding mask", "padding mask applied to the queries", on_queries, _padded_queries
    yield "padding mask", "padding mask applied to the queries by a finite number", on_queries, _dimmed_queries
    for words, capped in CAPS.items():
        yield "softcap", words, "Multiply the tanh of scores / softcap by softcap.", partial(_capped, of=capped)
    for tile in TILES:
        words, repair = (
            f"keys filled up to a multiple of {tile} and not hidden",
            "Hide the keys that fill up the last tile.",
        )
        yield "softmax", words, repair, partial(_filled_keys, tile=tile)
        for name, noun in product(("causal triangle", "window"), ("key", "query")):
            words = f"{'keys' if noun == 'key' else 'queries'} counted from 0 in each tile of {tile} in the {name}"
            repair = f"Add the start of its tile to the number of a {noun}."
            yield name, words, repair, partial(_counted_anew, name=name, entry=f"{noun}_places", tile=tile)
        repair = f"Write all queries, where their number is no multiple of {tile}, too."
        yield (
            "weighted sum",
            f"queries after the last whole tile of {tile} left at 0",
            repair,
            partial(_unwritten, tile=tile),
        )
    words, repair = "keys filled up to the number of queries and not hidden", "Hide the keys that are filled up."
    yield "softmax", words, repair, partial(_filled_keys, tile=0)
    for words, masked in MASKED.items():
        repair = "Add a mask of numbers to the scores; where a boolean one is False, put minus infinity there."
        yield "attention mask", words, repair, partial(_masked, of=masked)
    for name, entries, made in ROUNDED:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            words = f"{name} computed in {str(dtype).removeprefix('torch.')}"
            rounded = partial(_rounded, name=name, entries=entries, made=made, dtype=dtype)
            yield name, words, "Compute in the dtype of the inputs, or in a wider one.", rounded
    for words, change in accumulated():
        yield "softmax", words, RESCALED, change
    for words, change in POOLS.items():
        yield "relative bias", words, "Add the entry of each distance, the outermost ones for all beyond.", change


ROUNDED = (
    ("product", ("query", "key"), "scores"),
    ("softmax", ("scores",), "scores"),
    ("weighted sum", ("scores", "value"), "heads"),
)
"""Stages that are often computed in a narrower type: what they read, and what they make."""


def _rounded(state: State, name: str, entries: tuple[str, ...], made: str, dtype: torch.dtype) -> State:
    stage = STAGE[name]
    narrow = {entry: state[entry].to(dtype).to(state[entry].dtype) for entry in entries}
    result = stage.change(state | narrow)
    return result | {made: result[made].to(dtype).to(result[made].dtype)}


def _masked(state: State, of: Callable[[Tensor, Tensor], Tensor | None]) -> State:
    """Scores by a mask; as they should be where nothing is said of its kind."""
    scores, mask = state["scores"][..., : state["keys"]], state["attn_mask"]
    made = of(scores, mask)
    if made is None:
        return STAGE["attention mask"].change(state)
    return {"scores": torch.cat([made, state["scores"][..., state["keys"] :]], -1)}


def _of_numbers(of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor | None]:
    return lambda scores, mask: None if mask.dtype is torch.bool else of(scores, mask)


def _of_booleans(of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor | None]:
    return lambda scores, mask: of(scores, mask) if mask.dtype is torch.bool else None


FILLINGS = (-100.0, -1e4, -1e9, -1e30)


def _put(by: float, scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, by)


def _lowered(by: float, scores: Tensor, mask: Tensor) -> Tensor:
    return scores + by * (~mask).double()


MASKED: dict[str, Callable[[Tensor, Tensor], Tensor | None]] = {
    **{f"boolean mask puts {by:g} in place of scores": _of_booleans(partial(_put, by)) for by in FILLINGS},
    **{f"boolean mask adds {by:g} to scores": _of_booleans(partial(_lowered, by)) for by in FILLINGS},
    "boolean mask added as ones and zeros": _of_booleans(lambda scores, mask: scores + mask.double()),
    "boolean mask added as minus one where it is False": _of_booleans(lambda scores, mask: scores - (~mask).double()),
    "mask of numbers read as a boolean one that hides what is not 0": _of_numbers(
        lambda scores, mask: scores.masked_fill(mask != 0.0, -INFINITY)
    ),
    "mask of numbers read as a boolean one that hides what is 0": _of_numbers(
        lambda scores, mask: scores.masked_fill(mask == 0.0, -INFINITY)
    ),
    "mask of numbers read as a boolean one that shows what is above 0": _of_numbers(
        lambda scores, mask: scores.masked_fill(mask <= 0.0, -INFINITY)
    ),
    "mask of numbers read as a boolean one that hides what is below 0": _of_numbers(
        lambda scores, mask: scores.masked_fill(mask < 0.0, -INFINITY)
    ),
    "mask of numbers multiplied into the scores": _of_numbers(lambda scores, mask: scores * mask),
    "mask of numbers put in place of the scores": _of_numbers(lambda scores, mask: mask.expand_as(scores)),
}
"""What may be made of a mask of one kind, where one of the other kind is right."""


def _softmax(state: State, of: OfTensor) -> State:
    scores = state["scores"]
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    weights = answered_rows(of(scores.masked_fill(empty, 0.0)), empty, state)
    log = torch.logsumexp(scores, -1)
    return {"scores": weights, "log_sum_exp": log, "soft": True}


def _divided(state: State, axis: int) -> State:
    """Each row less its own maximum, but divided by a sum along another axis; what a row without keys has, spreads."""
    scores = state["scores"]
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    powers = answered_rows(exponentials(scores.masked_fill(empty, 0.0)), empty, state)
    return {"scores": powers / powers.sum(axis, keepdim=True), "log_sum_exp": torch.logsumexp(scores, -1), "soft": True}


def _shifted_in(state: State, narrow: str, by: OfTensor) -> State:
    """In a half type of the inputs itself.

    Raises:
        ValueError: the inputs have another type.
    """
    if state["inputs"] != narrow:
        raise ValueError("another type overflows elsewhere")
    return _softmax_shifted(state | {"working": getattr(torch, narrow)}, by)


def _softmax_shifted(state: State, by: OfTensor) -> State:
    """In the dtype of the inputs, or in float32 where that is narrower: it is what overflows."""

    def shifted(scores: Tensor) -> Tensor:
        own = scores.to(state["working"])
        powers = (own - by(own).detach()).exp()
        return (powers / powers.sum(-1, keepdim=True)).to(scores.dtype)

    return _softmax(state, shifted)


def by_overflow() -> frozenset[str]:
    """Variants that are wrong where numbers overflow or vanish alone: NaN shows them."""
    return frozenset(
        f"scores shifted by {words}{of}" for words in SHIFTS for of in ("", *(f", in {narrow}" for narrow in HALF))
    )


def _of_the_first(x: Tensor, tile: int) -> Tensor:
    return x[..., :tile].amax(-1, keepdim=True)


def _of_the_last(x: Tensor, tile: int) -> Tensor:
    return x[..., (x.shape[-1] - 1) // tile * tile :].amax(-1, keepdim=True)


SHIFTS: dict[str, OfTensor] = {
    "nothing": lambda x: torch.zeros(()),
    "their mean": lambda x: torch.nanmean(x.masked_fill(x == -INFINITY, float("nan")), -1, keepdim=True),
    "the largest of all": lambda x: x.amax(),
    "the largest of a head": lambda x: x.amax((-2, -1), keepdim=True),
    "the first score": lambda x: x[..., :1],
    "their largest, or 0 where all are below": lambda x: x.amax(-1, keepdim=True).clamp(min=0.0),
    **{f"the largest of the first {tile} keys": partial(_of_the_first, tile=tile) for tile in TILES},
    **{f"the largest of the last tile of {tile} keys": partial(_of_the_last, tile=tile) for tile in TILES},
    "their least": lambda x: x.masked_fill(x == -INFINITY, INFINITY).amin(-1, keepdim=True),
}


def _padded_queries(state: State) -> State:
    return {"scores": state["scores"].masked_fill(~state["key_padding_mask"][:, None, :, None], state["hidden"])}


def _dimmed_queries(state: State) -> State:
    """All scores of a query that is padding become the same."""
    return _padded_queries(state | {"hidden": torch.finfo(torch.float32).min})


def _whole(scores: Tensor, tile: int) -> Tensor:
    hidden = torch.arange(scores.shape[-1]) >= scores.shape[-1] // tile * tile
    return torch.softmax(scores.masked_fill(hidden, -INFINITY), -1)


def _last(scores: Tensor, tile: int) -> Tensor:
    hidden = torch.arange(scores.shape[-1]) < (scores.shape[-1] - 1) // tile * tile
    return torch.softmax(scores.masked_fill(hidden, -INFINITY), -1)


def _filled(scores: Tensor, tile: int) -> Tensor:
    zeros = torch.nn.functional.pad(scores, (0, -scores.shape[-1] % tile))
    return torch.softmax(zeros, -1)[..., : scores.shape[-1]]


TILED: tuple[tuple[str, str, Callable[..., Tensor]], ...] = (
    (
        "keys after the last whole tile of {} ignored",
        "Read all keys, where their number is no multiple of {}, too.",
        _whole,
    ),
    ("zero scores up to a multiple of {} keys", "Hide the keys that fill up the last tile.", _filled),
    ("last tile of {} keys alone", RESCALED, _last),
)
"""Softmax in tiles: what it does instead, and how it is repaired."""

SOFTMAXES: dict[str, OfTensor] = {
    "softmax replaced by a sigmoid": torch.sigmoid,
    "softmax not normalised": exponentials,
    "softmax of powers of 2": lambda x: torch.softmax(x * 0.6931471805599453, -1),
    "1 added to the sum of the exponentials": lambda x: x.exp() / (1.0 + x.exp().sum(-1, keepdim=True)),
    "1 added to the sum of the exponentials less the maximum": lambda x: (
        exponentials(x) / (1.0 + exponentials(x).sum(-1, keepdim=True))
    ),
    "logarithm of the softmax": lambda x: torch.log_softmax(x, -1),
    "all weight on the largest score": lambda x: (x == x.amax(-1, keepdim=True)).double() + 0.0 * x,
    "softmax applied twice": lambda x: torch.softmax(torch.softmax(x, -1), -1),
    "softmax with a constant for its sum": lambda x: torch.exp(x - torch.logsumexp(x, -1, keepdim=True).detach()),
    "softmax over all queries and keys": lambda x: torch.softmax(x.flatten(-2), -1).view_as(x),
}


def _capped(state: State, of: Callable[[Tensor, float], Tensor]) -> State:
    return {"scores": of(state["scores"], state["softcap"])}


CAPS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "scores not divided by the softcap": lambda x, cap: cap * torch.tanh(x),
    "tanh not multiplied by the softcap": lambda x, cap: torch.tanh(x / cap),
    "tanh without the softcap": lambda x, cap: torch.tanh(x),
    "scores clamped at the softcap": lambda x, cap: x.clamp(-cap, cap),
    "softcap of positive scores alone": lambda x, cap: torch.where(x > 0.0, cap * torch.tanh(x / cap), x),
}


def _filled_keys(state: State, tile: int) -> State:
    """Zero scores up to a whole tile, or up to the number of queries: a causal triangle hides keys that stand after."""
    scores, keys = state["scores"], state["key_places"]
    number = -scores.shape[-1] % tile if tile else max(0, scores.shape[-2] - scores.shape[-1])
    more = torch.zeros(*scores.shape[:-1], number, dtype=scores.dtype)
    if state["causal"] and keys.shape[-1]:
        places = keys[:, -1:] + 1 + torch.arange(more.shape[-1])
        more = more.masked_fill(places[:, None, None, :] > state["query_places"][:, None, :, None], -INFINITY)
    made = _softmax(state | {"scores": torch.cat([scores, more], -1)}, partial(torch.softmax, dim=-1))
    return made | {"scores": made["scores"][..., : scores.shape[-1]]}


def _counted_anew(state: State, name: str, entry: str, tile: int) -> State:
    own = state[entry]
    places = own[..., :1] + torch.arange(own.shape[-1]) % tile
    stage = STAGE[name]
    return stage.change(state | {entry: places.expand_as(own)})


def _unwritten(state: State, tile: int) -> State:
    made = STAGE["weighted sum"].change(state)
    rows = made["heads"].shape[-2]
    return made | {"heads": made["heads"] * (torch.arange(rows) < rows // tile * tile).double()[:, None]}


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
