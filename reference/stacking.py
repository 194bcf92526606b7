"""Stacking: one case solved in several dtypes at once, because at its size NumPy takes longer to call than to compute.

The float arrays of the problems, which differ by their rounding alone, are put one upon the other along a first axis.
Whatever the reference does counts its axes from the last, and so the same code solves one problem or a stack.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.precision import precisions
from attention_conformance.reference.expected import RETURNED, Expected, solve
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions, NormDefault
from attention_conformance.spec.features import QkNorm
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, HALF, Array, Problem

LARGE = 4_000
"""Elements of (B, H, Lq, Lk) beyond which computing takes longer than calling."""


def stackable(case: Case, dtypes: Collection[str] = DTYPES) -> bool:
    """Whether it pays to solve the case in several dtypes at once.

    Where half types are all that there is, their aligned bounds count, which a stack of several does not have.
    """
    s, half = case.sizes, {*dtypes} <= {*HALF}
    return not half and s.batch * s.num_heads * s.query_length * s.key_length <= LARGE


@lru_cache(maxsize=4096)
def expected_answers(
    case: Case, dtypes: tuple[str, ...], conventions: Conventions, gradients: bool, returned: tuple[str, ...]
) -> Mapping[str, Mapping[str, Expected]]:
    """The answers to a case by dtype, shared by all implementations that claim the same conventions.

    Their traces are not kept: they take several times the memory.
    """
    problems = [build(case, dtype) for dtype in dtypes]
    if not gradients:
        problems = [problem.forward_only() for problem in problems]
    return dict(zip(dtypes, solve_each(problems, conventions, returned), strict=True))


def solve_each(
    problems: Sequence[Problem], conventions: Conventions, returned: Collection[str] = RETURNED
) -> list[Mapping[str, Expected]]:
    """The parts of the answer to each of the problems that a stackable case is in several dtypes; see `solve`."""
    if len(problems) == 1 or _depends_on_dtype(problems[0], conventions):
        return [solve(problem, conventions, returned=returned).parts for problem in problems]
    dtypes, claimed = tuple(problem.dtype for problem in problems), conventions
    working = precisions(dtypes, claimed.softmax_precision, claimed.product_precision)
    parts = solve(_stacked(problems), conventions, working=working, returned=returned).parts
    mask = problems[0].attn_mask
    shapes = {} if mask is None else {"gradients.attn_mask": mask.shape}
    return [{n: _nth(part, i, shapes.get(n)) for n, part in parts.items()} for i in range(len(problems))]


def _depends_on_dtype(problem: Problem, conventions: Conventions) -> bool:
    """Whether more than roundings differ: an epsilon is that of the dtype."""
    of_dtype = conventions.norm_default is NormDefault.SPACING and problem.extension.norm_epsilon is None
    return of_dtype and problem.extension.qk_norm is not QkNorm.NONE


def _stacked(problems: Sequence[Problem]) -> Problem:
    each = [problem.arrays() for problem in problems]
    floats = [name for name, array in each[0].items() if array.dtype.kind not in "bi"]
    return problems[0].with_arrays({n: np.stack([_placed(n, arrays[n]) for arrays in each]) for n in floats})


def _placed(name: str, array: Array) -> Floats:
    """In float64, with the axes that let it broadcast behind a first one.

    A mask has four, weight and bias of a projection as many as the rows that it projects, what each head has two.
    """
    axes = 4 if name == "attn_mask" else 3 if name.startswith(("w_", "b_")) else max(array.ndim, 2)
    return array.astype(np.float64).reshape(*[1] * (axes - array.ndim), *array.shape)


def _nth(part: Expected, number: int, shape: tuple[int, ...] | None) -> Expected:
    """The answer to one problem of the stack."""
    value, bound = part.value[number], part.bound[number]
    if shape is not None:
        value, bound = value.reshape(shape), bound.reshape(shape)
    decoy = None if part.decoy is None else part.decoy[number]
    return Expected(value, bound, None if decoy is None or np.isnan(decoy).all() else decoy, ceiling=part.ceiling)
