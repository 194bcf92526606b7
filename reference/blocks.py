"""Blocks: samples of a large problem that are solved one after another, in memory that the processor has at hand."""

from attention_conformance.spec.features import NOTHING, Scope
from attention_conformance.spec.problem import Problem

BLOCK = 100_000
"""Scores of a block, but for a sample that has more: beyond it most of the time goes into fetching and storing them."""


def blocks(problem: Problem) -> list[Problem]:
    """The problem in parts of some samples each; as a whole where it is small, or where samples share anything."""
    samples = max(1, BLOCK * problem.batch // max(1, _scores(problem)))
    if problem.batch <= samples or not _independent(problem):
        return [problem]
    return [_samples(problem, slice(start, start + samples)) for start in range(0, problem.batch, samples)]


def _scores(problem: Problem) -> int:
    return problem.batch * problem.num_heads * int(problem.query.shape[-2]) * int(problem.key.shape[-2])


def _independent(problem: Problem) -> bool:
    """Whether each array has a row for each sample, or is the same for all and has no gradient."""
    core = problem.scope is Scope.OP and problem.extension == NOTHING and not problem.extras
    return core and ("attn_mask" not in problem.needs or _by_sample(problem, "attn_mask"))


def _by_sample(problem: Problem, name: str) -> bool:
    """Whether the first axis of an array is that of the samples: a mask may have fewer axes, or be the same for all."""
    mask = problem.attn_mask
    return name != "attn_mask" or (mask is not None and mask.ndim == 4 and mask.shape[0] == problem.batch)


def _samples(problem: Problem, some: slice) -> Problem:
    arrays = problem.arrays().items()
    return problem.with_arrays({name: array[some] for name, array in arrays if _by_sample(problem, name)})
