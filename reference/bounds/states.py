"""Running states: sums of equal terms, rescalings, and log-sum-exps into which keys are merged one by one."""

import numpy as np

from attention_conformance.reference.arrays import Booleans, Floats
from attention_conformance.reference.bounds.precision import Precision, gamma
from attention_conformance.reference.pipeline import Trace

RESCALED = 2.0
"""Roundings where a running maximum rises: those of the factor, and of the product with it."""
MERGED = 3.0
"""Roundings of one merge that do not grow with the log-sum-exp: of the logarithm, of its difference, of the factor."""

UNFELT = 1e-30
"""Beneath it a loss is not worked out: float16 alone has so small a range that D loses more, others some 1e-40."""


def state_error(trace: Trace, precision: Precision) -> Floats:
    """(B, H, Lq, 1): relative, of the sum of exponentials in addition to `weight_error`.

    The largest scores give terms of 1, whose sums are exact.
    """
    allowed, keys = trace.seen.allowed, trace.scores.shape[-1]
    scores = np.where(allowed, trace.scores, -np.inf)
    equal = repeats(scores, allowed & (scores < trace.top))
    return biased_growth(precision, keys, equal) + gamma(RESCALED * rises(scores) * precision.accumulator)


def mixture_error(trace: Trace, precision: Precision) -> Floats:
    """(B, H, Lq, d_v): the same of the sums of weights times values; terms are equal where both factors are."""
    keys, values = trace.scores.shape[-1], trace.value.swapaxes(-1, -2)
    equal = repeats(values, np.ones_like(values, dtype=np.bool_)).swapaxes(-1, -2)
    if (equal > keys).any():  # else the values differ, and equal scores matter no more
        equal = np.minimum(repeats(trace.scores, trace.seen.allowed), equal)
    return biased_growth(precision, keys, equal)


def quotient_error(trace: Trace, d_weights: Floats, precision: Precision) -> Floats | float:
    """(B, H, Lq, 1): of D where p = e / sum is differentiated, and p / sum is stored, and its product with dP.

    Of numbers beneath the floor nothing is left; those above it lose up to half of it, and equal ones alike.
    """
    p, size = trace.weights, np.abs(d_weights)
    lost = precision.floor * np.exp(np.maximum(trace.finite_lse - trace.top, 0.0))
    if not np.any(lost > UNFELT):
        return 0.0
    faint = p * np.minimum(size, 1.0) < lost
    keys = np.maximum(trace.seen.allowed.sum(-1, keepdims=True), 1.0)
    alike = np.minimum(1.0, 4.0 * np.sqrt(repeats(p, trace.seen.allowed)) / keys)
    above = alike * np.where(faint | ~trace.seen.allowed, 0.0, lost * (size + 1.0) / 2.0).sum(-1, keepdims=True)
    return np.asarray((p * size * faint).sum(-1, keepdims=True) + above + 2.0 * lost)


def merging_error(trace: Trace, sizes: Floats, precision: Precision) -> Floats:
    """Relative, of weights for which a running log-sum-exp is at most of these sizes, (B, H, Lq, 1 or Lk).

    Where keys are merged into it one by one, it is rounded with each, relative to its own size.
    """
    merges = np.maximum(trace.seen.allowed.sum(-1, keepdims=True) - 1.0, 0.0)
    return np.asarray(np.minimum(merges, 4.0 * np.sqrt(merges)) * (sizes + MERGED) * precision.accumulator)


def biased_growth(precision: Precision, keys: int, equal: Floats) -> Floats:
    """What `growth` lacks where terms are equal: groups of them add up, and only the groups are independent."""
    terms, independent = 3.0 * keys, precision.growth(3 * keys)
    grouped = gamma(np.minimum(terms, 4.0 * np.sqrt(3.0 * np.maximum(equal, keys))) * precision.accumulator)
    return np.asarray(np.maximum(grouped - independent, 0.0))


def repeats(terms: Floats, counted: Booleans) -> Floats:
    """(..., 1): the sum of the squares of how often each number occurs among those that are counted."""
    ordered = np.sort(np.where(counted, terms, np.nan), axis=-1)  # NaN comes last, and equals nothing
    new = np.ones(ordered.shape, dtype=np.bool_)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    if new.all():
        return np.asarray(counted.sum(-1, keepdims=True), dtype=np.float64)
    place = np.arange(terms.shape[-1])
    run = place - np.maximum.accumulate(np.where(new, place, 0), axis=-1) + 1
    # A run of c numbers adds 1 + 3 + 5 + ..., c in all, which is c squared.
    return np.asarray(np.where(np.isnan(ordered), 0.0, 2.0 * run - 1.0).sum(-1, keepdims=True))


def rises(scores: Floats) -> Floats:
    """(..., 1): how often a running maximum rises, from the first key or from the last."""
    if scores.shape[-1] == 0:
        return np.zeros((*scores.shape[:-1], 1))
    orders = (scores, scores[..., ::-1])
    tops = (np.maximum.accumulate(each, axis=-1) for each in orders)
    counts = [(top[..., 1:] > top[..., :-1]).sum(-1, keepdims=True) for top in tops]
    return np.asarray(np.maximum(*counts), dtype=np.float64)
