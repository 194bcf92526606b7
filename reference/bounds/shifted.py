"""What it costs to take the mean of the keys away from each, which changes no weight; section 9 of `bounds.md`."""

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.precision import Precision, gamma
from attention_conformance.reference.pipeline import Trace
from attention_conformance.reference.stages import gather, repeat_kv

SHIFT_STEPS = 3.0
"""Roundings to the working dtype: the gradient of the shifted keys, its mean, and the difference of both."""


def shared_keys(trace: Trace) -> Floats | None:
    """(B, H, Lk, 1): 1 for the keys of a mean, which some query of the group sees; None where a shift is no identity.

    It is none before a softcap, nor where a sink or an extra key competes with the keys that are shifted.
    """
    keys = trace.inputs.key.shape[-2]
    if trace.softcap is not None or trace.key.shape[-2] != keys:
        return None
    seen = np.any(trace.seen.allowed, axis=-2, keepdims=True).swapaxes(-1, -2).astype(np.float64)
    heads = trace.query.shape[-3]
    by_group = gather(seen, trace.inputs.key.shape[-3], trace.order) > 0.0
    return repeat_kv(by_group.astype(np.float64), heads, trace.order)


def key_sizes(trace: Trace) -> Floats:
    """(B, H, Lk, d): absolute values of the keys, or of the shifted ones where they are larger."""
    own, shared = np.abs(trace.key), shared_keys(trace)
    if shared is None:
        return own
    return np.maximum(own, np.abs(trace.key - _mean(trace.key, shared)) * shared)


def evened_out(trace: Trace, gradient: Floats, error: Floats, precision: Precision) -> Floats:
    """The bound of the keys' gradient, from which the mean is taken away: it is 0 but for its roundings."""
    shared = shared_keys(trace)
    if shared is None:
        return error
    sizes, count = np.abs(gradient) + error, np.maximum(shared.sum(-2, keepdims=True), 1.0)
    rounding = precision.growth(sizes.shape[-2]) + gamma(SHIFT_STEPS * precision.widest)
    others = _mean(error, shared) - error / count
    shifted = np.hypot(error - error / count, others) + rounding * (sizes + _mean(sizes, shared))
    return np.where(shared > 0.0, np.maximum(error, shifted), error)


def _mean(rows: Floats, shared: Floats) -> Floats:
    return np.asarray((rows * shared).sum(-2, keepdims=True) / np.maximum(shared.sum(-2, keepdims=True), 1.0))
