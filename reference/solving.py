"""Solving: what the reference expects of a problem, part by part, with the bound of every element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from reference.bounds import forward_bounds
from reference.gradient_bounds import gradient_bounds
from reference.gradients import gradients
from reference.pipeline import Pipeline, Trace, mix
from reference.precision import precision
from reference.visibility import causal
from spec.cases import Sharing
from spec.features import Conventions, Scope
from spec.problems import Problem

Floats: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Expected:
    """One part of the answer: float64 values, and per element how far a correct answer may be from them."""

    value: Floats
    bound: Floats
    decoy: Floats | None = None
    """A wrong answer near the right one that the bound has to tell from it: the mean of the visible values."""


@dataclass(frozen=True, eq=False)
class Solution:
    """The expected answer to a problem.

    Attributes:
        parts: `output`, `weights`, `averaged_weights`, `log_sum_exp`, and `gradients.NAME` for each needed one.
        trace: every intermediate of the reference.
    """

    parts: Mapping[str, Expected]
    trace: Trace


def solve(problem: Problem, conventions: Conventions = Conventions()) -> Solution:
    """Runs the reference on the problem's own numbers; bounds are for its dtype and the claimed softmax precision."""
    working = precision(problem.dtype, conventions.softmax_precision)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        trace = Pipeline().run(problem, conventions)
        bounds = forward_bounds(problem, trace, working)
        averaged = trace.weights.mean(1)
        rounding = (working.growth(problem.num_heads) + 2.0 * working.storage) * averaged
        rounding = rounding + working.floor * trace.seen.allowed.any(1)
        parts = {
            "output": Expected(trace.output, bounds.output, _mean_of_values(problem, trace)),
            "weights": Expected(trace.weights, bounds.weights),
            "averaged_weights": Expected(averaged, bounds.weights.mean(1) + rounding),
            "log_sum_exp": Expected(trace.log_sum_exp, bounds.log_sum_exp),
        }
        if problem.cotangent is not None:
            found = gradients(problem, trace)
            errors = gradient_bounds(problem, trace, bounds, working)
            parts |= {f"gradients.{name}": Expected(found[name], errors[name]) for name in found}
    return Solution(parts, trace)


def _mean_of_values(problem: Problem, trace: Trace) -> Floats | None:
    """The output with equal weights for all visible keys; None where that is the right answer."""
    allowed = trace.seen.allowed
    low = np.min(np.where(allowed, trace.scores, np.inf), axis=-1, initial=np.inf)
    high = np.max(trace.scores, axis=-1, initial=-np.inf)
    same_values = (trace.value == trace.value[:, :, :1]).all()
    if same_values or not (low < high).any():
        return None
    equal = allowed / np.maximum(allowed.sum(-1, keepdims=True), 1)
    heads = mix(equal, trace.value)
    return heads if problem.scope is Scope.OP else Pipeline().project_out(problem.widened(), heads)


def sample_rows(problem: Problem, rows: Indices, conventions: Conventions = Conventions()) -> Problem:
    """The problem with only the given query rows, for long sequences: rows do not depend on one another.

    The causal flag is turned into an equal boolean mask, because it depends on the position of a row; a row
    that it leaves empty is then answered as one that a boolean mask has emptied.

    Raises:
        ValueError: an attention mask is given besides the causal flag; one of them only can be sampled.
    """
    mask, lengths = problem.attn_mask, problem.valid_lens
    if problem.causal:
        if mask is not None:
            raise ValueError("rows cannot be sampled from a problem with both a causal flag and attn_mask")
        flag = causal(problem.query.shape[-2], problem.key.shape[-2], conventions.causal_alignment)
        mask = flag[rows]
    elif mask is not None and mask.shape[-2] != 1:
        mask = mask[..., rows, :]
    return replace(
        problem.forward_only(),
        query=problem.query[..., rows, :],
        attn_mask=mask,
        valid_lens=lengths[:, rows] if lengths is not None and lengths.ndim == 2 else lengths,
        causal=False,
        sharing=Sharing.KEY_VALUE if problem.sharing is Sharing.SELF else problem.sharing,
    )
