"""Positions: where queries and keys stand, on which causal flag, window, biases and rotations depend."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attention_conformance.reference.arrays import Booleans, Integers
from attention_conformance.spec.conventions import Alignment, Conventions, PaddedPositions
from attention_conformance.spec.features import Extension, PositionIds
from attention_conformance.spec.problem import Problem


@dataclass(frozen=True, eq=False)
class Positions:
    """Where each query and key stands, in its own document where there are several.

    Attributes:
        query: (B, Lq).
        key: (B, Lk).
        query_document: (B, Lq) numbers of documents.
        key_document: (B, Lk).
    """

    query: Integers
    key: Integers
    query_document: Integers
    key_document: Integers

    @cached_property
    def together(self) -> Booleans:
        """(B, Lq, Lk), True = query and key are of one document."""
        return np.asarray(self.query_document[:, :, None] == self.key_document[:, None, :])

    @cached_property
    def ahead(self) -> Integers:
        """(B, Lq, Lk): so far each key stands after the query; negative before it."""
        return self.key[:, None, :] - self.query[:, :, None]

    @property
    def farthest(self) -> Integers:
        """(B, Lq, Lk): the largest of both positions and their distance."""
        either = np.maximum(np.abs(self.key)[:, None, :], np.abs(self.query)[:, :, None])
        return np.maximum(either, np.abs(self.ahead))

    def clipped(self, most: int) -> Integers:
        """(B, Lq, Lk): the entry of a table of relative biases for distances up to `most`."""
        return np.clip(self.ahead, -most, most) + most


def buckets(places: Positions, extension: Extension) -> Integers:
    """(B, Lq, Lk): the row of the table of biases for each distance (chapter bucketed-bias).

    Up to half of a side's buckets hold one distance each, the others grow by equal factors up to `max_distance`.
    """
    sides = 2 if extension.bidirectional else 1
    count, ahead = extension.bucketed_bias // sides, places.ahead
    distance = np.abs(ahead) if extension.bidirectional else np.maximum(-ahead, 0)
    exact = count // 2
    octaves = np.log(np.maximum(distance, exact) / exact) / np.log(extension.max_distance / exact)
    grown = np.minimum(exact + np.floor(octaves * (count - exact)), count - 1).astype(np.int64)
    after = count * (ahead > 0) if extension.bidirectional else 0
    return np.asarray(np.where(distance < exact, distance, grown) + after)


def positions(problem: Problem, conventions: Conventions) -> Positions:
    """Keys count from 0; queries from their start, or from where the claimed alignment puts the first one.

    With `padded-positions=skipped` that is where tokens are, and their positions are those among the real keys.
    """
    batch = problem.batch
    queries = _documents(problem, "query", batch, problem.query.shape[-2])
    keys = _documents(problem, "key", batch, problem.key.shape[-2])
    first: Integers | int = problem.extension.query_start or 0
    real, place = _real(problem), _within(keys)
    if problem.extension.query_starts:
        first = problem.extras["query_starts"].astype(np.int64)[:, None]
    elif problem.extension.query_start is None and conventions.causal_alignment is not Alignment.TOP_LEFT:
        length = _members(queries, keys)
        if real is not None and conventions.causal_alignment is Alignment.BOTTOM_RIGHT_REAL:
            same = queries[:, :, None] == keys[:, None, :]
            length = np.where(same & real[:, None, :], place[:, None, :] + 1, 0).max(-1, initial=0)
        first = length - _real_queries(problem, conventions, queries)
    of_query = _within(queries) + first
    if real is None or conventions.padded_positions is PaddedPositions.COUNTED:
        return Positions(of_query, place, queries, keys)
    of_key = _among_real(keys, place, keys, place, real)
    return Positions(_among_real(queries, of_query, keys, place, real), of_key, queries, keys)


def _real_queries(problem: Problem, conventions: Conventions, queries: Integers) -> Integers:
    """(B, L): how many queries the document of each has; of real ones alone, where real keys alone count."""
    lengths = problem.extras.get("query_lens")
    if lengths is None or conventions.causal_alignment is not Alignment.BOTTOM_RIGHT_REAL:
        return _members(queries, queries)
    return np.broadcast_to(lengths.astype(np.int64)[:, None], queries.shape)


def _real(problem: Problem) -> Booleans | None:
    """(B, Lk), True = no padding; None where there is no padding. Of lengths for each query the largest counts."""
    real = None if problem.key_padding_mask is None else problem.key_padding_mask.astype(bool)
    if problem.valid_lens is None:
        return real
    lengths = problem.valid_lens.reshape(problem.batch, -1).max(-1, initial=0)
    leading = np.asarray(np.arange(problem.key.shape[-2]) < lengths[:, None])
    return leading if real is None else leading & real


def _among_real(documents: Integers, at: Integers, keys: Integers, place: Integers, real: Booleans) -> Integers:
    """(B, L): where tokens that stand at these places of their documents stand if only real keys are counted.

    Beyond both ends of the keys each place counts.
    """
    same = documents[:, :, None] == keys[:, None, :]
    before = (same & real[:, None, :] & (place[:, None, :] <= at[:, :, None])).sum(-1)
    return np.asarray(before - 1 + np.minimum(at + 1, 0) + np.maximum(at + 1 - same.sum(-1), 0))


def rotated_at(problem: Problem, places: Positions) -> tuple[Integers, Integers]:
    """(B, Lq) and (B, Lk): the positions by which queries and keys are rotated: those given, or where they stand."""
    if problem.extension.position_ids is PositionIds.NONE:
        return places.query, places.key
    query, key = (problem.extras[f"{role}_positions"].astype(np.int64) for role in ("query", "key"))
    return np.broadcast_to(query, places.query.shape), np.broadcast_to(key, places.key.shape)


def _documents(problem: Problem, name: str, batch: int, length: int) -> Integers:
    """(B, L): the document that each token is part of."""
    if f"{name}_segments" in problem.extras:
        return problem.extras[f"{name}_segments"].astype(np.int64)
    if f"{name}_lengths" not in problem.extras:
        return np.zeros((batch, length), np.int64)
    lengths = problem.extras[f"{name}_lengths"]
    return np.broadcast_to(np.repeat(np.arange(len(lengths)), lengths.astype(np.int64)), (batch, length))


def _within(documents: Integers) -> Integers:
    """(B, L): how many tokens of the same document come before each."""
    if not documents.any():
        return np.broadcast_to(np.arange(documents.shape[1]), documents.shape)
    same = documents[:, :, None] == documents[:, None, :]
    return np.asarray(np.tril(same, -1).sum(-1))


def _members(documents: Integers, tokens: Integers) -> Integers:
    """(B, L): how many of the tokens, given by their documents, are of the document of each."""
    if not documents.any() and not tokens.any():
        return np.full(documents.shape, tokens.shape[1])
    return np.asarray((documents[:, :, None] == tokens[:, None, :]).sum(-1))
