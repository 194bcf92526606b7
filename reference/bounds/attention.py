"""Rounding bounds: how far each element of a correct answer may lie from the reference.

The derivation is in `bounds.md` next to this file; the names below are its symbols, written out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from attention_conformance.reference.arrays import Booleans, Floats
from attention_conformance.reference.bounds.extensions import (
    capped_bound,
    dequantised_bounds,
    multiplied_bounds,
    row_error,
    weight_roundings,
)
from attention_conformance.reference.bounds.gate_bounds import gated_bound
from attention_conformance.reference.bounds.precision import Precision, gamma
from attention_conformance.reference.bounds.states import merging_error, mixture_error, state_error
from attention_conformance.reference.pipeline import Inputs, Trace, merge_heads, split_heads
from attention_conformance.reference.visibility import Added
from attention_conformance.spec.conventions import EmptyRow
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Array, Problem

CHUNK = 50_000
"""Elements of the largest temporary array; beyond it the sums run row by row."""
EXP_ERROR = 8.0
"""Unit roundoffs of the accumulator that an exponential, of whatever base, may be off."""
SCORE_STEPS = 9.0
"""Roundings of a score on its way to the exponential, in the costliest style."""
SINK_STEPS = 3.0
"""Roundings of an output that is rescaled for a sink: stored before, the factor, the product."""
MERGE_STEPS = 3.0
"""Roundings where the output over some splits moves towards that over one more: difference, factor, product."""
NEAR = 0.5
"""A bound of the scores up to which sums of moved weights need no logarithms: their change stays below one half."""
LARGEST = 650.0
"""Logarithm at which a bound counts as infinite, with room for sums of such numbers in float64."""


@dataclass(frozen=True, eq=False)
class ForwardBounds:
    """Bounds of the forward pass, shaped like what they bound.

    Attributes:
        trace, precision: what they hold for.
        inputs: of the heads as they come from the projections; zero at the op level.
        query, key, value: of what is multiplied, (B, H, L, d); see `Trace`.
        products: of the scaled products, before the softcap.
        scores: of each score, as seen by the exponential.
        shift: what those do to the softmax.
        local: of each weight, relative to it, what no normalisation evens out.
        mixed, heads, output: absolute.
    """

    trace: Trace
    precision: Precision
    inputs: Inputs
    query: Floats
    key: Floats
    value: Floats
    products: Floats
    scores: Floats
    shift: SoftmaxShift
    local: Floats
    mixed: Floats
    heads: Floats
    output: Floats

    @cached_property
    def weights(self) -> Floats:
        """(B, H, Lq, Lk), absolute; computed when it is needed, as the next."""
        allowed = self.trace.seen.allowed
        return self.shift.weights + self.local * self.shift.largest + self.precision.floor * allowed

    @cached_property
    def log_sum_exp(self) -> Floats:
        """(B, H, Lq), absolute."""
        return _log_sum_exp_bound(self.trace, self.shift, self.precision)


@dataclass(frozen=True, eq=False)
class SoftmaxShift:
    """What errors of the scores, each at most its own bound, do to the softmax; no other rounding.

    Attributes:
        p, scores: the weights without errors, and the bounds of the errors.
        gain: by so much may each weight rise.
        pull: of each key on an output o that is the weighted mean: |change of o| <= sum_j pull_j |v_j - o|.
        log_sum_exp: (B, H, Lq, 1) bound of the logarithm's change.
    """

    p: Floats
    scores: Floats
    gain: Floats
    pull: Floats
    log_sum_exp: Floats

    @cached_property
    def largest(self) -> Floats:
        """No weight becomes larger than this."""
        return np.minimum(self.p + self.gain, 1.0)

    @property
    def weights(self) -> Floats:
        """Bound of each weight's change."""
        loss = -self.p * np.expm1(-self.scores - self.log_sum_exp)
        return np.minimum(np.maximum(self.gain, loss), np.maximum(self.p, 1.0 - self.p))


