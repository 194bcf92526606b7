"""The score of the diagnosis on mistakes that it does not know: a chapter of the catalogue is left out at a time.

It prints how many are named, located and misnamed; `make diagnosis-score` stores that for a page of the documentation.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from attention_conformance.implementations.api.global_state import compute_on_one_thread
from attention_conformance.implementations.defects import SCORE, Defect, catalogue
from attention_conformance.spec.cases import Case
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis, FailingCheck
from attention_conformance.tests.harness.explain.diagnosis.diagnosis import diagnose
from attention_conformance.tests.harness.explain.diagnosis.naming import RAISING, Explanation
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, Prober
from attention_conformance.tests.harness.explain.diagnosis.probes import PROBES
from attention_conformance.tests.harness.explain.diagnosis.scoring import scored
from attention_conformance.tests.harness.judge.clause_tests import Selection
from attention_conformance.tests.harness.judge.judge import FailureLimitError, Judge
from attention_conformance.tests.harness.judge.judging import plainest
from attention_conformance.tests.measurements.pages import store

KINDS = ("named", "located", "misnamed", "unexplained")
UNSEEN = 5000
"""Added to the seeds of cases that the diagnosis does not get."""
DTYPE = "float64"
DIAGNOSIS = SCORE.with_name("diagnosis.json")


@dataclass(frozen=True)
class Result:
    """What the diagnosis made of one defect.

    Attributes:
        kind: one of `KINDS`; empty where nothing failed that could be compared.
    """

    defect: str
    chapter: str
    kind: str
    text: str


def result_of(defect: Defect, unknown: Sequence[str]) -> Result:
    """The diagnosis of a defect without the mistakes that are unknown, and whether unseen cases bear it out."""
    checks = list(_failing(defect))
    diagnosis = diagnose(defect.implementation, checks, dtypes=(DTYPE,), unknown=unknown)
    if diagnosis is None or diagnosis.of_clauses:
        return Result(defect.id, defect.chapter, "", "")
    return Result(defect.id, defect.chapter, _kind(defect, diagnosis, checks), str(diagnosis))


def _failing(defect: Defect) -> Iterator[FailingCheck]:
    """The plainest failing check of each clause."""
    for check in Selection((defect.implementation,), dtypes=(DTYPE,)).plan():
        judge = Judge(defect.implementation, DTYPE, failure_limit=10, selected=(DTYPE,))
        with suppress(FailureLimitError):
            check.test(judge)
        if judge.tally.failures:
            plain = plainest(judge.tally.failures)
            yield FailingCheck(check.clause.id, Case.from_json(plain.case), DTYPE, plain.part)


def _kind(defect: Defect, diagnosis: Diagnosis, checks: Sequence[FailingCheck]) -> str:
    if not diagnosis.name:
        return "located" if diagnosis.when else "unexplained"
    if diagnosis.explanation is None:
        return "named" if diagnosis.claim or diagnosis.name.startswith("computed in") else "misnamed"
    return "named" if _holds(defect, diagnosis.explanation, checks) else "misnamed"


def _holds(defect: Defect, explanation: Explanation, checks: Sequence[FailingCheck]) -> bool:
    """Whether unseen cases agree: each failing one with one of the mistakes, and each passing one with all."""
    parts = tuple(dict.fromkeys(each.part for each in checks if each.part))
    prober = Prober(defect.implementation, DTYPE, parts, "cpu", 500, {})
    known = dict.fromkeys([*(each.case for each in checks), *PROBES])
    cases = [replace(case, seed=case.seed + UNSEEN) for case in known]
    claimed = defect.implementation.claims.conventions
    seen = [each.without_empty_rows(claimed) for each in map(prober.observe, cases) if each is not None]
    failing, passing = ([each for each in seen if each.failing is kind] for kind in (True, False))
    if explanation.rest == RAISING:  # it says that exceptions are something else
        failing = [each for each in failing if each.got is not None]
    scores = [scored(hypothesis, failing, passing, claimed) for hypothesis in explanation.hypotheses]
    explained = {id(each) for score in scores for each in score.explained}
    at_once = len(scores) > 1  # where both show in one case, neither alone is its answer
    against = any(_fulfils(explanation, each) for score in scores for each in score.contradicting)
    return not against and (at_once or 4 * len(explained) >= 3 * len(failing))


def _fulfils(explanation: Explanation, each: Observation) -> bool:
    return all(condition.holds(each.case) for condition in explanation.conditions)


def results(defects: Sequence[Defect], processes: int) -> Iterator[Result]:
    """The result of each, its own chapter left out."""
    with ProcessPoolExecutor(processes, initializer=compute_on_one_thread) as pool:
        yield from pool.map(_result_of, [defect.id for defect in defects])


def _result_of(name: str) -> Result:
    defect = next(defect for defect in catalogue() if defect.id == name)
    return result_of(defect, [other.id for other in catalogue() if other.chapter == defect.chapter])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--every", type=int, default=14, help="take each so many-th defect of the catalogue (14)")
    parser.add_argument("--first", type=int, default=0, help="where to begin")
    parser.add_argument("--write", action="store_true", help=f"write {DIAGNOSIS.name}")
    options = parser.parse_args()
    start, made = time.perf_counter(), []
    for each in results(catalogue()[options.first :: options.every], options.processes):
        print(f"{each.kind or '-':12} {each.defect}: {each.text}", file=sys.stderr)
        made.append(each)
    counted = [each for each in made if each.kind]
    score = {
        "tried": len(made),
        "minutes": round((time.perf_counter() - start) / 60.0),
        "chapters": {
            chapter: {kind: sum(each.chapter == chapter and each.kind == kind for each in counted) for kind in KINDS}
            for chapter in dict.fromkeys(each.chapter for each in counted)
        },
        "misnamed": [[each.defect, each.text] for each in counted if each.kind == "misnamed"],
    }
    print(*(f"{name}: {value}" for name, value in score.items()), sep="\n")
    if options.write:
        store(DIAGNOSIS, score)
    return 0


if __name__ == "__main__":
    sys.exit(main())
