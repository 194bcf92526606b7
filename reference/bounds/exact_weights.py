"""What the gradients of a half type may be off by where all weights of a row are one power of two.

The derivation is in `bounds.md`, section 15.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.precision import STATE_ROUNDINGS, gamma, precision, unit_roundoff
from attention_conformance.spec.problem import Array

KEYS, WIDTH = 256, 128
"""A power of two up to which a bfloat16 holds every whole number, and components that are added up."""
STORED = 2.0
"""Roundings of a weight and of the result in one pass."""
CENTRE = 3.0 + STATE_ROUNDINGS
"""Roundings of dP, of D, of the products in it, and of the parts that it may be added up from."""


def just_below_a_tie(dtype: str, terms: int) -> float:
    """A number of the dtype, not far from 1, that a sum of so many in the dtype rounds down from its second half on."""
    half = 2.0 ** (max(4, terms).bit_length() - 2)
    return 1.0 + (half - 2.0) * unit_roundoff(dtype)


@dataclass(frozen=True, eq=False)
class Excess:
    """How far a backward pass is from the forward pass of the same answer, in units of what roundings allow.

    Attributes:
        weights: of the sum of the values' gradients, which is the output times the cotangent.
        centre: of the gradients of keys, which are 0 where all values are alike.
    """

    weights: float
    centre: float


def excess(output: Array, d_value: Array, d_key: Array, query: Array, cotangent: Array, scale: float) -> Excess:
    """Of an answer to keys of 0, values of 1, and a cotangent of the last query alone, by the names of its parts."""
    dtype = output.dtype.name
    u, working = unit_roundoff(dtype), precision(dtype)
    o, g, q = (array[..., -1, :].astype(np.float64) for array in (output, cotangent, query))
    whole, sums = o * g, np.asarray(d_value, np.float64).sum(-2)
    passes = 1.0 + (o != 1.0)
    single = working.growth(3 * KEYS) + working.growth(g.shape[-1])
    weights = np.abs(sums - whole) / (np.abs(whole) * (gamma(passes * STORED * u) + single))
    total = np.abs(g).sum(-1, keepdims=True)
    short = np.abs((o - 1.0) * g).sum(-1, keepdims=True)  # weights that do not add up to 1 take that much of D away
    each = np.abs(scale * q) * (total * (gamma(CENTRE * u) + 2.0 * single) + short) * (1.0 + gamma(STORED * u)) / KEYS
    allowed = _of_key_heads(each, d_key.shape[1])[..., None, :] + working.floor * (2.0 + abs(scale))
    *others, largest = np.sort(np.abs(np.asarray(d_key, np.float64)) / allowed, axis=-2).max((0, 1, 3))
    # Where the maximum of the scores is differentiated, one key gets what is left of the sum over all of them.
    return Excess(float(weights.max()), float(max(*others, largest / KEYS)))


def _of_key_heads(rows: Floats, heads: int) -> Floats:
    """(B, Hk, d): the sum over the query heads of each key head."""
    return np.asarray(rows.reshape(rows.shape[0], heads, -1, rows.shape[-1]).sum(2))
