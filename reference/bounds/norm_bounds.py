"""Rounding bounds of the norms of queries and keys, forward and back; the derivation is in `bounds.md`, section 14."""

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.precision import Precision, gamma
from attention_conformance.reference.norms import Norm
from attention_conformance.spec.conventions import NormKind

UNIT_STEPS = 2.0
"""Roundings to the working dtype of a row without its gain: one over the size, and the product. The rest is done in
float32 at least."""
GAIN_STEPS = 2.0
"""And with it: 1 + gain, and the product."""
SIZE_STEPS = 8.0
"""Roundings of a mean square and of one over its root, in the accumulator: mean, epsilon, an approximated root."""
BACK_STEPS = 2.0
"""Roundings to the working dtype on the way back: of a gradient times its gain, and of what comes out."""
INNER_STEPS = 4.0
"""Roundings in the accumulator between the two."""
FARTHEST = 2.0
"""Times the root of the count: no rows, however wrong, are farther apart once they are normalised."""


def norm_bound(norm: Norm, rows: Floats, error: Floats, precision: Precision) -> Floats:
    """Of rows, each within `error`, normalised and times the gain."""
    gain, unit, e_unit = _gain(norm), np.abs(norm.unit(rows)), unit_bound(norm, rows, error, precision)
    rounding = 0.0 if norm.gain is None else gamma(GAIN_STEPS * precision.widest)
    return np.asarray(gain * (e_unit + rounding * (unit + e_unit)) + precision.floor)


def unit_bound(norm: Norm, rows: Floats, error: Floats, precision: Precision) -> Floats:
    """The same without the gain."""
    x, e_x = _centred_bound(norm, rows, error, precision)
    relative, inverse = _inverse_bound(norm, rows, x, e_x, precision), norm.inverse(rows)
    rounding = gamma(UNIT_STEPS * precision.widest)
    bound = inverse * ((1.0 + relative) * (e_x + rounding * (x + e_x)) + relative * x)
    return np.asarray(np.minimum(bound, FARTHEST * np.sqrt(norm.count(rows))) + precision.floor)


def _centred_bound(norm: Norm, rows: Floats, error: Floats, precision: Precision) -> tuple[Floats, Floats]:
    """Sizes of what is divided, and its bound."""
    if norm.kind is not NormKind.LAYER:
        return np.abs(rows), error
    size = np.abs(rows) + error
    mean_size, mean_error = (each.mean(norm.over, keepdims=True) for each in (size, error))
    rounding = precision.growth(int(norm.count(rows))) + 2.0 * precision.accumulator
    bound = error + mean_error + rounding * mean_size + 2.0 * precision.accumulator * (size + mean_size)
    return np.abs(norm.centred(rows)), np.asarray(bound)


def _inverse_bound(norm: Norm, rows: Floats, x: Floats, e_x: Floats, precision: Precision) -> Floats:
    """(B, 1 or H, L, 1): of one over the size, relative to it.

    The squares may be those of the rows as they come, with the square of the mean taken off afterwards.
    """
    count = norm.count(rows)
    moved = ((2.0 * x + e_x) * e_x).sum(norm.over, keepdims=True) / count
    squares = np.square(np.abs(rows) + e_x).sum(norm.over, keepdims=True) / count
    terms = int(np.prod([rows.shape[axis] for axis in norm.over]))
    whole = np.maximum(1.0 / np.square(norm.inverse(rows)), np.finfo(np.float64).tiny)
    error = (moved + (precision.growth(terms) + SIZE_STEPS * precision.accumulator) * (squares + moved)) / whole
    error = error + SIZE_STEPS * precision.accumulator
    return np.asarray(1.0 / np.sqrt(np.maximum(1.0 - error, np.finfo(np.float64).tiny)) - 1.0)


def norm_back_bound(
    norm: Norm, rows: Floats, e_rows: Floats, sizes: Floats, error: Floats, precision: Precision
) -> tuple[Floats, Floats]:
    """Sizes and bound of d loss / d rows, of rows within `e_rows` and gradients of these sizes, within `error`."""
    gain, rounding, count = _gain(norm), gamma(BACK_STEPS * precision.widest), norm.count(rows)
    inner = gamma(INNER_STEPS * precision.accumulator)
    unit, e_unit = np.abs(norm.unit(rows)), unit_bound(norm, rows, e_rows, precision)
    scaled, e_scaled = gain * sizes, gain * (error + rounding * (sizes + error))
    products = ((scaled + e_scaled) * (unit + e_unit)).sum(norm.over, keepdims=True) / count
    e_products = (e_scaled * (unit + e_unit) + scaled * e_unit).sum(norm.over, keepdims=True) / count
    e_products = e_products + (inner + precision.growth(int(count))) * products
    away = scaled + unit * products
    e_away = e_scaled + (unit + e_unit) * e_products + e_unit * products
    e_away = e_away + inner * (away + e_away)
    x, e_x = _centred_bound(norm, rows, e_rows, precision)
    relative, inverse = _inverse_bound(norm, rows, x, e_x, precision), norm.inverse(rows)
    relative = (1.0 + relative) * (1.0 + rounding) - 1.0
    found, e_found = inverse * away, inverse * (e_away + relative * (away + e_away))
    if norm.kind is NormKind.LAYER:
        mean, e_mean = (each.mean(norm.over, keepdims=True) for each in (found, e_found))
        found, e_found = found + mean, e_found + e_mean + inner * (found + mean + e_found + e_mean)
    return found, np.asarray(e_found + precision.floor)


def gain_bound(norm: Norm, rows: Floats, e_rows: Floats, sizes: Floats, error: Floats, precision: Precision) -> Floats:
    """Of d loss / d gain; the products of several tokens may be summed in the working dtype."""
    unit, e_unit = np.abs(norm.unit(rows)), unit_bound(norm, rows, e_rows, precision)
    each = error * (unit + e_unit) + sizes * e_unit
    terms = max(1, rows.size // max(1, norm.gathered(each).size))
    rounding = gamma(BACK_STEPS * precision.widest) + precision.growth(terms)
    return norm.gathered(np.asarray(each + rounding * (each + sizes * unit)))


def _gain(norm: Norm) -> Floats | float:
    return 1.0 if norm.gain is None else np.abs(norm.gain)
