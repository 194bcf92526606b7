"""Counting: the operations and bytes that the equations need for a problem, however it is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from attention_conformance.reference.positions import positions
from attention_conformance.reference.visibility import visibility
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.features import Conventions, Scope
from attention_conformance.spec.problem import Array, Problem

ROWS = 256
"""Queries whose keys are looked at together: all of a long sequence at once would not fit."""


@dataclass(frozen=True)
class Work:
    """What a call has to do.

    Attributes:
        operations: floating-point operations, a multiply-add as two; exponentials and sums are not counted.
        bytes: of inputs, parameters and results, each moved once; masks may have been digested beforehand.
    """

    operations: int
    bytes: int


@dataclass(frozen=True)
class Visible:
    """How much of a problem any query looks at.

    Attributes:
        pairs: of a query and a key that it sees, over all samples and heads.
        keys: that some query sees, over all samples.
    """

    pairs: int
    keys: int


def work(problem: Problem, conventions: Conventions = Conventions()) -> Work:
    """The least work that answers the problem: forward, and backward where it has a cotangent.

    Scores and weighted sum are counted for the pairs that masks leave, and the projections of keys and values for
    the keys that some query sees: skipping the rest is fair. A module may project the queries back to the width of
    the inputs instead of projecting all keys, which pays for a few queries: the cheaper of the two counts. The way back
    has two products for each one of the way forward; to compute the scores again is a choice, and not counted.
    """
    seen = visible(problem, conventions)
    forward = _op(problem, seen) if problem.scope is Scope.OP else _module(problem, seen)
    back = problem.cotangent is not None
    return Work(2 * forward * (3 if back else 1), _bytes(problem, seen, back))


def visible(problem: Problem, conventions: Conventions) -> Visible:
    """The pairs and keys that masks, causal flag, window and documents leave, of the keys that are given."""
    parts = [_seen(problem, conventions, slice(start, start + ROWS)) for start in range(0, _length(problem), ROWS)]
    met = np.any([keys for _, keys in parts], axis=0) if parts else np.zeros(0, bool)
    return Visible(sum(pairs for pairs, _ in parts), int(met.sum()))


def _seen(problem: Problem, conventions: Conventions, rows: slice) -> tuple[int, NDArray[np.bool_]]:
    """Of some queries: the pairs over all samples and heads, and (B, Lk) the keys that one of them sees."""
    places, lengths, mask = positions(problem, conventions), problem.valid_lens, problem.attn_mask
    part = replace(
        problem,
        query=problem.query[..., rows, :],
        valid_lens=lengths if lengths is None or lengths.ndim == 1 else lengths[:, rows],
        attn_mask=None if mask is None else _rows_of(mask, rows),
        num_heads=1 if mask is None or mask.ndim < 3 else max(1, mask.shape[-3]),
        extension=replace(problem.extension, zero_attn=False, bias_kv=False),
        extras={},
    )
    standing = replace(places, query=places.query[:, rows], query_document=places.query_document[:, rows])
    allowed = visibility(part, conventions, standing).allowed
    return int(allowed.sum()) * problem.num_heads // part.num_heads, np.asarray(allowed.any((1, 2)))


def _rows_of(mask: Array, rows: slice) -> Array:
    """The mask of some queries, where it tells them apart."""
    return mask[..., rows, :] if mask.ndim > 1 and mask.shape[-2] > 1 else mask


def _length(problem: Problem) -> int:
    return int(problem.query.shape[-2])


def _op(problem: Problem, seen: Visible) -> int:
    """Multiply-adds of the scores and the weighted sum."""
    return seen.pairs * int(problem.key.shape[-1] + problem.value.shape[-1])


def _module(problem: Problem, seen: Visible) -> int:
    """Multiply-adds with the projections: equation 15.1, or less where that is possible."""
    matrices, queries = problem.parameters, problem.query.shape[0] * _length(problem)
    count = queries * matrices["w_q"].size + (queries * matrices["w_o"].size if "w_o" in matrices else 0)
    for name in ("w_k", "w_v"):
        rows, columns = matrices[name].shape
        width = columns // problem.num_kv_heads
        projected = seen.keys * rows * columns + seen.pairs * width
        absorbed = queries * problem.num_heads * width * rows + seen.pairs * rows
        count += min(projected, absorbed)
    return int(count)


def _bytes(problem: Problem, seen: Visible, back: bool) -> int:
    inputs = [problem.query.nbytes]
    share = seen.keys / max(1, problem.key.shape[0] * problem.key.shape[-2])
    if problem.sharing is not Sharing.SELF:
        inputs.append(int(problem.key.nbytes * share))
    if problem.sharing is Sharing.NONE:
        inputs.append(int(problem.value.nbytes * share))
    inputs += [matrix.nbytes for matrix in problem.parameters.values()]
    result = prod(_output(problem)) * problem.query.itemsize
    # The way back reads the gradient of the output, and writes one as large as each input.
    return sum(inputs) * (2 if back else 1) + result * (2 if back else 1)


def result_bytes(problem: Problem) -> int:
    """Of the output, and of the gradients that are wanted, in the dtype of the inputs."""
    held = problem.arrays()
    wanted = problem.needs if problem.cotangent is not None else ()
    return prod(_output(problem)) * problem.query.itemsize + sum(held[name].nbytes for name in wanted)


def _output(problem: Problem) -> tuple[int, ...]:
    """The shape of the output."""
    if problem.scope is Scope.OP:
        return (*problem.query.shape[:-1], problem.value.shape[-1])
    matrices = problem.parameters
    width = matrices["w_o"].shape[1] if "w_o" in matrices else _mixed(problem)
    return (*problem.query.shape[:-1], width)


def _mixed(problem: Problem) -> int:
    """H * d_v."""
    return int(problem.parameters["w_v"].shape[1]) * problem.num_heads // problem.num_kv_heads
