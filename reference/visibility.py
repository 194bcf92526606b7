"""Visibility: which keys each query may see, what is added to its scores, and who answers for an empty row."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attention_conformance.reference.arrays import Booleans, Floats
from attention_conformance.reference.positions import Positions, buckets, positions
from attention_conformance.spec.conventions import CausalWithMask, Conventions, EmptyRow
from attention_conformance.spec.problem import Array, Problem

EVERYTHING = np.ones((1, 1, 1, 1), bool)
Scalar = TypeVar("Scalar", np.bool_, np.float64)


@dataclass(frozen=True, eq=False)
class Added:
    """What is added to the scores.

    Attributes:
        total: (B, H, Lq, Lk), finite.
        size: the sum of the absolute values of its parts, in whatever form they may be added; twice that of products.
        parts: how many are added one after another.
        shift: (B, H, Lq, 1), so far may a form of them lift a whole row, which changes no weight.
    """

    total: Floats
    size: Floats
    parts: int
    shift: Floats


@dataclass(frozen=True, eq=False)
class Visibility:
    """All masks of a problem in one; Lk counts extra keys and the sink, which come last and are always visible.

    Attributes:
        allowed: (B, H, Lq, Lk), True = may attend.
        added: float mask, biases and sinks, or None.
        answers: (B, H, Lq) rows that see nothing, by the answer that the conventions claim for them.
        sunk: whether the last column is a sink.
    """

    allowed: Booleans
    added: Added | None
    answers: Mapping[EmptyRow, Booleans]
    sunk: bool = False

    def rows_answered(self, answer: EmptyRow) -> Booleans:
        """(B, H, Lq): the empty rows that get this answer."""
        return self.answers[answer]


def visibility(problem: Problem, conventions: Conventions, places: Positions | None = None) -> Visibility:
    """The union of attn_mask, padding, valid lengths, causal flag, window and documents, and all that is added.

    The answer for an empty row is that of what emptied it: the length of its sample's queries first, attn_mask, then
    padding, then what follows from positions: causal flag, window and documents.
    """
    shape = (problem.batch, problem.num_heads, problem.query.shape[-2], problem.key.shape[-2])
    problem, places = in_force(problem, conventions), places or positions(problem, conventions)
    masked, padded, placed = _kept(problem), padding(problem), _placed(problem, conventions, places)
    allowed = masked & padded & placed & _real_query(problem)
    allowed = np.broadcast_to(allowed, (*allowed.shape[:-4], *shape))
    answers = _answers(problem, conventions, masked, padded, allowed)
    return _extended(problem, Visibility(allowed, _added(problem, allowed, places), answers))


def in_force(problem: Problem, conventions: Conventions) -> Problem:
    """The problem without the mask whose place the causal flag takes, or without the flag, as claimed for both."""
    if not problem.causal or problem.attn_mask is None:
        return problem
    dropped: Mapping[CausalWithMask, dict[str, Any]] = {
        CausalWithMask.MASK_ALONE: {"causal": False},
        CausalWithMask.FLAG_ALONE: {"attn_mask": None},
    }
    change = dropped.get(conventions.causal_with_mask)
    return problem.but(**change) if change else problem


def _kept(problem: Problem) -> Booleans:
    """Broadcasts to (B, H, Lq, Lk)."""
    given = problem.attn_mask
    if given is None:
        return EVERYTHING
    return given.astype(bool) if given.dtype.kind == "b" else given.astype(np.float64) > -np.inf


def padding(problem: Problem) -> Booleans:
    """Which keys are real; broadcasts to (B, H, Lq, Lk)."""
    real = EVERYTHING
    if problem.key_padding_mask is not None:
        real = real & problem.key_padding_mask.astype(bool)[:, None, None, :]
    if problem.valid_lens is not None:
        real = real & _leading(problem.valid_lens, problem.key.shape[-2])
    return real


def _leading(lengths: Array, key_length: int) -> Booleans:
    counts = np.asarray(lengths, dtype=np.int64)
    counts = counts[:, None, None, None] if counts.ndim == 1 else counts[:, None, :, None]
    return np.arange(key_length) < counts


def _real_query(problem: Problem) -> Booleans:
    """Broadcasts to (B, H, Lq, Lk), True = a real query."""
    lengths = problem.extras.get("query_lens")
    if lengths is None:
        return EVERYTHING
    return np.asarray(np.arange(problem.query.shape[-2]) < lengths[:, None])[:, None, :, None]


def _placed(problem: Problem, conventions: Conventions, places: Positions) -> Booleans:
    """(B, 1, Lq, Lk): what causal flag, window and documents leave (chapters causal, window and packed)."""
    extension, seen = problem.extension, places.together
    if problem.causal:
        seen = seen & (places.ahead <= 0)
    if extension.window_left is not None:
        own = int(conventions.own_counted(problem.causal))
        seen = seen & (places.ahead >= own - extension.window_left)
    if extension.window_right is not None:
        seen = seen & (places.ahead <= extension.window_right)
    return seen[:, None]


def _added(problem: Problem, allowed: Booleans, places: Positions) -> Added | None:
    parts, shape, mask = [], allowed.shape, problem.attn_mask
    shift = np.zeros((*shape[:-1], 1))
    if mask is not None and mask.dtype.kind != "b":
        wide = mask.astype(np.float64)
        finite = np.where(wide > -np.inf, wide, 0.0)
        parts.append((finite, np.abs(finite)))
    if "alibi_slopes" in problem.extras:
        slopes = problem.extras["alibi_slopes"].astype(np.float64)[..., None, None]
        # Where no key after the query is seen, some add slope * key position, which lifts the row as a whole.
        behind = ~(allowed & (places.ahead > 0)[:, None]).any(-1, keepdims=True)
        shift = shift + np.where(behind, np.abs(slopes * places.query[:, None, :, None]), 0.0)
        farthest = np.where(behind, places.farthest[:, None], np.abs(places.ahead)[:, None])
        # A product before it is added, and so rounded twice as often as what is given.
        parts.append((-slopes * np.abs(places.ahead)[:, None], 2.0 * np.abs(slopes) * farthest))
    if "relative_bias" in problem.extras:
        table = problem.extras["relative_bias"].astype(np.float64)
        bias = np.moveaxis(table[..., places.clipped(problem.extension.relative_bias)], -4, -3)
        parts.append((bias, np.abs(bias)))
    if "bucketed_bias" in problem.extras:
        table = problem.extras["bucketed_bias"].astype(np.float64)
        bias = np.moveaxis(table[..., buckets(places, problem.extension), :], -1, -3)
        parts.append((bias, np.abs(bias)))
    if not parts:
        return None
    total, size = (sum(part) for part in zip(*parts, strict=True))
    shape = np.broadcast_shapes(shape, np.shape(total))
    total, size = np.broadcast_to(total, shape), np.broadcast_to(size, shape)
    return Added(total, size, len(parts), shift)


def _extended(problem: Problem, seen: Visibility) -> Visibility:
    """With columns for extra keys and the sink: visible to all, so that no row is empty."""
    sinks = problem.extras.get("sinks")
    columns = problem.extension.extra_keys + (sinks is not None)
    if not columns:
        return seen
    allowed = _with_columns(seen.allowed, columns, True)
    none = {answer: np.zeros_like(rows) for answer, rows in seen.answers.items()}
    if seen.added is None and sinks is None:
        return Visibility(allowed, None, none)
    zeros = np.zeros(seen.allowed.shape)
    added = seen.added or Added(zeros, zeros, 1, np.zeros((*allowed.shape[:-1], 1)))
    total, size = (_with_columns(each, columns, 0.0) for each in (added.total, added.size))
    if sinks is not None:
        given = sinks.astype(np.float64)[..., None]
        shape = np.broadcast_shapes(total.shape, (*given.shape, 1))
        total, size = (np.broadcast_to(each, shape).copy() for each in (total, size))
        total[..., -1] = given
        size[..., -1] = np.abs(total[..., -1])
    return Visibility(allowed, replace(added, total=total, size=size), none, sunk=sinks is not None)


def _with_columns(array: NDArray[Scalar], columns: int, filling: Scalar | float) -> NDArray[Scalar]:
    """The array with so many columns after its own."""
    return np.concatenate([array, np.full((*array.shape[:-1], columns), filling, array.dtype)], axis=-1)


def _answers(
    problem: Problem, conventions: Conventions, masked: Booleans, padded: Booleans, allowed: Booleans
) -> dict[EmptyRow, Booleans]:
    boolean = problem.attn_mask is not None and problem.attn_mask.dtype.kind == "b"
    by_mask = conventions.empty_row_bool if boolean else conventions.empty_row_float
    empty = np.asarray(~allowed.any(-1))
    if not empty.any():
        return dict.fromkeys(EmptyRow, empty)
    masked, padded, real = (np.broadcast_to(each, allowed.shape) for each in (masked, padded, _real_query(problem)))
    no_query = empty & ~real.any(-1)
    from_mask = empty & ~no_query & ~masked.any(-1)
    from_padding = empty & ~no_query & ~from_mask & ~padded.any(-1)
    rest = empty & ~no_query & ~from_mask & ~from_padding
    placed = problem.causal or problem.extension.windowed or _packed(problem)
    by_place = conventions.empty_row_causal if placed else by_mask
    blamed = [
        (no_query, conventions.padded_queries),
        *((from_mask, by_mask), (from_padding, conventions.empty_row_padding), (rest, by_place)),
    ]
    answers = {answer: np.zeros(empty.shape, bool) for answer in EmptyRow}
    for rows, answer in blamed:
        answers[answer] |= rows
    return answers


def _packed(problem: Problem) -> bool:
    return bool({"query_segments", "query_lengths"} & set(problem.extras))


def allowed_keys(problem: Problem, conventions: Conventions) -> Booleans:
    """(B, H, Lq, Lk), True = may attend, of the keys that are given: what messages speak of."""
    return visibility(problem, conventions).allowed[..., : problem.key.shape[-2]]
