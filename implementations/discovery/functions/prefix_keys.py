"""Prefix keys: functions that take the keys and values of earlier tokens apart from those of their queries."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Claims, Fit, Unsupported
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.one_sample import stacked
from attention_conformance.implementations.discovery.functions.serving_names import Part, part_of
from attention_conformance.implementations.discovery.functions.several_needed import as_array
from attention_conformance.implementations.discovery.functions.stored_axes import like, together
from attention_conformance.implementations.discovery.probe import first_part, near, shape_of
from attention_conformance.implementations.discovery.signatures import positional, required, role, signature_of
from attention_conformance.implementations.discovery.vocabulary import INPUTS
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
ENDS = {Part.ENDS, Part.QUERY_ENDS, Part.KEY_ENDS}
LONGEST = {Part.LONGEST, Part.LONGEST_QUERY, Part.LONGEST_KEY}
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
        inputs: its parameters for query, key and value.
        packed: what its parameters take that state where sequences end which lie one after another; empty: it takes
            samples. Then it is called for each sample, whose sequence stands after another one.
    """

    called: Callable[..., Any]
    names: tuple[str, str]
    axis: int
    shared: bool
    inputs: tuple[str, ...]
    packed: Mapping[str, Part] = field(default_factory=dict)

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.called)
        rest = [p for p in own.parameters.values() if p.name not in (*self.names, *self.packed, *self.inputs)]
        inputs = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in self.inputs]
        return own.replace(parameters=[*inputs, *(p.replace(kind=p.KEYWORD_ONLY) for p in rest)])

    @property
    def about(self) -> str:
        """For a note."""
        key, value = self.names
        return f"the keys before those of its queries are given in {key!r} and {value!r}"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        if self.packed and self.axis == min(SHAPES):  # layouts are looked for without a prefix
            inputs = (x.swapaxes(1, 2) for x in (query, key, value))
            return self._answer(*inputs, **options).swapaxes(1, 2)
        return self._answer(query, key, value, **options)

    def _answer(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        before = max(0, key.shape[self.axis] - query.shape[self.axis])
        first, own = ((self.tokens(x, slice(before)), self.tokens(x, slice(before, None))) for x in (key, value))
        return self.answer((query, first[1], own[1]), (first[0], own[0]), options)

    def answer(self, inputs: Sequence[Any], prefix: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """The same to inputs without a prefix."""
        if self.packed:
            samples = zip(zip(*inputs, strict=True), zip(*prefix, strict=True), strict=True)
            return stacked([self._sequence(*each, options) for each in samples])
        given = dict(zip(self.names, (x[0] if self.shared else x for x in prefix), strict=True))
        if self.inputs == tuple(p.name for p in positional(signature_of(self.called))[:3]):
            return self.called(*inputs, **given, **options)
        return self.called(**dict(zip(self.inputs, inputs, strict=True)), **given, **options)

    def _sequence(self, own: Sequence[Any], prefix: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """The answer to one sequence, which stands after its own first tokens, negated, as another one."""
        count = own[0].shape[self.axis]
        before = (count + 1) // 2
        inputs = [together([-self.tokens(x, slice(before)), x], x.ndim + self.axis) for x in own]
        ends = like(np.array([0, before, before + count], np.int32), own[0])
        placed = {name: max(before, count) if part in LONGEST else ends for name, part in self.packed.items()}
        given = dict(zip((*self.inputs, *self.names), (*inputs, *prefix), strict=True))
        return self.tokens(first_part(self.called(**given, **placed, **options)), slice(before, None))

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
    one = prefix.shared and not prefix.packed
    return fit(case.sized(key_length=longer, batch=1 if one else sizes.batch))


def with_prefix_keys(function: Callable[..., Any]) -> PrefixKeys | None:
    """The function as one of query, key and value; None where it needs no keys of earlier tokens, or is called so in
    no way that is known.
    """
    signature = safe_call(lambda: signature_of(function)).value
    if signature is None or isinstance(function, PrefixKeys):
        return None
    for names, packed in _pairs(signature):
        inputs = _inputs(signature, (*names, *packed))
        for axis, shared in product(SHAPES, (False, True)[bool(packed) :]) if inputs else ():
            made = PrefixKeys(function, names, axis, shared, inputs, packed)
            if any(_reads(made, x) for x in of_each_kind(SHAPES[axis])):
                return made
    return None


def _inputs(signature: inspect.Signature, others: Sequence[str]) -> tuple[str, ...]:
    """Its parameters for query, key and value: the first three, or where others stand among these, by their roles."""
    first = [p.name for p in positional(signature)]
    if not {*first[:3]} & {*others}:
        return (*first[:3],)
    left = [name for name in first if name not in others]
    return (*left[:3],) if [role(name) for name in left[:3]] == [*INPUTS] else ()


def _pairs(signature: inspect.Signature) -> Iterator[tuple[tuple[str, str], dict[str, Part]]]:
    """Names of keys and values of earlier tokens and of ends of sequences, where all that has to be given are these."""
    every = {p.name: p for p in signature.parameters.values() if required(p)}
    for name in filter(KEYS.match, every):
        value = "_".join(OF_VALUES.get(word, word) for word in name.split("_"))
        named = [each for each in every if each not in (name, value)]
        ends = {each: part for each in named[3:] if (part := part_of(each)) in ENDS | LONGEST}
        if value in every and len(named) == 3 + len(ends) and (not ends or ENDS & {*ends.values()}):
            yield (name, value), ends


def _reads(made: PrefixKeys, x: Any) -> bool:
    """Whether its output has the shape of the queries, and depends on the values of the prefix."""
    longer = _longer(x, made.axis)
    first, second = (safe_call(partial(_output, made, x, longer, value)).value for value in (longer, longer * 2))
    if first is None or second is None or not shape_of(first) == shape_of(second) == tuple(x.shape):
        return False
    return not near(first, second, "float32") and (not made.packed or _keeps_heads_apart(made, x, longer, first))


def _keeps_heads_apart(made: PrefixKeys, x: Any, longer: Any, plain: Any) -> bool:
    """Whether values of a head change the output of that head alone: tokens would be taken for heads elsewhere."""
    heads = np.ones(tuple(x.shape), np.float32)
    axis = -5 - made.axis
    signs = np.moveaxis(heads, axis, 0)
    signs[0] = -1
    other = safe_call(partial(_output, made, x, longer, longer * like(_longer(heads, made.axis), x))).value
    if other is None:
        return False
    own, *others = zip(np.moveaxis(other, axis, 0), np.moveaxis(plain, axis, 0), strict=True)
    return not near(*own, "float32") and all(near(*each, "float32") for each in others)


def _output(made: PrefixKeys, query: Any, key: Any, value: Any) -> Any:
    """Its output with a prefix of these keys and values, and the same keys and values of its own."""
    kept = made.tokens(key, slice(TOKENS, None))
    prefix = [made.tokens(x, slice(TOKENS)) for x in (key, value)]
    return as_array(first_part(made.answer((query, kept, kept), prefix, {})))


def _longer(x: Any, axis: int) -> Any:
    """The array with a prefix of its own tokens."""
    index = np.concatenate([np.arange(TOKENS), np.arange(x.shape[axis])])
    return x[(..., index, *(slice(None),) * (-1 - axis))]
