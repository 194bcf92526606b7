"""Naming: the hypothesis, or the two, that explain failing cases and agree with passing ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.fitting import required
from attention_conformance.spec.cases import Case, MaskKind, Padding
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import HALF
from attention_conformance.tests.harness.explain.diagnosis.at_once import at_once, edits, has_steps, is_edit, wrong
from attention_conformance.tests.harness.explain.diagnosis.causes import Hypothesis
from attention_conformance.tests.harness.explain.diagnosis.conditions import Condition
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, answered
from attention_conformance.tests.harness.explain.diagnosis.pattern import NUMBERS, options
from attention_conformance.tests.harness.explain.diagnosis.ranking import (
    CASES,
    explains_answers,
    has_its_options,
    is_returned,
    may_be,
    may_show,
    ranked,
)
from attention_conformance.tests.harness.explain.diagnosis.scoring import Score, scored

ALWAYS = "Do so in every case, or in none."
RAISING = "an exception of their own"
MOST = 0.75
"""The share of failing cases that one hypothesis has to explain, and that two have to explain together."""


@dataclass(frozen=True)
class Explanation:
    """What explains the failures.

    Attributes:
        hypotheses: one, or two mistakes at once.
        explains: how many failing cases.
        agrees: how many passing cases.
        conditions: those without which the mistake is not made.
        rest: an option of all failing cases that are not explained, and of no other; empty if there is none.
    """

    hypotheses: tuple[Hypothesis, ...]
    explains: int
    agrees: int
    conditions: tuple[Condition, ...] = ()
    rest: str = ""

    @property
    def more_than_a_convention(self) -> bool:
        """Whether a convention is part of it, and not all: another convention, followed with it, may be the rest."""
        several = len(self.hypotheses) > 1 or bool(self.conditions)
        return several and any(each.options for each in self.hypotheses)

    def only_sometimes(self) -> Explanation:
        """The same as what is done under a condition, or in a place."""
        return replace(self, hypotheses=tuple(_only_sometimes(each) for each in self.hypotheses))


def explanation(
    listed: Sequence[Hypothesis],
    failing: Sequence[Observation],
    passing: Sequence[Observation],
    clauses: Set[str],
    claimed: Conventions,
    conditions: Callable[[], Sequence[Condition]],
    several: bool = True,
    aside: Sequence[Observation] = (),
) -> Explanation | None:
    """What explains the failures, if anything that was observed does not speak against it.

    Args:
        listed: the hypotheses.
        failing: what was observed to fail.
        passing: what was observed to pass.
        clauses: those that fail: mistakes that are known to break them are tried first.
        claimed: the conventions of the candidate.
        conditions: finds when the candidate fails; called only if it is needed.
        several: whether two mistakes are looked for, which takes longest, and one that explains most.
        aside: failing cases that need not be explained, and decide between mistakes that explain the others alike.
    """
    light, heavy = ([each for each in failing if each.heavy is kind] for kind in (False, True))
    if heavy:
        passing = [each for each in passing if not each.heavy]
        found = explanation(listed, light, passing, clauses, claimed, conditions, several, aside) if light else None
        return found and _also_of(found, heavy, claimed)
    given = [frozenset(required(each.case)) for each in failing]
    listed = [hypothesis for hypothesis in listed if may_show(hypothesis, given) and is_returned(hypothesis, failing)]
    scores = ranked(listed, failing, passing, clauses, claimed)
    search = _Search(scores, listed, failing, passing, claimed, aside)
    searches = (search, *search.of_answers())
    if found := _first(searches, _Search.one, ()):
        return found
    useful = any(score.explained and has_its_options(score) for score in scores)
    when = tuple(conditions()) if useful else ()
    found = _first(searches, _Search.one, when) if when else None
    if found is not None or not several:
        return found
    for find in (_Search.two, _Search.most):
        if found := _first(searches, find, ()) or (_first(searches, find, when) if when else None):
            return found
    return None


def _also_of(found: Explanation, heavy: Sequence[Observation], claimed: Conventions) -> Explanation | None:
    """The explanation of the other cases, if it is also that of most of those that cost too much to search among."""
    scores = [scored(each, heavy, (), claimed) for each in found.hypotheses]
    explained = {id(each) for score in scores for each in score.explained}
    enough = len(explained) >= MOST * len(heavy)
    return replace(found, explains=found.explains + len(explained)) if enough else None


def _first(
    searches: Sequence[_Search],
    find: Callable[[_Search, tuple[Condition, ...]], Explanation | None],
    when: tuple[Condition, ...],
) -> Explanation | None:
    """The first that is found; what raises an exception is another finding than answers."""
    for search in searches:
        if found := find(search, when):
            return found if search is searches[0] else replace(found, rest=RAISING)
    return None


def conventions_that_help(
    listed: Sequence[Hypothesis],
    failing: Sequence[Observation],
    passing: Sequence[Observation],
    claimed: Conventions,
) -> list[Hypothesis]:
    """Conventions that explain some failing cases, and that nothing speaks against: a mistake may go with them."""
    failing, passing = ([each for each in seen if not each.heavy] for seen in (failing, passing))
    if len(failing) < CASES:
        return []
    followed = [each for each in listed if each.rank == 0 and not each.name.startswith("premise")]
    scores = [scored(each, failing, passing, claimed) for each in followed if not each.name.startswith("empty-row")]
    helping = [score for score in scores if len(score.explained) >= CASES and not score.contradicting]
    return [score.hypothesis for score in sorted(helping, key=lambda score: score.rank)]


@dataclass(frozen=True)
class _Search:
    """The search among the best hypotheses, with the arguments of `explanation`."""

    scores: Sequence[Score]
    listed: Sequence[Hypothesis]
    failing: Sequence[Observation]
    passing: Sequence[Observation]
    claimed: Conventions
    aside: Sequence[Observation] = ()

    @property
    def in_half(self) -> bool:
        """Whether all that fails was seen in a half type alone, where bounds are wide."""
        return all(each.problem.dtype in HALF for each in self.failing)

    def one(self, when: tuple[Condition, ...]) -> Explanation | None:
        """One mistake that explains everything, under these conditions."""
        whole = [score for score in self._all_sound(when) if len(score.explained) == len(self.failing)]
        found = self._simplest(whole)
        return self._of((found.hypothesis,), found, when) if found is not None else None

    def of_answers(self) -> Iterator[_Search]:
        """The search that explains every failing answer, where all exceptions are one other finding."""
        if _all_alike(self.failing):
            yield replace(self, failing=[each for each in self.failing if each.got is not None])

    def two(self, when: tuple[Condition, ...]) -> Explanation | None:
        """Two mistakes that explain everything together; in a half type alone, almost any two do."""
        if self.in_half:
            return None
        sound = self._all_sound(when)
        return self._apart(sound, when) or self._at_once(sound, when)

    def most(self, when: tuple[Condition, ...]) -> Explanation | None:
        """One that explains most, or all but what an option separates."""
        found = self._simplest(self._all_sound(when))
        if found is None or not any(each.wrong_numbers for each in found.explained):
            return None  # NaN is the same whatever made it: it names nothing that leaves a case unexplained
        edit = found.hypothesis.edit
        if self.in_half and edit is not None and edit.backward:
            return None  # the output may be wrong within its bound, and its gradients beyond theirs
        rest = self._separated(found) or self._next_to_gradients(found)
        most = len(found.explained) >= MOST * len(self.failing)
        return self._of((found.hypothesis,), found, when, rest) if most or rest else None

    def _all_sound(self, when: tuple[Condition, ...]) -> list[Score]:
        """Those that nothing speaks against; NaN is the same whatever made it, and names nothing under a condition."""
        sound = [score for score in self.scores if self._sound(score, when)]
        return [s for s in sound if not when or any(each.wrong_numbers for each in s.explained)]

    def _of(
        self, hypotheses: tuple[Hypothesis, ...], score: Score, when: tuple[Condition, ...], rest: str = ""
    ) -> Explanation:
        agrees = len(self.passing) if when else len(score.agreeing)
        if when:
            hypotheses = tuple(_only_sometimes(each) for each in hypotheses)
        return Explanation(hypotheses, len(score.explained), agrees, when, rest)

    def _sound(self, score: Score, when: tuple[Condition, ...]) -> bool:
        """Whether no passing case that fulfils the conditions speaks against it."""
        against = [each for each in score.contradicting if not when or _all_hold(when, each)]
        return not against and explains_answers(score) and has_its_options(score)

    def _simplest(self, sound: Sequence[Score]) -> Score | None:
        """The best; a cause instead of a defect that explains the same, and differs in cases that were not given."""
        best = max((s for s in sound if s.rank[:-1] == sound[0].rank[:-1]), key=self._explained_aside, default=None)
        if best is None or best.hypothesis.rank != 1:
            return best
        alike = [
            s
            for s in sound[1:]
            if s.hypothesis.rank == 2 and s.hypothesis.edit is None and len(s.explained) == len(best.explained)
        ]
        return next((s for s in alike if _differ(best.hypothesis, s.hypothesis)), best)

    def _explained_aside(self, score: Score) -> int:
        return len(scored(score.hypothesis, self.aside, (), self.claimed).explained)

    def _separated(self, score: Score) -> str:
        """What distinguishes the cases that it does not explain, if it explains half and there is such an option."""
        known = {id(each) for each in score.explained}
        rest = [options(each.case) for each in self.failing if id(each) not in known]
        if not rest or 2 * len(score.explained) < len(self.failing):
            return ""
        explained = frozenset[str]().union(*(options(each.case) for each in score.explained))
        own = [sorted(each - explained) for each in rest]
        fields = [{option.partition("=")[0] for option in each} for each in own]
        shared = min(set.intersection(*fields), default="")
        values = {option for each in own for option in each if option.partition("=")[0] == shared}
        return " or ".join(sorted(values)) if shared else ""

    def _next_to_gradients(self, score: Score) -> str:
        """Whether outputs are wrong in all cases that a mistake of a backward pass does not explain."""
        known = {id(each) for each in score.explained}
        rest = [each for each in self.failing if id(each) not in known]
        edit = score.hypothesis.edit
        wrong = edit is not None and edit.backward and all(each.errors["output"] > 1.0 for each in rest)
        return "a wrong output" if rest and wrong and 2 * len(known) >= len(self.failing) else ""

    def _apart(self, sound: Sequence[Score], when: tuple[Condition, ...]) -> Explanation | None:
        """Two mistakes that show in different cases."""
        for first in sound[:1]:
            known = {id(each) for each in first.explained}
            rest = [each for each in self.failing if id(each) not in known]
            for second in ranked(self.listed, rest, self.passing, set(), self.claimed) if len(rest) >= CASES else ():
                if self._sound(second, when) and len(second.explained) == len(rest):
                    both = replace(first, explained=tuple(self.failing))
                    return self._of((first.hypothesis, second.hypothesis), both, when)
        return None

    def _at_once(self, sound: Sequence[Score], when: tuple[Condition, ...]) -> Explanation | None:
        """Two mistakes in different steps of one computation, the first of which explains some failing cases alone."""
        firsts = [next((s for s in sound if of(s.hypothesis)), None) for of in (has_steps, is_edit)]
        return next(filter(None, (self._with(score, when) for score in firsts if score is not None)), None)

    def _with(self, score: Score, when: tuple[Condition, ...]) -> Explanation | None:
        """The first of two mistakes, and another one of its kind."""
        first, known = score.hypothesis, {id(each) for each in score.explained}
        rest = sorted((e for e in self.failing if id(e) not in known), key=lambda e: e.problem.query.size)
        if not rest:
            return None
        seconds = self.listed if first.edit is None else edits(self.claimed)
        for second in (s for s in seconds if s.edit is None or may_be(s.edit, rest[0])):
            both = at_once(first, second, self.claimed)
            found = () if both is None else scored(both, [rest[0].by_output], (), self.claimed).explained
            if both is not None and found and wrong(second, rest[0]):
                score = scored(both, self.failing, self.passing, self.claimed)
                if len(score.explained) == len(self.failing) and self._sound(score, when):
                    return self._of((first, self._as_convention(second)), score, when)
        return None

    def _as_convention(self, hypothesis: Hypothesis) -> Hypothesis:
        """Of masks that are all boolean, another meaning may be intended."""
        numbers = any(NUMBERS in options(each.case) for each in (*self.failing, *self.passing))
        other = next((each for each in self.listed if each.name.startswith("bool-mask=")), hypothesis)
        return other if hypothesis.name == "mask negated" and not numbers else hypothesis


def _all_alike(failing: Sequence[Observation]) -> bool:
    """Whether all exceptions are the same one, and enough of what fails is answered."""
    raised = [each.raised for each in failing if each.got is None]
    return len({*raised}) == 1 and len(failing) - len(raised) >= CASES


def _only_sometimes(hypothesis: Hypothesis) -> Hypothesis:
    """A convention that is followed under a condition is none: to claim it would not make anything conform."""
    kept = [part for part in hypothesis.repair.split(";") if "--convention" not in part and " claim " not in part]
    repair = f"{';'.join(kept).removesuffix('.')}." if kept and hypothesis.rank != 0 else ALWAYS
    return replace(hypothesis, repair=repair)


def _differ(one: Hypothesis, two: Hypothesis) -> bool:
    """Whether they answer differently in any of the ordinary cases with all options, which may not be claimed."""
    for case in EXAMPLES:
        problem = build(case, "float64").forward_only()
        first, second = (answered(partial(h.answer, problem))[0] for h in (one, two))
        outputs = [each.output for each in (first, second) if each is not None]
        alike = len(outputs) == 2 and outputs[0].shape == outputs[1].shape
        if alike and not np.allclose(outputs[0], outputs[1], equal_nan=True):
            return True
    return False


EXAMPLES = (
    Case(mask=MaskKind.BOOL, causal=True),
    Case(mask=MaskKind.FLOAT, causal=True),
    Case(scale=0.3, causal=True),
    Case(padding=Padding.RIGHT, causal=True),
    Case(mask=MaskKind.BOOL, padding=Padding.LEFT),
)
"""Options together, for hypotheses that differ only there."""


def _all_hold(found: Sequence[Condition], each: Observation) -> bool:
    return all(condition.holds(each.case) for condition in found)
