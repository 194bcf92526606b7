"""Solving: what the reference expects of a problem, part by part, with the bound of every element."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.blocks import blocks
from attention_conformance.reference.bounds.aligned import Aligned, Directions, aligned_bounds, directions
from attention_conformance.reference.bounds.attention import ForwardBounds, finite, forward_bounds
from attention_conformance.reference.bounds.extensions import dropped_bound
from attention_conformance.reference.bounds.gradients import gradient_bounds
from attention_conformance.reference.bounds.precision import Precision, precision
from attention_conformance.reference.gradients import backward, cotangent_of_heads, gradients
from attention_conformance.reference.pipeline import Pipeline, Trace, gated, mix
from attention_conformance.reference.positions import positions
from attention_conformance.reference.visibility import padding
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.conventions import (
    LEAST_LOG,
    Conventions,
    EmptyRow,
    LogBase,
    LogOfNothing,
    PaddedTokens,
    ReturnedWeights,
)
from attention_conformance.spec.features import Packing, Scope
from attention_conformance.spec.gates_and_splits import OutputGates
from attention_conformance.spec.problem import Problem

Indices: TypeAlias = NDArray[np.intp]

RETURNED = ("weights", "averaged_weights", "log_sum_exp")
"""What an implementation may return in addition to its output."""
EACH = (-4, -3, -2, -1)
"""The axes of one problem; a stack of problems has one before them (see `stacking`)."""


@dataclass(frozen=True, eq=False)
class Expected:
    """One part of the answer: float64 values, and per element how far a correct answer may be from them.

    Where NaN has an infinite bound, anything is right.
    """

    value: Floats
    bound: Floats
    decoy: Floats | None = None
    """A wrong answer near the right one that the bound has to separate from it: the mean of the visible values."""
    aligned: tuple[Aligned, ...] = ()
    """How far the error of the whole array may point in some directions."""
    ceiling: float | None = None
    """Where minus infinity is expected, any finite number up to this one is right instead; None: infinity itself."""

    def __post_init__(self) -> None:
        if (self.bound < 0.0).any():
            raise ValueError("a bound is negative, so that not even the value itself would be within it")

    @property
    def unspecified(self) -> NDArray[np.bool_]:
        """Where anything is right."""
        return np.asarray(np.isnan(self.value) & np.isposinf(self.bound))

    def only(self, of: Callable[[Floats], Floats]) -> Expected:
        """What a linear function, such as one that takes some rows, makes of the values and their bounds."""
        return Expected(of(self.value), np.abs(of(self.bound)), ceiling=self.ceiling)


@dataclass(frozen=True, eq=False)
class Solution:
    """The expected answer to a problem.

    Attributes:
        parts: `output`, `weights`, `averaged_weights`, `log_sum_exp`, and `gradients.NAME` for each needed one.
        traced: gives every intermediate of the reference.
    """

    parts: Mapping[str, Expected]
    traced: Callable[[], Trace]

    @cached_property
    def trace(self) -> Trace:
        """Every intermediate of the reference."""
        return self.traced()


def solve(
    problem: Problem,
    conventions: Conventions = Conventions(),
    kept: Floats | None = None,
    working: Precision | None = None,
    returned: Collection[str] = RETURNED,
) -> Solution:
    """Runs the reference on the problem's own numbers; bounds are for its dtype and the claimed softmax precision.

    Args:
        problem: the problem.
        conventions: the claimed answers where the field disagrees.
        kept: (B, H, Lq, Lk) factors of the weights under dropout: 0 for a dropped one, 1 / (1 - p) for others; Lk
            counts extra keys and the sink, as in a `Trace`.
        working: bounds are for this precision instead.
        returned: which parts to compute in addition to output and gradients.
    """
    working = working or precision(problem.dtype, conventions.softmax_precision, conventions.product_precision)
    apart = [problem] if kept is not None else blocks(problem)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        solved = partial(_solved, conventions=conventions, kept=kept, working=working, returned=returned)
        if len(apart) == 1:
            parts, along, trace = solved(problem)
            every, traced = [along], lambda: trace
        else:
            each, every = zip(*(solved(block)[:2] for block in apart), strict=True)
            parts, traced = _joined(each), partial(_traced, conventions, problem)
        values = {name: part.value for name, part in parts.items()}
        aligned = aligned_bounds(apart, every, values, working, partial(_traced, conventions))
        parts |= {name: replace(parts[name], aligned=several) for name, several in aligned.items()}
    return Solution(parts, traced)


def _solved(
    problem: Problem, conventions: Conventions, kept: Floats | None, working: Precision, returned: Collection[str]
) -> tuple[dict[str, Expected], Directions, Trace]:
    """The parts of a block, the directions of their aligned bounds, and its trace."""
    trace, step = Pipeline().run(problem, conventions, kept), None
    bounds = forward_bounds(problem, trace, working)
    parts = {"output": Expected(trace.output, bounds.output, _mean_of_values(problem, trace))}
    parts |= _returned(problem, trace, bounds, working, conventions, returned)
    if problem.cotangent is not None:
        step = backward(trace, cotangent_of_heads(problem))
        by_name = gradients(problem, trace, step)
        errors = gradient_bounds(problem, trace, step, bounds, working)
        none = bool(trace.seen.rows_answered(EmptyRow.NAN).any())
        for name, value in by_name.items():
            bound = np.where(np.isnan(value), np.inf, errors[name]) if none else errors[name]
            parts[f"gradients.{name}"] = Expected(value, bound)
    parts = _without_padded_tokens(problem, conventions, parts)
    values = {name: part.value for name, part in parts.items()}
    return parts, directions(problem, trace, step, bounds, values), trace


OF_TOKENS = {
    "output": np.s_[..., :, None],
    "weights": np.s_[..., None, :, None],
    "averaged_weights": np.s_[..., :, None],
    "log_sum_exp": np.s_[..., None, :],
}
"""Where a number for each token (B, L) stands in the parts of an answer."""


def _without_padded_tokens(
    problem: Problem, conventions: Conventions, parts: Mapping[str, Expected]
) -> dict[str, Expected]:
    """The parts, in which anything is right for padded tokens where it is claimed that these are unspecified.

    Padded are those that no query sees: under a length for each query some are hidden from a few alone.
    """
    padded = ~np.asarray(padding(problem).any((-3, -2)))  # (B, L)
    if conventions.padded_tokens is PaddedTokens.COMPUTED or problem.sharing is not Sharing.SELF or not padded.any():
        return dict(parts)
    opened: dict[str, Expected] = {}
    for name, part in parts.items():
        anything = padded.any() if name.startswith("gradients.") else padded[OF_TOKENS[name]]
        value, bound = np.where(anything, np.nan, part.value), np.where(anything, np.inf, part.bound)
        opened[name] = replace(part, value=value, bound=bound)
    return opened


def _joined(blocks: Sequence[Mapping[str, Expected]]) -> dict[str, Expected]:
    """The parts of a problem, of whose samples each block has some."""
    return {name: _joined_part([each[name] for each in blocks]) for name in blocks[0]}


def _joined_part(blocks: Sequence[Expected]) -> Expected:
    value, bound = (np.concatenate([getattr(each, name) for each in blocks]) for name in ("value", "bound"))
    decoys = [each.value if each.decoy is None else each.decoy for each in blocks]
    differing = any(each.decoy is not None for each in blocks)
    return Expected(value, bound, np.concatenate(decoys) if differing else None, ceiling=blocks[0].ceiling)


def _traced(conventions: Conventions, problem: Problem) -> Trace:
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        return Pipeline().run(problem, conventions)


def _returned(
    problem: Problem,
    trace: Trace,
    bounds: ForwardBounds,
    precision: Precision,
    conventions: Conventions,
    names: Collection[str],
) -> dict[str, Expected]:
    """Those that are named of weights, their mean over the heads, and the log-sum-exp, as the conventions have them."""
    parts: dict[str, Expected] = {}
    if "weights" in names or "averaged_weights" in names:
        weights = _weights(problem, trace, bounds, precision, conventions)
        parts["weights"] = weights
        if "averaged_weights" in names:
            parts["averaged_weights"] = _averaged(problem, trace, weights, precision)
    if "log_sum_exp" in names:
        parts["log_sum_exp"] = _log_sum_exp(trace, bounds, precision, conventions)
    return parts


def _weights(
    problem: Problem, trace: Trace, bounds: ForwardBounds, precision: Precision, conventions: Conventions
) -> Expected:
    columns = problem.key.shape[-2] + problem.extension.extra_keys
    weights, errors = trace.weights, bounds.weights
    if conventions.returned_weights is ReturnedWeights.AFTER_DROPOUT:
        weights, errors = trace.dropped, dropped_bound(trace, errors, precision)
    return Expected(weights[..., :columns], errors[..., :columns])


def _averaged(problem: Problem, trace: Trace, weights: Expected, precision: Precision) -> Expected:
    averaged, columns = weights.value.mean(-3), weights.value.shape[-1]
    over_heads = precision.before(averaged.ndim - 1)
    rounding = (over_heads.growth(problem.num_heads) + 2.0 * over_heads.storage) * averaged
    rounding = rounding + over_heads.floor * trace.seen.allowed[..., :columns].any(-3)
    return Expected(averaged, weights.bound.mean(-3) + rounding)


def _log_sum_exp(trace: Trace, bounds: ForwardBounds, precision: Precision, conventions: Conventions) -> Expected:
    lse, error = trace.log_sum_exp, bounds.log_sum_exp
    if conventions.log_sum_exp_base is LogBase.TWO:
        lse = lse / np.log(2.0)
        converted = 2.0 * precision.before(lse.ndim - 1).widest
        error = error / np.log(2.0) + converted * (np.abs(finite(lse)) + error / np.log(2.0))
    others = {LogOfNothing.PLUS_INFINITY: np.inf, LogOfNothing.NAN: np.nan}
    if conventions.log_of_nothing in others:
        lse = np.where(np.isneginf(trace.log_sum_exp), others[conventions.log_of_nothing], lse)
    return Expected(lse, error, ceiling=LEAST_LOG if conventions.log_of_nothing is LogOfNothing.LEAST else None)


def _mean_of_values(problem: Problem, trace: Trace) -> Floats | None:
    """The output with equal weights for all visible keys; None where that is the right answer.

    Of a stack, NaN stands for the problems where it is.
    """
    allowed = trace.seen.allowed
    unequal = (allowed & (trace.scores < trace.top)).any(EACH)
    differing = unequal & (trace.value != trace.value[..., :1, :]).any(EACH)
    if not differing.any():
        return None
    equal = allowed * (1.0 / np.maximum(allowed.sum(-1, keepdims=True), 1))
    heads = mix(equal if trace.kept is None else equal * trace.kept, trace.value)
    heads = gated(heads, trace.gates, trace.opened)
    output = heads if problem.scope is Scope.OP else Pipeline().project_out(problem.widened(), heads)
    differing = differing & (output != trace.output).any(EACH[-output.ndim :])  # equal where all weights are dropped
    if differing.all():
        return output
    return np.where(differing[..., *[None] * len(EACH)], output, np.nan) if differing.any() else None


def can_sample_rows(problem: Problem) -> bool:
    """Whether nothing but a causal flag depends on the positions of rows."""
    extension = problem.extension
    biased = extension.alibi or extension.relative_bias or extension.bucketed_bias
    placed = extension.query_starts or extension.windowed or extension.rotates or biased
    gated_rows = extension.output_gates is not OutputGates.NONE
    return not placed and not gated_rows and extension.packing is Packing.NONE


def sample_rows(problem: Problem, rows: Indices, conventions: Conventions = Conventions()) -> Problem:
    """The problem with only the given query rows, for long sequences: rows do not depend on one another.

    The causal flag is converted to an equal boolean mask, because it depends on the position of a row; a row
    that it leaves empty is then answered as one that a boolean mask has emptied.

    Raises:
        ValueError: the problem has an attention mask and the causal flag, of which only one can be sampled; or starts,
            window, rotations, biases or documents, for which the position of each row counts; or gates of the output.
    """
    mask, lengths = problem.attn_mask, problem.valid_lens
    if not can_sample_rows(problem):
        raise ValueError("rows cannot be sampled where more than the causal flag depends on positions")
    if problem.causal:
        if mask is not None:
            raise ValueError("rows cannot be sampled from a problem with both a causal flag and attn_mask")
        places = positions(problem, conventions)
        mask = places.key[:, None, None, :] <= places.query[:, None, rows, None]
        mask = mask[:1] if (mask == mask[:1]).all() else mask
    elif mask is not None and mask.shape[-2] != 1:
        mask = mask[..., rows, :]
    return replace(
        problem.forward_only(),
        query=problem.query[..., rows, :],
        attn_mask=mask,
        valid_lens=lengths[:, rows] if lengths is not None and lengths.ndim == 2 else lengths,
        causal=False,
        sharing=Sharing.KEY_VALUE if problem.sharing.value_is_key else Sharing.NONE,
    )
