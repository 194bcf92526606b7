"""Ranking: the hypotheses that do best in the observed cases, found with a few of them first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING

from attention_conformance.implementations.api.fitting import required
from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.clauses import load
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.explain.diagnosis.causes import Hypothesis, factors_of_gradients, fitted_causes
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation
from attention_conformance.tests.harness.explain.diagnosis.pattern import options
from attention_conformance.tests.harness.explain.diagnosis.scoring import Score, scored
from attention_conformance.tests.harness.judge.comparison import RETURNED_AS, part_of

if TYPE_CHECKING:
    from attention_conformance.tests.harness.explain.diagnosis.edits import Edit

FIRST = 3
"""Failing cases with which every hypothesis is tried."""
KEPT = 16
"""Hypotheses that are tried with all cases."""
TIED = 64
"""So many at most, if those after the last one that is kept do as well as it does."""
MOST_PARTS = 4
"""Gradients, at most, that are explained one by one."""
CASES = 2
"""A hypothesis that explains fewer cases is no explanation."""


def explains_answers(score: Score) -> bool:
    """Whether answers are explained, and not exceptions alone: many mistakes raise the same one."""
    return len([each for each in score.explained if each.got is not None]) >= CASES


def has_its_options(score: Score) -> bool:
    """Whether a case that is explained has the options that the mistake is about."""
    return may_show(score.hypothesis, [frozenset(required(each.case)) for each in score.explained])


def may_show(hypothesis: Hypothesis, given: Sequence[Set[Feature]]) -> bool:
    """Whether any of some cases, of which the features are given, has the options that a mistake is about."""
    if hypothesis.defect is None:
        return True
    about = load()[hypothesis.defect.clauses[0]].about & VISIBLE
    return any(about - MASKS <= each and bool(about & MASKS) <= bool(each & MASKS) for each in given)


def is_returned(hypothesis: Hypothesis, failing: Sequence[Observation]) -> bool:
    """Whether what a mistake is about was returned at all: one of a log-sum-exp is none of an output."""
    about = load()[hypothesis.defect.clauses[0]].about if hypothesis.defect is not None else frozenset()
    parts = [part for part, feature in RETURNED_AS.items() if feature in about]
    results = [each.got for each in failing if each.got is not None]
    return not parts or any(part_of(result, part) is not None for result in results for part in parts)


MASKS = frozenset({Feature.BOOL_MASK, Feature.FLOAT_MASK})
VISIBLE = MASKS | {option.feature for option in CASE_OPTIONS}
VISIBLE |= {Feature.SCALE, Feature.CAUSAL, Feature.GROUPED, Feature.CACHE, Feature.KEY_PADDING, Feature.VALID_LENS}
"""Features that the cases of a clause about them need."""


def ranked(
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
    best = sorted(best, key=lambda score: score.rank)
    last = best[KEPT - 1].rank[:-1] if len(best) > KEPT else ()
    kept = [score for n, score in enumerate(best[:TIED]) if n < KEPT or score.rank[:-1] == last]
    return [scored(score.hypothesis, failing, passing, claimed) for score in kept]


def _spread(observed: Sequence[Observation]) -> Sequence[Observation]:
    """Some of them, from the first to the last."""
    return observed[:: max(1, len(observed) // FIRST)]


def _explains(score: Score, failing: Sequence[Observation]) -> bool:
    whole = len(score.explained) == len(failing) and not score.contradicting
    return whole and explains_answers(score) and has_its_options(score)


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
    from attention_conformance.tests.harness.explain.diagnosis.edits import edited
    from attention_conformance.tests.harness.explain.diagnosis.measured import measured

    wrong = sorted({part for each in failing for part in each.parts if each.errors[part] > 1.0})
    groups = [edited(claimed)] if "output" in wrong else [*_of_parts(edited(claimed), wrong, claimed)]
    found: list[Score] = []
    for number, hypotheses in enumerate(groups):
        for each in [] if found else few[: 1 if number else 2]:
            fitted: list[Hypothesis] = []
            if each.wrong_numbers and "output" in wrong:
                fitted = [*measured(each, claimed)]
            elif each.wrong_numbers:
                fitted = [*factors_of_gradients(each, wrong, claimed)]
            tried = [h for h in hypotheses if h.edit is not None and may_be(h.edit, each)]
            first = [scored(h, [each.by_output], (), claimed) for h in [*fitted, *tried]]
            if any(score.explained for score in first):
                found = _best(first, failing, passing, claimed)
                break
    several = 1 < len(wrong) <= MOST_PARTS and all(part.startswith("gradients.") for part in wrong)
    if several and not any(_explains(score, failing) for score in found):
        found = [*found, *_part_by_part(wrong, failing, passing, claimed)]
    return found


def _part_by_part(
    wrong: Sequence[str], failing: Sequence[Observation], passing: Sequence[Observation], claimed: Conventions
) -> list[Score]:
    """For each wrong gradient the backward pass that explains it best, all together as one hypothesis."""
    from attention_conformance.tests.harness.explain.diagnosis.edits import alone, edited, in_parts

    backward = [h.edit for h in edited(claimed) if h.edit is not None and h.edit.backward]
    chosen = {}
    for part in wrong:
        own = [each.of_part(part) for each in failing if each.errors.get(part, 0.0) > 1.0 and each.wrong_numbers]
        hypotheses = [alone(edit, (part,), claimed) for edit in backward]
        best = _best([scored(h, own[:1], (), claimed) for h in hypotheses], own, (), claimed)
        if not best:
            return []
        chosen[part] = min(best, key=lambda score: score.rank).hypothesis
    return [scored(in_parts(chosen), failing, passing, claimed)]


def may_be(edit: Edit, each: Observation) -> bool:
    """Whether it may explain a case: of a wrong output, no backward pass is at fault, and NaN has few causes."""
    return not (edit.backward and each.errors["output"] > 1.0) and (edit.by_overflow or each.wrong_numbers)


def _of_parts(edits: Sequence[Hypothesis], wrong: Sequence[str], claimed: Conventions) -> Iterator[list[Hypothesis]]:
    """Edits of nothing but these parts, by how likely they are: of gradients, those of a backward pass first."""
    from attention_conformance.tests.harness.explain.diagnosis.edits import alone

    own = [h.edit for h in edits if h.edit is not None and not h.edit.by_overflow]  # that spoils the output, too
    kinds = [[edit for edit in own if edit.backward is kind] for kind in (True, False)]
    for group in kinds if all(part.startswith("gradients.") for part in wrong) else kinds[1:]:
        yield [alone(edit, tuple(wrong), claimed) for edit in group]
