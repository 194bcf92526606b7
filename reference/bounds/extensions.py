"""Rounding bounds of the stages of the extensions; the derivation is in `bounds.md` next to this file."""

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.gate_bounds import GATE_STEPS
from attention_conformance.reference.bounds.norm_bounds import gain_bound, norm_back_bound, norm_bound
from attention_conformance.reference.bounds.precision import Precision, Roundoff, gamma, state_roundings
from attention_conformance.reference.latent import expanded
from attention_conformance.reference.norms import Norm
from attention_conformance.reference.pipeline import Inputs, Trace
from attention_conformance.reference.routes import Route
from attention_conformance.reference.stages import Rotation, gather, repeat_kv
from attention_conformance.spec.problem import Problem

ANGLE_STEPS = 8.0
"""Roundings of an angle, and of a sine or cosine, in the precision of angles."""
POWER_STEPS = 4.0
"""Roundings of the argument of an exponential: exponent, logarithm of the base, their product, and a reciprocal."""
TURN_STEPS = 4.0
"""Roundings to the working dtype on the way through a rotation: sine or cosine, product, sum, result."""
TANH_ERROR = 8.0
"""Unit roundoffs that a hyperbolic tangent may be off, and its product with the cap."""
TANH_OF_EXPONENTIALS = 4.0
"""Roundings of numbers near 1 in 2 / (1 + e^-2x) - 1 and the like, in the accumulator, where tanh x is small."""
SCALE_STEPS = 2.0
"""Roundings where codes, products with codes, or the factor of scores are multiplied by a scale: product, storing."""
LATENT_STEPS = 5.0
"""Roundings of what stands between latent and score, or between weights and output, in either form."""
DROP_STEPS = 3.0
"""Roundings of a weight on its way through dropout: the factor 1 / (1 - p), the product, the result."""


def multiplied_bounds(trace: Trace, inputs: Inputs, precision: Precision) -> tuple[Floats, Floats, Floats]:
    """Bounds of query, key and value as they are multiplied, (B, H, L, d): inherited, of norms and rotations."""
    query = route_bound(trace.routes.query, inputs.query, precision)
    key = route_bound(trace.routes.key, inputs.key, precision)
    num_heads, columns = trace.query.shape[-3], trace.key.shape[-2]
    shared = [repeat_kv(rows, num_heads, trace.order) for rows in (key, inputs.value)]
    if columns > key.shape[-2]:
        shared = [_followed(rows, columns - key.shape[-2]) for rows in shared]
    return query, shared[0], shared[1]


def dequantised_bounds(problem: Problem, given: Inputs, precision: Precision) -> Inputs:
    """Of query, key and value at the op level: zeros, unless key and value are given as codes or latents."""
    if "w_uk" in problem.extras:
        return _expanded_bounds(problem, given, precision)
    rounding = gamma(SCALE_STEPS * precision.widest)
    of = {name: rounding if f"{name}_scale" in problem.extras else 0.0 for name in ("key", "value")}
    of_key, of_value = (
        step * np.abs(np.where(np.isfinite(rows), rows, 0.0))
        for step, rows in ((of["key"], given.key), (of["value"], given.value))
    )
    return Inputs(np.zeros_like(given.query), of_key, of_value)


def _expanded_bounds(problem: Problem, given: Inputs, precision: Precision) -> Inputs:
    """Of keys and values that are expanded, or of as much as scores and outputs are off where they are not."""
    rank, keys = problem.extras["w_uk"].shape[-1], problem.key.shape[-2]
    stored = precision.growth(rank) + gamma(LATENT_STEPS * precision.widest)
    of_key = stored + precision.growth(given.query.shape[-1]) + precision.growth(problem.key.shape[-1])
    of_value = stored + precision.growth(3 * keys) + gamma(state_roundings(keys) * precision.softmax)
    sizes = zip((of_key, of_value), expanded(problem, sizes=True), strict=True)
    return Inputs(np.zeros_like(given.query), *(error * size + precision.floor for error, size in sizes))


def _followed(rows: Floats, extra: int) -> Floats:
    """(B, H, L, d) -> (B, H, L + extra, d): zeros, because extra keys and values are exact."""
    return np.concatenate([rows, np.zeros((*rows.shape[:-2], extra, rows.shape[-1]))], axis=-2)


def route_bound(route: Route, error: Floats, precision: Precision) -> Floats:
    """Of what rows, each within `error`, become on their route."""
    return _along(route, error, precision)[-1]


def _along(route: Route, error: Floats, precision: Precision) -> list[Floats]:
    """Of the rows that each step is given, and of the result."""
    errors = [error]
    for step, rows in zip(route.steps, route.given, strict=True):
        if isinstance(step, Norm):
            errors.append(norm_bound(step, rows, errors[-1], precision))
        else:
            errors.append(rotated_bound(step, rows, errors[-1], precision))
    return errors