def forward_bounds(problem: Problem, trace: Trace, precision: Precision) -> ForwardBounds:
    """The bounds of output, weights and log-sum-exp for a correct implementation of this precision."""
    inputs = input_bounds(problem, trace, precision)
    query, key, value = multiplied_bounds(trace, inputs, precision)
    products = product_bound(trace, query, key, precision)
    scores = score_bound(trace, products, precision)
    shift, local = softmax_shift(trace, scores), local_error(trace, precision)
    if np.any(precision.row):
        off = row_error(trace, precision)
        shift = replace(shift, gain=np.maximum(shift.gain, off))
        local = local + np.divide(off, shift.largest, out=np.zeros_like(off), where=shift.largest > 0.0)
    mixed = _mixed_bound(trace, shift, local, value, precision, merges=_merges(problem))
    heads = gated_bound(trace, trace.mixed, mixed, precision)
    output = heads if problem.scope is Scope.OP else _output_bound(problem, trace, heads, precision)
    given = (trace, precision, inputs, query, key, value)
    return ForwardBounds(*given, products, scores, shift, local, mixed, heads, output)


def score_bounds(problem: Problem, trace: Trace, precision: Precision) -> Floats:
    """Those of the scores, for which nothing else is worked out."""
    query, key, _ = multiplied_bounds(trace, input_bounds(problem, trace, precision), precision)
    return score_bound(trace, product_bound(trace, query, key, precision), precision)


def input_bounds(problem: Problem, trace: Trace, precision: Precision) -> Inputs:
    """Bounds of the projected query, key and value, (B, H or Hk, L, d); at the op level of what codes stand for."""
    given = trace.inputs
    if problem.scope is Scope.OP:
        return dequantised_bounds(problem, given, precision)
    bounds = []
    for name, role, rows in (("query", "q", given.query), ("key", "k", given.key), ("value", "v", given.value)):
        inputs, weight = np.abs(_wide(getattr(problem, name))), problem.parameters[f"w_{role}"]
        bound = projection_bound(inputs, weight, problem.parameters.get(f"b_{role}"), precision)
        bounds.append(finite(split_heads(bound, rows.shape[-3])))
    return Inputs(*bounds)


def projection_bound(sizes: Floats, weight: Array, bias: Array | None, precision: Precision) -> Floats:
    """|fl(x w + b) - (x w + b)| for |x| <= sizes; (B, L, out)."""
    size = sizes @ np.abs(_wide(weight))
    if bias is not None:
        size = size + np.abs(_wide(bias))
    own = precision.before(size.ndim - 1)
    return np.asarray((own.growth(weight.shape[-2] + 1) + 3.0 * own.storage) * size + own.floor)


def product_bound(trace: Trace, query: Floats, key: Floats, precision: Precision) -> Floats:
    """How far each scaled product may be off."""
    q, k, scale = np.abs(trace.query), np.abs(trace.key).swapaxes(-1, -2), abs(trace.scale)
    rounding = precision.growth(q.shape[-1]) + 3.0 * precision.softmax
    if exact(query) and exact(key):
        return np.asarray(rounding * (scale * (q @ k)))
    e_q, e_k = query, key.swapaxes(-1, -2)
    inherited = scale * (e_q @ (k + e_k) + q @ e_k)
    return np.asarray(inherited + rounding * (scale * ((q + e_q) @ (k + e_k))))


def score_bound(trace: Trace, products: Floats, precision: Precision) -> Floats:
    """Delta: how far each score may be off by the time it is exponentiated; 0 for masked keys."""
    inherited = products if trace.softcap is None else capped_bound(trace, products, precision)
    bound = inherited + _score_roundings(trace, precision)
    steps = SCORE_STEPS + (0 if trace.seen.added is None else trace.seen.added.parts - 1)
    # The roundings are counted on exact scores; the computed ones lie within this very bound of them.
    return np.where(trace.seen.allowed, bound / (1.0 - steps * precision.softmax), 0.0)


