"""Which functions read a table of biases for the offsets in a window, and how they are given it, seen in answers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.functions.fillers import Axes, fillers
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.several_needed import as_array
from attention_conformance.implementations.discovery.functions.stored_axes import OTHERWISE, like
from attention_conformance.implementations.discovery.functions.window_parameters import Rows, Sides, parts_of_window
from attention_conformance.implementations.discovery.functions.window_tables import BIAS, WindowTable
from attention_conformance.implementations.discovery.modules.stated_order import states_ahead
from attention_conformance.implementations.discovery.probe import near, parts_of, shape_of
from attention_conformance.implementations.discovery.signatures import positional, required, signature_of
from attention_conformance.implementations.discovery.vocabulary import HEAD_COUNTS

HEADS, TOKENS, WIDTH = 2, 4, 5
LAYOUTS = (
    ((3, HEADS, TOKENS, WIDTH), "BHLD"),
    ((3, TOKENS, HEADS, WIDTH), "BLHD"),
    ((3, TOKENS, HEADS * WIDTH), "BLE"),
    ((HEADS, TOKENS, WIDTH), "HLD"),
    ((TOKENS, HEADS, WIDTH), "LHD"),
)
"""Shapes of inputs, whose tokens are a square window, and their axes."""
HIDDEN = -1e4
"""A bias of keys that get no weight."""
NEARLY = 1e-3
"""How far an output may be from the one value that has all of the weight; two random ones are far from each other."""
OF_QUERIES = re.compile(r"swin|\bd[yx] ?\+|\bquer(?:y|ies) (?:minus|from) key", re.IGNORECASE)
"""What states that offsets are those of queries from keys, in names and documentation."""


def with_window_table(function: Callable[..., Any]) -> WindowTable | None:
    """The function as one with a bias, where it reads a table for the offsets in a window; None for any other.

    Where nothing states it, offsets may be those of keys from queries, as is seen of square windows.
    """
    signature = safe_call(lambda: signature_of(function)).value
    if signature is None or BIAS in signature.parameters or len(positional(signature)) < 3:
        return None
    orders = _orders(as_written(function))
    first: WindowTable | None = None
    for made, x, given in _reading(function, signature):
        several = [replace(made, of_key=of_key) for of_key in orders]
        if (shown := next((each for each in several if _shows(each, x, given)), None)) is not None:
            return shown
        first = first or several[0]
    return first


def _orders(written: object) -> tuple[bool, ...]:
    """Whether offsets are those of keys from queries, as is documented; else first those of queries from keys."""
    if (ahead := states_ahead(written)) is not None:
        return (ahead,)
    stated = OF_QUERIES.search(f"{getattr(written, '__name__', '')} {inspect.getdoc(written) or ''}")
    return (False,) if stated else (False, True)


def _reading(
    function: Callable[..., Any], signature: inspect.Signature
) -> Iterator[tuple[WindowTable, Any, dict[str, Any]]]:
    """The ways to give it a table that it reads, each with an input and what else it is given."""
    heads = next((name for name in signature.parameters if name in HEAD_COUNTS), "")
    for (parts, sides), (shape, axes) in product(parts_of_window(signature), LAYOUTS):
        if (axes == "BLE") != bool(heads):
            continue
        for rows, x in product([*Rows][: 2 if sides is Sides.LINE else None], of_each_kind(shape)):
            given = _given(signature, {*parts, heads}, x, axes) | ({heads: HEADS} if heads else {})
            made = _laid(WindowTable(function, parts, rows, sides, axes, heads), x, given)
            if made is not None and _reads(made, x, given) and _adds(made, x, given):
                yield made, x, given


def _given(signature: inspect.Signature, known: set[str], x: Any, axes: str) -> dict[str, Any]:
    """What changes nothing for whatever else it needs."""
    needed = [p for p in [*signature.parameters.values()][3:] if required(p) and p.name not in known]
    at = Axes(axes.index("H") if "H" in axes else None, axes.index("L"))
    return {p.name: found[0].value(x, x, at) for p in needed if (found := fillers(p))}


def _laid(made: WindowTable, x: Any, given: Mapping[str, Any]) -> WindowTable | None:
    """It with the axes of its answer; None where it raises, or answers in unknown ones."""
    answer = safe_call(partial(made, x, x, x, **given)).value
    shapes = [tuple(shape_of(part) or ()) for part in parts_of(answer)] if answer is not None else [()]
    sizes = {**dict(zip(made.axes, x.shape, strict=True)), "E": HEADS * WIDTH}
    several = ("", *OTHERWISE.get(made.axes, ()))
    known = {tuple(sizes[axis] for axis in output or made.axes): output for output in reversed(several)}
    if shapes[0] not in known:
        return None
    others = (shape.index(TOKENS) if TOKENS in shape else None for shape in shapes[1:])
    return replace(made, output=known[shapes[0]], queries=(made.axes.index("L"), *others))


def _reads(made: WindowTable, x: Any, given: Mapping[str, Any]) -> bool:
    """Whether a bias changes its answer."""
    bias = np.random.default_rng(6).standard_normal((HEADS, TOKENS, TOKENS))
    plain, biased = (_output(made, x, {**given, BIAS: each}) for each in (None, like(bias, x)))
    return plain is not None and biased is not None and not near(plain, biased, "float32")


def _adds(made: WindowTable, x: Any, given: Mapping[str, Any]) -> bool:
    """Whether a bias is added as it is: among large ones, far apart, each query gets the value of one key alone.

    Swin V2 adds 16 sigmoids of its table, which are never far apart.
    """
    ranks = np.random.default_rng(7).permuted(np.arange(1, HEADS * TOKENS**2 + 1))
    bias = -HIDDEN * ranks.reshape(HEADS, TOKENS, TOKENS)  # a wrong row, which no pair has, is 0, and never the largest
    output = _output(made, x, {**given, BIAS: like(bias, x)})
    if output is None or output.shape != x.shape:
        return False
    got, values = (np.moveaxis(as_array(each), made.axes.index("L"), 0) for each in (output, x))
    if "E" in made.axes:
        got, values = (each.reshape(*each.shape[:-1], HEADS, -1) for each in (got, values))
    off = np.abs(got[:, None] - values[None]).max(-1)
    return bool((off.min(1) < NEARLY).all())


def _shows(made: WindowTable, x: Any, given: Mapping[str, Any]) -> bool:
    """Whether each query gets the value of the one key that a bias leaves it, the next one."""
    next_one = np.roll(np.eye(TOKENS), 1, 1)
    bias = np.broadcast_to(np.where(next_one, 0.0, HIDDEN), (HEADS, TOKENS, TOKENS)).copy()
    output = _output(made, x, {**given, BIAS: like(bias, x)})
    expected = np.roll(as_array(x), -1, made.axes.index("L"))
    return output is not None and near(output, expected, "float32")


def _output(made: WindowTable, x: Any, options: Mapping[str, Any]) -> Any:
    """Its output for a window that is square, where it takes any: those that are not may be what it breaks at."""
    square = replace(made, sides=Sides.SQUARE if made.sides is Sides.ANY else made.sides)
    return safe_call(lambda: as_array(parts_of(square(x, x, x, **options))[0])).value
