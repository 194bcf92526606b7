"""Naming: the hypothesis, or the two, that explain failing cases and agree with passing ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.fitting import required
from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.cases import Case, MaskKind, Padding
from attention_conformance.spec.clauses import load
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.explain.diagnosis.at_once import at_once, edits, has_steps, is_edit, wrong
from attention_conformance.tests.harness.explain.diagnosis.causes import Hypothesis, factors_of_gradients, fitted_causes
from attention_conformance.tests.harness.explain.diagnosis.conditions import Condition
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, answered
from attention_conformance.tests.harness.explain.diagnosis.pattern import NUMBERS, options
from attention_conformance.tests.harness.explain.diagnosis.scoring import Score, scored
from attention_conformance.tests.harness.judge.comparison import part_of
from attention_conformance.tests.harness.judge.judge import RETURNED_AS

FIRST = 3
"""Failing cases with which every hypothesis is tried."""
KEPT = 16
"""Hypotheses that are tried with all cases."""
CASES = 2
"""A hypothesis that explains fewer cases is no explanation."""
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
    """
    light, heavy = ([each for each in failing if each.heavy is kind] for kind in (False, True))
    if heavy:
        passing = [each for each in passing if not each.heavy]
        found = explanation(listed, light, passing, clauses, claimed, conditions, several) if light else None
        return found and _also_of(found, heavy, claimed)
    given = [frozenset(required(each.case)) for each in failing]
    listed = [hypothesis for hypothesis in listed if _shows(hypothesis, given) and _returned(hypothesis, failing)]
    scores = _scores(listed, failing, passing, clauses, claimed)
    search = _Search(scores, listed, failing, passing, claimed)
    searches = (search, *search.of_answers())
    if found := _first(searches, _Search.one, ()):
        return found
    useful = any(score.explained and _given(score) for score in scores)
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
        """Two mistakes that explain everything together."""
        sound = self._all_sound(when)
        return self._apart(sound, when) or self._at_once(sound, when)

    def most(self, when: tuple[Condition, ...]) -> Explanation | None:
        """One that explains most, or all but what an option separates."""
        found = self._simplest(self._all_sound(when))
        if found is None:
            return None
        rest = self._separated(found)
        most = len(found.explained) >= MOST * len(self.failing)
        return self._of((found.hypothesis,), found, when, rest) if most or rest else None

    def _all_sound(self, when: tuple[Condition, ...]) -> list[Score]:
        return [score for score in self.scores if self._sound(score, when)]

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
        return not against and _by_answers(score) and _given(score)

    def _simplest(self, sound: Sequence[Score]) -> Score | None:
        """The best; a cause instead of a defect that explains the same, and differs in cases that were not given."""
        if not sound or sound[0].hypothesis.rank != 1:
            return next(iter(sound), None)
        best = sound[0]
        alike = [
            s
            for s in sound[1:]
            if s.hypothesis.rank == 2 and s.hypothesis.edit is None and len(s.explained) == len(best.explained)
        ]
        return next((s for s in alike if _differ(best.hypothesis, s.hypothesis)), best)

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

    def _apart(self, sound: Sequence[Score], when: tuple[Condition, ...]) -> Explanation | None:
        """Two mistakes that show in different cases."""
        for first in sound[:1]:
            known = {id(each) for each in first.explained}
            rest = [each for each in self.failing if id(each) not in known]
            for second in _scores(self.listed, rest, self.passing, set(), self.claimed) if len(rest) >= CASES else ():
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
        for second in self.listed if first.edit is None else edits(self.claimed):
            both = at_once(first, second, self.claimed)
            if both is not None and scored(both, rest[:1], (), self.claimed).explained and wrong(second, rest[0]):
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


def _by_answers(score: Score) -> bool:
    """Whether answers are explained, and not exceptions alone: many mistakes raise the same one."""
    return len([each for each in score.explained if each.got is not None]) >= CASES


def _given(score: Score) -> bool:
    """Whether a case that is explained has the options that the mistake is about."""
    return _shows(score.hypothesis, [frozenset(required(each.case)) for each in score.explained])


def _shows(hypothesis: Hypothesis, given: Sequence[Set[Feature]]) -> bool:
    """Whether any of some cases, of which the features are given, has the options that a mistake is about."""
    if hypothesis.defect is None:
        return True
    about = load()[hypothesis.defect.clauses[0]].features & VISIBLE
    return any(about - MASKS <= each and bool(about & MASKS) <= bool(each & MASKS) for each in given)


