"""Functions whose keys have other axes than their queries: one head without an axis, or heads in groups of queries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.stored_axes import OP, like, permuted
from attention_conformance.implementations.discovery.probe import HALF, Floats, near, parts_of, wide
from attention_conformance.implementations.discovery.signatures import signature_of

GROUPS = "BKGLD"
"""Queries by the head of keys that they share: K heads of keys, G queries of each."""
FORMS = (
    ("BLHD", "BLD"),
    ("LBHD", "LBD"),
    ("BLKGD", "BLKD"),
    ("BKGLD", "BKLD"),
    ("BLGKD", "BLKD"),
    ("BGKLD", "BKLD"),
    ("LBKGD", "LBKD"),
)
"""Axes of queries and of keys, where they differ, but for (B, H, L, d) with (B, L, d)."""
SIZES = {"B": 2, "K": 3, "G": 2, "L": 5, "D": 4}
"""Of a first call."""
ORDERS = ("BLHD", "BHLD", "LBHD", "BLE", "LBE")
"""Of the axes of an output, where they are not those of the queries."""


@dataclass(frozen=True)
class OtherKeys:
    """A function with other axes of keys than of queries, given (B, H, L, d).

    Attributes:
        function: it.
        query, key: axes in the letters of (B, H, L, D), of heads of keys (K) and of the queries that share one (G).
        output: those of its output.
    """

    function: Callable[..., Any]
    query: str
    key: str
    output: str = ""

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    @property
    def one_head(self) -> bool:
        """Whether there is one head of keys for all queries."""
        return "K" not in self.key

    @property
    def about(self) -> str:
        """For a note."""
        query, key = (", ".join(axes).replace("D", "d") for axes in (self.query, self.key))
        heads = "one head for all queries" if self.one_head else "K heads, each for G queries"
        return f"called with queries ({query}) and keys ({key}): {heads}"

    def __call__(self, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
        """The function's answer.

        Raises:
            ValueError: there are more heads of keys than it takes.
        """
        if self.one_head and (key.shape[1] != 1 or value.shape[1] != 1):
            raise ValueError("there is one head of keys and values, and no axis of heads")
        answer = self.function(
            self._of_query(query, key.shape[1]), self._of_key(key), self._of_key(value), *others, **options
        )
        output, *rest = parts_of(answer)
        back = self._back(output, (*query.shape[:3], value.shape[3]), key.shape[1])
        return (back, *rest) if isinstance(answer, tuple | list) else back

    def _of_query(self, x: Any, heads: int) -> Any:
        if self.one_head:
            return permuted(x, OP, self.query)
        return permuted(x.reshape(_in_groups(x.shape, heads)), GROUPS, self.query)

    def _of_key(self, x: Any) -> Any:
        return permuted(x[:, 0], "BLD", self.key) if self.one_head else permuted(x, "BKLD", self.key)

    def _back(self, output: Any, shape: tuple[int, ...], heads: int) -> Any:
        """An output as (B, H, Lq, d_v)."""
        if "G" in self.output:
            return permuted(output, self.output, GROUPS).reshape(shape)
        sizes = dict(zip(OP, shape, strict=True))
        apart = self.output.replace("E", "HD")
        return permuted(output.reshape([sizes[axis] for axis in apart]), apart, OP)


def _in_groups(shape: tuple[int, ...], heads: int) -> tuple[int, ...]:
    batch, every, *others = shape
    return (batch, heads, every // heads if heads else 0, *others)


def other_keys(function: Callable[..., Any]) -> Iterator[OtherKeys]:
    """The ways of these to call it in which samples, and heads of keys, are apart."""
    for query, key in FORMS:
        yield from islice(_answering(OtherKeys(function, query, key)), 1)


def _answering(made: OtherKeys) -> Iterator[OtherKeys]:
    """It with the axes in which it answers; nothing where it does not, or as no attention in these axes does."""
    heads, sizes = 1 if made.one_head else SIZES["K"], {**SIZES, "H": SIZES["K"] * SIZES["G"]}
    shapes = ((sizes["B"], sizes["H"], sizes["L"], sizes["D"]), (sizes["B"], heads, sizes["L"], sizes["D"]))
    sizes["E"] = sizes["H"] * sizes["D"]
    for query, key in zip(*map(of_each_kind, shapes), strict=True):
        given = made._of_query(query, heads), made._of_key(key), made._of_key(key)
        answered = safe_call(partial(made.function, *given)).value
        shape = [*getattr(next(iter(parts_of(answered)), None), "shape", ())]
        fitting = (axes for axes in (made.query, *ORDERS) if shape == [sizes[axis] for axis in axes])
        several = (replace(made, output=axes) for axes in fitting)
        yield from (each for each in several if _keeps_apart(each, query, key))


def _keeps_apart(made: OtherKeys, query: Any, key: Any) -> bool:
    """Whether values of a sample, of a head of keys and of a component change that alone, and doubled ones double it.

    Where there are several tokens, the last query sees the first one.
    """
    plain = _output(made, query, key, key)
    doubled = _output(made, query, key, key + key)
    if plain is None or doubled is None or not near(doubled, 2.0 * plain):
        return False
    heads = 1 if made.one_head else SIZES["G"]
    seen = [_changed(made, plain, query, key, at) for at in (np.s_[:1], np.s_[:, :1], np.s_[..., :1])]
    first = _changed(made, plain, query, key, np.s_[:, :, :1])
    if any(each is None or not each.any() for each in (*seen, first)):
        return False
    samples, of_heads, widths = seen
    apart = not samples[1:].any() and not widths[..., 1:].any()
    return bool(apart and (made.one_head or not of_heads[:, heads:].any()) and first[:, :, -1].any())


def _output(made: OtherKeys, query: Any, key: Any, value: Any) -> Floats | None:
    return safe_call(lambda: wide(parts_of(made(query, key, value))[0])).value


def _changed(made: OtherKeys, plain: Floats, query: Any, key: Any, at: Any) -> Any:
    """Where the output is another one if a part of the values is negated."""
    signs = np.ones(key.shape, np.float32)
    signs[at] = -1.0
    value = key * like(signs, key)
    output = _output(made, query, key, value)
    return None if output is None else np.abs(output - plain) > HALF * (1.0 + np.abs(plain))
