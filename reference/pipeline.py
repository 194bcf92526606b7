"""The pipeline: attention as a record of named stages. `Pipeline()` is the specification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from reference.visibility import Visibility, visibility
from spec.features import Conventions, EmptyRow, Scope
from spec.problems import Array, Problem

Floats: TypeAlias = NDArray[np.float64]


def project(inputs: Floats, weight: Floats, bias: Floats | None) -> Floats:
    """(B, L, width) -> (B, L, H * d): x @ w + b (chapter projections)."""
    projected = inputs @ weight
    return projected if bias is None else projected + bias


def split_heads(projected: Floats, num_heads: int) -> Floats:
    """(B, L, H * d) -> (B, H, L, d): head h takes columns h * d .. (h + 1) * d - 1."""
    batch, length, width = projected.shape
    return projected.reshape(batch, length, num_heads, width // num_heads).swapaxes(1, 2)


def score(query: Floats, key: Floats, scale: float) -> Floats:
    """(B, H, Lq, d_k), (B, H, Lk, d_k) -> (B, H, Lq, Lk): scale * q . k (Vaswani et al. 2017, eq. 1)."""
    return scale * (query @ key.swapaxes(-1, -2))


def mask(scores: Floats, seen: Visibility) -> Floats:
    """Adds the float mask, then puts minus infinity wherever a key may not be attended to."""
    return np.where(seen.allowed, scores if seen.added is None else scores + seen.added, -np.inf)


def normalise(scores: Floats) -> Floats:
    """Softmax over the keys, the maximum of each row subtracted; a row of minus infinities gives zeros."""
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    weights: Floats = exponentials / np.maximum(exponentials.sum(-1, keepdims=True), np.finfo(float).tiny)
    return weights


def fill_empty_rows(weights: Floats, seen: Visibility) -> Floats:
    """The weights with rows that may see no key answered as the conventions say."""
    filled = weights.copy()
    filled[seen.rows_answered(EmptyRow.NAN)] = np.nan
    filled[seen.rows_answered(EmptyRow.UNIFORM)] = 1.0 / max(weights.shape[-1], 1)
    return filled


def mix(weights: Floats, value: Floats) -> Floats:
    """(B, H, Lq, Lk), (B, H, Lk, d_v) -> (B, H, Lq, d_v): the weighted sum of the value rows."""
    return weights @ value


def merge_heads(heads: Floats) -> Floats:
    """(B, H, L, d) -> (B, L, H * d): the inverse of `split_heads`."""
    batch, num_heads, length, width = heads.shape
    return heads.swapaxes(1, 2).reshape(batch, length, num_heads * width)


@dataclass(frozen=True, eq=False)
class Trace:
    """Every intermediate of one run, in float64: heads (B, H, L, d), scores and weights (B, H, Lq, Lk)."""

    query: Floats
    key: Floats
    value: Floats
    scale: float
    products: Floats
    scores: Floats
    weights: Floats
    heads: Floats
    output: Floats
    seen: Visibility

    @cached_property
    def log_sum_exp(self) -> Floats:
        """(B, H, Lq), natural; minus infinity for a row that sees nothing."""
        top = np.max(self.scores, axis=-1, initial=-np.inf)
        shift = np.where(np.isfinite(top), top, 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.exp(self.scores - shift[..., None]).sum(-1)) + shift)


@dataclass(frozen=True)
class Pipeline:
    """The stages by name. Replacing one gives another attention: a defect, or a convention."""

    project: Callable[[Floats, Floats, Floats | None], Floats] = project
    split_heads: Callable[[Floats, int], Floats] = split_heads
    score: Callable[[Floats, Floats, float], Floats] = score
    mask: Callable[[Floats, Visibility], Floats] = mask
    normalise: Callable[[Floats], Floats] = normalise
    fill_empty_rows: Callable[[Floats, Visibility], Floats] = fill_empty_rows
    mix: Callable[[Floats, Floats], Floats] = mix
    merge_heads: Callable[[Floats], Floats] = merge_heads

    def run(self, problem: Problem, conventions: Conventions = Conventions(), first_row: int = 0) -> Trace:
        """Solves a problem in float64.

        Args:
            problem: its numbers are taken as they are, in whatever dtype.
            conventions: the answers where the field disagrees.
            first_row: the position of the problem's first query in the whole sequence, for the causal flag.
        """
        wide = problem.widened()
        query, key, value = self._heads(wide)
        scale = key.shape[-1] ** -0.5 if problem.scale is None else problem.scale
        seen = visibility(wide, conventions, first_row)
        key, value = _contained(key, seen), _contained(value, seen)
        products = self.score(query, key, scale)
        scores = self.mask(products, seen)
        weights = self.fill_empty_rows(self.normalise(scores), seen)
        heads = self.mix(weights, value)
        output = heads if wide.scope is Scope.OP else self.project_out(wide, heads)
        return Trace(query, key, value, scale, products, scores, weights, heads, output, seen)

    def _heads(self, problem: Problem) -> tuple[Floats, Floats, Floats]:
        inputs = (_floats(problem.query), _floats(problem.key), _floats(problem.value))
        if problem.scope is Scope.OP:
            return inputs
        query, key, value = (
            self.split_heads(self.project(x, _floats(p[f"w_{r}"]), _optional(p.get(f"b_{r}"))), problem.num_heads)
            for p, r, x in zip([problem.parameters] * 3, "qkv", inputs, strict=True)
        )
        return query, key, value

    def project_out(self, problem: Problem, heads: Floats) -> Floats:
        """(B, H, Lq, d_v) -> (B, Lq, out_dim): the heads merged, and projected where the module has W^O."""
        merged = self.merge_heads(heads)
        if "w_o" not in problem.parameters:
            return merged
        return self.project(merged, _floats(problem.parameters["w_o"]), _optional(problem.parameters.get("b_o")))


def _floats(array: Array) -> Floats:
    return np.asarray(array, dtype=np.float64)


def _optional(array: Array | None) -> Floats | None:
    return None if array is None else _floats(array)


def _contained(rows: Floats, seen: Visibility) -> Floats:
    """Keys or values with NaN and infinity set to 0 where no query may see them: 0 * NaN is not 0."""
    unseen: NDArray[np.bool_] = ~np.asarray(seen.allowed.any(axis=-2))
    finite = np.isfinite(rows)
    return rows if finite.all() else np.where(finite | ~unseen[..., None], rows, 0.0)
