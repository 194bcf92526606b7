"""Wholes: in which relation a module fails with all of its parts in place, where no equation says what is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attention_conformance.implementations.adapters.op_options import INPUTS
from attention_conformance.implementations.api.contract import Implementation, Result
from attention_conformance.implementations.api.safe_call import answer
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.masks import Booleans
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis, FailingCheck
from attention_conformance.tests.harness.explain.diagnosis.kept import of_first_call
from attention_conformance.tests.harness.explain.diagnosis.observation import answered
from attention_conformance.tests.harness.judge.relations import changed

AS_BUILT = "modules.as-built"
WIDE = "float64"
PREPOSITIONS = ("in ", "after ", "with ")
ROUNDINGS = 1e-6
"""Of the largest number of an output: who moves a row by less does not reach it."""
LATER, LOST = "tokens are seen that are not seen otherwise", "tokens are not seen"
COUNT_PAST = "Count the tokens of earlier pieces where later ones are hidden."
JOIN_PAST = "Let a piece see all that was kept of earlier ones, as far as a window allows."


@dataclass(frozen=True)
class Differing:
    """A relation that does not hold.

    Attributes:
        path: which of the other outputs, from the outermost on.
        rows: (B, L), where its rows are not those of the output.
    """

    path: tuple[str, ...]
    rows: Booleans


@dataclass(frozen=True)
class Whole:
    """A module with all of its parts, which is called with problems."""

    implementation: Implementation
    device: str

    def called(self, problem: Problem) -> Result | None:
        """Its output, and those that have to be the same; None where it raises."""
        run = self.implementation.modes[Feature.AS_BUILT]
        return answered(lambda: answer(run, problem.fresh(), self.device))[0]

    def differing(self, problem: Problem) -> list[Differing]:
        """The relations that do not hold for a problem, by more than coarser inputs change."""
        coarse = changed(problem, **dict.fromkeys(INPUTS, lambda array: array.astype(np.float16)))
        results = self.called(problem), self.called(coarse)
        return [] if None in results else [*_differing((), *results)]  # type: ignore[arg-type]

    def seen(self, problem: Problem, path: tuple[str, ...]) -> Booleans | None:
        """(L, L), True = the row of the first token depends on the second one, in the output at the end of a path."""
        whole = _at(self.called(problem), path)
        if whole is None:
            return None
        columns = []
        for token in range(problem.query.shape[1]):
            moved = _at(self.called(_moved(problem, token)), path)
            if moved is None:
                return None
            columns.append(np.abs(moved - whole).max((0, 2)) > ROUNDINGS * np.abs(whole).max())
        return np.stack(columns, -1)


def of_whole(implementation: Implementation, checks: Sequence[FailingCheck], device: str) -> Diagnosis | None:
    """Which relation a module fails, in which tokens or samples, and by what it sees."""
    check = next((each for each in checks if each.clause == AS_BUILT), None)
    if check is None or Feature.AS_BUILT not in implementation.modes:
        return None
    whole, problem = Whole(implementation, device), build(check.case, WIDE).forward_only()
    found = whole.differing(problem)
    if not found:
        return None
    first = min(found, key=lambda each: len(each.path))
    if _keeps(whole, problem, first):
        return of_first_call("keys and values", 1)
    how = ", ".join(first.path)
    how = how if how.startswith(PREPOSITIONS) else f"with {how}"
    later = _later(whole, problem, first) if check.case.causal else ""
    when = (how + later, *_where(first.rows))
    if not later and (named := _seen_otherwise(whole, problem, first)):
        return replace(named, when=when)
    return Diagnosis("", 0, len(checks), when=when)


def _differing(path: tuple[str, ...], result: Result, coarse: Result) -> Iterator[Differing]:
    moved = float(np.abs(result.output - coarse.output).max(initial=0.0))
    for how, other in result.others.items():
        own = (*path, how)
        if other.others and how in coarse.others:
            yield from _differing(own, other, coarse.others[how])
        elif other.output.shape == result.output.shape and result.output.ndim == 3:
            rows = ~(np.abs(other.output - result.output) <= moved).all(-1)
            if rows.any():
                yield Differing(own, rows)


def _at(result: Result | None, path: tuple[str, ...]) -> Array | None:
    """The output at the end of a path, as far as there is one."""
    for how in path:
        result = None if result is None else result.others.get(how)
    return None if result is None else result.output


def _moved(problem: Problem, token: int) -> Problem:
    """The problem with another token there, which no norm makes the same."""

    def move(array: Array) -> Array:
        array[:, token] = 1.5 * array[:, token, ::-1] + np.linspace(-1.0, 2.0, array.shape[-1])
        return array

    return changed(problem, **dict.fromkeys(INPUTS, move))


def _keeps(whole: Whole, problem: Problem, found: Differing) -> bool:
    """Whether all samples but the first are wrong alone, and right where all have the keys and values of the first."""
    samples: Booleans = np.asarray(found.rows.any(-1))
    if samples[0] or not samples[1:].all() or problem.sharing is Sharing.SELF:
        return False

    def first(array: Array) -> Array:
        return np.broadcast_to(array[:1], array.shape)

    alike = changed(problem, key=first, value=first)
    return not any(each.path == found.path for each in whole.differing(alike))


def _where(rows: Booleans) -> Iterator[str]:
    """Such as "in tokens from 3 on (counted from 0)"."""
    for axis, noun in ((0, "tokens"), (1, "samples")):
        wrong = np.flatnonzero(rows.any(axis))
        if wrong[0] > 0:
            yield f"in {noun} from {wrong[0]} on (counted from 0)"


def _later(whole: Whole, problem: Problem, found: Differing) -> str:
    """Where no token may depend on a later one: which one does."""
    seen = whole.seen(problem, found.path[:-1])
    if seen is None or not np.triu(seen, 1).any():
        return ""
    return ", as token {} depends on token {}".format(*np.argwhere(np.triu(seen, 1))[0])


def _seen_otherwise(whole: Whole, problem: Problem, found: Differing) -> Diagnosis | None:
    """What a module sees where a relation fails, and not as a whole, or the other way."""
    pieces, own = whole.seen(problem, found.path), whole.seen(problem, found.path[:-1])
    if pieces is None or own is None:
        return None
    for name, repair, wrong in ((LATER, COUNT_PAST, pieces & ~own), (LOST, JOIN_PAST, own & ~pieces)):
        if wrong.any():
            row, token = (int(each) for each in np.argwhere(wrong)[0])
            seen = f"{name}: token {row} {'sees' if name is LATER else 'does not see'} token {token}"
            return Diagnosis(seen, 1, 1, repair=repair)
    return None
