"""Scoring: in which of the observed cases a hypothesis answers as the candidate does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import guarded, restored
from attention_conformance.reference.expected import solve
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.explain.causes import Hypothesis
from attention_conformance.tests.harness.explain.observation import Observation, answered
from attention_conformance.tests.harness.judge.comparison import error_ratios, part_of


@dataclass(frozen=True)
class Score:
    """How a hypothesis does.

    Attributes:
        explained: the failing cases in which its answers are the candidate's.
        agreeing: the passing ones.
        contradicting: the passing ones in which it would have failed.
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
    errors = {id(each): _met(hypothesis, each, claimed, fails=True) for each in failing}
    explained = tuple(each for each in failing if errors[id(each)] <= 1.0)
    agree = [(each, _met(hypothesis, each, claimed, fails=False)) for each in passing]
    agreeing = tuple(each for each, agrees in agree if agrees == AGREES)
    contradicting = tuple(each for each, agrees in agree if agrees == CONTRADICTS)
    return Score(
        hypothesis, explained, agreeing, contradicting, max((errors[id(each)] for each in explained), default=0.0)
    )


AGREES, CONTRADICTS = 1.0, 0.0


def _met(hypothesis: Hypothesis, each: Observation, claimed: Conventions, fails: bool) -> float:
    """How far its answer is from a failing one; whether it agrees with a passing one, NaN if that cannot be told."""
    key = id(hypothesis), fails
    if key not in each.met:
        if fails:
            found = _distance(hypothesis, each, claimed)
        else:
            agrees = _agrees(hypothesis, each, claimed)
            found = math.nan if agrees is None else AGREES if agrees else CONTRADICTS
        each.met[key] = hypothesis, found  # which keeps the hypothesis, so that no other gets its id
    return each.met[key][1]


def _distance(hypothesis: Hypothesis, each: Observation, claimed: Conventions) -> float:
    """From the candidate's answer, in units of what would count as the same; infinite if it explains nothing there."""
    if not (hypothesis.applies_to(each.problem) and hypothesis.affects(each.problem)):
        return math.inf
    other, raised = _answered(hypothesis, each.problem)
    distance = each.distance(other, raised)
    right = distance <= 1.0 and other and _right_by_its_own(hypothesis, each, other, claimed, each.parts)
    return math.inf if right else distance


def _answered(hypothesis: Hypothesis, problem: Problem) -> tuple[Result | None, str]:
    """Its answer, or the exception; edits are arithmetic of our own, and leave the state of the process alone."""
    return answered(lambda: hypothesis.answer(problem), guarded if hypothesis.edit is not None else restored)


def _agrees(hypothesis: Hypothesis, each: Observation, claimed: Conventions) -> bool | None:
    """Whether it is right where the candidate is; None where it has no answer, or another right one."""
    if not hypothesis.applies_to(each.problem):
        return None
    if not hypothesis.affects(each.problem):
        return True
    other, _ = _answered(hypothesis, each.problem)
    if other is None:
        return None
    if each.distance(other) <= 1.0:
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


def _lacks(result: object, part: str) -> bool:
    """Whether an answer has no such part, as an answer without gradients."""
    return part.startswith("gradients.") and not getattr(result, "gradients", {})
