"""Parameters of functions with biases of a window: which takes the table, and which state the window, by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import product
from typing import Any

from attention_conformance.implementations.discovery.signatures import positional, required
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES, words_of


class Part(StrEnum):
    """What a parameter takes."""

    TABLE = "the table"
    WINDOW = "both sides of the window"
    SIDE = "one side of it"
    TALL = "the rows of the window"
    WIDE = "the columns of the window"
    INDEX = "the row of the table for each pair of tokens, (L, L)"
    FLAT_INDEX = "the same, (L * L,)"


class Rows(StrEnum):
    """The axes of a table."""

    BEFORE_HEADS = "((2 * Wh - 1) * (2 * Ww - 1), H)"
    AFTER_HEADS = "(H, (2 * Wh - 1) * (2 * Ww - 1))"
    SIDES_BEFORE_HEADS = "(2 * Wh - 1, 2 * Ww - 1, H)"
    SIDES_AFTER_HEADS = "(H, 2 * Wh - 1, 2 * Ww - 1)"

    def laid(self, table: Any, window: tuple[int, int]) -> Any:
        """A table (H, rows) in these axes."""
        table = table.swapaxes(0, 1) if self in (Rows.BEFORE_HEADS, Rows.SIDES_BEFORE_HEADS) else table
        if self in (Rows.BEFORE_HEADS, Rows.AFTER_HEADS):
            return table
        tall, wide = (2 * side - 1 for side in window)
        heads = table.shape[0 if self is Rows.SIDES_AFTER_HEADS else 1]
        return table.reshape((heads, tall, wide) if self is Rows.SIDES_AFTER_HEADS else (tall, wide, heads))


class Sides(StrEnum):
    """Which windows a function takes."""

    ANY = "windows of any sides, row by row"
    SQUARE = "square windows, row by row"
    LINE = "windows of one row"

    def windows(self, tokens: int) -> list[tuple[int, int]]:
        """Those with so many tokens, the nearest to a square first, and wide ones before tall ones."""
        sides = [(tall, tokens // tall) for tall in range(1, tokens + 1) if not tokens % tall]
        if self is not Sides.ANY:
            return [each for each in sides if each[0] == (1 if self is Sides.LINE else each[1])]
        return sorted(sides, key=lambda each: (abs(each[0] - each[1]), each[0]))


OF_WINDOW, OF_SIZE = {"window", "win", "ws", "windows"}, {"size", "sizes", "shape", "hw", "resolution", "dims"}
TALL, WIDE = {"h", "height", "wh", "rows"}, {"w", "width", "ww", "cols", "columns"}
OF_INDEX = {"index", "indices", "idx", "indexes"}
RELATIVE, OF_TABLE = (
    {"relative", "rel", "rpb", "rpe"},
    {"bias", "biases", "table", "embedding", "emb", "pos", "position"},
)


def parts_of_window(signature: inspect.Signature) -> Iterator[tuple[Mapping[str, Part], Sides]]:
    """What its parameters may take, and the windows that these state; nothing where no names are those of both."""
    inputs = [p.name for p in positional(signature)[:3]]
    own = [p for p in signature.parameters.values() if p.name not in inputs and p.kind is not p.VAR_KEYWORD]
    stated = {p.name: parts for p in own if (parts := _of_window(p.name))}
    free = [p.name for p in own if (required(p) or p.default is None) and p.name not in stated]
    tables = [name for name in free if _names_table(name) and name not in KNOWN_NAMES] if stated else []
    for chosen in product(*stated.values()) if len(tables) == 1 else ():
        roles = {tables[0]: Part.TABLE, **dict(zip(stated, chosen, strict=True))}
        yield from ((roles, sides) for sides in _sides({*chosen}))


def _sides(stated: set[Part]) -> tuple[Sides, ...]:
    if {Part.TALL, Part.WIDE} <= stated or Part.WINDOW in stated:
        return (Sides.ANY,)
    if Part.SIDE in stated:
        return Sides.SQUARE, Sides.LINE
    return Sides.ANY, Sides.LINE


def _of_window(name: str) -> tuple[Part, ...]:
    """What a parameter of this name may state of a window; nothing where it states none."""
    words = words_of(name)
    if words & OF_INDEX:
        return Part.INDEX, Part.FLAT_INDEX
    for part, side in ((Part.TALL, TALL), (Part.WIDE, WIDE)):
        if words & side and words <= side | OF_WINDOW | OF_SIZE:
            return (part,)
    return (Part.WINDOW, Part.SIDE) if words & OF_WINDOW and words <= OF_WINDOW | OF_SIZE else ()


def _names_table(name: str) -> bool:
    words = words_of(name)
    if "table" in words:
        return not words & {"block", "page", "kv", "cache"}
    return bool(words & RELATIVE) and (bool(words & OF_TABLE) or words <= RELATIVE)
