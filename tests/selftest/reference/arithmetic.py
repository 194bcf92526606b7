"""The kinds of numbers in which the second derivation is evaluated."""

import cmath
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import mpmath

Number: TypeAlias = Any
"""A float, a complex or an mpmath number: the loops need no more of it than arithmetic and its real part."""


@dataclass(frozen=True)
class Arithmetic:
    """The numbers in which the equations are evaluated."""

    number: Callable[[Any], Number]
    total: Callable[[Iterable[Number]], Number]
    exp: Callable[[Number], Number]
    log: Callable[[Number], Number]
    tanh: Callable[[Number], Number]
    cos: Callable[[Number], Number]
    sin: Callable[[Number], Number]


def _complex_total(terms: Iterable[complex]) -> complex:
    held = list(terms)
    return complex(math.fsum(z.real for z in held), math.fsum(z.imag for z in held))


DOUBLE = Arithmetic(float, math.fsum, math.exp, math.log, math.tanh, math.cos, math.sin)
"""float64, every sum rounded once."""
COMPLEX = Arithmetic(complex, _complex_total, cmath.exp, cmath.log, cmath.tanh, cmath.cos, cmath.sin)
"""For complex-step differentiation."""
DIGITS = mpmath.mp.clone()
DIGITS.dps = 50
FIFTY_DIGITS = Arithmetic(
    lambda x: DIGITS.mpf(float(x)), DIGITS.fsum, DIGITS.exp, DIGITS.log, DIGITS.tanh, DIGITS.cos, DIGITS.sin
)
"""Exact for every purpose here."""
