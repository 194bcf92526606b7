"""Pictures: arrays as tables of numbers on coloured ground, each small enough to be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

import numpy as np
from markupsafe import Markup

from attention_conformance.spec.problem import Array
from attention_conformance.tests.report.model import Grid, Shown, WeightMap

Paint: TypeAlias = Callable[[float], str]
Text: TypeAlias = Callable[[float], str]

MOST = 8
"""Rows of pictures that are drawn of one part of a failure; of more, those that differ come first."""
MARKS = ("", "d", "w")
"""Classes of what is as expected, of what differs, and of a weight where there may be none."""
VISIBLE = 0.005
"""A difference of weights that two digits show."""
DIGITS = 17
"""They tell any two floats apart."""
AXES = {4: ("sample", "head"), 3: ("head",)}
"""Names of the axes that come before rows and columns."""


@dataclass(frozen=True)
class Picture:
    """One table.

    Attributes:
        caption: what it shows.
        cells: rows of (class of the style sheet, text); class `d` marks what differs, `w` weights where none may be.
        marked: whether a cell differs from what is expected.
    """

    caption: str
    cells: tuple[tuple[tuple[str, str], ...], ...]
    marked: bool = False

    def __html__(self) -> str:
        """The table; rows and columns are numbered."""
        columns = Markup("").join(Markup("<th scope=col>{}").format(n) for n in range(len(self.cells[0])))
        rows = Markup("").join(map(_row, range(len(self.cells)), self.cells))
        whole = "<table class=picture><caption>{}</caption><tr><td>{}{}</table>"
        return str(Markup(whole).format(self.caption, columns, rows))


def _row(number: int, cells: Sequence[tuple[str, str]]) -> Markup:
    drawn = (
        Markup('<td class="{}">{}' if " " in style else "<td class={}>{}" if style else "<td>{1}").format(style, text)
        for style, text in cells
    )
    return Markup("<tr><th scope=row>{}{}").format(number, Markup("").join(drawn))


@dataclass(frozen=True)
class Part:
    """Rows of pictures that belong together.

    Attributes:
        legend: of which scale the colours are: weights, values, bounds, or several.
        note: what is not drawn, and why; empty if all is.
    """

    title: str
    legend: tuple[str, ...]
    rows: tuple[tuple[Picture, ...], ...]
    note: str = ""


def heat(weight: float) -> str:
    """The class of a weight: h2 to h10 for tenths, none for the first of them, and one for what no weight can be."""
    if not 0.0 <= weight <= 1.0 + VISIBLE:
        return "no"
    return f"h{min(10, math.ceil(10 * weight))}" if weight > 0.1 else ""


def signed(largest: float) -> Paint:
    """The class of a value beside the largest one of its picture: m4 to m1 below 0, p1 to p4 above."""

    def paint(value: float) -> str:
        if not math.isfinite(value):
            return "no"
        share = abs(value) / largest if largest else 0.0
        return f"{'m' if value < 0 else 'p'}{max(1, math.ceil(4 * share))}" if value else ""

    return paint


def bounds(ratio: float) -> str:
    """The class of an error in units of its bound: e0 within it, e1 to e4 the farther beyond."""
    steps = (1.0, 10.0, 1e3, 1e6)
    return f"e{sum(ratio > step for step in steps)}" if ratio == ratio else "e4"


def parts(shown: Shown) -> Iterator[Part]:
    """All that can be drawn of a failure: what was answered, the weights, and what was handed over."""
    if shown.expected is not None or shown.got is not None:
        yield _answers(shown)
    if shown.expected_weights is not None:
        yield _weights("Weights of the first sample", shown.expected_weights, shown.seen_weights, 3)
    for name, grid in shown.arrays.items():
        yield _handed(name, grid)


def weights(shown: WeightMap, brief: bool = False) -> Part:
    """The weights of every head, expected beside seen. `brief`: once, where all digits that are drawn agree."""
    assert shown.expected is not None
    part = _weights("Weights", shown.expected, shown.got, 2)
    if brief and shown.got is not None and not any(each.marked for row in part.rows for each in row):
        seen = [(replace(row[-1], caption=row[-1].caption.replace("seen", "seen as expected")),) for row in part.rows]
        return replace(part, rows=tuple(seen))
    return part


def _array(grid: Grid | None) -> Array | None:
    if grid is None or not grid.values or len(grid.values) != math.prod(grid.shape):
        return None
    flat = np.array(grid.values, np.float64).reshape(grid.shape)
    return flat.reshape((1,) * (2 - flat.ndim) + flat.shape)


def _why(grid: Grid | None) -> str:
    """Why an array is not drawn."""
    if grid is None:
        return "none"
    return f"{grid.shape}: {'too large to be shown' if grid.values is None else 'empty'}"


def _slices(array: Array) -> Iterator[tuple[str, Array]]:
    """The matrices of an array, each with its place in words."""
    leading = array.shape[:-2]
    names = AXES.get(array.ndim, ("index",) * len(leading))
    for place in product(*map(range, leading)):
        yield " ".join(f"{name} {at}" for name, at in zip(names, place, strict=True)), array[place]


def _picture(caption: str, matrix: Array, paint: Paint, text: Text, marks: Array) -> Picture:
    cells = (
        tuple((f"{paint(x)} {MARKS[mark]}".strip(), text(x)) for x, mark in zip(*pair, strict=True))
        for pair in zip(matrix.tolist(), marks.tolist(), strict=True)
    )
    return Picture(caption, tuple(cells), bool(marks.any()))


def _answers(shown: Shown) -> Part:
    """What is expected, what came, and the error in units of its bound."""
    expected, got, ratio = map(_array, (shown.expected, shown.got, shown.ratio))
    absent = [f"{name} {_why(grid)}" for name, grid in _answered(shown) if _array(grid) is None]
    off = None if ratio is None else ~(ratio <= 1.0)
    paint, text = signed(_largest(expected, got)), _telling(expected, got, off)
    columns = [
        _column("expected", expected, paint, text),
        _column("got", got, paint, text, off),
        _column("error in bounds", ratio, bounds, lambda x: f"{x:.2g}"),
    ]
    legend = ("values",) if ratio is None else ("values", "bounds")
    return _part(f"Answer: {shown.part}" if shown.part else "Answer", legend, columns, absent)


def _largest(*arrays: Array | None) -> float:
    """The largest finite number in them."""
    return max((float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in arrays if a is not None), default=0.0)


def _answered(shown: Shown) -> tuple[tuple[str, Grid | None], ...]:
    return ("expected", shown.expected), ("got", shown.got)


def _telling(expected: Array | None, got: Array | None, off: Array | None) -> Callable[[float], str]:
    """As many digits as tell what is wrong from what is expected, three at least."""
    pairs: list[tuple[float, float]] = []
    if expected is not None and got is not None and off is not None:
        pairs = [(a, b) for a, b in zip(expected[off].tolist(), got[off].tolist(), strict=True) if a != b]

    def differ(digits: int) -> bool:
        return all(f"{a:.{digits}g}" != f"{b:.{digits}g}" for a, b in pairs)

    digits = next((n for n in range(3, DIGITS) if differ(n)), DIGITS)
    return lambda value: f"{value:.{digits}g}"


def _weights(title: str, expected: Grid, seen: Grid | None, digits: int) -> Part:
    wanted, got = _array(expected), _array(seen)
    absent = [] if wanted is not None else [f"expected {_why(expected)}"]
    absent += [] if got is not None else ["not seen" if seen is None else f"seen {_why(seen)}"]
    marks = None
    if wanted is not None and got is not None and got.shape == wanted.shape:
        differ = ~np.isclose(got, wanted, rtol=0.0, atol=VISIBLE, equal_nan=True)
        marks = np.where((wanted == 0.0) & (got != 0.0), 2, differ)

    def text(weight: float) -> str:
        if weight in (0.0, 1.0) or not 0.0 <= weight <= 1.0:
            return f"{weight:.3g}"
        return f"{weight:.{digits}f}".replace("0.", ".", 1)

    columns = [_column("expected", wanted, heat, text), _column("seen", got, heat, text, marks)]
    return _part(title, ("weights",), columns, absent)


def _handed(name: str, grid: Grid) -> Part:
    array = _array(grid)
    title = f"{name} {grid.shape}"
    if array is None:
        return Part(title, (), (), _why(grid))
    return _part(title, (), [_column("", array, signed(_largest(array)), lambda x: f"{x:.6g}")], [])


Column: TypeAlias = list[Picture]


def _column(name: str, array: Array | None, paint: Paint, text: Text, marks: Array | None = None) -> Column:
    """A picture of each matrix of an array; `marks` has the number of a mark for each element."""
    if array is None:
        return []
    marked = np.zeros(array.shape, int) if marks is None else marks.astype(int)
    return [
        _picture(f"{name}, {place}".strip(", "), matrix, paint, text, mine)
        for (place, matrix), (_, mine) in zip(_slices(array), _slices(marked), strict=True)
    ]


def _part(title: str, legend: tuple[str, ...], columns: Sequence[Column], absent: Sequence[str]) -> Part:
    """The columns beside each other, where they have as many pictures; below each other, where not."""
    there = [column for column in columns if column]
    alike = len({len(column) for column in there}) == 1
    rows = list(zip(*there, strict=True)) if alike else [(each,) for column in there for each in column]
    chosen = sorted(rows, key=lambda row: not any(each.marked for each in row))[:MOST]
    told = [*absent, f"{MOST} of {len(rows)} are drawn"] if len(rows) > MOST else list(absent)
    return Part(title, legend if rows else (), tuple(chosen), "; ".join(told))
