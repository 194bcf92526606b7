"""Rounding bounds of the gradients; the derivation is in `bounds.md` beside this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from reference.bounds import ForwardBounds
from reference.gradients import Backward, backward, cotangent_of_heads, shared, unbroadcast
from reference.pipeline import Trace, merge_heads, split_heads
from reference.precision import Precision, gamma
from spec.features import EmptyRow, Scope
from spec.problems import Problem

Floats: TypeAlias = NDArray[np.float64]

STORED = 4.0
"""Roundings to the working dtype between one product of the backward pass and the next."""


@dataclass(frozen=True, eq=False)
class _Errors:
    """Bounds of the op level's backward pass, shaped like the fields of `Backward`."""

    scores: Floats
    query: Floats
    key: Floats
    value: Floats


def gradient_bounds(problem: Problem, trace: Trace, forward: ForwardBounds, precision: Precision) -> dict[str, Floats]:
    """The bound of every gradient in the problem's `needs`, shaped like it."""
    step = backward(trace, cotangent_of_heads(problem))
    errors = _errors(trace, step, forward, _cotangent_bound(problem, precision), precision)
    if problem.scope is Scope.OP:
        found = {"query": errors.query, "key": errors.key, "value": errors.value}
    else:
        found = _module_bounds(problem, trace, step, forward, errors, precision)
    if problem.attn_mask is not None and problem.attn_mask.dtype.kind != "b":
        found["attn_mask"] = _mask_bound(problem.attn_mask.shape, step, errors, precision)
    return {name: found[name] + precision.floor for name in problem.needs}


def product_bound(a: Floats, e_a: Floats, b: Floats, e_b: Floats, rounding: float) -> Floats:
    """|fl(a' b') - a b| where a' lies within e_a of a, b' within e_b of b; a and b are absolute values."""
    return np.asarray(e_a @ (b + e_b) + a @ e_b + rounding * ((a + e_a) @ (b + e_b)))


def _stored(precision: Precision) -> float:
    return gamma(STORED * max(precision.storage, precision.softmax))


def _cotangent_bound(problem: Problem, precision: Precision) -> Floats:
    """Of d loss / d heads: exact, or carried back through the output projection."""
    assert problem.cotangent is not None
    g = np.abs(problem.cotangent.astype(np.float64))
    if problem.scope is Scope.OP:
        return np.zeros_like(g)
    if "w_o" not in problem.parameters:
        return split_heads(np.zeros_like(g), problem.num_heads)
    weight = np.abs(problem.parameters["w_o"].astype(np.float64))
    rounding = precision.growth(weight.shape[1]) + 2.0 * precision.storage
    return split_heads(rounding * (g @ weight.T) + precision.floor, problem.num_heads)


def _errors(trace: Trace, step: Backward, forward: ForwardBounds, e_g: Floats, precision: Precision) -> _Errors:
    p, g, stored, scale = trace.weights, np.abs(step.heads), _stored(precision), abs(trace.scale)
    v, e_v = np.abs(trace.value).swapaxes(-1, -2), forward.value.swapaxes(-1, -2)
    e_dp = product_bound(g, e_g, v, e_v, precision.growth(v.shape[-2]) + stored) + precision.floor
    e_ds = _score_errors(trace, step, forward, e_dp, e_g, precision)
    # The scale may be multiplied into dS, which then underflows in its turn.
    ds, e_scaled = scale * np.abs(step.scores), scale * e_ds + precision.floor * trace.seen.allowed
    over_keys, over_queries = (stored + precision.growth(extent) for extent in (ds.shape[-1], ds.shape[-2]))
    ds_t, e_t, p_t, e_p = (x.swapaxes(-1, -2) for x in (ds, e_scaled, p, forward.weights))
    query = product_bound(ds, e_scaled, np.abs(trace.key), forward.key, over_keys)
    key = product_bound(ds_t, e_t, np.abs(trace.query), forward.query, over_queries)
    value = product_bound(p_t, e_p, g, e_g, over_queries)
    return _Errors(e_ds, query + precision.floor, key + precision.floor, value + precision.floor)


def _score_errors(
    trace: Trace, step: Backward, forward: ForwardBounds, e_dp: Floats, e_g: Floats, precision: Precision
) -> Floats:
    """|delta dS| with dS = P (dP - D)."""
    p, e_p, stored = trace.weights, forward.weights, _stored(precision)
    gap = np.abs(step.weights - step.centre)
    e_gap = e_dp + _centre_errors(trace, step, forward, e_dp, e_g, precision)
    bound = e_p * gap + (p + e_p) * (e_gap + stored * (gap + e_gap)) + precision.floor
    uniform = trace.seen.rows_answered(EmptyRow.UNIFORM)[..., None]
    return np.where(uniform | ~trace.seen.allowed, 0.0, bound)


