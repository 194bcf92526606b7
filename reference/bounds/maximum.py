"""What it costs to differentiate through the maximum that a softmax subtracts; section 9 of `bounds.md`."""

import numpy as np

from attention_conformance.reference.arrays import Booleans, Floats
from attention_conformance.reference.bounds.attention import ForwardBounds
from attention_conformance.reference.bounds.precision import Precision, gamma
from attention_conformance.reference.bounds.states import quotient_error
from attention_conformance.reference.gradients import Backward
from attention_conformance.reference.pipeline import Trace

STEPS = 2.0
"""Roundings to the working dtype of each term of D, formed of the weights or of the output: an operand, a product."""


def largest(trace: Trace, error: Floats) -> Booleans:
    """(B, H, Lq, Lk): True where a score may be computed as the largest of its row; `error` is the scores' bound."""
    certain = np.where(trace.seen.allowed, trace.scores - error, -np.inf).max(-1, keepdims=True, initial=-np.inf)
    return np.asarray(trace.seen.allowed & (trace.scores + error >= certain))


def sum_error(trace: Trace, step: Backward, forward: ForwardBounds, precision: Precision) -> Floats:
    """(B, H, Lq, 1): of the sum of a row of dS, which is 0 but for the roundings of its terms."""
    width, keys = trace.value.shape[-1], trace.weights.shape[-1]
    by_weight = ((trace.weights + forward.weights) * np.abs(step.weights)).sum(-1, keepdims=True)
    by_output = (np.abs(step.heads) * (np.abs(trace.mixed) + forward.mixed)).sum(-1, keepdims=True)
    stored, added = gamma(STEPS * precision.widest) + precision.growth(width), precision.growth(keys)
    error = (stored + added) * (by_weight + by_output)
    return np.asarray(error + quotient_error(trace, step.weights, precision))
