"""Functions with a table of biases for the offsets in a window (Liu et al. 2021, 3.2): each is given any bias by it.

All keys of one query are at different offsets, so that a table holds any bias of that query: one call for each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import isqrt
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import library_of
from attention_conformance.implementations.api.contract import Claims, Fit, Unsupported
from attention_conformance.implementations.discovery.functions.stored_axes import in_axes, like, together, zeros
from attention_conformance.implementations.discovery.functions.window_parameters import Part, Rows, Sides
from attention_conformance.implementations.discovery.probe import parts_of
from attention_conformance.implementations.discovery.signatures import positional, signature_of
from attention_conformance.spec.cases import Case, MaskKind
from attention_conformance.spec.features import Feature

BIAS = "attn_bias"
"""The parameter that takes the place of the table."""
MOST_TOKENS = 16
"""Of a problem with a bias, each of whose queries is a call."""
Window = tuple[int, int]


@dataclass(frozen=True)
class WindowTable:
    """A function with a table for the offsets in a window, as one with a bias of heads.

    Attributes:
        function: it.
        parameters: what takes the table, and what states the window.
        rows: the axes of the table.
        sides: which windows it takes.
        axes: of its inputs.
        heads: the parameter that takes their number, where inputs have the widths of all in one axis.
        of_key: whether offsets are those of keys from queries, and not of queries from keys.
        output: the axes of its output, where these are others.
        queries: where in each part of its answer the queries are; None: nowhere.
    """

    function: Callable[..., Any]
    parameters: Mapping[str, Part]
    rows: Rows
    sides: Sides
    axes: str
    heads: str = ""
    of_key: bool = False
    output: str = ""
    queries: tuple[int | None, ...] = field(default=(0,))

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function)
        inputs = [p.name for p in positional(own)[:3]]
        left = [p for p in own.parameters.values() if p.name not in self.parameters]
        keyword = inspect.Parameter.KEYWORD_ONLY
        options = [p.replace(kind=keyword) if p.kind is p.POSITIONAL_OR_KEYWORD else p for p in left[len(inputs) :]]
        options.insert(0, inspect.Parameter(BIAS, keyword, default=None))
        return inspect.Signature([*left[: len(inputs)], *options])

    @property
    def about(self) -> str:
        """For a note."""
        table = next(name for name, part in self.parameters.items() if part is Part.TABLE)
        offsets = "key from query" if self.of_key else "query from key"
        return f"its {table!r} is given as {self.rows}, of the offsets of each {offsets} in {self.sides}"

    def claimed(self, claims: Claims) -> Claims:
        """The claims, with as many queries as keys, and with few where there is a bias."""
        features = claims.features - {Feature.CROSS}
        return replace(claims, features=features, fit=partial(fit_window, self.sides, claims.fit))

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer.

        Raises:
            ValueError: there is no window with so many tokens.
        """
        axis, bias = self.axes.index("L"), options.pop(BIAS, None)
        tokens, heads = query.shape[axis], self._sizes(query, value, options)["H"]
        windows = self.sides.windows(tokens)
        if key.shape[axis] != tokens or not windows:
            raise ValueError(f"there is no window with {tokens} queries and {key.shape[axis]} keys")
        answered = partial(self._answer, (query, key, value), options)
        if bias is None or (bias.ndim > 3 and not bias.shape[0]):
            return answered(zeros(query, (heads, tokens)), 0, windows[0])
        whole = _broadcast(bias, (bias.shape[0] if bias.ndim > 3 else 1, heads, tokens, tokens))
        samples = [
            [answered(of_sample[:, at], at, windows[at % len(windows)]) for at in range(tokens)] for of_sample in whole
        ]
        return self._joined(samples)

    def _sizes(self, query: Any, value: Any, options: Mapping[str, Any]) -> dict[str, int]:
        sizes = dict(zip(self.axes, query.shape, strict=True))
        heads = int(options[self.heads]) if self.heads else sizes["H"]
        return {**sizes, "H": heads, "D": value.shape[-1] // (heads if self.heads else 1)}

    def _answer(self, inputs: tuple[Any, ...], options: Mapping[str, Any], row: Any, at: int, window: Window) -> Any:
        """The answer in the axes of the inputs, where the query at a place has the biases (H, L) of its keys."""
        held = self._table(row, at, window)
        tall, wide = window
        known = {
            Part.TABLE: held,
            Part.WINDOW: window,
            Part.SIDE: wide,
            Part.TALL: tall,
            Part.WIDE: wide,
            Part.INDEX: like(self._index(window), row),
            Part.FLAT_INDEX: like(self._index(window).reshape(-1), row),
        }
        given = {name: known[part] for name, part in self.parameters.items()}
        answer = self.function(*inputs, **options, **given)
        if not self.output:
            return answer
        output, *others = parts_of(answer)
        laid = in_axes(output, self.output, self.axes, self._sizes(inputs[0], inputs[2], options))
        return (laid, *others) if others or isinstance(answer, tuple | list) else laid

    def _table(self, row: Any, at: int, window: Window) -> Any:
        """The table of one query, (H, L); what none of its pairs reads is 0."""
        tall, wide = window
        index = self._index(window)[at]
        source = np.full((2 * tall - 1) * (2 * wide - 1), len(index))
        source[index] = np.arange(len(index))
        padded = together([row, zeros(row, (*row.shape[:-1], 1))], -1)
        return self.rows.laid(padded[:, source], window)

    def _index(self, window: Window) -> Any:
        """(L, L): the row of the table that each query reads for each key."""
        tall, wide = window
        places = np.stack(np.divmod(np.arange(tall * wide), wide))
        down, along = (places[:, :, None] - places[:, None]) * (-1 if self.of_key else 1)
        return (down + tall - 1) * (2 * wide - 1) + along + wide - 1

    def _joined(self, samples: list[list[Any]]) -> Any:
        """The answer of which each query of each sample, or of all together, is that of its own call."""
        first = samples[0][0]
        made = [
            _in_samples([_in_queries([parts_of(each)[n] for each in answers], axis) for answers in samples])
            for n, axis in enumerate(self.queries[: len(parts_of(first))])
        ]
        return tuple(made) if isinstance(first, tuple | list) else made[0]


def _in_queries(parts: list[Any], axis: int | None) -> Any:
    if axis is None:
        return parts[0]
    return together([_cut(each, axis, at) for at, each in enumerate(parts)], axis)


def _in_samples(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else together([_cut(each, 0, at) for at, each in enumerate(parts)], 0)


def _cut(x: Any, axis: int, at: int) -> Any:
    """One slice of an array, which keeps the axis."""
    return x[(slice(None),) * axis + (slice(at, at + 1),)]


def _broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    return x.expand(shape) if hasattr(x, "expand") else library_of(x).broadcast_to(x, shape)


def fit_window(sides: Sides, fit_others: Fit, case: Case) -> Case | Unsupported:
    """The nearest case with as many queries as keys, that fill a window, and few of them where there is a bias."""
    fitted = fit_others(case)
    if isinstance(fitted, Unsupported):
        return fitted
    if fitted.mask is MaskKind.INFINITE:  # a query that is not looked at would have no key, and its gradients be NaN
        return Unsupported("its table holds finite numbers")
    tokens = min(fitted.sizes.query_length, fitted.sizes.key_length)
    tokens = min(tokens, MOST_TOKENS) if fitted.mask is not MaskKind.NONE else tokens
    tokens = isqrt(tokens) ** 2 if sides is Sides.SQUARE else tokens
    return fitted.sized(query_length=tokens, key_length=tokens)