def _centre_errors(
    trace: Trace, step: Backward, forward: ForwardBounds, e_dp: Floats, e_g: Floats, precision: Precision
) -> Floats:
    """|delta D|, where D may be formed as rowsum(P dP) or as rowsum(dO O).

    In the first, roundings after the softmax carry D itself along, errors of scores only what lies apart.
    """
    p, e_p, stored = trace.weights, forward.weights, _stored(precision)
    gap, d_weights = np.abs(step.weights - step.centre), np.abs(step.weights)
    rounding = (stored + precision.growth(p.shape[-1])) * (d_weights + e_dp)
    rounding = rounding + forward.local * (gap + np.abs(step.centre)) + precision.floor
    moved = np.minimum((forward.pull * gap).sum(-1, keepdims=True), _farthest(gap, trace))
    from_weights = moved + ((p + e_p) * (e_dp + rounding)).sum(-1, keepdims=True)
    g, o, e_o = np.abs(step.heads), np.abs(trace.heads), forward.heads
    over_width = stored + precision.growth(g.shape[-1])
    from_output = g * e_o + e_g * (o + e_o) + over_width * ((g + e_g) * (o + e_o))
    either: Floats = np.maximum(from_weights, from_output.sum(-1, keepdims=True))
    return either


def _farthest(gap: Floats, trace: Trace) -> Floats:
    """The largest gap among the keys that a row may see."""
    visible = np.where(trace.seen.allowed, gap, 0.0)
    return np.asarray(np.max(visible, axis=-1, keepdims=True, initial=0.0))


def _mask_bound(shape: tuple[int, ...], step: Backward, errors: _Errors, precision: Precision) -> Floats:
    inherited = unbroadcast(errors.scores, shape)
    sizes = inherited + unbroadcast(np.abs(step.scores), shape)
    terms = max(1, step.scores.size // max(1, sizes.size))
    return inherited + (precision.growth(terms) + STORED * precision.storage) * sizes


def _module_bounds(
    problem: Problem,
    trace: Trace,
    step: Backward,
    forward: ForwardBounds,
    errors: _Errors,
    precision: Precision,
) -> dict[str, Floats]:
    wide, found = problem.widened(), dict[str, Floats]()
    roles = {
        "query": (step.query, errors.query),
        "key": (step.key, errors.key),
        "value": (step.value, errors.value),
    }
    for name, (gradient, error) in roles.items():
        found |= _projection_gradient_bounds(wide, name, merge_heads(gradient), merge_heads(error), precision)
    if "w_o" in wide.parameters:
        g = np.abs(_tokens(np.asarray(wide.cotangent, dtype=np.float64)))
        mixed, error = np.abs(_tokens(merge_heads(trace.heads))), _tokens(merge_heads(forward.heads))
        rounding = precision.growth(g.shape[0]) + STORED * precision.storage
        found["w_o"] = product_bound(mixed.T, error.T, g, np.zeros_like(g), rounding)
        found["b_o"] = rounding * g.sum(0)
    return shared(problem, found)


def _projection_gradient_bounds(
    wide: Problem, name: str, gradient: Floats, error: Floats, precision: Precision
) -> dict[str, Floats]:
    """Of input, weight and bias of one projection, given d loss / d its result and the bound of that."""
    array: Floats = getattr(wide, name)
    x, weight = np.abs(array), np.abs(wide.parameters[f"w_{name[0]}"].astype(np.float64)).T
    d, tokens, stored = np.abs(gradient), array.shape[0] * array.shape[1], STORED * precision.storage
    # An input in several roles may get them in one product with all their weights side by side.
    roles = [wide.query, wide.key, wide.value]
    terms = weight.shape[0] * sum(other is array for other in roles)
    over_roles, over_tokens = precision.growth(terms) + 2.0 * stored, precision.growth(tokens) + stored
    flat = product_bound(_tokens(x).T, np.zeros_like(_tokens(x).T), _tokens(d), _tokens(error), over_tokens)
    return {
        name: product_bound(d, error, weight, np.zeros_like(weight), over_roles),
        f"w_{name[0]}": flat,
        f"b_{name[0]}": (error + over_tokens * (d + error)).sum((0, 1)),
    }


def _tokens(array: Floats) -> Floats:
    """(B, L, width) -> (B * L, width)."""
    return array.reshape(-1, array.shape[-1])
