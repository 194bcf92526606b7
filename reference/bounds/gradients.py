"""Rounding bounds of the gradients; the derivation is in `bounds.md` next to this file."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.attention import ForwardBounds, exact
from attention_conformance.reference.bounds.extensions import (
    dropped_bound,
    gathered_bound,
    route_back_bound,
    slope_bound,
    weight_roundings,
)
from attention_conformance.reference.bounds.gate_bounds import gated_bound, slope_of_gates
from attention_conformance.reference.bounds.latent_bounds import in_either_form, latent_bounds
from attention_conformance.reference.bounds.maximum import largest, sum_error
from attention_conformance.reference.bounds.precision import Precision, Roundoff, gamma, state_roundings
from attention_conformance.reference.bounds.shifted import evened_out, key_sizes
from attention_conformance.reference.bounds.states import quotient_error
from attention_conformance.reference.gradients import (
    Backward,
    backward,
    by_bucket,
    by_distance,
    cotangent_of_heads,
    given_keys,
    of_extra_key,
    per_channel,
    shared,
    slope,
    to_inputs,
    tokens,
    unbroadcast,
)
from attention_conformance.reference.pipeline import Inputs, Trace, gated, merge_heads, split_heads
from attention_conformance.reference.stages import gather
from attention_conformance.spec.conventions import EmptyRow
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Problem

FAINT = 1e-100
"""A share of the softmax beneath which it is as good as none."""
SHARE_STEPS = 4.0
"""Roundings of a sigmoid near 1, and of what is left to 1."""
STORED = 4.0
"""Roundings to the working dtype between one product of the backward pass and the next."""


@dataclass(frozen=True, eq=False)
class _Errors:
    """Bounds of the op level's backward pass, shaped like the fields of `Backward`."""

    scores: Floats
    query: Floats
    key: Floats
    value: Floats


def gradient_bounds(
    problem: Problem, trace: Trace, step: Backward, forward: ForwardBounds, precision: Precision
) -> dict[str, Floats]:
    """The bound of every gradient in the problem's `needs`, shaped like it."""
    cotangent, e_cotangent = cotangent_of_heads(problem), _cotangent_bound(problem, precision)
    forward = in_either_form(problem, forward, precision)
    errors = _errors(trace, step, forward, gated_bound(trace, cotangent, e_cotangent, precision), precision)
    gradients, (inputs, gains) = to_inputs(trace, step), _input_errors(trace, step, forward, errors, precision)
    if problem.scope is Scope.OP:
        by_name = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
        if "w_uk" in problem.extras:
            by_name |= latent_bounds(problem, trace, step, inputs, precision)
    else:
        by_name = _module_bounds(problem, trace, gradients, forward, inputs, precision)
    if problem.attn_mask is not None and problem.attn_mask.dtype.kind != "b":
        by_name["attn_mask"] = _mask_bound(problem, step, errors, precision)
    by_name |= gains | _extension_bounds(problem, trace, step, errors, precision)
    if trace.gates is not None:
        by_name["head_gates"] = _gates_bound(trace, forward, cotangent, e_cotangent, precision)
    if trace.opened is not None:
        shared_gates = not per_channel(problem)
        by_name["gate_logits"] = _logits_bound(trace, forward, cotangent, e_cotangent, precision, shared_gates)
    return {name: by_name[name] + precision.before(by_name[name].ndim - 1).floor for name in problem.needs}


