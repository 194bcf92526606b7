"""Scoring: in which of the observed cases a hypothesis answers as the candidate does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.fitting import required
from attention_conformance.implementations.api.safe_call import guarded, restored
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.explain.diagnosis.causes import Hypothesis
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, answered
from attention_conformance.tests.harness.judge.comparison import error_ratios, part_of

T = TypeVar("T")


@dataclass(frozen=True)
class Score:
    """How a hypothesis does.

    Attributes:
        explained: the failing cases in which its answers are the candidate's.
        agreeing: the passing ones.
        contradicting: the passing ones in which it would have failed; and those in which it answers otherwise by a
            convention of its own, if that convention is part of what it explains.
        error: the largest difference from the candidate's answers, where it explains.
    """

    hypothesis: Hypothesis
    explained: tuple[Observation, ...]
    agreeing: tuple[Observation, ...] = ()
    contradicting: tuple[Observation, ...] = field(default=())
    error: float = 0.0

    @property
    def rank(self) -> tuple[float, ...]:
        return -len(self.explained) - len(self.agreeing), len(self.contradicting), self.hypothesis.rank, self.error


def scored(
    hypothesis: Hypothesis, failing: Sequence[Observation], passing: Sequence[Observation], claimed: Conventions
) -> Score:
    """How a hypothesis does in these cases."""
    distances = [(each, _once(_distance, hypothesis, each, claimed)) for each in failing]
    agree = [(each, _once(_agrees, hypothesis, each, claimed)) for each in passing]
    explained = [(each, distance) for each, distance in distances if distance <= 1.0]
    against = [each for each, agrees in agree if agrees is False]
    silent = [each for each, agrees in agree if agrees is None]
    if silent and any(_once(_otherwise, hypothesis, each, claimed) for each, _ in explained):
        against += [each for each in silent if _once(_otherwise, hypothesis, each, claimed)]
    return Score(
        hypothesis,
        tuple(each for each, _ in explained),
        tuple(each for each, agrees in agree if agrees),
        tuple(against),
        max((distance for _, distance in explained), default=0.0),
    )


def _once(
    find: Callable[[Hypothesis, Observation, Conventions], T],
    hypothesis: Hypothesis,
    each: Observation,
    claimed: Conventions,
) -> T:
    """What is found for a hypothesis in a case, which is kept there: a diagnosis needs it several times."""
    key = find.__name__, id(hypothesis)
    if key not in each.found:
        each.found[key] = hypothesis, find(hypothesis, each, claimed)  # the hypothesis keeps its id as long
    found: T = each.found[key][1]
    return found


def _distance(hypothesis: Hypothesis, each: Observation, claimed: Conventions) -> float:
    """Of its answer from the candidate's, in units of what would count as the same; infinite if it explains nothing."""
    if not (can_answer(hypothesis, each) and hypothesis.affects(each.problem)):
        return math.inf
    for other, raised in _answered(hypothesis, each.problem):
        distance = each.distance(other, raised)
        if distance <= 1.0:
            right = other and _right_by_its_own(hypothesis, each, other, claimed, each.parts)
            return math.inf if right else distance
    return math.inf


def can_answer(hypothesis: Hypothesis, each: Observation) -> bool:
    """Whether it can answer a case: with conventions of its own, a defect is but wrong where it claims nothing."""
    if hypothesis.defect is not None:
        claims = hypothesis.defect.implementation.claims
        unclaimed = {*required(each.case)} - claims.features - {Feature.VIEWS}
        if unclaimed and claims.conventions != Conventions():
            return False
    return hypothesis.applies_to(each.problem)


def _answered(hypothesis: Hypothesis, problem: Problem) -> Iterator[tuple[Result | None, str]]:
    """Its answers, or the exception; edits are arithmetic of our own, and leave the state of the process alone."""
    answers = hypothesis.answers(problem)
    yield answered(lambda: next(answers), guarded if hypothesis.edit is not None else restored)
    yield from ((other, "") for other in answers)


def _agrees(hypothesis: Hypothesis, each: Observation, claimed: Conventions) -> bool | None:
    """Whether it is right where the candidate is; None where it has no answer, or another right one."""
    if not can_answer(hypothesis, each):
        return None
    if not hypothesis.affects(each.problem):
        return True
    answers = (other for other, _ in _answered(hypothesis, each.problem))
    other = next(answers)
    if other is None:
        return None
    if each.distance(other) <= 1.0 or any(each.distance(another) <= 1.0 for another in answers):
        return True
    if any(each.got is not None and _lacks(other, part) for part in each.parts):
        return None
    return None if _right_by_its_own(hypothesis, each, other, claimed, ("output",)) else False


def _right_by_its_own(
    hypothesis: Hypothesis, each: Observation, other: Result, claimed: Conventions, parts: Sequence[str]
) -> bool:
    """Whether a defect answers rightly by conventions of its own, which differ: its mistake does not show there."""
    own = hypothesis.defect.implementation.claims.conventions if hypothesis.defect else claimed
    if own == claimed:
        return False
    expected = solve(each.problem, own).parts
    pairs = [(part_of(other, part), expected[part]) for part in parts]
    return all(a is not None and a.shape == e.value.shape and (error_ratios(a, e) <= 1.0).all() for a, e in pairs)


def _otherwise(hypothesis: Hypothesis, each: Observation, claimed: Conventions) -> bool:
    """Whether the right output by the conventions of a defect is another one than by those that are claimed."""
    own = hypothesis.defect.implementation.claims.conventions if hypothesis.defect else claimed
    if own == claimed or not hypothesis.applies_to(each.problem):
        return False
    expected = each.expected["output"]
    other = each.judged("output", solve(each.problem.forward_only(), own).parts["output"].value)
    right = Expected(each.judged("output", expected.value), expected.bound)
    return not (error_ratios(other, right) <= 1.0).all()


def _lacks(result: object, part: str) -> bool:
    """Whether an answer has no such part, as an answer without gradients."""
    return part.startswith("gradients.") and not getattr(result, "gradients", {})
