"""Scales that divide: parameters that divide scores, as calls show."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.needed_window import alike
from attention_conformance.implementations.discovery.signatures import required, signature_of
from attention_conformance.implementations.discovery.vocabulary import OPTIONS

SCALE = "scale"
NAMES = {*OPTIONS[SCALE].parameters, "scale_factor", "scaling_factor", "temperature", "divisor"}
ROOT = re.compile(r"(?:\bsqrt\b|\broot of\b|\*\* ?\(?(?:0?\.5|1 ?/ ?2)\b)", re.IGNORECASE)
QUOTIENT = re.compile(r"\b1(?:\.0?)? ?/|/ ?(?:\w+\.)?sqrt|\bone over\b|\brsqrt|-0?\.5|\binverse", re.IGNORECASE)
"""A root, and what is divided by one, in words of a documentation."""
SHAPES = ((2, 3, 5, 4), (2, 5, 4), (5, 4))
DIVISORS = (0.5, 3.0)


@dataclass(frozen=True)
class DividingScale:
    """A function whose scores are divided by one of its parameters.

    Attributes:
        function: it.
        name: that parameter.
    """

    function: Callable[..., Any]
    name: str

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function)
        scale = inspect.Parameter(SCALE, inspect.Parameter.KEYWORD_ONLY, default=None)
        rest = [_named(p, at) for at, p in enumerate(own.parameters.values()) if p.name != self.name]
        last = [p for p in rest if p.kind is p.VAR_KEYWORD]
        return own.replace(parameters=[*(p for p in rest if p not in last), scale, *last])

    @property
    def about(self) -> str:
        """For a note."""
        return f"its {self.name!r} divides scores, as it documents, and is given 1 / scale"

    def __call__(self, *inputs: Any, scale: float | None = None, **options: Any) -> Any:
        """The function's answer."""
        given = {} if scale is None else {self.name: 1.0 / scale if scale else math.inf}
        return self.function(*inputs, **given, **options)


@dataclass(frozen=True)
class Divisor:
    """A function whose scores are always divided by one of its parameters, which is needed or a number by default.

    Attributes:
        function: it.
        name: that parameter.
        rooted: whether scores are divided by the root of the width as well.
    """

    function: Callable[..., Any]
    name: str
    rooted: bool

    @property
    def __signature__(self) -> inspect.Signature:
        return DividingScale(self.function, self.name).__signature__

    @property
    def about(self) -> str:
        """For a note."""
        whole = "1" if self.rooted else "sqrt(d_k)"
        return f"its {self.name!r} divides scores, and is given {whole} where a problem has no scale"

    def __call__(self, query: Any, *inputs: Any, scale: float | None = None, **options: Any) -> Any:
        """The function's answer."""
        root = math.sqrt(query.shape[-1])
        whole = root if scale is None else 1.0 / scale if scale else math.inf
        return self.function(query, *inputs, **{self.name: whole / root if self.rooted else whole}, **options)


def with_divisor(function: Callable[..., Any]) -> Divisor | None:
    """The function, given the root of the width or 1 for what divides its scores; None where nothing is known to."""
    signature = safe_call(lambda: signature_of(function)).value
    parameters = [] if signature is None else [*signature.parameters.values()][3:]
    own = [p for p in parameters if p.name in NAMES and (required(p) or isinstance(p.default, int | float))]
    if len(own) != 1 or any(required(p) for p in parameters if p is not own[0]):
        return None
    for x in (x for shape in SHAPES for x in of_each_kind(shape)):
        for rooted in (False, True):
            if all(_is_divided(function, own[0].name, x, number, rooted) for number in DIVISORS):
                return Divisor(function, own[0].name, rooted)
    return None


def _is_divided(function: Callable[..., Any], name: str, x: Any, number: float, rooted: bool) -> bool:
    """Whether its answer is attention of an array to itself, with scores that are divided by this number."""
    array = np.asarray(x, np.float64)
    scores = array @ array.swapaxes(-1, -2) / number / (math.sqrt(array.shape[-1]) if rooted else 1.0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True) @ array).astype(np.float32)
    answer = safe_call(partial(function, x, x, x, **{name: number})).value
    return answer is not None and alike(answer, expected)


def _named(parameter: inspect.Parameter, at: int) -> inspect.Parameter:
    named = at > 2 and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    return parameter.replace(kind=parameter.KEYWORD_ONLY) if named else parameter


def with_dividing_scale(function: Callable[..., Any]) -> DividingScale | None:
    """The function with a scale that multiplies; None where its own is none that divides, or is not documented so."""
    signature = safe_call(lambda: signature_of(function)).value
    optional = [] if signature is None else [p.name for p in signature.parameters.values() if p.default is None]
    own = [name for name in optional if name in NAMES and _is_documented(function, name)]
    return DividingScale(function, own[0]) if len(own) == 1 and _divides(function, own[0]) else None


def _is_documented(function: Callable[..., Any], name: str) -> bool:
    """Whether the paragraph of its documentation on the parameter states a root, and no quotient."""
    lines = (inspect.getdoc(as_written(function)) or "").splitlines()
    first = next((at for at, line in enumerate(lines) if re.match(rf"\s*[-*`]*{name}\b", line)), None)
    return first is not None and bool(ROOT.search(lines[first])) and not QUOTIENT.search(lines[first])


def _divides(function: Callable[..., Any], name: str) -> bool:
    """Whether its answer with a number for the scale is that for queries that are divided by it."""
    return any(_divides_among(function, name, x) for shape in SHAPES for x in of_each_kind(shape))


def _divides_among(function: Callable[..., Any], name: str, x: Any) -> bool:
    for divisor in DIVISORS:
        usual = math.sqrt(x.shape[-1]) / divisor
        given, divided = (
            safe_call(call).value
            for call in (partial(function, x, x, x, **{name: divisor}), partial(function, usual * x, x, x))
        )
        if given is None or divided is None or not alike(given, divided):
            return False
    return True