def _score_roundings(trace: Trace, precision: Precision) -> Floats:
    """Products stored, mask and biases added, maximum subtracted, base changed, exponential taken, parts merged."""
    s, products = np.where(trace.seen.allowed, trace.scores, 0.0), np.abs(trace.capped)
    top, lifted = trace.top, _shift(trace)
    below, size = np.abs(s - top), np.abs(s) if trace.seen.added is None else np.abs(s) + lifted
    merged = 2.0 * (np.maximum(size, np.abs(top) + lifted) + np.log(max(s.shape[-1], 1)))
    given = 2.0 * products if trace.seen.added is None else 2.0 * products + _masked(trace.seen.added, products, size)
    steps = given + below + 2.0 * np.maximum(size, below) + 2.0
    return np.asarray(precision.softmax * steps + precision.accumulator * (merged + EXP_ERROR))


def _masked(added: Added, products: Floats, size: Floats) -> Floats:
    """The sizes that are rounded where mask and biases are formed and added, one after another."""
    return size + (added.parts - 1.0) * (products + added.size) + 2.0 * added.size


def _shift(trace: Trace) -> Floats | float:
    """(B, H, Lq, 1): so far may a row of scores be lifted as a whole."""
    return 0.0 if trace.seen.added is None else trace.seen.added.shift


def softmax_shift(trace: Trace, scores: Floats) -> SoftmaxShift:
    """Every weight p e^delta / sum p e^delta with |delta| <= scores, without linearisation."""
    p = finite(trace.weights)
    near = scores.max((-4, -3, -2, -1), initial=0.0) <= NEAR
    if near.all():
        return _near_shift(p, scores)
    log_p = _log_weights(trace)
    if not near.any():
        return _far_shift(p, log_p, scores)
    return _interleaved(near, _near_shift(p[near], scores[near]), _far_shift(p[~near], log_p[~near], scores[~near]))


def _near_shift(p: Floats, scores: Floats) -> SoftmaxShift:
    """Where no exponential comes near overflow."""
    rising, falling = p * np.expm1(scores), p * np.expm1(-scores)
    lowest, highest = (np.log1p(moved.sum(-1, keepdims=True)) for moved in (falling, rising))
    gain = p * np.expm1(scores - lowest)
    return SoftmaxShift(p, scores, gain, rising * np.exp(-lowest), highest)


def _far_shift(p: Floats, log_p: Floats, scores: Floats) -> SoftmaxShift:
    """The same in logarithms."""
    with np.errstate(divide="ignore"):
        log_moved = log_p + scores + np.log(-np.expm1(-scores))
    lowest = _log_of_lowered_sum(p, log_p, scores)
    highest, raised = np.logaddexp(0.0, log_sum_exp(log_moved)), scores - lowest
    far = _exp(np.minimum(log_p + raised, 0.0)) - p
    gain = np.where(raised < 1.0, p * np.expm1(np.minimum(raised, 1.0)), far)
    return SoftmaxShift(p, scores, gain, _exp(log_moved - lowest), highest)


def _interleaved(first: Booleans, one: SoftmaxShift, other: SoftmaxShift) -> SoftmaxShift:
    """The shifts of a stack of which some problems are in `one`, the others in `other`."""
    interleaved = []
    for field in fields(SoftmaxShift):
        own, others = getattr(one, field.name), getattr(other, field.name)
        both = np.empty((len(first), *own.shape[1:]))
        both[first], both[~first] = own, others
        interleaved.append(both)
    return SoftmaxShift(*interleaved)


def _log_weights(trace: Trace) -> Floats:
    return np.where(trace.seen.allowed, trace.scores - trace.finite_lse, -np.inf)


def _log_of_lowered_sum(p: Floats, log_p: Floats, scores: Floats) -> Floats:
    """Log of sum p e^-scores, (B, H, Lq, 1): to full precision where it is near 0, and 0 for an empty row."""
    lost = (p * np.expm1(-scores)).sum(-1, keepdims=True)
    near = lost > -0.5
    return np.where(near, np.log1p(np.where(near, lost, 0.0)), log_sum_exp(log_p - scores))