def _input_errors(
    trace: Trace, step: Backward, forward: ForwardBounds, errors: _Errors, precision: Precision
) -> tuple[Inputs, dict[str, Floats]]:
    """The bounds carried back to the heads' inputs, as `to_inputs` carries the gradients, and to gains of norms."""
    length = trace.inputs.key.shape[-2]
    given = [(r[..., :length, :], e[..., :length, :]) for r, e in ((step.key, errors.key), (step.value, errors.value))]
    key, value = (gathered_bound(trace, rows, error, precision) for rows, error in given)
    # Norms and rotations may be gone back through in each head, before the sum over the group.
    sizes = gather(np.abs(step.key[..., :length, :]), trace.inputs.key.shape[-3], trace.order)
    rows = (trace.routes.query, forward.inputs.query, np.abs(step.query), errors.query)
    query, of_query = route_back_bound(*rows, precision)
    key, of_key = route_back_bound(trace.routes.key, forward.inputs.key, sizes, key, precision)
    gains = {"query_norm": of_query, "key_norm": of_key}
    return Inputs(query, key, value), {name: bound for name, bound in gains.items() if bound is not None}


def _extension_bounds(
    problem: Problem, trace: Trace, step: Backward, errors: _Errors, precision: Precision
) -> dict[str, Floats]:
    """Of sinks, relative biases, and the learned extra key and value (bias_kv): sums, each term within its bound."""
    by_name: dict[str, Floats] = {}

    def summed(of: Callable[[Floats], Floats], rows: Floats, error: Floats, terms: int) -> Floats:
        inherited, sizes = of(error), of(np.abs(rows))
        # What is looked up in a table gets its gradient by additions into the table, in its dtype.
        own = precision.before(inherited.ndim - 1)
        rounding = own.growth(terms) + (STORED + state_roundings(terms)) * own.storage
        return np.asarray(inherited + rounding * (inherited + sizes))

    scores, samples = (step.scores, errors.scores), problem.batch * trace.query.shape[-2]
    if "sinks" in problem.extras:
        by_name["sinks"] = summed(lambda rows: rows[..., -1].sum((-3, -1)), *scores, samples)
    for name, by_table in (("relative_bias", by_distance), ("bucketed_bias", by_bucket)):
        if name in problem.extras:
            of = partial(_of_table, by_table, problem, trace)
            by_name[name] = summed(of, *scores, samples * problem.key.shape[-2])
    if "bias_k" in problem.parameters:
        terms = samples * trace.query.shape[-3]
        for name, rows, error in (("bias_k", step.key, errors.key), ("bias_v", step.value, errors.value)):
            by_name[name] = summed(lambda each: of_extra_key(problem, trace, each), rows, error, terms)
    return by_name


def _of_table(by: Callable[[Problem, Trace, Floats], Floats], problem: Problem, trace: Trace, rows: Floats) -> Floats:
    return by(problem, trace, given_keys(problem, rows))


def _gates_bound(trace: Trace, forward: ForwardBounds, cotangent: Floats, e_g: Floats, precision: Precision) -> Floats:
    """(H,): of D of the ungated heads, summed over samples and queries; a gate may multiply output or weights."""
    inner = replace(trace, gates=None)
    e_g, cotangent = gated_bound(inner, cotangent, e_g, precision), gated(cotangent, None, trace.opened)
    size, error = _ungated_centre(trace, forward, cotangent, e_g, precision)
    terms = error.shape[-4] * error.shape[-2] * max(trace.value.shape[-2:])
    rounding = precision.growth(terms) + STORED * precision.storage
    return np.asarray((error + rounding * (size + error)).sum((-4, -2, -1)))


def _ungated_centre(
    trace: Trace, forward: ForwardBounds, cotangent: Floats, e_g: Floats, precision: Precision
) -> tuple[Floats, Floats]:
    """(B, H, Lq, 1): the size of the terms of D of the ungated heads, however it is formed, and its bound."""
    step = backward(replace(trace, gates=None, opened=None), cotangent)
    e_dp = _weight_errors(trace, step, forward, e_g, precision)
    error = _centre_errors(trace, step, forward, e_dp, e_g, precision)
    parts = (cotangent * trace.mixed, trace.weights * step.weights)
    by_output, by_weights = (np.abs(part).sum(-1, keepdims=True) for part in parts)
    return np.maximum(by_output, by_weights), error


