"""An implementation on a workload, called on new inputs each time; some of its answers are kept to be checked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch

from attention_conformance.implementations.adapters.native import Native, native
from attention_conformance.implementations.adapters.tensors import to_tensor
from attention_conformance.implementations.api.contract import Implementation, Result
from attention_conformance.spec.cases import Case
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.benchmarks.floor import finish
from attention_conformance.tests.benchmarks.workloads import DRAWN, Timed, heavy, problem_for, shapes

SLACK = 2**16
"""Number of positions at which the inputs of a call may start, so that equal inputs of two calls are very unlikely."""
NUMBERS_EACH = 2**32
"""Call numbers that belong to one contender."""
KEPT_ANSWERS = 4
"""Answers of timed calls that are kept at random, in addition to the last."""


@dataclass(frozen=True, eq=False)
class InputsByNumber:
    """The inputs of each call by its number: pieces of one long array, so that one copy makes them."""

    shapes: Mapping[str, tuple[int, ...]]
    pool: Array

    @classmethod
    def of(cls, case: Case, dtype: str) -> InputsByNumber:
        """For the inputs and the cotangent of a case."""
        shapes_of_inputs = shapes(case)
        longest = max(prod(shape) for shape in shapes_of_inputs.values())
        return cls(shapes_of_inputs, heavy((longest + SLACK,), dtype, (1,)))

    def __call__(self, number: int) -> dict[str, Array]:
        """The arrays of one call, by the names of `DRAWN`; they share memory."""
        starts = np.random.default_rng((2, number)).integers(0, SLACK, len(DRAWN))
        return {
            name: self.pool[start : start + prod(self.shapes[name])].reshape(self.shapes[name])
            for name, start in zip(DRAWN, starts, strict=True)
        }


@dataclass(frozen=True, eq=False)
class KeptAnswer:
    """The answer of a timed call, in memory of its own, and the number of its inputs."""

    number: int
    result: Result


@dataclass(eq=False)
class Contender:
    """One implementation on one workload; the inputs differ from call to call.

    Attributes:
        case: as `suited` gives it.
        device: as torch spells it.
        inputs: the inputs of a call by its number.
        first: the first number of this contender's calls; no two contenders share a number.
        keeping: True while answers are kept.
        slots: calls with inputs in memory of their own; a block calls each of them once.
        chosen: answers that are kept at random.
        calls: number of calls so far.
        answered: number of answers from which `chosen` was drawn.
    """

    implementation: Implementation
    timed: Timed
    case: Case
    device: str
    inputs: InputsByNumber
    first: int
    keeping: bool = False
    problem: Problem = field(init=False)
    slots: list[Native] = field(default_factory=list)
    chosen: list[KeptAnswer] = field(default_factory=list)
    last: KeptAnswer | None = None
    calls: int = 0
    answered: int = 0

    def __post_init__(self) -> None:
        self.problem = problem_for(self.timed.workload, self.timed.dtype, self.timed.passes, self.first, self.case)
        self.random = np.random.default_rng(self.first)
        self.widen(1)

    def widen(self, count: int) -> None:
        """Adds slots up to this count, so that each call of a block has new inputs."""
        while len(self.slots) < count:
            problem = self.problem.with_arrays({n: a.copy() for n, a in self.problem.arrays().items() if n in DRAWN})
            self.slots.append(native(self.implementation, problem, self.device))

    @property
    def direct(self) -> bool:
        """True if the time contains no cost of the adapter."""
        return all(slot.direct for slot in self.slots)

    def block(self) -> float:
        """Seconds of one call: the mean over the slots, which are called one after another on new inputs."""
        numbers = [self._filled(slot) for slot in self.slots]
        bare, answers = [slot.bare for slot in self.slots], []
        with self.slots[0].around():
            finish(self.device)
            start = time.perf_counter()
            for call in bare:
                answers.append(call())
            finish(self.device)
            took = time.perf_counter() - start
        if self.keeping:
            self._keep(numbers, answers)
        return took / len(bare)

    def answer_to(self, changes: Mapping[str, Array]) -> Result:
        """The answer to the problem with some of its inputs replaced, not timed."""
        self._write(self.slots[0], changes)
        with self.slots[0].around():
            answer = self.slots[0].bare()
        return _copied(self.slots[0].result(answer))

    def problem_of(self, number: int) -> Problem:
        """The problem of the call with this number."""
        drawn, held = self.inputs(number), self.problem.arrays()
        return self.problem.with_arrays({name: array for name, array in drawn.items() if name in held})

    def untimed_problem(self) -> Problem:
        """A problem that no timed call has."""
        return self.problem_of(self.first + NUMBERS_EACH - 1)

    def answers(self) -> Iterator[KeptAnswer]:
        """The kept answers: the last, and some at random."""
        if self.last is not None:
            yield self.last
            yield from (each for each in self.chosen if each.number != self.last.number)

    def _filled(self, slot: Native) -> int:
        number = self.first + self.calls
        self._write(slot, self.inputs(number))
        self.calls += 1
        return number

    def _write(self, slot: Native, drawn: Mapping[str, Array]) -> None:
        for name in drawn.keys() & slot.inputs.keys():
            target = slot.inputs[name]
            if isinstance(target, torch.Tensor):
                with torch.no_grad():
                    target.copy_(to_tensor(drawn[name]))
            else:
                target[...] = drawn[name]

    def _keep(self, numbers: list[int], answers: list[object]) -> None:
        """Keeps the last answer; all answers have the same chance to be among the others."""
        which = int(self.random.integers(len(answers)))
        self.last = KeptAnswer(numbers[which], _copied(self.slots[which].result(answers[which])))
        self.answered += 1
        if len(self.chosen) < KEPT_ANSWERS:
            self.chosen.append(self.last)
        elif (position := int(self.random.integers(self.answered))) < KEPT_ANSWERS:
            self.chosen[position] = self.last


def _copied(result: Result) -> Result:
    """In memory of its own: the next call may overwrite the arrays that this one has returned."""
    gradients = {name: np.array(array) for name, array in result.gradients.items()}
    return Result(np.array(result.output), gradients=gradients)


def contenders(timed: Timed, device: str, entries: Mapping[str, tuple[Implementation, Case]]) -> dict[str, Contender]:
    """Contenders on one workload, by name; no two of them have an input in common."""
    drawn = {case: InputsByNumber.of(case, timed.dtype) for case in {case for _, case in entries.values()}}
    return {
        name: Contender(implementation, timed, case, device, drawn[case], first=count * NUMBERS_EACH)
        for count, (name, (implementation, case)) in enumerate(entries.items())
    }