def log_sum_exp(logs: Floats) -> Floats:
    """Over the last axis, which is kept; minus infinity where there is nothing to sum."""
    base = finite(logs.max(-1, keepdims=True, initial=-np.inf))
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(logs - base).sum(-1, keepdims=True)) + base)


def local_error(trace: Trace, precision: Precision) -> Floats:
    """Relative error of each weight after the scores: its sum and roundings, and those of exp(s - lse).

    In that style the log-sum-exp is rounded, as a state is, when the sum is done, so that the weights no
    longer sum to 1; all other errors of the scores are common to numerator and denominator.
    """
    lse, top = trace.finite_lse, trace.top
    s, lifted = np.where(trace.seen.allowed, trace.scores, lse), _shift(trace)
    state = precision.accumulator * (3.0 * np.abs(lse) + np.abs(top) + 4.0 * lifted + np.maximum(lse - top, 0.0))
    state = state + merging_error(trace, np.maximum(np.abs(s), np.abs(lse)) + lifted, precision)
    state = state + _sink_error(trace, precision)
    late = np.expm1(np.minimum(precision.softmax * np.abs(s - lse) + state, LARGEST))
    late += precision.weight_error(s.shape[-1]) + state_error(trace, precision)
    return late + gamma(SINK_STEPS * precision.widest) if trace.seen.sunk else late


def _sink_error(trace: Trace, precision: Precision) -> Floats | float:
    """(B, H, Lq, 1): of lse - sink, where o is rescaled by e^lse / (e^lse + e^sink) with the keys' log-sum-exp."""
    if not trace.seen.sunk:
        return 0.0
    keys, sink = trace.scores[..., :-1], trace.scores[..., -1:]
    lse, top = finite(log_sum_exp(keys)), finite(keys.max(-1, keepdims=True, initial=-np.inf))
    state = 3.0 * np.abs(lse) + np.abs(top) + np.maximum(lse - top, 0.0)
    return np.asarray(precision.accumulator * (state + np.abs(lse - sink) + np.abs(sink) + EXP_ERROR))


def _log_sum_exp_bound(trace: Trace, shift: SoftmaxShift, precision: Precision) -> Floats:
    lse, top, moved, lifted = trace.finite_lse, trace.top, shift.log_sum_exp, _shift(trace)
    size, u = np.abs(lse) + moved + lifted, precision.widest
    rounding = u * (2.0 * size + np.abs(lse - top) + moved)
    rounding = rounding + precision.accumulator * (3.0 * size + np.abs(top) + lifted)
    local = gamma(precision.weight_error(trace.weights.shape[-1])) + state_error(trace, precision)
    local = local + merging_error(trace, size, precision) + _sink_error(trace, precision)
    return np.asarray(moved + local + rounding + precision.floor)[..., 0]


def _merges(problem: Problem) -> int:
    """How often answers over splits of the keys are merged, two at a time."""
    return max(0, len(problem.extras.get("split_lengths", ())) - 1)


def _mixed_bound(
    trace: Trace, shift: SoftmaxShift, local: Floats, value: Floats, precision: Precision, merges: int
) -> Floats:
    """Moved weights, inherited errors of V, roundings of weights and sums, underflow, storage.

    Under dropout o is the mean of kept_j v_j with the undropped weights, and all holds for these values.
    """
    allowed, o, kept = trace.seen.allowed, finite(trace.mixed), trace.kept
    v, largest, shown = np.abs(trace.value) + value, shift.largest, allowed * 1.0
    if kept is not None:
        largest, shown = kept * largest, kept * shown
    if kept is not None or trace.gates is not None or trace.opened is not None:
        local = local + weight_roundings(trace, precision)
    moved, farthest = centred_sum(shift.pull, trace, o)
    inherited: Floats | float = 0.0
    if not exact(value):
        most = 1.0 if kept is None else kept.max(-1, keepdims=True, initial=0.0)
        inherited = np.minimum(largest @ value, most * value.max(-2, keepdims=True, initial=0.0))
    worst = local.max(-1, keepdims=True, initial=0.0)
    rounded = np.minimum((largest * local) @ v, worst * (np.abs(o) + farthest + inherited))
    rounded = rounded + mixture_error(trace, precision) * (largest @ v)
    if merges:
        rounded = rounded + gamma(MERGE_STEPS * merges * precision.widest) * 2.0 * farthest
    lost = precision.floor * (shown @ v + allowed.sum(-1, keepdims=True) * np.abs(o) + 1.0)
    error = moved + inherited + rounded + lost
    return _of_empty_rows(trace, error + 2.0 * precision.storage * (np.abs(o) + error), value, precision)


