"""Visibility: which keys each query may see, what is added to its scores, and who answers for an empty row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spec.features import Alignment, Conventions, EmptyRow
from spec.problems import Array, Problem

Booleans: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Visibility:
    """All masks of a problem in one.

    Attributes:
        allowed: (B, H, Lq, Lk), True = may attend.
        added: (B, H, Lq, Lk) finite float mask, or None.
        answers: (B, H, Lq) rows that see nothing, by the answer that the conventions claim for them.
    """

    allowed: Booleans
    added: NDArray[np.float64] | None
    answers: Mapping[EmptyRow, Booleans]

    def rows_answered(self, answer: EmptyRow) -> Booleans:
        """(B, H, Lq): the empty rows that get this answer."""
        return self.answers[answer]


def causal(query_length: int, key_length: int, alignment: Alignment, first_row: int = 0) -> Booleans:
    """(Lq, Lk): query i sees keys 0..i (top-left) or 0..i + Lk - Lq (bottom-right); chapter causal."""
    offset = key_length - query_length if alignment is Alignment.BOTTOM_RIGHT else 0
    rows = np.arange(first_row, first_row + query_length)
    return np.arange(key_length) <= rows[:, None] + offset


def visibility(problem: Problem, conventions: Conventions, first_row: int = 0) -> Visibility:
    """The union of attn_mask, padding, valid lengths and causal flag (chapters masks and causal).

    The answer for an empty row is that of the mask that emptied it: attn_mask first, then padding, then the flag.
    """
    batch = problem.query.shape[0]
    shape = (batch, problem.num_heads, problem.query.shape[-2], problem.key.shape[-2])
    masked, added = _attention_mask(problem, shape)
    padded = _padding(problem, shape)
    flagged = np.ones(shape, bool)
    if problem.causal:
        flagged &= causal(shape[2], shape[3], conventions.causal_alignment, first_row)
    allowed = masked & padded & flagged
    return Visibility(allowed, added, _answers(problem, conventions, masked, padded, allowed))


def _attention_mask(problem: Problem, shape: tuple[int, ...]) -> tuple[Booleans, NDArray[np.float64] | None]:
    given = problem.attn_mask
    if given is None:
        return np.ones(shape, bool), None
    if given.dtype.kind == "b":
        return np.broadcast_to(given.astype(bool), shape), None
    added = np.broadcast_to(given.astype(np.float64), shape)
    kept = added > -np.inf
    return kept, np.where(kept, added, 0.0)


def _padding(problem: Problem, shape: tuple[int, ...]) -> Booleans:
    real = np.ones(shape, bool)
    if problem.key_padding_mask is not None:
        real &= problem.key_padding_mask.astype(bool)[:, None, None, :]
    if problem.valid_lens is not None:
        real &= _leading(problem.valid_lens, shape[-1])
    return real


def _leading(lengths: Array, key_length: int) -> Booleans:
    counts = np.asarray(lengths, dtype=np.int64)
    counts = counts[:, None, None, None] if counts.ndim == 1 else counts[:, None, :, None]
    return np.arange(key_length) < counts


def _answers(
    problem: Problem, conventions: Conventions, masked: Booleans, padded: Booleans, allowed: Booleans
) -> dict[EmptyRow, Booleans]:
    boolean = problem.attn_mask is not None and problem.attn_mask.dtype.kind == "b"
    by_mask = conventions.empty_row_bool if boolean else conventions.empty_row_float
    empty = ~allowed.any(-1)
    from_mask = empty & ~masked.any(-1)
    from_padding = empty & ~from_mask & ~padded.any(-1)
    rest = empty & ~from_mask & ~from_padding
    by_flag = conventions.empty_row_causal if problem.causal else by_mask
    blamed = [(from_mask, by_mask), (from_padding, conventions.empty_row_padding), (rest, by_flag)]
    answers = {answer: np.zeros(empty.shape, bool) for answer in EmptyRow}
    for rows, answer in blamed:
        answers[answer] |= rows
    return answers


def allowed_keys(problem: Problem, conventions: Conventions) -> Booleans:
    """(B, H, Lq, Lk), True = may attend: what messages speak of."""
    return visibility(problem, conventions).allowed
