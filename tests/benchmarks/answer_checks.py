"""The answers of timed calls against the reference: a part of each, and all gradients of one more call.

A whole answer would take longer than the benchmark. Rows do not depend on one another, so a few rows of one sample, at
the op level of one group of heads, are checked exactly: of the output, and of the query's gradient, to which no other
row adds unless query and key are one input. What is checked is drawn at random after the calls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.worker.memory import output_shape
from attention_conformance.reference.bounds.precision import precision
from attention_conformance.reference.expected import Expected, sample_rows, solve
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.conventions import Conventions, GroupOrder
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.benchmarks.contenders import Contender, KeptAnswer
from attention_conformance.tests.harness.judge.comparison import compare

ROWS = 6
"""Number of queries for which an answer is checked."""
FEWEST = 2
"""Number of answers that are checked even after the time limit."""


@dataclass(frozen=True)
class AnswerCheck:
    """The result of checks.

    Attributes:
        worst: the largest error in units of its bound.
        elements: number of compared elements.
        message: the mistake; empty if all elements are within their bounds.
        about: what was checked, in words.
        inconclusive: parts of the answer that were not checked, because zeros would be within their bounds, too.
    """

    worst: float = 0.0
    elements: int = 0
    message: str = ""
    about: str = ""
    inconclusive: tuple[str, ...] = ()

    def joined(self, other: AnswerCheck) -> AnswerCheck:
        """Both results; the first message counts."""
        about = "; ".join(part for part in (self.about, other.about) if part)
        inconclusive = tuple(dict.fromkeys(self.inconclusive + other.inconclusive))
        elements, message = self.elements + other.elements, self.message or other.message
        return AnswerCheck(max(self.worst, other.worst), elements, message, about, inconclusive)

    def __str__(self) -> str:
        """The checks, and the parts that were not checked."""
        return f"{self.about}; bounds too wide for {', '.join(self.inconclusive)}" if self.inconclusive else self.about


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of one sample, at the op level of the heads of one key head."""

    sample: int
    group: int
    heads: NDArray[np.intp]
    rows: NDArray[np.intp]

    @classmethod
    def drawn(cls, problem: Problem, conventions: Conventions, random: np.random.Generator) -> Part:
        """A random part, always with the last row, which sees most keys under a causal flag."""
        length, groups = problem.query.shape[-2], problem.num_kv_heads
        group = int(random.integers(groups))
        heads = np.arange(problem.num_heads).reshape(groups, -1)[group]
        if conventions.group_order is not GroupOrder.CONSECUTIVE:
            heads = np.arange(problem.num_heads).reshape(-1, groups)[:, group]
        some = random.choice(length - 1, min(length - 1, ROWS - 1), replace=False)
        rows = np.sort(np.append(some, length - 1)).astype(np.intp)
        return cls(int(random.integers(len(problem.query))), group, heads, rows)

    def of_queries(self, array: Array, scope: Scope) -> Array:
        """The slice of an array shaped like query or output."""
        sample = array[self.sample : self.sample + 1]
        return (sample[:, self.heads] if scope is Scope.OP else sample)[..., self.rows, :]

    def of_keys(self, array: Array, scope: Scope) -> Array:
        """The slice of an array shaped like key or value."""
        sample = array[self.sample : self.sample + 1]
        return sample[:, self.group : self.group + 1] if scope is Scope.OP else sample

    def of_problem(self, problem: Problem, conventions: Conventions) -> Problem:
        """The problem of these rows alone, without gradients."""
        here, scope, mask = slice(self.sample, self.sample + 1), problem.scope, problem.attn_mask
        query = problem.query[here]
        heads = (len(problem.query), problem.num_heads, query.shape[-2], problem.key.shape[-2])
        cut = replace(
            problem.forward_only(),
            query=query[:, self.heads] if scope is Scope.OP else query,
            key=self.of_keys(problem.key, scope),
            value=self.of_keys(problem.value, scope),
            num_heads=len(self.heads) if scope is Scope.OP else problem.num_heads,
            attn_mask=None if mask is None else np.broadcast_to(mask, heads)[here, self.heads],
            key_padding_mask=None if problem.key_padding_mask is None else problem.key_padding_mask[here],
            valid_lens=None if problem.valid_lens is None else problem.valid_lens[here],
        )
        return sample_rows(cut.with_arrays({}), self.rows, conventions)

    def __str__(self) -> str:
        """The position in the problem, for messages with indices within the part."""
        return f"sample {self.sample}, key head {self.group}, queries {', '.join(map(str, self.rows))}"