def route_back_bound(
    route: Route, e_rows: Floats, sizes: Floats, error: Floats, precision: Precision
) -> tuple[Floats, Floats | None]:
    """Of d loss / d rows, and d loss / d gain, of rows within `e_rows` and gradients of these sizes, within `error`."""
    of_gain = None
    steps = list(zip(route.steps, route.given, _along(route, e_rows, precision), strict=False))
    for step, rows, e_given in reversed(steps):
        if isinstance(step, Norm):
            of_gain = gain_bound(step, rows, e_given, sizes, error, precision)
            sizes, error = norm_back_bound(step, rows, e_given, sizes, error, precision)
        else:
            error = rotated_bound(step, sizes, error, precision)
            sizes = step.of_sizes(sizes)
    return error, of_gain


def rotated_bound(rotation: Rotation, rows: Floats, error: Floats, precision: Precision) -> Floats:
    """Of rows, each within `error`, rotated, or rotated back; what is not rotated counts as rotated by nothing."""
    sizes = np.abs(np.where(np.isfinite(rows), rows, 0.0)) + error
    rounding = gamma(TURN_STEPS * precision.widest)
    rotated = rotation.of_sizes(error + rounding * sizes)
    if rotation.angles is not None and rotation.frequencies is not None:  # else cosines and sines are given
        angle = angle_bound(rotation.angles, rotation.frequencies, precision.angle)
        rotated = rotated + rotation.summed(sizes, (1.0 + rounding) * angle)
    return np.asarray(rotated + precision.floor)


def angle_bound(angles: Floats, frequencies: Floats, roundoff: Roundoff) -> Floats:
    """Of sines and cosines of angles, position times frequency: an error of the angle moves them as far at most."""
    relative = ANGLE_STEPS + POWER_STEPS * np.abs(np.log(frequencies))
    return np.asarray(roundoff * (relative * np.abs(angles) + ANGLE_STEPS))


def gathered_bound(trace: Trace, rows: Floats, error: Floats, precision: Precision) -> Floats:
    """(B, Hk, L, d): of gradients (B, H, L, d) within `error`, summed over each group."""
    num_heads, num_kv_heads = trace.query.shape[-3], trace.inputs.key.shape[-3]
    groups = num_heads // max(1, num_kv_heads)
    if groups == 1:
        return error
    rounding = precision.growth(groups) + state_roundings(groups) * precision.widest
    return gather(error + rounding * (np.abs(rows) + error), num_kv_heads, trace.order)


def capped_bound(trace: Trace, products: Floats, precision: Precision) -> Floats:
    """Of softcap * tanh(x / softcap), for every x within the bound of the product, and its own roundings."""
    assert trace.softcap is not None
    limit, x = trace.softcap, np.abs(trace.products)
    reach = products + 3.0 * precision.softmax * x
    # tanh a - tanh b = tanh(a - b) (1 - tanh a tanh b); towards zero, where it is steeper, it moves farther.
    moved = limit * np.tanh(reach / limit) * (1.0 - np.tanh(x / limit) * np.tanh((x - reach) / limit))
    rounding = TANH_ERROR * precision.softmax * (np.abs(trace.capped) + moved)
    return np.asarray(moved + rounding + TANH_OF_EXPONENTIALS * precision.accumulator * limit)


def slope_bound(trace: Trace, products: Floats, precision: Precision) -> Floats:
    """Of 1 - tanh^2, which may be formed from a rounded tanh."""
    assert trace.softcap is not None
    t = np.abs(trace.capped) / trace.softcap
    error = capped_bound(trace, products, precision) / trace.softcap
    return np.minimum(2.0 * t * error + error**2 + 4.0 * precision.softmax, 1.0)


def weight_roundings(trace: Trace, precision: Precision) -> Roundoff:
    """Relative, of each weight between softmax and mixture: dropout, and gates that multiply the weights."""
    gated = (trace.gates is not None) + (trace.opened is not None and trace.opened.shape[-1] == 1)
    return gamma(((0.0 if trace.kept is None else DROP_STEPS) + GATE_STEPS * gated) * precision.widest)


def dropped_bound(trace: Trace, weights: Floats, precision: Precision) -> Floats:
    """Of the weights after dropout, given the bound of those before."""
    if trace.kept is None:
        return weights
    rounded = weight_roundings(trace, precision) * (np.where(np.isnan(trace.weights), 0.0, trace.weights) + weights)
    return np.asarray(trace.kept * (weights + rounded))


def row_error(trace: Trace, precision: Precision) -> Floats:
    """By how much each weight may be off, whatever its size, where the mean of the values so far moves key by key.

    A step o + (v - o) c has four roundings at the size of the largest value, and c is made of logarithms as large as
    the row's; the steps after it only make it less.
    """
    steps = 4.0 * trace.weights.shape[-1]
    logs = 1.0 + np.abs(trace.finite_lse) + np.abs(trace.top)
    off = gamma(min(steps, 4.0 * steps**0.5) * precision.row) * logs
    return np.asarray(np.minimum(off, 1.0) * trace.seen.allowed)
