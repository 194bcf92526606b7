"""Rounding bounds of gates, of heads and of the output; the derivation is in `bounds.md` next to this file."""

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.precision import Precision, gamma
from attention_conformance.reference.pipeline import Trace

GATE_STEPS = 2.0
"""Roundings where a gate multiplies weights, values or the output: the product, and its storing."""
SIGMOID_STEPS = 4.0
"""Roundings of a sigmoid to the working dtype: exponential, sum, quotient, result."""
SIGMOID_ERROR = 8.0
"""Unit roundoffs of the accumulator that its exponential may be off, relative to it."""
SIGMOID_OF_TANH = 2.0
"""Roundings of numbers near 1 in (1 + tanh(x / 2)) / 2, in the accumulator, where the sigmoid is small."""


def opened_bound(trace: Trace, precision: Precision) -> Floats:
    """Of the sigmoids of the logits."""
    assert trace.opened is not None
    relative = gamma(SIGMOID_STEPS * precision.widest + SIGMOID_ERROR * precision.accumulator)
    return np.asarray(relative * trace.opened + SIGMOID_OF_TANH * precision.accumulator + precision.floor)


def gated_bound(trace: Trace, rows: Floats, error: Floats, precision: Precision) -> Floats:
    """Of rows (B, H, Lq, d_v), each within `error`, times all gates."""
    sizes = np.abs(np.where(np.isfinite(rows), rows, 0.0))
    if trace.opened is not None:
        e_factor = opened_bound(trace, precision)
        error = _product_bound(sizes, error, trace.opened, precision, e_factor)
        sizes = sizes * trace.opened
    if trace.gates is not None:
        error = _product_bound(sizes, error, np.abs(trace.gates)[..., None, None], precision)
    return error


def _product_bound(
    sizes: Floats, error: Floats, factor: Floats, precision: Precision, e_factor: Floats | float = 0.0
) -> Floats:
    moved = (factor + e_factor) * (error + GATE_STEPS * precision.storage * (sizes + error)) + e_factor * sizes
    return np.asarray(moved + precision.floor)


def slope_of_gates(trace: Trace, precision: Precision, steps: float) -> tuple[Floats, Floats]:
    """d sigmoid / d logit, s (1 - s), and its bound with so many roundings of its own."""
    assert trace.opened is not None
    slope, error = trace.opened * (1.0 - trace.opened), opened_bound(trace, precision)
    return slope, np.asarray(error + gamma(steps * precision.widest) * (slope + error))
