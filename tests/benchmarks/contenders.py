"""Contenders: an implementation on a workload, called on new numbers each time, some of its answers kept to check."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch

from attention_conformance.implementations.adapters.native import Native, native
from attention_conformance.implementations.adapters.tensors import to_tensor
from attention_conformance.implementations.api.contract import Implementation, Result
from attention_conformance.spec.cases import Case
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.benchmarks.workloads import DRAWN, Timed, heavy, problem_for, shapes

SLACK = 2**16
"""Places at which the numbers of a call may start: two calls with equal inputs are not to be expected."""
SHARE = 2**32
"""So many numbers are each contender's own."""
KEPT = 4
"""Answers of timed calls that are kept at random, besides the last."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """Inputs by number: pieces of one long array that start anywhere, so that a copy makes them."""

    shapes: Mapping[str, tuple[int, ...]]
    held: Array

    @classmethod
    def of(cls, case: Case, dtype: str) -> Numbers:
        """For the inputs and the cotangent of a case."""
        wanted = shapes(case)
        longest = max(prod(shape) for shape in wanted.values())
        return cls(wanted, heavy((longest + SLACK,), dtype, (1,)))

    def __call__(self, number: int) -> dict[str, Array]:
        """The arrays of one call, by the names of `DRAWN`; they share their memory."""
        starts = np.random.default_rng((2, number)).integers(0, SLACK, len(DRAWN))
        return {
            name: self.held[start : start + prod(self.shapes[name])].reshape(self.shapes[name])
            for name, start in zip(DRAWN, starts, strict=True)
        }


@dataclass(frozen=True, eq=False)
class KeptAnswer:
    """The answer of a timed call, in memory of its own, and the number of its inputs."""

    number: int
    result: Result


@dataclass(eq=False)
class Contender:
    """One implementation, made ready for calls on inputs that differ from call to call.

    Attributes:
        implementation: who is asked.
        timed: what.
        case: as `suited` gives it.
        device: as torch spells it.
        numbers: where the inputs come from.
        first: of the numbers that this contender's calls have; no two contenders share any.
        keeping: whether answers are kept now.
    """

    implementation: Implementation
    timed: Timed
    case: Case
    device: str
    numbers: Numbers
    first: int
    keeping: bool = False
    problem: Problem = field(init=False)
    slots: list[Native] = field(default_factory=list)
    chosen: list[KeptAnswer] = field(default_factory=list)
    last: KeptAnswer | None = None
    calls: int = 0
    seen: int = 0

    def __post_init__(self) -> None:
        self.problem = problem_for(self.timed.workload, self.timed.dtype, self.timed.passes, self.first, self.case)
        self.random = np.random.default_rng(self.first)
        self.widen(1)

    def widen(self, count: int) -> None:
        """As many slots: inputs in memory of their own, so that a block of calls meets new numbers in each."""
        while len(self.slots) < count:
            problem = self.problem.with_arrays({n: a.copy() for n, a in self.problem.arrays().items() if n in DRAWN})
            self.slots.append(native(self.implementation, problem, self.device))

    @property
    def direct(self) -> bool:
        """Whether the time is that of the implementation alone."""
        return all(slot.direct for slot in self.slots)

    def block(self, round_number: int = 0) -> float:
        """Seconds of one call: the mean over the slots, which are called one after the other on new numbers."""
        numbers = [self._filled(slot) for slot in self.slots]
        bare, answers = [slot.bare for slot in self.slots], []
        with self.slots[0].around():
            self._finish()
            start = time.perf_counter()
            for call in bare:
                answers.append(call())
            self._finish()
            took = time.perf_counter() - start
        if self.keeping:
            self._keep(numbers, answers)
        return took / len(bare)

    def asked(self, changes: Mapping[str, Array]) -> Result:
        """The answer to the problem with some numbers of its inputs, not timed."""
        self._write(self.slots[0], changes)
        with self.slots[0].around():
            answer = self.slots[0].bare()
        return _copied(self.slots[0].result(answer))

    def problem_of(self, number: int) -> Problem:
        """The problem that the call with this number was asked."""
        drawn, held = self.numbers(number), self.problem.arrays()
        return self.problem.with_arrays({name: array for name, array in drawn.items() if name in held})

    def beside(self) -> Problem:
        """A problem that no timed call is asked."""
        return self.problem_of(self.first + SHARE - 1)

    def answers(self) -> Iterator[KeptAnswer]:
        """The answers that were kept: the last, and some at random."""
        if self.last is not None:
            yield self.last
            yield from (each for each in self.chosen if each.number != self.last.number)

    def _filled(self, slot: Native) -> int:
        number = self.first + self.calls
        self._write(slot, self.numbers(number))
        self.calls += 1
        return number

    def _write(self, slot: Native, drawn: Mapping[str, Array]) -> None:
        for name in drawn.keys() & slot.inputs.keys():
            _fill(slot.inputs[name], drawn[name])

    def _keep(self, numbers: list[int], answers: list[object]) -> None:
        """The last, and each with the same chance to be among the others."""
        which = int(self.random.integers(len(answers)))
        self.last = KeptAnswer(numbers[which], _copied(self.slots[which].result(answers[which])))
        self.seen += 1
        if len(self.chosen) < KEPT:
            self.chosen.append(self.last)
        elif (place := int(self.random.integers(self.seen))) < KEPT:
            self.chosen[place] = self.last

    def _finish(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)


def _fill(target: Any, numbers: Array) -> None:
    if isinstance(target, torch.Tensor):
        with torch.no_grad():
            target.copy_(to_tensor(numbers))
    else:
        target[...] = numbers


def _copied(result: Result) -> Result:
    """In memory of its own: the next call may write into what this one has handed out."""
    gradients = {name: np.array(array) for name, array in result.gradients.items()}
    return Result(np.array(result.output), gradients=gradients)


def contenders(timed: Timed, device: str, entrants: Mapping[str, tuple[Implementation, Case]]) -> dict[str, Contender]:
    """Contenders on one workload, by name, with inputs that no two of them share."""
    made: dict[str, Contender] = {}
    drawn = {case: Numbers.of(case, timed.dtype) for case in {case for _, case in entrants.values()}}
    for count, (name, (implementation, case)) in enumerate(entrants.items()):
        made[name] = Contender(implementation, timed, case, device, drawn[case], first=count * SHARE)
    return made
