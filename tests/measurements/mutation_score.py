"""Mutation: every defect of the catalogue against every clause, and the conclusions for defects, clauses and cases."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.global_state import compute_on_one_thread
from attention_conformance.implementations.defects import Defect, catalogue
from attention_conformance.implementations.defects.breaking import in_steps
from attention_conformance.implementations.defects.defect import Severity
from attention_conformance.spec.cases import Case
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import FailingCheck
from attention_conformance.tests.harness.explain.diagnosis.diagnosis import diagnose
from attention_conformance.tests.harness.explain.diagnosis.pattern import options
from attention_conformance.tests.harness.judge.clause_tests import Selection, clause_tests
from attention_conformance.tests.harness.judge.judge import FailureLimitError, Judge
from attention_conformance.tests.harness.judge.judging import dtype_of_bounds, plainest, status
from attention_conformance.tests.harness.judge.tiers import TIERS
from attention_conformance.tests.report.verdict import Status

FAILURE_LIMIT = 10
"""Failed checks of a clause in a dtype after which its other checks are not run."""
WIDEST = ("float64",)
"""The dtype for a mistake that does not depend on the dtype: a narrower one would show no more of it."""
PLAIN_MARGIN = 10.0
"""A clause none of whose kills is this far beyond the bound could be lost by a wider bound."""


@dataclass(frozen=True)
class Kill:
    """A clause that a defect fails in one dtype.

    Attributes:
        failed: how many checks failed, up to `FAILURE_LIMIT`.
        margin: the largest error in units of its bound; infinite for NaN, a wrong shape or an exception.
    """

    clause: str
    dtype: str
    failed: int
    margin: float


@dataclass(frozen=True)
class Outcome:
    """The result of the suite for one defect.

    Attributes:
        first: seconds of judging until the first kill; None without any.
        needs: the options, such as "mask=float", that every failing case shares: without them it would survive.
        diagnosis: the name that the diagnosis gives it, from its answers alone.
        errors: clauses that could not be judged.
    """

    defect: str
    kills: tuple[Kill, ...]
    first: float | None
    needs: frozenset[str]
    diagnosis: str
    errors: tuple[str, ...] = ()

    @property
    def clauses(self) -> tuple[str, ...]:
        """The clauses that killed it, each once, in the order of the specification."""
        return tuple(dict.fromkeys(kill.clause for kill in self.kills))

    @property
    def checks(self) -> int:
        """How many checks failed, over all clauses and dtypes."""
        return sum(kill.failed for kill in self.kills)

    def margin(self, clause: str) -> float:
        """The largest margin by which the clause killed it; 0 where it did not."""
        return max((kill.margin for kill in self.kills if kill.clause == clause), default=0.0)


def dtypes_of(defect: Defect) -> tuple[str, ...]:
    """All dtypes for mistakes of range or precision; the widest for all others."""
    narrow = defect.severity in (Severity.PRECISION, Severity.NAN) or defect.dtype != WIDEST[0]
    return tuple(DTYPES) if narrow else WIDEST


def outcome(implementation: Implementation, tier: str, dtypes: tuple[str, ...] = ()) -> Outcome:
    """Judges a wrong implementation by all clauses that it claims, in these dtypes or in all."""
    kills: list[Kill] = []
    failing: list[Case] = []
    failures: list[FailingCheck] = []
    errors: list[str] = []
    start, first = time.perf_counter(), None
    for check in Selection((implementation,), dtypes=dtypes).plan():
        judge = Judge(implementation, check.dtype, tier=TIERS[tier], failure_limit=FAILURE_LIMIT, selected=dtypes)
        with suppress(FailureLimitError):
            check.test(judge)
        result, reason = status(judge, None, dtype_of_bounds(check.clause, judge))
        if result is Status.ERROR:
            errors.append(f"{check.clause.id} in {check.dtype}: {reason}")
        if result is Status.FAIL:
            first = first or time.perf_counter() - start
            kills.append(Kill(check.clause.id, check.dtype, judge.tally.failed, judge.tally.worst or 0.0))
            failing += [Case.from_json(failure.case) for failure in judge.tally.failures]
            plain = plainest(judge.tally.failures)
            failures.append(FailingCheck(check.clause.id, Case.from_json(plain.case), check.dtype, plain.part))
    diagnosis = diagnose(implementation, failures)
    name = _as_defect(diagnosis.name, implementation.name) if diagnosis else ""
    needs = frozenset.intersection(*map(options, failing)) if failing else frozenset()
    return Outcome(implementation.name, tuple(kills), first, needs, name, tuple(errors))


def _as_defect(name: str, judged: str) -> str:
    """The id of the judged defect if the name is that of the convention which it follows."""
    return judged if any(d.id == judged and name == d.follows for d in catalogue()) else name


def pairs(count: int) -> list[tuple[Defect, Defect]]:
    """Two mistakes each, in different steps under the same conventions, drawn by a fixed seed."""
    stepped = [defect for defect in catalogue() if defect.replaced and not defect.implementation.modes]
    rng = np.random.default_rng(0)
    drawn: list[tuple[Defect, Defect]] = []
    while len(drawn) < count:
        first, second = (stepped[i] for i in rng.choice(len(stepped), 2, replace=False))
        alike = first.implementation.claims.conventions == second.implementation.claims.conventions
        if alike and not set(first.replaced) & set(second.replaced):
            drawn.append((first, second))
    return drawn


def both(first: Defect, second: Defect) -> Implementation:
    """An implementation with two mistakes, which claims what either claims: the steps support everything."""
    claims = first.implementation.claims
    shared = replace(claims, features=claims.features | second.implementation.claims.features)
    run = torch_op(in_steps({**first.replaced, **second.replaced}), extras=("weights", "log_sum_exp"))
    return Implementation(f"{first.id}+{second.id}", shared, run)


def outcomes(mistakes: Sequence[Sequence[Defect]], tier: str, processes: int) -> Iterator[Outcome]:
    """The outcome of each defect, or pair of them, in order; processes keep the reference's answers for the next."""
    names = [[defect.id for defect in each] for each in mistakes]
    with ProcessPoolExecutor(processes, initializer=compute_on_one_thread) as pool:
        yield from pool.map(_outcome_of, names, [tier] * len(names))


