"""Rounding bounds: how far each element of a correct answer may lie from the reference.

The derivation is in `bounds.md` beside this file; the names below are its symbols, written out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from reference.extension_bounds import capped_bound, dropped_bound, gated_bound, multiplied_bounds
from reference.pipeline import Inputs, Trace, merge_heads, split_heads
from reference.precision import Precision, gamma
from spec.features import EmptyRow, Scope
from spec.problems import Array, Problem

Floats: TypeAlias = NDArray[np.float64]
Booleans: TypeAlias = NDArray[np.bool_]

CHUNK = 4_000_000
"""Elements of the largest temporary array; beyond it the sums run row by row."""
EXP_ERROR = 8.0
"""Unit roundoffs of the accumulator that an exponential, of whatever base, may be off."""
SCORE_STEPS = 9.0
"""Roundings of a score on its way to the exponential, in the costliest style."""
LARGEST = 650.0
"""Logarithm at which a bound counts as infinite, with room for sums of such numbers in float64."""


@dataclass(frozen=True, eq=False)
class ForwardBounds:
    """Bounds of the forward pass, shaped like what they bound.

    Attributes:
        inputs: of the heads as they come from the projections; zero at the op level.
        query, key, value: of what is multiplied, (B, H, L, d); see `Trace`.
        products: of the scaled products, before the softcap.
        scores: of each score, as seen by the exponential.
        pull: of each weight, as it moves the mean of something; see `SoftmaxShift`.
        local: of each weight, relative to it, what no normalisation evens out.
        weights, log_sum_exp, mixed, heads, output: absolute.
    """

    inputs: Inputs
    query: Floats
    key: Floats
    value: Floats
    products: Floats
    scores: Floats
    pull: Floats
    local: Floats
    weights: Floats
    log_sum_exp: Floats
    mixed: Floats
    heads: Floats
    output: Floats


@dataclass(frozen=True, eq=False)
class SoftmaxShift:
    """What errors of the scores, each at most its own bound, do to the softmax; no rounding besides.

    Attributes:
        weights: bound of each weight's change.
        largest: no weight becomes larger than this.
        pull: of each key on an output o that is the weighted mean: |change of o| <= sum_j pull_j |v_j - o|.
        log_sum_exp: (B, H, Lq) bound of the logarithm's change.
    """

    weights: Floats
    largest: Floats
    pull: Floats
    log_sum_exp: Floats


def forward_bounds(problem: Problem, trace: Trace, precision: Precision) -> ForwardBounds:
    """The bounds of output, weights and log-sum-exp for a correct implementation of this precision."""
    inputs = input_bounds(problem, trace, precision)
    query, key, value = multiplied_bounds(trace, inputs, precision)
    products = product_bound(trace, query, key, precision)
    scores = score_bound(trace, products, precision)
    shift = softmax_shift(trace, scores)
    local = local_error(trace, precision)
    weights = shift.weights + local * shift.largest + precision.floor * trace.seen.allowed
    if trace.kept is None:
        mixed = _mixed_bound(trace, shift, local, value, precision)
    else:
        mixed = dropped_bound(trace, weights, value, precision)
    heads = mixed if trace.gates is None else gated_bound(trace, mixed, precision)
    output = heads if problem.scope is Scope.OP else _output_bound(problem, trace, heads, precision)
    lse = _log_sum_exp_bound(trace, shift, precision)
    return ForwardBounds(
        inputs, query, key, value, products, scores, shift.pull, local, weights, lse, mixed, heads, output
    )


def input_bounds(problem: Problem, trace: Trace, precision: Precision) -> Inputs:
    """Bounds of the projected query, key and value, (B, H or Hk, L, d); zeros at the op level."""
    given = trace.inputs
    if problem.scope is Scope.OP:
        return Inputs(np.zeros_like(given.query), np.zeros_like(given.key), np.zeros_like(given.value))
    found = []
    for name, role, rows in (("query", "q", given.query), ("key", "k", given.key), ("value", "v", given.value)):
        inputs, weight = np.abs(_wide(getattr(problem, name))), problem.parameters[f"w_{role}"]
        bound = projection_bound(inputs, weight, problem.parameters.get(f"b_{role}"), precision)
        found.append(finite(split_heads(bound, rows.shape[1])))
    return Inputs(*found)


def projection_bound(sizes: Floats, weight: Array, bias: Array | None, precision: Precision) -> Floats:
    """|fl(x w + b) - (x w + b)| for |x| <= sizes; (B, L, out)."""
    size = sizes @ np.abs(_wide(weight))
    if bias is not None:
        size = size + np.abs(_wide(bias))
    bound: Floats = (precision.growth(weight.shape[0] + 1) + 3.0 * precision.storage) * size + precision.floor
    return bound


def product_bound(trace: Trace, query: Floats, key: Floats, precision: Precision) -> Floats:
    """How far each scaled product may be off."""
    q, k, u = np.abs(trace.query), np.abs(trace.key).swapaxes(-1, -2), precision.softmax
    e_q, e_k, scale = query, key.swapaxes(-1, -2), abs(trace.scale)
    inherited = scale * (e_q @ (k + e_k) + q @ e_k)
    sizes = scale * ((q + e_q) @ (k + e_k))
    return np.asarray(inherited + (precision.growth(q.shape[-1]) + 3.0 * u) * sizes)


def score_bound(trace: Trace, products: Floats, precision: Precision) -> Floats:
    """Delta: how far each score may be off by the time it is exponentiated; 0 for masked keys."""
    inherited = products if trace.softcap is None else capped_bound(trace, products, precision)
    bound = inherited + _score_roundings(trace, precision)
    # The roundings are counted on exact scores; the computed ones lie within this very bound of them.
    return np.where(trace.seen.allowed, bound / (1.0 - SCORE_STEPS * precision.softmax), 0.0)


def _score_roundings(trace: Trace, precision: Precision) -> Floats:
    """Products stored, mask added, maximum subtracted, base changed, exponential taken, parts merged."""
    s, products = np.where(trace.seen.allowed, trace.scores, 0.0), np.abs(trace.capped)
    top = _top(trace)[..., None]
    below = np.abs(s - top)
    masked = 0.0 if trace.seen.added is None else np.abs(s) + 2.0 * trace.seen.added.size
    merged = 2.0 * (np.maximum(np.abs(s), np.abs(top)) + np.log(max(s.shape[-1], 1)))
    steps = 2.0 * products + masked + below + 2.0 * np.maximum(np.abs(s), below) + 2.0
    return np.asarray(precision.softmax * steps + precision.accumulator * (merged + EXP_ERROR))


def softmax_shift(trace: Trace, scores: Floats) -> SoftmaxShift:
    """Every weight p e^delta / sum p e^delta with |delta| <= scores, without linearisation; in logarithms."""
    p = finite(trace.weights)
    with np.errstate(divide="ignore"):
        log_p = np.where(trace.seen.allowed, trace.scores - finite(trace.log_sum_exp)[..., None], -np.inf)
        log_moved = log_p + scores + np.log(-np.expm1(-scores))
    lowest = _log_of_lowered_sum(p, log_p, scores)[..., None]
    highest = np.logaddexp(0.0, log_sum_exp(log_moved))
    raised = scores - lowest
    far = _exp(np.minimum(log_p + raised, 0.0)) - p
    gain = np.where(raised < 1.0, p * np.expm1(np.minimum(raised, 1.0)), far)
    loss = -p * np.expm1(-scores - highest[..., None])
    change = np.minimum(np.maximum(gain, loss), np.maximum(p, 1.0 - p))
    return SoftmaxShift(change, np.minimum(p + gain, 1.0), _exp(log_moved - lowest), highest)


def _log_of_lowered_sum(p: Floats, log_p: Floats, scores: Floats) -> Floats:
    """Log of sum p e^-scores, (B, H, Lq): to full precision where it is near 0, and 0 for an empty row."""
    lost = (p * np.expm1(-scores)).sum(-1)
    near = lost > -0.5
    return np.where(near, np.log1p(np.where(near, lost, 0.0)), log_sum_exp(log_p - scores))


def log_sum_exp(logs: Floats) -> Floats:
    """Over the last axis; minus infinity where there is nothing to sum."""
    base = finite(np.max(logs, axis=-1, initial=-np.inf))
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(logs - base[..., None]).sum(-1)) + base)


def local_error(trace: Trace, precision: Precision) -> Floats:
    """Relative error of each weight after the scores: its sum and roundings, and those of exp(s - lse).

    In that style the log-sum-exp is rounded, as a state is, when the sum is done, so that the weights no
    longer sum to 1; all other errors of the scores are common to numerator and denominator.
    """
    lse, top = finite(trace.log_sum_exp)[..., None], _top(trace)[..., None]
    s = np.where(trace.seen.allowed, trace.scores, lse)
    state = precision.accumulator * (3.0 * np.abs(lse) + np.abs(top) + np.maximum(lse - top, 0.0))
    late = np.expm1(np.minimum(precision.softmax * np.abs(s - lse) + state, LARGEST))
    return np.asarray(late + precision.weight_error(s.shape[-1]))


def _log_sum_exp_bound(trace: Trace, shift: SoftmaxShift, precision: Precision) -> Floats:
    size = np.abs(finite(trace.log_sum_exp)) + shift.log_sum_exp
    top, u = np.abs(_top(trace)), max(precision.softmax, precision.storage)
    rounding = u * (2.0 * size + np.abs(size - top)) + precision.accumulator * (3.0 * size + top)
    local = gamma(precision.weight_error(trace.weights.shape[-1]))
    return shift.log_sum_exp + local + rounding + precision.floor


def _mixed_bound(trace: Trace, shift: SoftmaxShift, local: Floats, value: Floats, precision: Precision) -> Floats:
    """Moved weights, inherited errors of V, roundings of weights and sums, underflow, storage."""
    allowed, o = trace.seen.allowed, finite(trace.mixed)
    v, worst = np.abs(trace.value) + value, np.max(local, axis=-1, keepdims=True, initial=0.0)
    moved, farthest = centred_sum(shift.pull, allowed, trace.value, o)
    inherited = np.minimum(shift.largest @ value, value.max(-2, keepdims=True, initial=0.0))
    rounded = np.minimum((shift.largest * local) @ v, worst * (np.abs(o) + farthest + inherited))
    lost = precision.floor * (allowed @ v + allowed.sum(-1, keepdims=True) * np.abs(o) + 1.0)
    error = moved + inherited + rounded + lost
    return _of_empty_rows(trace, error + 2.0 * precision.storage * (np.abs(o) + error), value, precision)


def _of_empty_rows(trace: Trace, heads: Floats, value: Floats, precision: Precision) -> Floats:
    """The bounds with those of rows that see nothing: 0 for zeros, rounding for the plain mean of V."""
    empty: Booleans = ~np.any(trace.seen.allowed, axis=-1, keepdims=True)
    if not empty.any():
        return heads
    keys = trace.value.shape[-2]
    rounding = precision.weight_error(keys) + 2.0 * precision.storage
    mean = (rounding * np.abs(trace.value) + value).sum(-2, keepdims=True) / max(keys, 1)
    uniform = trace.seen.rows_answered(EmptyRow.UNIFORM)[..., None]
    return np.where(uniform, mean, np.where(empty, 0.0, heads))


def centred_sum(pull: Floats, allowed: Booleans, value: Floats, heads: Floats) -> tuple[Floats, Floats]:
    """sum_j pull_ij |v_jd - o_id|, at most the distance to the farthest visible value, and that distance."""
    rows = max(1, CHUNK // max(1, value.size))
    parts = [
        _centred(pull[:, :, i : i + rows], allowed[:, :, i : i + rows], value, heads[:, :, i : i + rows])
        for i in range(0, heads.shape[2], rows)
    ]
    moved, farthest = np.concatenate(parts, axis=3) if parts else np.zeros((2, *heads.shape))
    return moved, farthest


def _centred(pull: Floats, allowed: Booleans, value: Floats, heads: Floats) -> Floats:
    distance: Floats = np.abs(value[:, :, None, :, :] - heads[:, :, :, None, :])
    farthest = np.max(np.where(allowed[..., None], distance, 0.0), axis=3, initial=0.0)
    return np.stack([np.minimum(np.einsum("bhij,bhijd->bhid", pull, distance), farthest), farthest])


def _output_bound(problem: Problem, trace: Trace, heads: Floats, precision: Precision) -> Floats:
    merged = merge_heads(heads)
    if "w_o" not in problem.parameters:
        return merged
    weight, bias = problem.parameters["w_o"], problem.parameters.get("b_o")
    mixed = np.abs(merge_heads(finite(trace.heads)))
    return merged @ np.abs(_wide(weight)) + projection_bound(mixed + merged, weight, bias, precision)


def _top(trace: Trace) -> Floats:
    """(B, H, Lq): the largest score of each row, 0 for an empty one."""
    return finite(np.max(trace.scores, axis=-1, initial=-np.inf))


def _exp(logs: Floats) -> Floats:
    return np.asarray(np.exp(np.minimum(logs, LARGEST)))


def _wide(array: Array) -> Floats:
    return np.asarray(array, dtype=np.float64)


def finite(array: Floats) -> Floats:
    """The array with 0 for NaN and infinities."""
    return np.where(np.isfinite(array), array, 0.0)
