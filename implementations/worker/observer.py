"""What a call does to the process that it runs in: state, memory, arrays of other calls."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from attention_conformance.implementations.adapters.native import Native, native
from attention_conformance.implementations.api.contract import Implementation, Result
from attention_conformance.implementations.api.global_state import global_state, kept_global_state, random_states_from
from attention_conformance.implementations.api.process_state import warning_filters
from attention_conformance.implementations.api.safe_call import answer, restored
from attention_conformance.implementations.worker import memory
from attention_conformance.implementations.worker.interruption import interrupted
from attention_conformance.spec.problem import Problem

RANDOM = "random state"
"""How the names of random states begin; these differ at every look, the other states do not."""

LATER, AGAIN = "the later call", "a second backward pass"
"""The other answers of `in_turn` and `at_once`."""
MEMORY = ("peak", "left_behind")
"""The observations of memory."""
GOING_ON = 0.3
"""Seconds for which threads that go on after their call are waited for."""


class Observer(Protocol):
    """The observations that clauses make, in the process of the candidate.

    Each of them raises `CandidateError` where the candidate has no usable answer.
    """

    def lacks(self, request: str, device: str) -> str:
        """Why an observation, by the name of its request, cannot be made there; empty if it can."""
        ...

    def changed_state(self, problem: Problem, device: str, seed: int) -> tuple[Result, tuple[str, ...]]:
        """The answer, with every generator started at a seed, and the global states that the call has changed."""
        ...

    def seeded(self, seed: int) -> AbstractContextManager[None]:
        """Calls within it start with every generator at a seed."""
        ...

    def overwritten(self, problem: Problem, later: Sequence[Problem], device: str) -> tuple[bool, tuple[str, ...]]:
        """Whether later calls wrote into the output of the first, and the inputs whose memory that output shares."""
        ...

    def in_turn(self, problem: Problem, later: Problem, device: str) -> Result | None:
        """The answer whose backward pass comes after the forward pass of a later call; None where that cannot be done.

        `others` has that of the later call, and that of a second backward pass unless it is refused.
        """
        ...

    def at_once(self, problem: Problem, later: Problem, device: str) -> Result:
        """The answer to a problem while another thread answers a later one; `others` has that one's answer."""
        ...

    def peak(self, problem: Problem, device: str, results: int) -> int | None:
        """The peak of one native call; see `memory.peak`."""
        ...

    def left_behind(self, problem: Problem, device: str, times: int, suspicious: int) -> int | None:
        """The bytes that native calls leave behind; see `memory.left_behind`."""
        ...

    def ended(self) -> str | None:
        """How the process died once it got no more calls; empty if it did not, None where it is that of the judge."""
        ...


@dataclass(frozen=True)
class LocalObserver:
    """Observations in this process.

    Attributes:
        before: the global state before the implementation was first called, where that is known.
    """

    implementation: Implementation
    before: dict[str, object] = field(default_factory=dict)

    def lacks(self, request: str, device: str) -> str:
        return memory.absent() if request in MEMORY and not device.startswith("cuda") else ""

    def changed_state(self, problem: Problem, device: str, seed: int) -> tuple[Result, tuple[str, ...]]:
        # A candidate that seeds a generator by a number of its own must not find it as it would leave it.
        with kept_global_state(), random_states_from(seed):
            before = global_state()
            result, filters = self._watched(problem, device)
            after = global_state()
            if filters:
                # An import that waited for its first use adds filters, too, but only once.
                _, filters = self._watched(problem, device)
        before |= {name: state for name, state in self.before.items() if not name.startswith(RANDOM)}
        changed = (name for name in before if before[name] != after[name] or name in result.disturbed)
        return result, (*changed, *(["warning filters"] if filters else []))

    def _watched(self, problem: Problem, device: str) -> tuple[Result, bool]:
        """The answer, and whether the call has changed the warning filters, which are put back after each call."""
        filters: list[tuple[object, ...]] = []

        def run(given: Problem, where: str) -> Result:
            filters.append(warning_filters())
            result = self.implementation.run(given, where)
            filters.append(warning_filters())
            return result

        result = answer(run, problem.fresh(), device)
        return result, filters[0] != filters[-1]

    def seeded(self, seed: int) -> AbstractContextManager[None]:
        return random_states_from(seed)

    def overwritten(self, problem: Problem, later: Sequence[Problem], device: str) -> tuple[bool, tuple[str, ...]]:
        with kept_global_state():
            known = set(threading.enumerate())
            output = answer(self.implementation.run, problem, device).output
            copy = output.tobytes()
            for each in later:
                answer(self.implementation.run, each.fresh(), device)
            _wait_for(thread for thread in threading.enumerate() if thread not in known)
        shared = (name for name, array in problem.arrays().items() if np.shares_memory(array, output))
        return output.tobytes() != copy, tuple(shared)

    def in_turn(self, problem: Problem, later: Problem, device: str) -> Result | None:
        calls = [native(self.implementation, each.fresh(), device) for each in (problem, later)]
        return restored(lambda: _in_turn(*calls))

    def at_once(self, problem: Problem, later: Problem, device: str) -> Result:
        def run(given: Problem, where: str) -> Result:
            own, other = interrupted(
                lambda: self.implementation.run(given, where), lambda: self.implementation.run(later.fresh(), where)
            )
            return replace(own, others={LATER: other})

        with kept_global_state():
            return answer(run, problem.fresh(), device)

    def peak(self, problem: Problem, device: str, results: int) -> int | None:
        made = self._native(problem, device)

        def measured() -> int | None:
            call = made()
            if "jax" in sys.modules:
                call()  # which compiles for this shape
            return memory.peak(call, device, results).of_device

        return restored(measured)

    def left_behind(self, problem: Problem, device: str, times: int, suspicious: int) -> int | None:
        call = self._native(problem, device)
        return restored(lambda: memory.left_behind(call(), times, suspicious, device))

    def ended(self) -> None:
        return None

    def _native(self, problem: Problem, device: str) -> Callable[[], Callable[[], object]]:
        return lambda: native(self.implementation, problem.fresh(), device).call


def _wait_for(threads: Iterable[threading.Thread]) -> None:
    """Waits for threads that calls have left running: they may write into what was returned."""
    end = time.monotonic() + GOING_ON
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def _in_turn(first: Native, later: Native) -> Result | None:
    """Two forward passes, the two backward passes in the same order, and the first one once more."""
    if first.passes is None or later.passes is None:
        return None
    (forward, backward), (forward_later, backward_later) = first.passes, later.passes
    with first.around():
        answer, answer_later = forward(), forward_later()
        gradients, gradients_later = backward(answer), backward_later(answer_later)
        others = {LATER: later.result((answer_later, gradients_later))}
        result = first.result((answer, [None if g is None else g.clone() for g in gradients]))
        with suppress(Exception):  # what a graph has stored may be freed, in whatever way, but must not be wrong
            others[AGAIN] = first.result((answer, backward(answer)))
    return replace(result, others=others)
