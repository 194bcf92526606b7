"""Fillers: what an option that a function needs is given where a problem has none, by the option's name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.discovery.functions.block_sizes import OF_KEYS, OF_QUERIES
from attention_conformance.implementations.discovery.functions.given_sizes import BLOCK, Count, counts
from attention_conformance.implementations.discovery.functions.needed_cap import HUGE
from attention_conformance.implementations.discovery.signatures import switched_off, unfelt_like
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES, OPTIONS, counts_keys, is_open_mask

CHOSEN = {"topk", "k", "top", "num", "n", "keys", "number", "nearest"}
"""Words of which names of how many keys are chosen consist, `topk` or `top` among them."""
PLACES = {"pos", "position", "positions", "idx", "index", "indices"}
TABLES = {"rotary_cos": 1.0, "rotary_sin": 0.0}
"""Of rotations, and what rotates nothing in them."""
FORMS = [(of, parts) for of in ("tokens", "samples", "inputs") for parts in (1, 2)]
"""Of what such tables have the axes, next to that of a whole width or a half of it."""
SEGMENTS = ("query_segments", "key_segments")
LOGIT_SCALES = {"logit_scale", "logit_scales", "log_scale", "logit_temperature"}


@dataclass(frozen=True)
class Axes:
    """Where the inputs have their axes.

    Attributes:
        heads: that of the heads; None where there is none.
        tokens: that of the tokens.
    """

    heads: int | None
    tokens: int


@dataclass(frozen=True)
class Filler:
    """What a parameter is given.

    Attributes:
        words: that, for a note.
        value: it, of the query, the key and their axes.
        judged: whether other values are given to it, too.
        rank: of places, the number of its axes: those of queries and of keys have as many; 0: anything else.
    """

    words: str
    value: Callable[[Any, Any, Axes], Any]
    judged: bool = True
    rank: int = 0


def fillers(parameter: inspect.Parameter) -> list[Filler]:
    """What may change nothing in a parameter, the likelier first; nothing where that is unknown."""
    name, words = parameter.name, {*parameter.name.lower().split("_")}
    option = KNOWN_NAMES.get(name) or ("valid_lens" if counts_keys(name) else None)
    found = _of_flag(parameter) or (_of_mask() if is_mask(name) else _of_number(name, words, option))
    if found or option is not None:
        return found or _of_option(option or "")
    if words & PLACES and words & {*OF_QUERIES, *OF_KEYS}:
        return _of_places(words)
    return [Filler(_in_words(count), partial(_count, count)) for count in counts(name)]


def _of_flag(parameter: inspect.Parameter) -> list[Filler]:
    """What switches dropout, training and causality off."""
    off = {"training": False, **switched_off([parameter])}
    return [_always(off[parameter.name])] if parameter.name in off else []


def _of_mask() -> list[Filler]:
    shapes = (_of_pairs, _of_keys)
    masks = [Filler("a mask", partial(shape, value)) for shape in shapes for value in (True, False)]
    return [_always(None), *masks, Filler("zeros", partial(_of_pairs, 0.0))]


def _of_number(name: str, words: set[str], option: str | None) -> list[Filler]:
    """Of scales, bounds, windows and numbers of keys."""
    if option == "scale":
        return [Filler("1 / sqrt(d_k)", lambda query, key, axes: query.shape[-1] ** -0.5)]
    if option == "softcap":
        return [_always(None), _always(0.0), _always(HUGE)]
    if "window" in words:
        known = [_always(None)] if option is not None else []
        return [*known, Filler("a window of all tokens", _all_tokens), _always((-1, -1))]
    if words & {"topk", "top"} and words <= CHOSEN:
        return [Filler("the number of keys", lambda query, key, axes: key.shape[axes.tokens], judged=False)]
    if name.lower() in LOGIT_SCALES:
        numbers = {"zeros": 0.0, "ones": 1.0}  # of a logarithm, and of a factor, which zeros make nothing of
        return [Filler(text, partial(_of_heads, n, rank)) for text, n in numbers.items() for rank in (3, 1, 0)]
    return []


def is_mask(name: str) -> bool:
    """Whether it takes a mask of booleans, or of what is not known."""
    return KNOWN_NAMES.get(name) in ("bool_mask", "key_padding_mask") or is_open_mask(name)


def _of_option(option: str) -> list[Filler]:
    """Of one that the suite knows: its neutral, or an array without effect."""
    if option == "float_mask":
        return [_always(None), Filler("zeros", partial(_of_pairs, 0.0))]
    if option in ("query_positions", "key_positions"):
        return [_always(None), *_of_places({option.split("_")[0]})]
    if option in SEGMENTS:
        return [_always(None), Filler("ones", partial(_segment, option))]
    if option == "valid_lens":
        return [_always(None), Filler("the number of keys", _lengths)]
    if option in TABLES:
        number = TABLES[option]
        return [_always(None), *(Filler(f"{number:.0f}", partial(_table, number, *form)) for form in FORMS)]
    if OPTIONS[option].unfelt(1) is not None:
        return [Filler("what has no effect", partial(_unfelt, option))]
    return [_always(OPTIONS[option].neutral)]


def _always(value: object) -> Filler:
    return Filler(str(value), lambda query, key, axes: value)


def _of_places(words: set[str]) -> list[Filler]:
    of_query = bool(words & OF_QUERIES)
    return [Filler("0, 1, 2, ...", partial(_places, of_query, rank), rank=rank) for rank in (1, 2)]


def _in_words(count: Count) -> str:
    return str(BLOCK) if count is Count.BLOCK else f"the number of {count}" if "width" not in count else count.value


def _all_tokens(query: Any, key: Any, axes: Axes) -> int:
    return int(max(1, query.shape[axes.tokens], key.shape[axes.tokens]))


def _places(of_query: bool, rank: int, query: Any, key: Any, axes: Axes) -> Any:
    """0, 1, 2, ..., (L,) or (B, L)."""
    tokens = np.arange((query if of_query else key).shape[axes.tokens])
    return _like(query, tokens if rank == 1 else np.broadcast_to(tokens, (query.shape[0], *tokens.shape)).copy())


def places_within(ids: Any) -> Any:
    """The place of each token among those of its segment, (B, L): how many of the same id come before it."""
    same = ids[..., :, None] == ids[..., None, :]
    if hasattr(same, "tril"):
        return same.tril(-1).sum(-1)
    return (same & np.tril(np.ones(same.shape[-2:], bool), -1)).sum(-1)


def _lengths(query: Any, key: Any, axes: Axes) -> Any:
    return _like(query, np.full(query.shape[0], key.shape[axes.tokens]))


def _segment(option: str, query: Any, key: Any, axes: Axes) -> Any:
    """One segment of all tokens, (B, L): 1, as 0 is often that of padding."""
    tokens = (query if option == SEGMENTS[0] else key).shape[axes.tokens]
    return _like(query, np.ones((query.shape[0], tokens), int))


def _of_pairs(value: float | bool, query: Any, key: Any, axes: Axes) -> Any:
    return _filled(query, (query.shape[axes.tokens], key.shape[axes.tokens]), value)


def _of_keys(value: bool, query: Any, key: Any, axes: Axes) -> Any:
    return _filled(query, (query.shape[0], key.shape[axes.tokens]), value)


def _filled(query: Any, shape: tuple[int, ...], value: float | bool) -> Any:
    array = np.full(shape, value, bool if isinstance(value, bool) else np.float32)
    if not hasattr(query, "new_tensor"):
        return array if isinstance(value, bool) else array.astype(query.dtype)
    import torch

    return torch.as_tensor(array, device=query.device, dtype=torch.bool if isinstance(value, bool) else query.dtype)


def _of_heads(value: float, rank: int, query: Any, key: Any, axes: Axes) -> Any:
    """A number for each head, (H, 1, 1) or (H,), or one alone."""
    heads = 1 if axes.heads is None else query.shape[axes.heads]
    return _filled(query, {3: (heads, 1, 1), 1: (heads,), 0: ()}[rank], value)


def _unfelt(option: str, query: Any, key: Any, axes: Axes) -> Any:
    array = OPTIONS[option].unfelt(1 if axes.heads is None else query.shape[axes.heads])
    return None if array is None else unfelt_like(query, array)


def _table(value: float, of: str, parts: int, query: Any, key: Any, axes: Axes) -> Any:
    """(L, d), (B, L, d), or in the layout of the query."""
    tokens, width = query.shape[axes.tokens], query.shape[-1] // parts
    inputs = [1] * len(query.shape)
    inputs[axes.tokens], inputs[-1] = tokens, width
    shapes = {"tokens": (tokens, width), "samples": (query.shape[0], tokens, width), "inputs": (*inputs,)}
    return _filled(query, shapes[of], value)


def _count(count: Count, query: Any, key: Any, axes: Axes) -> int:
    heads = 1 if axes.heads is None else query.shape[axes.heads]
    key_heads = 1 if axes.heads is None else key.shape[axes.heads]
    counted: dict[Count, int] = {
        Count.HEADS: heads,
        Count.KEY_HEADS: key_heads,
        Count.SHARING: heads // max(1, key_heads),
        Count.WIDTH: query.shape[-1],
        Count.ALL_WIDTHS: heads * query.shape[-1],
        Count.TOKENS: query.shape[axes.tokens],
        Count.SAMPLES: query.shape[0],
        Count.BLOCK: BLOCK,
    }
    return counted[count]


def _like(query: Any, array: Any) -> Any:
    """Integers of the kind of the query's arrays."""
    return query.new_tensor(array).long() if hasattr(query, "new_tensor") else array
