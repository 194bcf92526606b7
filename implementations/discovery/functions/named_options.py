"""Functions that take arrays of options under names of their own: gains of norms, and biases of distances."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from attention_conformance.implementations.adapters.jax_op import library_of
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.signatures import dispensable, required, signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES, ROLES

GAINS = {"query": "query_norm", "key": "key_norm"}
"""The suite's names of gains, by input."""
OF_GAINS = {"weight", "norm", "gain", "gamma", "scale", "rms", "rmsnorm", "ln", "layernorm", "g", "w"}
"""Words of which names of gains consist, next to that of an input."""
OF_BIASES = {"rel", "relative", "bias", "biases", "pos", "position", "positional", "table", "attention", "distance"}
"""Words of which names of biases of distances consist, one of the first two among them."""
CLOSE = 3
"""Distances of a table that no table of queries and keys is as wide as."""


@dataclass(frozen=True)
class NamedOptions:
    """A function with options under the suite's names.

    Attributes:
        function: it.
        names: its own names, by those of the suite.
        neutral: of query and key, what each is where a problem has none, if it has to be given.
        about: what they are, for a note.
        transposed: whether its arrays have their axes in the other order.
    """

    function: Callable[..., Any]
    names: Mapping[str, str]
    neutral: Callable[[Any, Any], Any] | None
    about: str
    transposed: bool = False

    @property
    def __signature__(self) -> inspect.Signature:
        signature = signature_of(self.function)
        for name in self.names.values():
            signature = dispensable(signature, name)
        suite = {own: name for name, own in self.names.items()}
        renamed = [p.replace(name=suite.get(p.name, p.name)) for p in signature.parameters.values()]
        return signature.replace(parameters=renamed)

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        given = {self.names.get(name, name): option for name, option in options.items()}
        for name in self.names.values():
            if given.get(name) is None and self.neutral is not None:
                given[name] = self.neutral(query, key)
            if given.get(name) is not None and self.transposed:
                given[name] = given[name].T
        return self.function(query, key, value, **given)


def with_named_options(function: Callable[..., Any]) -> NamedOptions | None:
    """The function with its gains, or its biases of distances, under the suite's names; None where it has none."""
    return _with_gains(function) or _with_biases(function)


def _with_gains(function: Callable[..., Any]) -> NamedOptions | None:
    """None where it has no gains of queries and keys, or of values, too, whose weights these are."""
    found: dict[str, list[inspect.Parameter]] = {}
    for each in _own(function):
        words = {*each.name.lower().split("_")}
        role = next((role for role, names in ROLES.items() if words & names and words - names), None)
        if role is not None and words - ROLES[role] <= OF_GAINS:
            found.setdefault(role, []).append(each)
    if {*found} != {*GAINS} or any(len(each) > 1 for each in found.values()):
        return None
    needed = {required(each) for (each,) in found.values()}
    if len(needed) > 1:
        return None
    names = {GAINS[role]: each.name for role, (each,) in found.items()}
    about = f"its {' and '.join(map(repr, names.values()))} are gains of norms"
    return NamedOptions(function, names, _ones if needed == {True} else None, about)


def _with_biases(function: Callable[..., Any]) -> NamedOptions | None:
    """None where it has none, or adds them to the scores of queries and keys as they are."""
    own = [p for p in _own(function) if {"rel", "relative"} & _words(p) and "bias" in p.name and _words(p) <= OF_BIASES]
    if len(own) != 1:
        return None
    name, needed = own[0].name, required(own[0])
    for transposed, axis in product((False, True), (1, 2)):
        neutral = partial(_no_biases, axis)
        tried = NamedOptions(function, {"relative_bias": name}, neutral, "", transposed)
        inputs = of_each_kind((2, 4, 5, 6) if axis == 1 else (2, 5, 4, 6))
        if any(safe_call(partial(tried, x, x, x)).value is not None for x in inputs):
            about = f"its {name!r} has a bias for each distance"
            return NamedOptions(function, tried.names, neutral if needed else None, about, transposed)
    return None


def _own(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Its parameters after the inputs whose names are unknown."""
    signature = safe_call(lambda: signature_of(function)).value
    rest = [] if signature is None else [*signature.parameters.values()][3:]
    return [p for p in rest if p.name not in KNOWN_NAMES]


def _words(parameter: inspect.Parameter) -> set[str]:
    return {*parameter.name.lower().split("_")}


def _ones(query: Any, _: Any) -> Any:
    return _filled(query, (query.shape[-1],), 1.0)


def _no_biases(axis: int, query: Any, _: Any) -> Any:
    """Zeros (H, 3), of the heads in an axis of the query."""
    return _filled(query, (query.shape[axis], CLOSE), 0.0)


def _filled(query: Any, shape: tuple[int, ...], number: float) -> Any:
    """An array of the kind and dtype that the query has."""
    if hasattr(query, "new_full"):
        return query.new_full(shape, number)
    return library_of(query).full(shape, number, query.dtype)
