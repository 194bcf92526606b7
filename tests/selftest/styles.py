"""Attention in plain NumPy of any precision: correct in many styles, and wrong in a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from attention_conformance.reference.visibility import visibility
from attention_conformance.spec.features import Conventions
from attention_conformance.spec.problem import Problem

Numbers: TypeAlias = NDArray[Any]
Style: TypeAlias = Callable[["Inputs"], Numbers]

SINGLE = np.dtype(np.float32)
LOG2_E = 1.4426950408889634
LOWER: Mapping[str, np.dtype[Any]] = {
    "float64": SINGLE,
    "float32": np.dtype(ml_dtypes.bfloat16),
    "bfloat16": np.dtype(ml_dtypes.float8_e4m3fn),
    "float16": np.dtype(ml_dtypes.float8_e4m3fn),
}
"""The next narrower dtype, with as few digits as one may meet in its place."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """An op problem in its working dtype; `added` holds all masks as one float mask (B, H, Lq, Lk)."""

    query: Numbers
    key: Numbers
    value: Numbers
    added: Numbers
    scale: float

    @classmethod
    def of(cls, problem: Problem) -> Inputs:
        """The inputs of a problem of the op's scope."""
        seen, dtype = visibility(problem.widened(), Conventions()), problem.query.dtype
        added = np.where(seen.allowed, 0.0 if seen.added is None else seen.added.total, -np.inf)
        scale = problem.query.shape[-1] ** -0.5 if problem.scale is None else problem.scale
        return cls(problem.query, problem.key, problem.value, added.astype(dtype), scale)

    @property
    def accumulator(self) -> np.dtype[Any]:
        """float32 for half types."""
        return self.query.dtype if self.query.dtype.itemsize >= 4 else SINGLE

    def keys(self, some: slice) -> Inputs:
        """The same problem with some of the keys only."""
        return replace(self, key=self.key[:, :, some], value=self.value[:, :, some], added=self.added[..., some])

    def widened(self) -> Inputs:
        """The same numbers in the accumulator's dtype."""
        wide = {n: getattr(self, n).astype(self.accumulator) for n in ("query", "key", "value", "added")}
        return Inputs(**wide, scale=self.scale)


def dot(x: Numbers, y: Numbers) -> Numbers:
    """The product in the dtype of x, half types summed in float32."""
    wide = x.dtype if x.dtype.itemsize >= 4 else SINGLE
    return np.asarray((x.astype(wide) @ y.astype(wide)).astype(x.dtype))


def transposed(x: Numbers) -> Numbers:
    return x.swapaxes(-1, -2)


def total(x: Numbers) -> Numbers:
    """The sum over the last axis, half types summed in float32."""
    wide = x.dtype if x.dtype.itemsize >= 4 else SINGLE
    return np.asarray(x.astype(wide).sum(-1, keepdims=True).astype(x.dtype))


def times(x: Numbers, factor: float) -> Numbers:
    return np.asarray(x * x.dtype.type(factor))


def _or_zero(x: Numbers) -> Numbers:
    return np.where(np.isfinite(x), x, x.dtype.type(0))


def _top(s: Numbers) -> Numbers:
    return _or_zero(s.max(-1, keepdims=True))


def _divided(x: Numbers, by: Numbers) -> Numbers:
    return x / np.where(by == 0, by.dtype.type(1), by)


def scores(x: Inputs) -> Numbers:
    """Stored, scaled, masked: three roundings."""
    return times(dot(x.query, transposed(x.key)), x.scale) + x.added


def softmax(s: Numbers) -> Numbers:
    """Over the last axis; zeros for a row of minus infinities."""
    e = np.exp(s - _top(s))
    return _divided(e, total(e))


def textbook(x: Inputs) -> Numbers:
    """Every intermediate stored in the working dtype."""
    return dot(softmax(scores(x)), x.value)


