"""Pictures: arrays as tables of numbers on coloured ground, each small enough to be read."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

import numpy as np
from markupsafe import Markup

from attention_conformance.spec.problem import Array
from attention_conformance.tests.report.model import FailureRecord, Grid, WeightMap

Paint: TypeAlias = Callable[[float], str]
Text: TypeAlias = Callable[[float], str]

MOST = 8
"""Rows of pictures that are drawn of one part of a failure, those that differ first."""
MARKS = ("", "d", "w")
"""Style classes of an expected number, of one that differs, and of a weight where 0 is expected."""
VISIBLE = 0.005
"""A difference of weights that two digits show."""
DIGITS = 17
"""Enough to distinguish any two floats."""
AXES = {4: ("sample", "head"), 3: ("head",)}
"""Names of the axes that come before rows and columns."""


@dataclass(frozen=True)
class Picture:
    """One table.

    Attributes:
        cells: rows of (class of the style sheet, text); class `d` marks a difference, `w` a weight where 0 is expected.
        marked: whether a cell differs from the expected one.
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
        note: the arrays that are not drawn, and why; empty if all are.
    """

    title: str
    legend: tuple[str, ...]
    rows: tuple[tuple[Picture, ...], ...]
    note: str = ""


def heat(weight: float) -> str:
    """The class of a weight: h2 to h10 for tenths, none for the first of them, `no` for numbers that are no weights."""
    if not 0.0 <= weight <= 1.0 + VISIBLE:
        return "no"
    return f"h{min(10, math.ceil(10 * weight))}" if weight > 0.1 else ""


def signed(largest: float) -> Paint:
    """The class of a value, compared with the largest one of its picture: m4 to m1 below 0, p1 to p4 above."""

    def paint(value: float) -> str:
        if not math.isfinite(value):
            return "no"
        share = abs(value) / largest if largest else 0.0
        return f"{'m' if value < 0 else 'p'}{max(1, math.ceil(4 * share))}" if value else ""

    return paint


def bounds(ratio: float) -> str:
    """The class of an error in units of its bound: e0 within it, e1 to e4 beyond."""
    steps = (1.0, 10.0, 1e3, 1e6)
    return f"e{sum(ratio > step for step in steps)}" if ratio == ratio else "e4"


def parts(failure: FailureRecord) -> Iterator[Part]:
    """All pictures of a failure: its answer, the weights, and the inputs."""
    if failure.expected is not None or failure.got is not None:
        yield _answers(failure)
    if failure.expected_weights is not None:
        yield _weights("Weights of the first sample", failure.expected_weights, failure.got_weights, 3)
    for name, grid in failure.arrays.items():
        yield _input(name, grid)


def weights(each: WeightMap, brief: bool = False) -> Part:
    """The weights of every head, expected and got. `brief`: once, if all digits that are drawn agree."""
    assert each.expected is not None
    part = _weights("Weights", each.expected, each.got, 2)
    if brief and each.got is not None and not any(picture.marked for row in part.rows for picture in row):
        alike = [(replace(row[-1], caption=row[-1].caption.replace("got", "got as expected")),) for row in part.rows]
        return replace(part, rows=tuple(alike))
    return part


def _array(grid: Grid | None) -> Array | None:
    """With two axes at least; None if there is nothing to draw."""
    if grid is None or grid.obstacle:
        return None
    array = np.array(grid.values, np.float64).reshape(grid.shape)
    return array.reshape((1,) * (2 - array.ndim) + array.shape)


def _obstacle(grid: Grid | None) -> str:
    """Why an array is not drawn."""
    return "none" if grid is None else f"{grid.shape}: {grid.obstacle}"


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


def _answers(failure: FailureRecord) -> Part:
    """The expected answer, the one that came, and the error in units of its bound."""
    grids = {"expected": failure.expected, "got": failure.got}
    absent = [f"{name} {_obstacle(grid)}" for name, grid in grids.items() if _array(grid) is None]
    expected, got, ratio = map(_array, (failure.expected, failure.got, failure.error_in_bounds))
    off = None if ratio is None else ~(ratio <= 1.0)
    paint, text = signed(_largest(expected, got)), _distinguishing(expected, got, off)
    columns = [
        _column("expected", expected, paint, text),
        _column("got", got, paint, text, off),
        _column("error in bounds", ratio, bounds, lambda x: f"{x:.2g}"),
    ]
    legend = ("values",) if ratio is None else ("values", "bounds")
    return _part(f"Answer: {failure.part}" if failure.part else "Answer", legend, columns, absent)


def _largest(*arrays: Array | None) -> float:
    """The largest finite number in them."""
    return max((float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in arrays if a is not None), default=0.0)


def _distinguishing(expected: Array | None, got: Array | None, off: Array | None) -> Text:
    """As many digits as distinguish wrong numbers from expected ones, three at least."""
    pairs: list[tuple[float, float]] = []
    if expected is not None and got is not None and off is not None:
        pairs = [(a, b) for a, b in zip(expected[off].tolist(), got[off].tolist(), strict=True) if a != b]

    def differ(digits: int) -> bool:
        return all(f"{a:.{digits}g}" != f"{b:.{digits}g}" for a, b in pairs)

    digits = next((n for n in range(3, DIGITS) if differ(n)), DIGITS)
    return lambda value: f"{value:.{digits}g}"


def _weights(title: str, expected_grid: Grid, got_grid: Grid | None, digits: int) -> Part:
    grids = {"expected": expected_grid, "got": got_grid}
    expected, got = map(_array, grids.values())
    absent = [f"{name} {_obstacle(grid)}" for name, grid in grids.items() if _array(grid) is None]
    marks = None
    if expected is not None and got is not None and got.shape == expected.shape:
        differ = ~np.isclose(got, expected, rtol=0.0, atol=VISIBLE, equal_nan=True)
        marks = np.where((expected == 0.0) & (got != 0.0), 2, differ)

    def text(weight: float) -> str:
        if weight in (0.0, 1.0) or not 0.0 <= weight <= 1.0:
            return f"{weight:.3g}"
        return f"{weight:.{digits}f}".replace("0.", ".", 1)

    columns = [_column("expected", expected, heat, text), _column("got", got, heat, text, marks)]
    return _part(title, ("weights",), columns, absent)


def _input(name: str, grid: Grid) -> Part:
    array, title = _array(grid), f"{name} {grid.shape}"
    if array is None:
        return Part(title, (), (), grid.obstacle)
    return _part(title, (), [_column("", array, signed(_largest(array)), lambda x: f"{x:.6g}")], [])


Column: TypeAlias = list[Picture]


def _column(name: str, array: Array | None, paint: Paint, text: Text, marks: Array | None = None) -> Column:
    """A picture of each matrix of an array; `marks` has the number of a mark for each element."""
    if array is None:
        return []
    marked = np.zeros(array.shape, int) if marks is None else marks.astype(int)
    return [
        _picture(f"{name}, {place}".strip(", "), matrix, paint, text, own)
        for (place, matrix), (_, own) in zip(_slices(array), _slices(marked), strict=True)
    ]


def _part(title: str, legend: tuple[str, ...], columns: Sequence[Column], absent: Sequence[str]) -> Part:
    """The columns side by side if they have equally many pictures, else one below the other."""
    drawn = [column for column in columns if column]
    alike = len({len(column) for column in drawn}) == 1
    rows = list(zip(*drawn, strict=True)) if alike else [(each,) for column in drawn for each in column]
    chosen = sorted(rows, key=lambda row: not any(each.marked for each in row))[:MOST]
    notes = [*absent, f"{MOST} of {len(rows)} are drawn"] if len(rows) > MOST else list(absent)
    return Part(title, legend if rows else (), tuple(chosen), "; ".join(notes))
