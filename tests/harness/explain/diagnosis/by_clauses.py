"""By clauses: the mistake that breaks the same clauses in the same words, where no answers can be compared."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from math import inf, log10

from attention_conformance.implementations.api.contract import Implementation, PathError
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import load
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis, FailingCheck
from attention_conformance.tests.harness.explain.diagnosis.hypotheses import hypotheses
from attention_conformance.tests.harness.explain.diagnosis.observation import (
    WITHOUT_DIGITS,
)
from attention_conformance.tests.harness.judge.clause_tests import PlannedCheck, Selection
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.report.wording import one_line


def by_clauses(
    implementation: Implementation, checks: Sequence[FailingCheck], device: str, unknown: Collection[str]
) -> Diagnosis | None:
    """For failures that are no comparisons: the mistake that breaks the same clauses in the same words."""
    failed = {each.clause for each in checks}
    chapters = {load()[clause].chapter for clause in failed}
    dtype = next(dtype for dtype in DTYPES if any(each.dtype == dtype for each in checks))
    shown = _failure_summaries(implementation, chapters, dtype, device)
    own = {_compared(each) for each in shown}
    if not own:  # what does not show again is compared with no mistake
        return Diagnosis("", 0, 0, of_clauses=True)
    judged = {each.clause.id for each in _planned(implementation, chapters, dtype)}
    ranked = []
    for hypothesis in hypotheses(implementation.claims.scope, implementation.claims.conventions):
        defect = hypothesis.defect
        if defect is not None and failed & set(defect.clauses) and defect.id not in unknown:
            theirs = _failure_summaries(defect.implementation, chapters, dtype, device)
            theirs = {_compared(each) for each in theirs if each[0] in judged}
            if not _in_words(theirs, defect.clauses) & _in_words(own, defect.clauses):
                continue  # such as another way to call, which a convention of the same clause shows as well
            ranked.append((len(own & theirs) / max(1, len(own | theirs)), len(own & theirs), hypothesis))
    ranked.sort(key=lambda entry: -entry[0])
    if not ranked or 2 * ranked[0][1] < len(own) + (len(own) > 2):
        seen = {words.translate(WITHOUT_DIGITS): one_line(words, MOST_OF_WORDS) for _, words, _ in sorted(shown)}
        return Diagnosis("", 0, len(own), when=tuple(seen.values())[:3], of_clauses=True)
    _, explains, best = ranked[0]
    return Diagnosis(best.name, explains, len(own), repair=best.repair, of_clauses=True)


MOST_OF_WORDS = 100


def _compared(summary: tuple[str, str, float]) -> tuple[str, str, float]:
    """Without numbers, which are those of one case or another."""
    clause, words, size = summary
    return clause, words.translate(WITHOUT_DIGITS), size


def _in_words(summaries: set[tuple[str, str, float]], clauses: Collection[str]) -> set[tuple[str, str]]:
    """Which of these clauses fail, and in which words."""
    return {(clause, words) for clause, words, _ in summaries if clause in clauses}


def _failure_summaries(
    implementation: Implementation, chapters: set[str], dtype: str, device: str
) -> set[tuple[str, str, float]]:
    """(clause, words, size) of every failing check of these chapters.

    The size is that of the clause's largest error, by which different mistakes with the same words differ; 0 where
    weights are dropped, and each run drops others.
    """
    summaries = set()
    for planned in _planned(implementation, chapters, dtype):
        judge = Judge(implementation, dtype, device)
        with suppress(PathError, CandidateError):
            planned.test(judge)
        for each in judge.tally.failures:
            drawn, worst = Case.from_json(each.case).extension.dropout, judge.tally.worst or 0.0
            size = 0.0 if drawn or not 0.0 < worst < inf else round(log10(worst), 1)
            summaries.add((planned.clause.id, each.summary or each.message, size))
    return summaries


def _planned(implementation: Implementation, chapters: set[str], dtype: str) -> list[PlannedCheck]:
    """What is judged of it in these chapters."""
    planned = Selection((implementation,), dtypes=(dtype,)).plan()
    return [each for each in planned if each.clause.chapter in chapters]
