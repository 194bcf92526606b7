"""Encodings: the plain functions next to attention, sinusoids and ALiBi slopes, with the bounds of correct answers."""

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.extensions import ANGLE_STEPS, angle_bound
from attention_conformance.reference.bounds.precision import unit_roundoff
from attention_conformance.reference.expected import Expected
from attention_conformance.reference.stages import frequencies
from attention_conformance.spec.conventions import AlibiRule, SinusoidOrder

SINGLE = unit_roundoff("float32") + unit_roundoff("float64")
"""In which angles and slopes are worked out at least, and the reference."""
BASE = 10000.0
"""The wavelengths of the sinusoids grow from 2 pi to nearly 2 pi times this."""
SLOPE_STEPS = 9.0
"""Roundings of a ratio of slopes, and of the product of one slope with it."""


def sinusoids(length: int, width: int, order: SinusoidOrder, dtype: str) -> Expected:
    """(length, width): sine and cosine of position * 10000 ** (-2 c / width) (Vaswani et al. 2017, section 3.5).

    Args:
        length: positions from 0 on.
        width: even.
        order: where sines and cosines stand.
        dtype: in which the answer is given; it is worked out in float32 at least.
    """
    each = frequencies(width, BASE)
    angles = np.arange(length)[:, None] * each
    value = _placed(np.sin(angles), np.cos(angles), order)
    error = angle_bound(angles, each, SINGLE)
    return Expected(value, _placed(error, error, order) + _stored(value, dtype))


def _placed(sines: Floats, cosines: Floats, order: SinusoidOrder) -> Floats:
    if order is SinusoidOrder.HALVES:
        return np.concatenate([sines, cosines], axis=-1)
    return np.stack([sines, cosines], axis=-1).reshape(len(sines), -1)


def alibi_slopes(num_heads: int, rule: AlibiRule, dtype: str) -> Expected:
    """(num_heads,): the slopes of the heads (Press et al. 2022, section 3, and their published code).

    Args:
        num_heads: 1 or more.
        rule: what holds for a number that is no power of two.
        dtype: in which the answer is given; it is worked out in float32 at least.
    """
    below = 2 ** (num_heads.bit_length() - 1)
    if rule is AlibiRule.GEOMETRIC or below == num_heads:
        value, powers = _geometric(num_heads), np.arange(1.0, num_heads + 1)
    else:
        value = np.concatenate([_geometric(below), _geometric(2 * below)[::2]])[:num_heads]
        powers = np.concatenate([np.arange(1.0, below + 1), np.arange(1.0, 2 * below, 2)])[:num_heads]
    # The slopes may be powers of a rounded ratio, or come from one another by multiplication with it.
    relative = SINGLE * (ANGLE_STEPS + SLOPE_STEPS * powers)
    return Expected(value, relative * value + _stored(value, dtype))


def _geometric(num_heads: int) -> Floats:
    """2 ** (-8 h / H) for h = 1 .. H."""
    return np.asarray(2.0 ** (-8.0 * np.arange(1, num_heads + 1) / num_heads))


def _stored(value: Floats, dtype: str) -> Floats:
    """One rounding to the dtype, and that of the reference."""
    return (unit_roundoff(dtype) + unit_roundoff("float64")) * np.abs(value)