def _logits_bound(
    trace: Trace, forward: ForwardBounds, cotangent: Floats, e_g: Floats, precision: Precision, shared_gates: bool
) -> Floats:
    """Of dO O s (1 - s), in each channel, or summed over them, where it may be formed of the weights, too."""
    inner = replace(trace, opened=None)
    e_g, cotangent = gated_bound(inner, cotangent, e_g, precision), gated(cotangent, trace.gates, None)
    if shared_gates:
        size, error = _ungated_centre(trace, forward, cotangent, e_g, precision)
        error = error + (precision.growth(max(trace.value.shape[-2:])) + _stored(precision)) * (size + error)
    else:
        g, o = np.abs(cotangent), np.abs(np.where(np.isfinite(trace.mixed), trace.mixed, 0.0))
        size, error = g * o, g * forward.mixed + e_g * (o + forward.mixed)
    slope, e_slope = slope_of_gates(trace, precision, STORED)
    return np.asarray((error + _stored(precision) * (size + error)) * (slope + e_slope) + size * e_slope)


def product_bound(a: Floats, e_a: Floats, b: Floats, e_b: Floats, rounding: Roundoff) -> Floats:
    """|fl(a' b') - a b| where a' lies within e_a of a, b' within e_b of b; a and b are absolute values."""
    if exact(e_b):
        return np.asarray(e_a @ b + rounding * ((a + e_a) @ b))
    return np.asarray(e_a @ (b + e_b) + a @ e_b + rounding * ((a + e_a) @ (b + e_b)))


def _stored(precision: Precision) -> Roundoff:
    return gamma(STORED * precision.widest)


def _cotangent_bound(problem: Problem, precision: Precision) -> Floats:
    """Of d loss / d heads: exact, or carried back through the output projection."""
    assert problem.cotangent is not None
    g = np.abs(problem.cotangent.astype(np.float64))
    if problem.scope is Scope.OP:
        return np.zeros_like(g)
    if "w_o" not in problem.parameters:
        return split_heads(np.zeros_like(g), problem.num_heads)
    weight = np.abs(problem.parameters["w_o"].astype(np.float64))
    own = precision.before(g.ndim - 1)
    rounding = own.growth(weight.shape[-1]) + 2.0 * own.storage
    return split_heads(rounding * (g @ weight.swapaxes(-1, -2)) + own.floor, problem.num_heads)


def _errors(trace: Trace, step: Backward, forward: ForwardBounds, e_g: Floats, precision: Precision) -> _Errors:
    p, g, stored, scale = trace.dropped, np.abs(step.heads), _stored(precision), abs(trace.scale)
    groups = trace.query.shape[-3] // max(1, trace.inputs.key.shape[-3])
    e_dp = _weight_errors(trace, step, forward, e_g, precision)
    e_scores = _score_errors(trace, step, forward, e_dp, e_g, precision)
    e_ds = e_scores if trace.softcap is None else _capped_errors(trace, step, forward, e_scores, precision)
    # The scale may be multiplied into dS, which then underflows in its turn.
    ds, e_scaled = scale * np.abs(step.products), scale * e_ds + precision.floor * trace.seen.allowed
    # The queries of a group may be those of one long head, summed in one go.
    over_keys, over_queries = (stored + precision.growth(terms) for terms in (ds.shape[-1], groups * ds.shape[-2]))
    e_p = dropped_bound(trace, forward.weights, precision)
    ds_t, e_t, p_t, e_p = (x.swapaxes(-1, -2) for x in (ds, e_scaled, p, e_p))
    query = product_bound(ds, e_scaled, key_sizes(trace), forward.key, over_keys)
    key = product_bound(ds_t, e_t, np.abs(trace.query), forward.query, over_queries)
    key = evened_out(trace, step.key, key, precision)
    value = product_bound(p_t, e_p, g, e_g, over_queries)
    return _Errors(e_scores, query + precision.floor, key + precision.floor, value + precision.floor)


