"""Precision: unit roundoffs of a dtype and of the arithmetic inside an implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from math import sqrt
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from attention_conformance.spec.conventions import Conventions, ProductPrecision, SoftmaxPrecision
from attention_conformance.spec.problem import DTYPES

Roundoff: TypeAlias = float | NDArray[np.float64]
"""A unit roundoff, or what some come to: a number, or one for each problem of a stack, shaped to go before its axes."""

STATE_ROUNDINGS = 16.0
"""Running sums kept in the working dtype may lose this many of its roundoffs, as a few dozen additions do."""


@dataclass(frozen=True, eq=False)
class Precision:
    """Unit roundoffs of one way of computing, that of the reference itself added to each.

    Of a stack of problems (see `stacking`) they are arrays (D, 1, 1, 1, 1), which go with what is (D, B, H, L, d).

    Attributes:
        dtype: the storage dtype's name.
        storage: unit roundoff of inputs, outputs and stored intermediates.
        accumulator: unit roundoff of sums; float32 at least for half types.
        softmax: unit roundoff of scores, exponentials and weights.
        angle: unit roundoff of the angles of rotary embeddings, which are float32's in most implementations.
        floor: below this a stored number loses relative precision, or is flushed to zero.
        row: unit roundoff of each step by which the mean of the values so far moves, whatever the weight; 0: none is
            worked out so.
    """

    dtype: str
    storage: Roundoff
    accumulator: Roundoff
    softmax: Roundoff
    angle: Roundoff
    floor: Roundoff
    row: Roundoff = 0.0

    @property
    def widest(self) -> Roundoff:
        """The larger one of storage and softmax."""
        return _larger(self.storage, self.softmax)

    def before(self, axes: int) -> Precision:
        """The same for arrays with so many axes after that of the stack."""
        return self if isinstance(self.storage, float) else _before(self, axes)

    def growth(self, terms: int) -> Roundoff:
        """Relative error of a sum of `terms` products, in the accumulator.

        min(n, 4 sqrt(n)) unit roundoffs: the worst case for short sums; for long ones the probabilistic bound
        of Higham and Mary (2019), which fails for fewer than one sum in a thousand, far fewer in practice.
        """
        return _growth(self, terms)

    def weight_error(self, keys: int) -> Roundoff:
        """Relative error that a weight, and its product with a value, takes on after the exponential.

        Three roundings of its own, and those of the running states over `keys` keys (sum, mixture and their
        rescaling): `growth`, and a bounded loss in the softmax's precision.
        """
        return self.growth(3 * keys) + gamma((3.0 + state_roundings(keys)) * self.softmax)


ROUNDOFFS = tuple(field.name for field in fields(Precision) if field.name != "dtype")


@cache
def _before(precision: Precision, axes: int) -> Precision:
    return replace(precision, **{n: getattr(precision, n).reshape(-1, *[1] * axes) for n in ROUNDOFFS})


@cache
def _growth(precision: Precision, terms: int) -> Roundoff:
    return gamma(min(terms, 4.0 * sqrt(terms)) * precision.accumulator)


def _larger(one: Roundoff, other: Roundoff) -> Roundoff:
    if isinstance(one, float) and isinstance(other, float):
        return max(one, other)
    return np.maximum(one, other)


def state_roundings(terms: int) -> float:
    """Roundings that a running sum of so many terms may take on where it is kept in the working dtype."""
    return min(terms, 4.0 * sqrt(terms), STATE_ROUNDINGS)


def gamma(roundoffs: Roundoff) -> Roundoff:
    """What k factors 1 + u may come to together: k u / (1 - k u), given k u (Higham 2002, lemma 3.1)."""
    if isinstance(roundoffs, float):
        return roundoffs / (1.0 - roundoffs) if roundoffs < 0.5 else 2.0 * roundoffs
    return np.where(roundoffs < 0.5, roundoffs / (1.0 - np.minimum(roundoffs, 0.5)), 2.0 * roundoffs)


OPERANDS = {
    ("float64", ProductPrecision.FLOAT32): 2.0**-24,
    ("float32", ProductPrecision.TF32X3): 2.0**-21,
    ("float32", ProductPrecision.TF32): 2.0**-10,
    ("float32", ProductPrecision.BFLOAT16): 2.0**-8,
}
"""Unit roundoffs of the operands of products in the dtypes that are read so, each with the exponents of float32.

Those of TF32 are twice what rounding to the nearest number would lose: tensor cores cut off what they do not read.
"""


def operands_exact(dtype: str, conventions: Conventions) -> bool:
    """Whether the operands of products keep the numbers of a dtype, and a weight of 1 copies a value."""
    copies = conventions.softmax_precision is not SoftmaxPrecision.ROW
    return copies and (dtype, conventions.product_precision) not in OPERANDS


@cache
def precision(
    dtype: str,
    softmax: SoftmaxPrecision = SoftmaxPrecision.WORKING,
    products: ProductPrecision = ProductPrecision.WORKING,
) -> Precision:
    """The precision of a dtype, by name, with the claimed precisions of the softmax and of operands of products.

    Operands that are rounded are as if they were stored so: queries, keys and values are no longer exact then, and what
    a dtype of as many bits may round is an upper bound.

    Raises:
        KeyError: no such dtype.
    """
    own, single = unit_roundoff(dtype), unit_roundoff("float32")
    storage = OPERANDS.get((dtype, products), own)
    inner = max(storage, single) if softmax is SoftmaxPrecision.FLOAT32 else storage
    accumulator = single if storage > single else inner
    reference = unit_roundoff("float64")
    return Precision(
        dtype=dtype,
        storage=storage + reference,
        accumulator=accumulator + reference,
        softmax=inner + reference,
        angle=single + reference,
        floor=_floor(dtype if inner == own else "float32"),
        row=accumulator + reference if softmax is SoftmaxPrecision.ROW else 0.0,
    )


@cache
def precisions(
    dtypes: Sequence[str],
    softmax: SoftmaxPrecision = SoftmaxPrecision.WORKING,
    products: ProductPrecision = ProductPrecision.WORKING,
) -> Precision:
    """The precisions of several dtypes, for a stack of problems: one in each."""
    each = [precision(dtype, softmax, products) for dtype in dtypes]
    arrays = {n: np.array([getattr(p, n) for p in each]).reshape(-1, 1, 1, 1, 1) for n in ROUNDOFFS}
    return Precision(dtype=" ".join(dtypes), **arrays)


@cache
def unit_roundoff(dtype: str) -> float:
    """Half the distance from 1 to the next larger number of the dtype."""
    return float(_info(dtype).eps) / 2.0


def _floor(dtype: str) -> float:
    """Subnormal numbers are kept in float16 everywhere; elsewhere hardware may flush them to zero."""
    info = _info(dtype)
    return float(info.smallest_subnormal if dtype == "float16" else info.tiny)


def _info(dtype: str) -> Any:
    return ml_dtypes.finfo(DTYPES[dtype])  # type: ignore[no-untyped-call]