def _outcome_of(names: Sequence[str], tier: str) -> Outcome:
    by_id = {defect.id: defect for defect in catalogue()}
    first, *second = (by_id[name] for name in names)
    if second:
        return outcome(both(first, *second), tier, WIDEST)
    return outcome(first.implementation, tier, dtypes_of(first))


def complaints(defects: Sequence[Defect], results: Mapping[str, Outcome], whole: bool = True) -> Iterator[str]:
    """Everything that is wrong with the suite or the catalogue; of clauses only where it is the `whole` catalogue."""
    killed = {clause for each in results.values() for clause in each.clauses}
    for defect in defects:
        yield from _of_defect(defect, results[defect.id])
    for clause in clause_tests() if whole else ():
        if clause not in killed:
            yield f"{clause}: no defect breaks it"
        elif all(each.margin(clause) < PLAIN_MARGIN for each in results.values()):
            yield f"{clause}: no defect breaks it by more than {PLAIN_MARGIN:g} times the bound"


def _of_defect(defect: Defect, result: Outcome) -> Iterator[str]:
    if not result.kills:
        yield f"{defect.id}: survives"
    elif all(not clause.startswith(f"{defect.chapter}.") for clause in result.clauses):
        yield f"{defect.id}: killed by other chapters than {defect.chapter} only"
    elif result.checks < 2:
        yield f"{defect.id}: killed by one check only"
    yield from (f"{defect.id}: {error}" for error in result.errors)


def sole_kills(results: Iterable[Outcome]) -> Counter[str]:
    """How many defects each clause kills that no other clause kills."""
    return Counter(each.clauses[0] for each in results if len(each.clauses) == 1)


def smallest_set(results: Sequence[Outcome], kills: int) -> list[str]:
    """Clauses, the most frequent first, that kill every defect so often, or as often as it is killed at all."""
    clauses = {each.defect: each.clauses for each in results}
    missing = {each.defect: min(kills, len(each.clauses)) for each in results if each.kills}
    chosen: list[str] = []
    while any(missing.values()):
        unfinished = (defect for defect, number in missing.items() if number)
        gain = Counter(clause for defect in unfinished for clause in clauses[defect] if clause not in chosen)
        best = max(gain, key=lambda clause: (gain[clause], clause))
        chosen.append(best)
        missing = {defect: n - (n > 0 and best in clauses[defect]) for defect, n in missing.items()}
    return chosen


def needed(results: Iterable[Outcome]) -> dict[str, list[str]]:
    """For each option of a case, the defects that nothing else reveals."""
    by_option: dict[str, list[str]] = {}
    for each in results:
        for option in sorted(each.needs):
            by_option.setdefault(option, []).append(each.defect)
    return dict(sorted(by_option.items()))


def rejudged(defects: Sequence[Defect], results: Mapping[str, Outcome], processes: int) -> dict[str, Outcome]:
    """The outcomes, with the full tier's for those that survived the quick one."""
    survivors = [defect for defect in defects if not results[defect.id].kills]
    later = {each.defect: replace(each, first=None) for each in outcomes([[d] for d in survivors], "full", processes)}
    return {**results, **{d: each for d, each in later.items() if each.kills}}