def _of_empty_rows(trace: Trace, heads: Floats, value: Floats, precision: Precision) -> Floats:
    """The bounds with those of rows that see nothing: 0 for zeros, rounding for the plain mean of V."""
    empty: Booleans = ~np.any(trace.seen.allowed, axis=-1, keepdims=True)
    if not empty.any():
        return heads
    keys, kept = trace.value.shape[-2], np.ones_like(trace.weights) if trace.kept is None else trace.kept
    rounding = precision.weight_error(keys) + 2.0 * precision.storage + weight_roundings(trace, precision)
    mean = kept @ (rounding * np.abs(trace.value) + value) / max(keys, 1)
    uniform = trace.seen.rows_answered(EmptyRow.UNIFORM)[..., None]
    return np.where(uniform, mean, np.where(empty, 0.0, heads))


def centred_sum(pull: Floats, trace: Trace, heads: Floats) -> tuple[Floats, Floats]:
    """sum_j pull_ij |v_jd - o_id|, at most the distance to the farthest visible value, and that distance."""
    length, rows = heads.shape[-2], max(1, CHUNK // max(1, trace.value.size))
    value = np.ascontiguousarray(trace.value.swapaxes(-1, -2))[..., None, :, :]  # keys last, as memory likes it
    moved, farthest = np.empty_like(heads), np.empty_like(heads)
    plain = trace.kept is None and value.shape[-1] > 0 and bool(trace.seen.allowed.all())
    if plain:  # the farthest of all values is the largest or the least
        highest, lowest = (of(value, axis=-1) for of in (np.max, np.min))
        np.maximum(highest - heads, heads - lowest, out=farthest)
    for start in range(0, length, rows):
        some = slice(start, start + rows)
        distance = _distances(value, trace, heads, some)
        np.einsum("...xj,...dj->...d", pull[..., some, None, :], distance, out=moved[..., some, :])
        if plain:
            continue
        allowed = trace.seen.allowed[..., some, None, :]
        shown = distance if allowed.all() else np.where(allowed, distance, 0.0)
        np.max(shown, axis=-1, initial=0.0, out=farthest[..., some, :])
    return np.minimum(moved, farthest), farthest


def _distances(value: Floats, trace: Trace, heads: Floats, rows: slice) -> Floats:
    """(B, H, i, d_v, Lk), for some queries."""
    kept = value if trace.kept is None else value * trace.kept[..., rows, None, :]
    distance: Floats = kept - heads[..., rows, :, None]
    return np.abs(distance, out=distance)


def _output_bound(problem: Problem, trace: Trace, heads: Floats, precision: Precision) -> Floats:
    merged = merge_heads(heads)
    if "w_o" not in problem.parameters:
        return merged
    weight, bias = problem.parameters["w_o"], problem.parameters.get("b_o")
    mixed = np.abs(merge_heads(finite(trace.heads)))
    return merged @ np.abs(_wide(weight)) + projection_bound(mixed + merged, weight, bias, precision)


def _exp(logs: Floats) -> Floats:
    return np.asarray(np.exp(np.minimum(logs, LARGEST)))


def _wide(array: Array) -> Floats:
    return np.asarray(array, dtype=np.float64)


def finite(array: Floats) -> Floats:
    """The array with 0 for NaN and infinities."""
    good = np.isfinite(array)
    return array if good.all() else np.where(good, array, 0.0)


def exact(error: Floats) -> bool:
    """Whether nothing is inherited: numbers that are given as they are, not projected or rotated."""
    return not error.any()