def _returned(hypothesis: Hypothesis, failing: Sequence[Observation]) -> bool:
    """Whether what a mistake is about was returned at all: one of a log-sum-exp is none of an output."""
    about = load()[hypothesis.defect.clauses[0]].features if hypothesis.defect is not None else frozenset()
    parts = [part for part, feature in RETURNED_AS.items() if feature in about]
    results = [each.got for each in failing if each.got is not None]
    return not parts or any(part_of(result, part) is not None for result in results for part in parts)


MASKS = frozenset({Feature.BOOL_MASK, Feature.FLOAT_MASK})
VISIBLE = MASKS | {option.feature for option in CASE_OPTIONS}
VISIBLE |= {Feature.SCALE, Feature.CAUSAL, Feature.GROUPED, Feature.CACHE, Feature.KEY_PADDING, Feature.VALID_LENS}
"""Features that the cases of a clause about them need."""


def _scores(
    listed: Sequence[Hypothesis],
    failing: Sequence[Observation],
    passing: Sequence[Observation],
    clauses: Set[str],
    claimed: Conventions,
) -> list[Score]:
    """The best hypotheses with all cases; those that break a failing clause are tried first, with more cases."""
    plain = sorted(failing, key=lambda e: (len(options(e.case)), e.problem.query.size + e.problem.key.size))
    few = plain[:: max(1, -(-len(plain) // FIRST))]
    near = [h for h in listed if h.defect is None or clauses & {*h.defect.clauses}]
    near += [h for each in few[:1] for h in fitted_causes(each, claimed)]
    far = [h for h in listed if h.defect is not None and not clauses & {*h.defect.clauses}]
    scores: list[Score] = []
    # What explains everything explains the first case, too.
    for hypotheses, cases in ((near, few[:1]), (far, few[:1]), (near, few[1:]), (far, few[1:2])):
        tried = {id(score.hypothesis) for score in scores}
        first = [scored(h, cases, (), claimed) for h in hypotheses if id(h) not in tried] if cases else []
        scores += _best(first, failing, passing, claimed)
        if any(_explains(score, failing) for score in scores):
            return sorted(scores, key=lambda score: score.rank)
    return sorted([*scores, *_of_edits(few, failing, passing, claimed)], key=lambda score: score.rank)


def _best(
    first: Sequence[Score], failing: Sequence[Observation], passing: Sequence[Observation], claimed: Conventions
) -> list[Score]:
    """Those that do best with a few cases, with all of them; of too many, those that do best with more cases."""
    best = [score for score in first if score.explained]
    if len(best) > KEPT:  # with these numbers many mistakes answer the same
        best = [scored(s.hypothesis, _spread(failing), _spread(passing), claimed) for s in best]
    best = sorted(best, key=lambda score: score.rank)[:KEPT]
    return [scored(score.hypothesis, failing, passing, claimed) for score in best]


def _spread(observed: Sequence[Observation]) -> Sequence[Observation]:
    """Some of them, from the first to the last."""
    return observed[:: max(1, len(observed) // FIRST)]


def _explains(score: Score, failing: Sequence[Observation]) -> bool:
    whole = len(score.explained) == len(failing) and not score.contradicting
    return whole and _by_answers(score) and _given(score)


def _of_edits(
    few: Sequence[Observation],
    failing: Sequence[Observation],
    passing: Sequence[Observation],
    claimed: Conventions,
) -> list[Score]:
    """The edits that explain the first of a few cases that any explains.

    Where the output is right, they are of the wrong parts alone: a backward pass, or what is returned.
    """
    # Here, as it imports torch, which the judge of a right candidate does without.
    from attention_conformance.tests.harness.explain.diagnosis.edits import alone, edited
    from attention_conformance.tests.harness.explain.diagnosis.measured import measured

    hypotheses = edited(claimed)
    wrong = {part for each in failing for part in each.parts if each.errors[part] > 1.0}
    if "output" not in wrong:
        hypotheses = [alone(h.edit, tuple(sorted(wrong)), claimed) for h in hypotheses if h.edit is not None]
        factors = [h for each in few[:1] for h in factors_of_gradients(each, sorted(wrong), claimed)]
        hypotheses = [*factors, *hypotheses]
    for each in few[:2]:
        if each.wrong_numbers:
            fitted = measured(each, claimed) if "output" in wrong else ()
            first = [scored(h, [each], (), claimed) for h in [*hypotheses, *fitted]]
            if any(score.explained for score in first):
                return _best(first, failing, passing, claimed)
    return []