def _weight_errors(trace: Trace, step: Backward, forward: ForwardBounds, e_g: Floats, precision: Precision) -> Floats:
    """|delta dP| with dP = dO V^T, times the factors of the dropout."""
    v, e_v = np.abs(trace.value).swapaxes(-1, -2), forward.value.swapaxes(-1, -2)
    over_width = precision.growth(v.shape[-2]) + _stored(precision)
    error = product_bound(np.abs(step.heads), e_g, v, e_v, over_width) + precision.floor
    if trace.kept is None:
        return error
    rounding = weight_roundings(trace, precision)
    return np.asarray(trace.kept * (1.0 + rounding) * error + rounding * np.abs(step.weights) + precision.floor)


def _capped_errors(
    trace: Trace, step: Backward, forward: ForwardBounds, e_scores: Floats, precision: Precision
) -> Floats:
    """|delta dS| before the softcap, whose slope multiplies it."""
    e_slope, ds = slope_bound(trace, forward.products, precision), np.abs(step.scores)
    either = slope(trace) + e_slope
    bound = e_scores * either + ds * e_slope + _stored(precision) * (ds + e_scores) * either
    return np.where(trace.seen.allowed, bound, 0.0)


def _score_errors(
    trace: Trace, step: Backward, forward: ForwardBounds, e_dp: Floats, e_g: Floats, precision: Precision
) -> Floats:
    """|delta dS| with dS = P (dP - D)."""
    p, e_p, stored = trace.weights, forward.weights, _stored(precision)
    gap, e_centre = np.abs(step.gap), _centre_errors(trace, step, forward, e_dp, e_g, precision)
    left: Floats | float = 0.0
    if trace.seen.sunk:
        gap, e_centre, left = _rescaled(trace, np.abs(step.centre), gap, e_centre, precision)
    e_gap = e_dp + e_centre
    bound = e_p * gap + (p + e_p) * (e_gap + stored * (gap + e_gap)) + left + precision.floor
    bound = np.hypot(bound, largest(trace, forward.scores) * sum_error(trace, step, forward, precision))
    uniform = trace.seen.rows_answered(EmptyRow.UNIFORM)[..., None]
    return np.where(uniform | ~trace.seen.allowed, 0.0, bound)


def _rescaled(
    trace: Trace, centre: Floats, gap: Floats, e_centre: Floats, precision: Precision
) -> tuple[Floats, Floats, Floats]:
    """Sizes of gap, error of D and what comes on top, where the output of the keys alone is rescaled by their share.

    dS = P (dP - D / share) + P D (1 / share - 1) for the keys then, and -D (1 - share) for the sink.
    """
    share = trace.weights[..., :-1].sum(-1, keepdims=True)
    keys = np.arange(trace.weights.shape[-1]) < trace.weights.shape[-1] - 1
    apart = np.where(keys, 2.0 / np.maximum(share, FAINT), 0.0)
    left = np.where(keys, 0.0, SHARE_STEPS * precision.accumulator * (centre + e_centre))
    return gap + apart * centre, np.maximum(apart, 1.0) * e_centre, left


def _centre_errors(
    trace: Trace, step: Backward, forward: ForwardBounds, e_dp: Floats, e_g: Floats, precision: Precision
) -> Floats:
    """|delta D|, where D may be formed as rowsum(P dP) or as rowsum(dO O).

    In the first, roundings after the softmax carry D itself along, errors of scores only what lies apart.
    """
    p, e_p, stored = trace.weights, forward.weights, _stored(precision)
    gap, d_weights = np.abs(step.gap), np.abs(step.weights)
    rounding = (stored + precision.growth(p.shape[-1])) * (d_weights + e_dp)
    rounding = rounding + forward.local * (gap + np.abs(step.centre)) + precision.floor
    moved = np.minimum((forward.shift.pull * gap).sum(-1, keepdims=True), _farthest(gap, trace))
    from_weights = moved + ((p + e_p) * (e_dp + rounding)).sum(-1, keepdims=True)
    from_weights = from_weights + quotient_error(trace, step.weights, precision)
    g, o, e_o = np.abs(step.heads), np.abs(trace.mixed), forward.mixed
    over_width = stored + precision.growth(g.shape[-1])
    from_output = g * e_o + e_g * (o + e_o) + over_width * ((g + e_g) * (o + e_o))
    either: Floats = np.maximum(from_weights, from_output.sum(-1, keepdims=True))
    return either


