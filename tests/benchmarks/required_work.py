"""The operations and bytes that the equations need for a problem, however it is computed."""

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.worker.memory import output_shape
from attention_conformance.reference.positions import positions
from attention_conformance.reference.visibility import visibility
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Problem

ROWS = 256
"""Number of queries whose masks are built together: those of a long sequence would not fit into memory."""


@dataclass(frozen=True)
class Work:
    """The work of a call.

    Attributes:
        operations: floating-point operations, a multiply-add as two; exponentials and sums are not counted.
        bytes: of inputs, parameters and results, each moved once; masks are not counted: they may be known before.
    """

    operations: int
    bytes: int


@dataclass(frozen=True)
class Visible:
    """How much of a problem the masks leave visible.

    Attributes:
        pairs: number of pairs of a query and a key that it sees, over all samples and heads.
        keys: number of keys that some query sees, over all samples.
    """

    pairs: int
    keys: int


def required_work(problem: Problem, conventions: Conventions = Conventions()) -> Work:
    """The least work that answers the problem: forward, and backward where it has a cotangent.

    Scores and weighted sum are counted for the visible pairs, and the projections of keys and values for the visible
    keys: an implementation may skip the rest. A module may project the queries back to the width of the inputs instead
    of projecting all keys, which is cheaper for few queries: the cheaper of the two counts. The backward pass has two
    products for each product of the forward pass; recomputing the scores is a choice, and not counted.
    """
    visible_part = visible(problem, conventions)
    of_op = visible_part.pairs * int(problem.key.shape[-1] + problem.value.shape[-1])  # of scores and weighted sum
    forward = of_op if problem.scope is Scope.OP else _module(problem, visible_part)
    backward = problem.cotangent is not None
    return Work(2 * forward * (3 if backward else 1), _bytes(problem, visible_part, backward))


def visible(problem: Problem, conventions: Conventions) -> Visible:
    """The pairs and keys that masks, causal flag, window and documents leave, of the given keys."""
    slices = (slice(start, start + ROWS) for start in range(0, _length(problem), ROWS))
    parts = [_pairs_and_keys(problem, conventions, rows) for rows in slices]
    visible_keys = np.any([keys for _, keys in parts], axis=0) if parts else np.zeros(0, bool)
    return Visible(sum(pairs for pairs, _ in parts), int(visible_keys.sum()))


def _pairs_and_keys(problem: Problem, conventions: Conventions, rows: slice) -> tuple[int, NDArray[np.bool_]]:
    """Of these queries: the pairs over all samples and heads, and (B, Lk), True for keys that one of them sees."""
    of_all, lengths, mask = positions(problem, conventions), problem.valid_lens, problem.attn_mask
    by_query = mask is not None and mask.ndim > 1 and mask.shape[-2] > 1
    part = replace(
        problem,
        query=problem.query[..., rows, :],
        valid_lens=lengths if lengths is None or lengths.ndim == 1 else lengths[:, rows],
        attn_mask=mask[..., rows, :] if mask is not None and by_query else mask,
        num_heads=1 if mask is None or mask.ndim < 3 else max(1, mask.shape[-3]),
        extension=replace(problem.extension, zero_attn=False, bias_kv=False),
        extras={},
    )
    of_rows = replace(of_all, query=of_all.query[:, rows], query_document=of_all.query_document[:, rows])
    allowed = visibility(part, conventions, of_rows).allowed
    return int(allowed.sum()) * problem.num_heads // part.num_heads, np.asarray(allowed.any((1, 2)))


def _length(problem: Problem) -> int:
    return int(problem.query.shape[-2])


def _module(problem: Problem, visible_part: Visible) -> int:
    """Multiply-adds with the projections: equation 15.1, or less where that is possible."""
    matrices, queries = problem.parameters, problem.query.shape[0] * _length(problem)
    count = queries * matrices["w_q"].size + (queries * matrices["w_o"].size if "w_o" in matrices else 0)
    for name in ("w_k", "w_v"):
        rows, columns = matrices[name].shape
        width = columns // problem.num_kv_heads
        projected = visible_part.keys * rows * columns + visible_part.pairs * width
        absorbed = queries * problem.num_heads * width * rows + visible_part.pairs * rows
        count += min(projected, absorbed)
    return int(count)


def _bytes(problem: Problem, visible_part: Visible, backward: bool) -> int:
    inputs = [problem.query.nbytes]
    share = visible_part.keys / max(1, problem.key.shape[0] * problem.key.shape[-2])
    if problem.sharing is not Sharing.SELF:
        inputs.append(int(problem.key.nbytes * share))
    if problem.sharing is Sharing.NONE:
        inputs.append(int(problem.value.nbytes * share))
    inputs += [matrix.nbytes for matrix in problem.parameters.values()]
    result = prod(output_shape(problem)) * problem.query.itemsize
    # The backward pass reads the gradient of the output, and writes a gradient as large as each input.
    return sum(inputs) * (2 if backward else 1) + result * (2 if backward else 1)
