"""Functions whose tables of cosines and sines are doubled for a whole width, or have the axes of the inputs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import is_jax, library_of
from attention_conformance.implementations.api.contract import Fit, Implementation, Unsupported
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.needed_window import alike
from attention_conformance.implementations.discovery.score_fits import angles_of, rotated
from attention_conformance.implementations.discovery.signatures import required, signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import RotaryPairing
from attention_conformance.spec.features import RotaryTables

ROTARY = ("rotary_cos", "rotary_sin")
BASE = 100.0
"""Of rotations by which it is looked at: those of each pair differ within few tokens."""
LAYOUTS = (((2, 3, 5, 6), -2), ((2, 5, 3, 6), -3), ((2, 5, 6), -2), ((5, 6), -2))
"""Shapes of inputs, with the axis of tokens."""


def _joined(first: Any, second: Any) -> Any:
    """One behind the other, on the last axis."""
    if hasattr(first, "new_tensor"):
        import torch

        return torch.cat([first, second], -1)
    return library_of(first).concatenate([first, second], -1)


def _twice(table: Any) -> Any:
    """Each number twice in a row."""
    pairs = _joined(table[..., None], table[..., None])
    return pairs.reshape((*table.shape[:-1], -1))


@dataclass(frozen=True)
class TableShape:
    """What a table (L, r / 2) becomes.

    Attributes:
        pairing: how two numbers stand for a pair, where there is one for each component; None: one for each pair.
        in_inputs: whether it has all axes of the inputs, of extent 1 but for tokens and components.
    """

    pairing: RotaryPairing | None
    in_inputs: bool

    def __str__(self) -> str:
        width = "r / 2" if self.pairing is None else "r"
        return f"in the axes of inputs, with {width} numbers" if self.in_inputs else f"(L, {width})"

    def of(self, table: Any, rank: int, axis: int) -> Any:
        """The table for inputs of this rank, with the tokens in an axis."""
        if self.pairing is RotaryPairing.HALVES:
            table = _joined(table, table)
        elif self.pairing is not None:
            table = _twice(table)
        if not self.in_inputs:
            return table
        shape = [1] * rank
        shape[axis], shape[-1] = table.shape
        return table.reshape(shape)


SHAPES = tuple(
    TableShape(pairing, in_inputs)
    for in_inputs, pairing in product((False, True), (*RotaryPairing, None))
    if in_inputs or pairing is not None
)
"""All but that of the suite, (L, r / 2)."""


@dataclass(frozen=True)
class ShapedTables:
    """A function that takes tables in another shape.

    Attributes:
        function: it.
        names: its parameters for cosines and sines.
        shape: that of its tables.
        axis: that of the tokens in its inputs.
    """

    function: Callable[..., Any]
    names: tuple[str, ...]
    shape: TableShape
    axis: int

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    @property
    def about(self) -> str:
        """For a note."""
        return f"its {' and '.join(map(repr, self.names))} are tables {self.shape}"

    def __call__(self, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
        """The function's answer."""
        for name in self.names:
            table = options.get(name)
            if table is not None and len(table.shape) == 2:
                rows = table[: max(query.shape[self.axis], key.shape[self.axis])]
                options[name] = self.shape.of(rows, len(query.shape), self.axis)
        return self.function(query, key, value, *others, **options)


def limited(function: object, made: Implementation) -> Implementation:
    """The implementation; if the function takes such tables, with as many queries as keys where there are any."""
    if not isinstance(function, ShapedTables):
        return made
    return replace(made, claims=replace(made.claims, fit=partial(fit_equal_lengths, made.claims.fit)))


def fit_equal_lengths(fit_others: Fit, case: Case) -> Case | Unsupported:
    """The nearest case with as many queries as keys where there are tables, which are those of both."""
    fitted = fit_others(case)
    if isinstance(fitted, Unsupported) or fitted.extension.rotary_tables is RotaryTables.NONE:
        return fitted
    length = min(fitted.sizes.query_length, fitted.sizes.key_length)
    return fitted.sized(query_length=length, key_length=length)


def with_shaped_tables(function: Callable[..., Any]) -> ShapedTables | None:
    """The function, given tables in the shape in which they rotate; None where that is the suite's, or none is seen."""
    signature = safe_call(lambda: signature_of(function)).value
    parameters = [] if signature is None else [*signature.parameters.values()][3:]
    found = {KNOWN_NAMES[p.name]: p.name for p in parameters if KNOWN_NAMES.get(p.name) in ROTARY}
    if len(found) < len(ROTARY) or any(map(required, parameters)):
        return None
    names = tuple(found[option] for option in ROTARY)
    for shape, axis in LAYOUTS:
        for x in of_each_kind(shape):
            if any(_rotates(function, names, x, axis, pairing) for pairing in RotaryPairing):
                return None
            made = (ShapedTables(function, names, each, axis) for each in SHAPES)
            pairings = {each: [each.pairing] if each.pairing else [*RotaryPairing] for each in SHAPES}
            seen = (m for m in made if any(_rotates(m, names, x, axis, pairing) for pairing in pairings[m.shape]))
            if (found_one := next(seen, None)) is not None:
                return found_one
    return None


def _rotates(function: Callable[..., Any], names: tuple[str, ...], x: Any, axis: int, pairing: RotaryPairing) -> bool:
    """Whether its answer with tables is that without them to inputs that are rotated by these."""
    rows = np.moveaxis(np.asarray(x, np.float64), axis, -2)
    given = np.moveaxis(rotated(rows, BASE, pairing), -2, axis)
    angles = angles_of(rows.shape[-2], rows.shape[-1], BASE)
    tables = dict(zip(names, (_of_kind(x, np.cos(angles)), _of_kind(x, np.sin(angles))), strict=True))
    answer = safe_call(partial(function, x, x, x, **tables)).value
    plain = None if answer is None else safe_call(partial(function, *[_of_kind(x, given)] * 2, x)).value
    return answer is not None and plain is not None and alike(answer, plain)


def _of_kind(x: Any, array: Any) -> Any:
    """An array of the kind and the type of numbers of another."""
    if hasattr(x, "new_tensor"):
        return x.new_tensor(array)
    return sys.modules["jax"].numpy.asarray(array, x.dtype) if is_jax(x) else array.astype(x.dtype)
