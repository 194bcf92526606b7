"""Functions whose keys have other axes than their queries: one head without an axis, or heads in groups of queries.

They may need a scale and logits of sinks, and take one sample.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, product
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.each_sample import EachSample
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall, options_of
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.stored_axes import OP, like, permuted
from attention_conformance.implementations.discovery.probe import HALF, Floats, near, parts_of, wide
from attention_conformance.implementations.discovery.signatures import required, signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES

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
SINKS = "sinks"
OF_SINKS = ("S", "s")
"""Names of the logits of sinks that mean others elsewhere."""
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
        sinks: its own name for the logits of sinks; empty for none.
        sink_axes: those of these logits, K and G in either order; empty: (H,).
    """

    function: Callable[..., Any]
    query: str
    key: str
    output: str = ""
    sinks: str = ""
    sink_axes: str = ""

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function)
        return own.replace(
            parameters=[p.replace(name=SINKS) if p.name == self.sinks else p for p in own.parameters.values()]
        )

    @property
    def one_head(self) -> bool:
        """Whether there is one head of keys for all queries."""
        return "K" not in self.key

    @property
    def about(self) -> str:
        """For a note."""
        alone = isinstance(self.function, EachSample)
        query, key = (", ".join(axes[alone:]).replace("D", "d") for axes in (self.query, self.key))
        heads = "one head for all queries" if self.one_head else "K heads, each for G queries"
        sinks = f", and {self.sinks!r} as logits of sinks ({', '.join(self.sink_axes) or 'H,'})" if self.sinks else ""
        return f"called with queries ({query}) and keys ({key}){' of each sample' * alone}{sinks}: {heads}"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer, in the axes (B, H, L, d).

        Raises:
            ValueError: there are more heads of keys than it takes.
        """
        if self.one_head and (key.shape[1] != 1 or value.shape[1] != 1):
            raise ValueError("there is one head of keys and values, and no axis of heads")
        answer = self.in_own_axes(query, key, value, **options)
        output, *rest = parts_of(answer)
        back = self._back(output, (*query.shape[:3], value.shape[3]), key.shape[1])
        return (back, *rest) if isinstance(answer, tuple | list) else back

    def in_own_axes(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer, in its own axes."""
        heads = key.shape[1]
        if (sinks := options.pop(SINKS, None)) is not None and self.sink_axes:
            sinks = permuted(sinks.reshape(_in_groups((1, *sinks.shape), heads)[1:]), "KG", self.sink_axes)
        given = options if sinks is None else {**options, self.sinks: sinks}
        return self.function(self._of_query(query, heads), self._of_key(key), self._of_key(value), **given)

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
    alone = [axes for axes in FORMS if axes[0].startswith("B") and "G" in axes[0]]
    for called, (query, key) in [*product([function], FORMS), *product([EachSample(function)], alone)]:
        ways = _with_sinks(OtherKeys(called, query, key))
        yield from islice(chain.from_iterable(map(_answering, ways)), 1)


def _with_sinks(made: OtherKeys) -> Iterator[OtherKeys]:
    """The ways to give it the logits of sinks that it takes, in the order of its own groups or flat; else as it is."""
    own = [*made.__signature__.parameters.values()][3:]
    of_arrays = (p.name for p in own if required(p) or p.default is None)
    name = next((each for each in of_arrays if KNOWN_NAMES.get(each) == SINKS or each in OF_SINKS), "")
    if name:
        axes = "".join(axis for axis in made.query if axis in "KG")
        yield from (replace(made, sinks=name, sink_axes=each) for each in dict.fromkeys((axes, "")))
    yield made


def _answering(made: OtherKeys) -> Iterator[OtherKeys]:
    """It with the axes in which it answers; nothing where it does not, or as no attention in these axes does."""
    heads, sizes = 1 if made.one_head else SIZES["K"], {**SIZES, "H": SIZES["K"] * SIZES["G"]}
    shapes = ((sizes["B"], sizes["H"], sizes["L"], sizes["D"]), (sizes["B"], heads, sizes["L"], sizes["D"]))
    sizes["E"] = sizes["H"] * sizes["D"]
    for query, key in zip(*map(of_each_kind, shapes), strict=True):
        answered = safe_call(partial(_called, made, made.in_own_axes, query, key, key)).value
        shape = [*getattr(next(iter(parts_of(answered)), None), "shape", ())]
        fitting = (axes for axes in (made.query, *ORDERS) if shape == [sizes[axis] for axis in axes])
        several = (replace(made, output=axes) for axes in fitting)
        yield from (each for each in several if _keeps_apart(each, query, key))


def _called(made: OtherKeys, function: Callable[..., Any], query: Any, key: Any, value: Any) -> Any:
    """An answer of it, given what it needs, and logits of sinks where it takes them."""
    sinks = {SINKS: like(np.zeros(query.shape[1], np.float32), query)} if made.sinks else {}
    return RenamedCall(function, options_of(made.__signature__))(query, key, value, **sinks)


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
    return safe_call(lambda: wide(parts_of(_called(made, made, query, key, value))[0])).value


def _changed(made: OtherKeys, plain: Floats, query: Any, key: Any, at: Any) -> Any:
    """Where the output is another one if a part of the values is negated."""
    signs = np.ones(key.shape, np.float32)
    signs[at] = -1.0
    value = key * like(signs, key)
    output = _output(made, query, key, value)
    return None if output is None else np.abs(output - plain) > HALF * (1.0 + np.abs(plain))
