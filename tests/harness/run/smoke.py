"""Smoke: a few small problems before a run, which detect an adapter that passes its inputs in a wrong form."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from attention_conformance.implementations.api.contract import Implementation, PathError, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit_to_explain
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Sharing
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.comparison import compare, part_of
from attention_conformance.tests.harness.judge.judge import Judge

SQUARE = Case().sized(query_length=7, key_length=7, d_k=8, d_v=8)
"""As many queries as keys and all heads of one width, so that what is swapped raises no error."""
MASKS = (Case(mask=MaskKind.BOOL), Case(mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED, seed=1))
PADDINGS = (Case(padding=Padding.RIGHT), Case(padding=Padding.HOLES, seed=1))
LETTERS = {"output": ("B", "H", "Lq", "d"), "weights": ("B", "H", "Lq", "Lk")}


@dataclass(frozen=True)
class Mistake:
    """What an adapter does wrongly, in one line with its remedy, and options of the command under which it is right."""

    text: str
    options: tuple[str, ...] = ()


def smoke(implementation: Implementation, device: str) -> tuple[Mistake, ...]:
    """The mistakes of an adapter. Other wrong answers are left to the clauses."""
    dtypes = implementation.claims.dtypes
    return tuple(_mistakes(Judge(implementation, dtypes[0], device))) if dtypes else ()


def _mistakes(judge: Judge) -> Iterator[Mistake]:
    problem, result = _result_of(judge, Case())
    if problem is None or result is None:
        problem, result = _result_of(judge, SQUARE)
    if problem is None or result is None:
        return
    if not _right(judge, "output", result.output, problem):
        yield from map(Mistake, _of_output(judge, problem, result))
        return
    yield from map(Mistake, _of_weights(judge, problem, result))
    if judge.implementation.documented:
        return
    if _inverted(judge, MASKS, "attn_mask"):
        yield _read_otherwise(judge, "boolean mask")
    if _inverted(judge, PADDINGS, "key_padding_mask"):
        yield _read_otherwise(judge, "padding mask")


def _read_otherwise(judge: Judge, noun: str) -> Mistake:
    attend = judge.conventions.bool_mask is Polarity.MAY_ATTEND
    true, meant = ("hides", Polarity.MASKED_OUT) if attend else ("lets attend", Polarity.MAY_ATTEND)
    text = f"the {noun} is read the other way round (True {true}): add --convention bool-mask={meant} or invert it"
    return Mistake(f"adapter: {text}", ("--convention", f"bool-mask={meant}"))


def _result_of(judge: Judge, case: Case) -> tuple[Problem | None, Result | None]:
    fitted = fit_to_explain(case, judge.claims)
    if isinstance(fitted, Unsupported):
        return None, None
    problem = build(fitted, judge.dtype).forward_only()
    try:
        return problem, judge.run(problem)
    except (CandidateError, PathError):
        return problem, None


def _right(judge: Judge, part: str, got: Array | None, problem: Problem) -> bool:
    return _same(judge, part, got, solve(problem, judge.conventions).parts[part])


def _same(judge: Judge, part: str, got: Array | None, expected: Expected) -> bool:
    compared = compare(part, got, expected, judge.dtype)
    return not compared.message and not compared.inconclusive


def _of_output(judge: Judge, problem: Problem, result: Result) -> Iterator[str]:
    expected = solve(problem, judge.conventions).parts["output"]
    shape, axes = result.output.shape, _axes("output", expected.value.ndim)
    if rotated := _rotated(judge, "output", result.output, expected):
        yield f"adapter: the output comes as {rotated}: turn its axes to ({', '.join(axes)})"
    elif swapped := _swapped(judge):
        yield swapped
    elif shape != expected.value.shape:
        remedy = f"return it as ({', '.join(axes)})"
        yield f"adapter: the output has shape {shape}, expected {expected.value.shape}: {remedy}"


def _axes(part: str, rank: int) -> tuple[str, ...]:
    return LETTERS[part] if rank == 4 else ("B", "Lq", "width")


def _rotated(judge: Judge, part: str, got: Array, expected: Expected) -> str:
    """The order in which the axes of a right answer came; empty if it is not right in any."""
    rank = expected.value.ndim
    for order in permutations(range(rank)):
        other = order != tuple(range(rank)) and got.ndim == rank
        if other and _same(judge, part, np.transpose(got, np.argsort(order)), expected):
            return f"({', '.join(_axes(part, rank)[axis] for axis in order)})"
    return ""


def _swapped(judge: Judge) -> str:
    """What the adapter has swapped on the way in, if the answer is right but for that.

    Nothing is looked for where there are arrays besides the inputs, such as slopes, which are of so many heads.
    """
    problem, result = _result_of(judge, SQUARE)
    if problem is None or result is None or problem.extras:
        return ""
    for message, other, back in _possible_mistakes(problem):
        expected = solve(other, judge.conventions).parts["output"]
        rotated = Expected(back(expected.value), back(expected.bound))
        if _same(judge, "output", result.output, rotated):
            return message
    return ""


Turn = Callable[[Array], Array]


def _possible_mistakes(problem: Problem) -> Iterator[tuple[str, Problem, Turn]]:
    """A message, the problem that the implementation gets by this mistake, and how its answer is returned."""
    order = "pass query, key and value in the order that it takes them"
    for first, second in (("key", "value"), ("query", "key"), ("query", "value")):
        if swapped := _exchanged(problem, first, second):
            yield f"adapter: {first} and {second} are swapped: {order}", swapped, lambda array: array
    axes = (1, 2) if problem.scope is Scope.OP else (0, 1)
    given = problem.arrays()
    if len({x.shape[axes[1]] for name, x in given.items() if name in ("query", "key", "value")}) > 1:
        return  # where there is one query whatever the case has, exchanged axes make no problem
    inputs: dict[str, Array] = {n: given[n].swapaxes(*axes) for n in ("query", "key", "value") if n in given}
    rotated = problem.with_arrays(inputs)
    if problem.scope is Scope.OP:
        rotated = replace(rotated, num_heads=rotated.query.shape[1])
    read, wanted = ("(B, L, H, d)", "(B, H, L, d)") if problem.scope is Scope.OP else ("(L, B, width)", "(B, L, width)")
    remedy = f"turn axes {axes[0]} and {axes[1]} of the inputs and of the output"
    yield f"adapter: {wanted} is read as {read}: {remedy}", rotated, lambda array: array.swapaxes(*axes)


def _exchanged(problem: Problem, first: str, second: str) -> Problem | None:
    arrays: Mapping[str, Array] = problem.arrays()
    if problem.sharing is not Sharing.NONE or arrays[first].shape != arrays[second].shape:
        return None
    return problem.with_arrays({first: arrays[second], second: arrays[first]})


def _of_weights(judge: Judge, problem: Problem, result: Result) -> Iterator[str]:
    if Feature.WEIGHTS not in judge.claims or _right(judge, "weights", result.weights, problem):
        return
    got, parts = part_of(result, "weights"), solve(problem, judge.conventions).parts
    if got is None:
        yield "adapter: weights are claimed, but none are returned: return them, or claim none"
    elif _same(judge, "averaged_weights", got, parts["averaged_weights"]):
        yield "adapter: the weights are averaged over the heads: claim averaged-weights, or return those of each head"
    elif rotated := _rotated(judge, "weights", got, parts["weights"]):
        yield f"adapter: the weights come as {rotated}: turn their axes to ({', '.join(LETTERS['weights'])})"


def _inverted(judge: Judge, cases: tuple[Case, ...], name: str) -> bool:
    """Whether every answer to these masks is wrong, and right for the mask with True and False exchanged."""
    inverted = []
    for case in cases:
        problem, result = _result_of(judge, case)
        if problem is None or result is None:
            continue
        mask = problem.arrays()[name]
        other = problem.with_arrays({name: ~mask})
        right = _right(judge, "output", result.output, problem)
        inverted.append(not right and _right(judge, "output", result.output, other))
    return bool(inverted) and all(inverted)