def wide_softmax(x: Inputs) -> Numbers:
    """Scores and softmax in the accumulator's dtype, the weights stored in the working one."""
    return dot(softmax(scores(x.widened())).astype(x.value.dtype), x.value)


def scaled_query(x: Inputs) -> Numbers:
    """The scale on the queries, before the product."""
    return textbook(replace(x, query=times(x.query, x.scale), scale=1.0))


def scaled_both(x: Inputs) -> Numbers:
    """The root of the scale on queries and keys."""
    root = sqrt(abs(x.scale))
    query, key = times(x.query, np.copysign(root, x.scale)), times(x.key, root)
    return textbook(replace(x, query=query, key=key, scale=1.0))


def reversed_keys(x: Inputs) -> Numbers:
    """All sums in the opposite order."""
    return textbook(x.keys(slice(None, None, -1)))


def log_softmax(x: Inputs) -> Numbers:
    """exp(score - log-sum-exp), the log-sum-exp a state of the accumulator's dtype."""
    s = scores(x)
    log_p = s - log_sum_exp(s.astype(x.accumulator))
    return dot(np.exp(log_p.astype(s.dtype)), x.value)


def log_sum_exp(s: Numbers) -> Numbers:
    """Over the last axis; 0 for a row of minus infinities."""
    top = _top(s)
    whole = total(np.exp(s - top))
    return np.log(np.where(whole == 0, whole.dtype.type(1), whole)) + top


def _seen_log_sum_exp(x: Inputs) -> Numbers:
    """In the accumulator's dtype, minus infinity for a row of minus infinities."""
    found = log_sum_exp(scores(x).astype(x.accumulator))
    return np.where((x.added > -np.inf).any(-1, keepdims=True), found, found.dtype.type(-np.inf))


def base_two(x: Inputs) -> Numbers:
    """Powers of two: scores and mask times log2(e)."""
    s = times(times(dot(x.query, transposed(x.key)), x.scale), LOG2_E) + times(x.added, LOG2_E)
    e = np.exp2(s - _top(s))
    return dot(_divided(e, total(e)), x.value)


def divided_last(x: Inputs) -> Numbers:
    """The mixture of values divided by the sum, not the weights."""
    e = np.exp(scores(x) - _top(scores(x)))
    return _divided(dot(e, x.value), total(e))


def merged(parts: int) -> Style:
    """The keys in parts, each answered alone, merged by their log-sum-exps."""

    def style(x: Inputs) -> Numbers:
        found = [x.keys(slice(i, None, parts)) for i in range(min(parts, x.key.shape[2]))]
        shares = softmax(np.concatenate([_seen_log_sum_exp(p) for p in found], axis=-1)).astype(x.query.dtype)
        return sum(shares[..., i : i + 1] * textbook(p) for i, p in enumerate(found))  # type: ignore[return-value]

    return style


def online(tile: int, stored: bool = False) -> Style:
    """Keys in tiles with a running maximum, sum and mixture, wide or stored in the working dtype."""

    def style(x: Inputs) -> Numbers:
        inner = x.query.dtype if stored else x.accumulator
        rows = x.query.shape[:3]
        top, whole = np.full((*rows, 1), -np.inf, inner), np.zeros((*rows, 1), inner)
        mixed = np.zeros((*rows, x.value.shape[-1]), inner)
        for part in _tiles(x, tile):
            s = scores(part if stored else part.widened()).astype(inner)
            higher = np.maximum(top, s.max(-1, keepdims=True))
            keep, e = np.exp(top - _or_zero(higher)), np.exp(s - _or_zero(higher))
            whole = whole * keep + total(e)
            mixed = mixed * keep + dot(e.astype(x.value.dtype), part.value).astype(inner)
            top = higher
        return _divided(mixed, whole).astype(x.query.dtype)

    return style


def _tiles(x: Inputs, tile: int) -> Iterator[Inputs]:
    return (x.keys(slice(i, i + tile)) for i in range(0, x.key.shape[2], tile))