def verified(contender: Contender, seconds: float = 1.0, gradients: bool = True) -> AnswerCheck:
    """Checks the kept answers of a contender's timed calls, and on request its gradients where they are timed.

    After these seconds no more answers than the first `FEWEST` are checked.
    """
    random = np.random.default_rng(contender.first + contender.calls)
    conventions, end = contender.implementation.claims.conventions, time.perf_counter() + seconds
    result, checked = AnswerCheck(), 0
    for kept in contender.answers():
        if checked >= FEWEST and time.perf_counter() > end:
            break
        result = result.joined(_rows(contender.problem_of(kept.number), kept, conventions, random, gradients))
        checked += 1
    rows, parts = min(ROWS, contender.problem.query.shape[-2]), "the output"
    if gradients and _by_rows(contender.problem):
        parts += " and of the query's gradient"
    result = replace(result, about=f"{rows} rows of {parts} of {checked} timed calls")
    if gradients and contender.problem.cotangent is not None and not result.message:
        result = result.joined(_gradients(contender, conventions, random))
    return result


def _by_rows(problem: Problem) -> bool:
    """True if a row of the query's gradient follows from that row of the cotangent alone."""
    return problem.cotangent is not None and "query" in problem.needs and problem.sharing is not Sharing.SELF


def _rows(
    problem: Problem, kept: KeptAnswer, conventions: Conventions, random: np.random.Generator, gradients: bool
) -> AnswerCheck:
    """Checks rows of a timed call's output, and of its query's gradient."""
    shape, expected_shape = kept.result.output.shape, output_shape(problem)
    if shape != expected_shape:
        return AnswerCheck(np.inf, message=f"output has shape {shape}, expected {expected_shape}")
    part, scope = Part.drawn(problem, conventions, random), problem.scope
    cut, arrays = part.of_problem(problem, conventions), {"output": kept.result.output}
    if gradients and _by_rows(problem):
        assert problem.cotangent is not None
        cut = replace(cut, cotangent=part.of_queries(problem.cotangent, scope), needs=("query",))
        if "query" not in kept.result.gradients:
            return AnswerCheck(np.inf, message="the gradient of query was not returned")
        arrays["gradients.query"] = kept.result.gradients["query"]
    expected, result = solve(cut, conventions, returned=()).parts, AnswerCheck()
    for name, array in arrays.items():
        compared = _compared(name, part.of_queries(array, scope), expected[name], problem.dtype, str(part))
        result = result.joined(compared)
    return result


def _compared(name: str, got: Array | None, expected: Expected, dtype: str, where: str) -> AnswerCheck:
    result = compare(name, got, expected, dtype)
    if result.inconclusive:
        return AnswerCheck(inconclusive=(name,))
    message = f"{result.message} (counted within {where})" if result.message else ""
    return AnswerCheck(result.worst, expected.value.size, message)


def _gradients(contender: Contender, conventions: Conventions, random: np.random.Generator) -> AnswerCheck:
    """Checks the gradients of an untimed call whose cotangent is zero outside one part, from which they follow."""
    problem = contender.untimed_problem()
    part = Part.drawn(problem, conventions, random)
    assert problem.cotangent is not None
    sparse = np.zeros_like(problem.cotangent)
    heads = (part.heads[:, None], part.rows) if problem.scope is Scope.OP else (part.rows,)
    sparse[(part.sample, *heads)] = problem.cotangent[(part.sample, *heads)]
    changed = problem.with_arrays({"cotangent": sparse})
    drawn = contender.inputs.shapes
    answer = contender.answer_to({name: array for name, array in changed.arrays().items() if name in drawn})
    result = AnswerCheck(about=f"gradients of one more call, from {len(part.rows)} rows")
    for name, expected in _expected(changed, part, conventions).items():
        got = answer.gradients.get(name)
        if got is None:
            return result.joined(AnswerCheck(np.inf, message=f"the gradient of {name} was not returned"))
        cut = _cut(part, name, got, problem)
        result = result.joined(_compared(f"gradients.{name}", cut, expected, problem.dtype, str(part)))
    return result


def _cut(part: Part, name: str, got: Array, problem: Problem) -> Array:
    if name in problem.parameters:
        return got
    whole = problem.scope is Scope.MODULE and problem.sharing is Sharing.SELF
    return part.of_queries(got, problem.scope) if name == "query" and not whole else part.of_keys(got, problem.scope)


def _expected(problem: Problem, part: Part, conventions: Conventions) -> Mapping[str, Expected]:
    """The gradients of the part's slices that follow from the part's cotangent."""
    assert problem.cotangent is not None
    cut, shared = part.of_problem(problem, conventions), problem.sharing is Sharing.SELF
    needs = tuple(dict.fromkeys(["query", *(["key"] if shared else []), *problem.needs]))
    with_cotangent = replace(cut, cotangent=part.of_queries(problem.cotangent, problem.scope), needs=needs)
    parts = solve(with_cotangent, conventions, returned=()).parts
    result = {name: parts[f"gradients.{name}"] for name in needs}
    if shared:
        result["query"] = _together(result["query"], result.pop("key"), part, problem.dtype)
    return result


def _together(query: Expected, key: Expected, part: Part, dtype: str) -> Expected:
    """The gradient of an input that is query and key: the sum, which is rounded once more."""
    value, bound = key.value.copy(), key.bound.copy()
    value[:, part.rows] += query.value
    bound[:, part.rows] += query.bound
    bound[:, part.rows] += precision(dtype).storage * np.abs(value[:, part.rows])
    return Expected(value, bound)
