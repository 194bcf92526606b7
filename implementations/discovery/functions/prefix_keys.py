"""Prefix keys: functions that take the keys and values of earlier tokens apart from those of their queries."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Claims, Fit, Unsupported
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.several_needed import as_array
from attention_conformance.implementations.discovery.probe import first_part, near, shape_of
from attention_conformance.implementations.discovery.signatures import positional, required, signature_of
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature

EARLIER = r"prefix|past|prev(?:ious)?|memory|mem|prompt|shared|persistent|ctx|context|cached?"
KEYS = re.compile(rf"^(?:k|keys?)_(?:{EARLIER})$|^(?:{EARLIER})_(?:k|keys?)$", re.IGNORECASE)
"""Names of the keys of earlier tokens."""
OF_VALUES = {"k": "v", "key": "value", "keys": "values"}
"""The words for values, by those for keys."""
SETTINGS = {"causal-alignment": "bottom-right"}
"""The queries are the last tokens."""
SHAPES = {-2: (2, 3, 5, 4), -3: (2, 5, 3, 4)}
"""Of queries, by the axis of their tokens."""
TOKENS = 2
"""Of a prefix that is tried."""


@dataclass(frozen=True)
class PrefixKeys:
    """A function whose first keys and values are given apart.

    Attributes:
        called: it.
        names: its parameters for these keys and values.
        axis: that of the tokens.
        shared: whether these are of all samples, and have no axis for them.
    """

    called: Callable[..., Any]
    names: tuple[str, str]
    axis: int
    shared: bool

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.called)
        inputs = [p.name for p in positional(own)[:3]]
        rest = [p for p in own.parameters.values() if p.name not in self.names]
        named = [p if p.name in inputs else p.replace(kind=p.KEYWORD_ONLY) for p in rest]
        return own.replace(parameters=named)

    @property
    def about(self) -> str:
        """For a note."""
        key, value = self.names
        return f"the keys before those of its queries are given in {key!r} and {value!r}"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        before = max(0, key.shape[self.axis] - query.shape[self.axis])
        first, own = ((self.tokens(x, slice(before)), self.tokens(x, slice(before, None))) for x in (key, value))
        given = {name: x[0][0] if self.shared else x[0] for name, x in zip(self.names, (first, own), strict=True)}
        return self.called(query, first[1], own[1], **given, **options)

    def tokens(self, x: Any, which: slice) -> Any:
        """Some tokens of keys or values."""
        return x[(..., which, *(slice(None),) * (-1 - self.axis))]

    def claimed(self, claims: Claims) -> Claims:
        """The claims, with more keys than queries, and one sample where all have one prefix."""
        return replace(claims, features=claims.features - {Feature.EMPTY_SIZES}, fit=partial(_fitted, self, claims.fit))


def _fitted(prefix: PrefixKeys, fit: Fit, case: Case) -> Case | Unsupported:
    sizes = case.sizes
    if not sizes.query_length or not sizes.key_length:
        return Unsupported("a prefix comes before at least one query")
    longer = sizes.key_length if sizes.key_length > sizes.query_length else sizes.query_length + sizes.key_length
    return fit(case.sized(key_length=longer, batch=1 if prefix.shared else sizes.batch))


def with_prefix_keys(function: Callable[..., Any]) -> PrefixKeys | None:
    """The function as one of query, key and value; None where it needs no keys of earlier tokens, or is called so in
    no way that is known.
    """
    signature = safe_call(lambda: signature_of(function)).value
    for names in _pairs(signature) if signature is not None and not isinstance(function, PrefixKeys) else ():
        for axis, shared in product(SHAPES, (False, True)):
            made = PrefixKeys(function, names, axis, shared)
            if any(_reads(made, x) for x in of_each_kind(SHAPES[axis])):
                return made
    return None


def _pairs(signature: inspect.Signature) -> Iterator[tuple[str, str]]:
    """Names of keys and values of earlier tokens, where all that has to be given are these."""
    needed = [p.name for p in signature.parameters.values() if required(p)][3:]
    for name in filter(KEYS.match, needed):
        value = "_".join(OF_VALUES.get(word, word) for word in name.split("_"))
        if sorted(needed) == sorted((name, value)):
            yield name, value


def _reads(made: PrefixKeys, x: Any) -> bool:
    """Whether its output has the shape of the queries, and depends on the values of the prefix."""
    longer = _longer(x, made.axis)
    first, second = (safe_call(partial(_output, made, x, longer, value)).value for value in (longer, longer * 2))
    if first is None or second is None or not shape_of(first) == shape_of(second) == tuple(x.shape):
        return False
    return not near(first, second, "float32")


def _output(made: PrefixKeys, query: Any, key: Any, value: Any) -> Any:
    """Its output with a prefix of these keys and values, and the same keys and values of its own."""
    kept = made.tokens(key, slice(TOKENS, None))
    given = {name: made.tokens(x, slice(TOKENS)) for name, x in zip(made.names, (key, value), strict=True)}
    given = {name: each[0] if made.shared else each for name, each in given.items()}
    return as_array(first_part(made.called(query, kept, kept, **given)))


def _longer(x: Any, axis: int) -> Any:
    """The array with a prefix of its own tokens."""
    index = np.concatenate([np.arange(TOKENS), np.arange(x.shape[axis])])
    return x[(..., index, *(slice(None),) * (-1 - axis))]