CORRECT: Mapping[str, Style] = {
    "textbook": textbook,
    "wide softmax": wide_softmax,
    "scaled query": scaled_query,
    "scaled query and key": scaled_both,
    "reversed keys": reversed_keys,
    "log-softmax": log_softmax,
    "base 2": base_two,
    "divided last": divided_last,
    "merged 2": merged(2),
    "merged 5": merged(5),
    "online 1": online(1),
    "online 7": online(7),
    "online 64": online(64),
}
SHORT: Mapping[str, Style] = {
    "online 1, state stored": online(1, stored=True),
    "online 7, state stored": online(7, stored=True),
}
"""Correct for up to 17 keys; with more, a half type's running sum stagnates."""


def zeros(x: Inputs) -> Numbers:
    return np.zeros_like(textbook(x))


def mean_of_values(x: Inputs) -> Numbers:
    """Every weight the same."""
    seen = (x.added > -np.inf).astype(x.accumulator)
    return dot(_divided(seen, total(seen)), x.value.astype(x.accumulator))


def sign_flipped(x: Inputs) -> Numbers:
    return -textbook(x)


def unscaled(x: Inputs) -> Numbers:
    return textbook(replace(x, scale=1.0))


def lower_softmax(x: Inputs) -> Numbers:
    """Scores, exponentials, their sum and the weights stored in the next lower precision; sums in float32."""
    low = LOWER[x.query.dtype.name]
    s = _through(scores(x.widened()), low)
    e = _through(np.exp(s - _top(s)), low)
    return dot(_through(_divided(e, _through(total(e), low)), low).astype(x.query.dtype), x.value)


def _through(x: Numbers, low: np.dtype[Any]) -> Numbers:
    """Rounded to a narrower dtype and back, saturating; minus infinity stays."""
    limit = float(ml_dtypes.finfo(low).max)  # type: ignore[no-untyped-call]
    kept = np.clip(_or_zero(x), -limit, limit).astype(low).astype(x.dtype)
    return np.where(np.isfinite(x), kept, x)


def lower_weights(x: Inputs) -> Numbers:
    """The weights alone stored in the next lower precision."""
    p = softmax(scores(x.widened()))
    return dot(_through(p, LOWER[x.query.dtype.name]).astype(x.query.dtype), x.value)


def bfloat16_weights(x: Inputs) -> Numbers:
    """The weights stored in bfloat16, as if the inputs were."""
    return dot(_through(softmax(scores(x)), np.dtype(ml_dtypes.bfloat16)), x.value)


def epsilon(x: Inputs) -> Numbers:
    """1e-6 in the denominator."""
    e = np.exp(scores(x) - _top(scores(x)))
    return dot(e / (total(e) + e.dtype.type(1e-6)), x.value)


def backward(x: Inputs, cotangent: Numbers, centred_by: str = "weights") -> dict[str, Numbers]:
    """Gradients by the closed form; rowsum(P dP) by the weights, by the output (rowsum(dO O)), or not."""
    p = softmax(scores(x))
    d_weights = dot(cotangent, transposed(x.value))
    centres = {
        "weights": total(p * d_weights),
        "output": total(cotangent * dot(p, x.value)),
        "nothing": np.zeros_like(p[..., :1]),
    }
    d_scores = p * (d_weights - centres[centred_by])
    return {
        "query": times(dot(d_scores, x.key), x.scale),
        "key": times(dot(transposed(d_scores), x.query), x.scale),
        "value": dot(transposed(p), cotangent),
    }


WRONG: Mapping[str, Style] = {
    "zeros": zeros,
    "mean of the values": mean_of_values,
    "sign flipped": sign_flipped,
    "no scale": unscaled,
    "softmax one precision lower": lower_softmax,
    "weights one precision lower": lower_weights,
}
"""Wrong in every dtype."""