def _farthest(gap: Floats, trace: Trace) -> Floats:
    """The largest gap among the keys that a row may see."""
    visible = np.where(trace.seen.allowed, gap, 0.0)
    return np.asarray(np.max(visible, axis=-1, keepdims=True, initial=0.0))


def _mask_bound(problem: Problem, step: Backward, errors: _Errors, precision: Precision) -> Floats:
    assert problem.attn_mask is not None
    shape, scores = problem.attn_mask.shape, given_keys(problem, step.scores)
    inherited = unbroadcast(given_keys(problem, errors.scores), shape)
    sizes = inherited + unbroadcast(np.abs(scores), shape)
    terms = max(1, scores.size // max(1, sizes.size))
    return inherited + (precision.growth(terms) + STORED * precision.storage) * sizes


def _module_bounds(
    problem: Problem, trace: Trace, step: Inputs, forward: ForwardBounds, errors: Inputs, precision: Precision
) -> dict[str, Floats]:
    wide, by_name = problem.widened(), dict[str, Floats]()
    roles = {"query": (step.query, errors.query), "key": (step.key, errors.key), "value": (step.value, errors.value)}
    for name, (gradient, error) in roles.items():
        # An input in several roles may get them in one product with all their weights side by side.
        terms = sum(wide.parameters[f"w_{r[0]}"].shape[-1] for r in roles if getattr(wide, r) is getattr(wide, name))
        by_name |= _projection_gradient_bounds(wide, name, merge_heads(gradient), merge_heads(error), terms, precision)
    if "w_o" in wide.parameters:
        g = np.abs(tokens(np.asarray(wide.cotangent, dtype=np.float64)))
        mixed, error = np.abs(tokens(merge_heads(trace.heads))), tokens(merge_heads(forward.heads))
        rounding = over_tokens(g, precision)
        mixed, error = mixed.swapaxes(-1, -2), error.swapaxes(-1, -2)
        by_name["w_o"] = product_bound(mixed, error, g, np.zeros_like(g), rounding)
        by_name["b_o"] = (rounding * g).sum(-2)
    return shared(problem, by_name)


def _projection_gradient_bounds(
    wide: Problem, name: str, gradient: Floats, error: Floats, terms: int, precision: Precision
) -> dict[str, Floats]:
    """Of input, weight and bias of one projection, given d loss / d its result and the bound of that."""
    array: Floats = getattr(wide, name)
    weight = np.abs(wide.parameters[f"w_{name[0]}"]).swapaxes(-1, -2)
    d, own = np.abs(gradient), precision.before(array.ndim - 1)
    over_roles = own.growth(terms) + 2.0 * STORED * own.storage
    x, flat, error_flat = np.abs(tokens(array)).swapaxes(-1, -2), tokens(d), tokens(error)
    rounding = over_tokens(flat, precision)
    return {
        name: product_bound(d, error, weight, np.zeros_like(weight), over_roles),
        f"w_{name[0]}": product_bound(x, np.zeros_like(x), flat, error_flat, rounding),
        f"b_{name[0]}": (error_flat + rounding * (flat + error_flat)).sum(-2),
    }


def over_tokens(flat: Floats, precision: Precision) -> Roundoff:
    """Relative error of a sum over all B * L tokens of `flat`."""
    own = precision.before(flat.ndim - 1)
    return own.growth(flat.shape[-2]) + STORED * own.storage
