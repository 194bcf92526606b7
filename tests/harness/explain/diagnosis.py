"""Diagnosis: which known mistake, or which convention, explains the failures of a candidate; if none, their pattern."""

import math
import string
import time
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import Implementation, PathError, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit_to_explain
from attention_conformance.implementations.api.safe_call import CandidateError, answer, restored
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Scores
from attention_conformance.spec.clauses import Level, load
from attention_conformance.spec.features import Packing
from attention_conformance.spec.inputs import build
from attention_conformance.spec.optional import imported
from attention_conformance.spec.problem import DTYPES, Problem
from attention_conformance.tests.harness.explain.hypotheses import Hypothesis, hypotheses
from attention_conformance.tests.harness.explain.pattern import pattern
from attention_conformance.tests.harness.judge.clause_tests import Selection
from attention_conformance.tests.harness.judge.comparison import error_ratios
from attention_conformance.tests.harness.judge.judge import Judge, part_of
from attention_conformance.tests.report.verdict import LOSSES, Status, Verdict

BUDGET = 6.0
"""Seconds after which no further hypothesis is tried."""
FEW, MANY = 6, 40
"""Failing cases with which every hypothesis is tried, and those with which the best ones are."""
HOPELESS = 2
"""Failing cases after which a hypothesis is given up that explains none of them."""
WITHOUT_DIGITS = str.maketrans("", "", string.digits)
KEPT = 12
"""Hypotheses that are tried with all cases."""
PROBES = (
    Case(seed=201),
    Case(seed=202, score_std=4.0).sized(batch=3, num_heads=2, query_length=6, key_length=6, d_k=4, d_v=4),
    Case(seed=203, mask=MaskKind.BOOL),
    Case(seed=204, mask=MaskKind.FLOAT),
    Case(seed=205, mask=MaskKind.INFINITE, mask_shape=MaskShape.SHARED),
    Case(seed=206, padding=Padding.LEFT),
    Case(seed=207, causal=True).sized(query_length=7),
    Case(seed=208, causal=True),
    Case(seed=209, scale=0.3),
    Case(seed=210, scores=Scores.RISING).sized(key_length=33),
    Case(seed=211).sized(query_length=1),
    Case(seed=212, mask=MaskKind.BOOL).sized(num_heads=1, batch=1),
    Case(seed=213, mask=MaskKind.BOOL, causal=True).sized(query_length=7),
    Case(seed=214, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW),
    Case(seed=215, padding=Padding.EMPTY_SAMPLE),
    Case(seed=216).sized(num_heads=6, num_kv_heads=3),
    Case(seed=217).extended(window_left=1),
    Case(seed=218).extended(window_right=1),
    Case(seed=219, score_std=6.0).extended(softcap=1.5),
    Case(seed=220).extended(rotary_base=50.0),
    Case(seed=221).extended(rotary_base=50.0, query_start=2),
    Case(seed=222, causal=True).extended(query_start=2),
    Case(seed=223).extended(alibi=True),
    Case(seed=224).extended(relative_bias=2),
    Case(seed=225).extended(sinks=True),
    Case(seed=226, mask=MaskKind.BOOL).extended(zero_attn=True),
    Case(seed=227, mask=MaskKind.BOOL).extended(bias_kv=True),
    Case(seed=228).extended(head_gates=True),
    Case(seed=229).extended(packing=Packing.SEGMENTS),
    Case(seed=230).extended(packing=Packing.LENGTHS),
    Case(seed=231, causal=True).sized(query_length=7).extended(chunks=(4, 2, 1)),
)
"""Cases that distinguish hypotheses: one hypothesis is wrong here, the next one is right."""


@dataclass(frozen=True)
class FailingCheck:
    """A failing check: its clause, case and dtype, and what differed there; no part where it was no comparison."""

    clause: str
    case: Case
    dtype: str
    part: str


@dataclass(frozen=True)
class Diagnosis:
    """The best explanation, or none.

    Attributes:
        name: the id of a defect or a convention; empty if nothing known explains the failures.
        explains, of: how many failing cases it explains, out of how many that were compared; where nothing could be
            compared, kinds of failures.
        error: the largest difference between its answers and the candidate's, in bounds, where it explains.
        next_name, next_explains: the second best.
        repair: what to do.
        pattern: what the failures have in common, where no name was found.
    """

    name: str
    explains: int
    of: int
    error: float
    next_name: str
    next_explains: int
    repair: str
    pattern: str = ""
    of_clauses: bool = False

    def __str__(self) -> str:
        if not self.name:
            return f"no known mistake explains the failures; {self.pattern}"
        rest = f"; the next best, {self.next_name}, explains {self.next_explains}" if self.next_name else ""
        if self.of_clauses:
            of = f"{self.explains} of {self.of} kinds of failures"
            return f"fails as `{self.name}` does, in {of}{rest}: {self.repair}"
        details = f"difference {self.error:.2g} of the limit for equal answers{rest}"
        word = "matches" if 2 * self.explains >= self.of else "is partly explained by"
        more = f"; {self.pattern}" if self.pattern else ""
        return f"{word} `{self.name}` on {self.explains} of {self.of} failing cases ({details}): {self.repair}{more}"


@dataclass(frozen=True, eq=False)
class Observation:
    """What the candidate answered to one case.

    Attributes:
        got: None if it raised.
        raised: the exception in words, numbers left out.
        errors: its distance from the reference, in bounds, part by part.
    """

    case: Case
    problem: Problem
    parts: tuple[str, ...]
    got: Result | None
    expected: dict[str, Expected]
    errors: dict[str, float]
    failing: bool
    raised: str = ""

    def distance(self, other: Result | None, raised: str = "") -> float:
        """How far another answer is from the candidate's, in units of what would count as the same.

        It counts as the same if it is as near as two right answers may be, or shares at least half of the digits by
        which the candidate is away from the reference; and never if the reference is nearly as near.
        """
        if self.got is None or other is None:
            return 0.0 if self.got is other and self.raised == raised else math.inf
        return max(self._distance(part, self.got, other) for part in self.parts)

    def _distance(self, part: str, got: Result, other: Result) -> float:
        own, theirs = part_of(got, part), part_of(other, part)
        if own is None or theirs is None or own.shape != theirs.shape:
            return 0.0 if own is theirs else math.inf
        wide, bound = own.astype(np.float64), self.expected[part].bound
        error = self.errors[part]
        limit = 2.0 if error <= 1.0 else min(max(2.0, math.sqrt(error)), error / 2.0)
        if wide.shape != bound.shape:
            return 0.0 if np.array_equal(wide, theirs.astype(np.float64), equal_nan=True) else math.inf
        ratios = error_ratios(wide, Expected(theirs.astype(np.float64), bound))
        worst = float(np.nan_to_num(ratios, nan=math.inf).max(initial=0.0))
        return worst / limit


def failing_checks(verdicts: Sequence[Verdict]) -> list[FailingCheck]:
    """The check that each verdict shows, of clauses that MUST hold; of the others if those all hold."""
    failing = [(v, v.failure) for v in verdicts if v.status is Status.FAIL and v.failure is not None]
    failing = [(v, failure) for v, failure in failing if failure.kind not in LOSSES]
    binding = [pair for pair in failing if pair[0].level == Level.MUST] or failing
    return [FailingCheck(v.clause, Case.from_json(f.case), v.dtype, f.part) for v, f in binding]


def diagnose(
    implementation: Implementation,
    checks: Sequence[FailingCheck],
    device: str = "cpu",
    dtypes: Collection[str] | None = None,
) -> Diagnosis | None:
    """Explains the failures of an implementation; None if there are none.

    `dtypes` are those in which it was checked; None: all that it claims.
    """
    if not checks:
        return None
    compared = [each for each in checks if each.part]
    if not compared:
        return _by_clauses(implementation, checks, device)
    observed = list(_observations(implementation, compared, device))
    with _one_thread():
        ranked = _ranked(implementation, observed, {each.clause for each in checks})
    failing = [each for each in observed if each.failing]
    fails = partial(_fails, implementation, failing[0], device) if failing else (lambda _: False)
    checked = implementation.claims.dtypes if dtypes is None else dtypes
    common = pattern(failing, observed, failing_alone(checked, compared), fails)
    if not ranked or ranked[0].explains == 0:
        return Diagnosis("", 0, len(failing), math.nan, "", 0, "", common)
    best, second = ranked[0], next((score for score in ranked[1:] if score.explains), None)
    return Diagnosis(
        best.hypothesis.name,
        best.explains,
        len(failing),
        best.error,
        second.hypothesis.name if second else "",
        second.explains if second else 0,
        best.hypothesis.repair,
        common if 2 * best.explains < len(failing) else "",
    )


def failing_alone(checked: Collection[str], compared: Sequence[FailingCheck]) -> tuple[str, ...]:
    """The dtypes in which it fails, if it passes everything in the other dtypes that were checked; none otherwise."""
    failing = tuple(d for d in checked if any(each.dtype == d for each in compared))
    return failing if len(failing) < len(checked) else ()


def _observations(
    implementation: Implementation, compared: Sequence[FailingCheck], device: str
) -> Iterator[Observation]:
    """The failing cases, each once, in the widest dtype in which it fails; then the probes in the widest of all."""
    dtypes = [dtype for dtype in DTYPES if any(each.dtype == dtype for each in compared)]
    parts: dict[tuple[Case, str], set[str]] = {}
    for each in sorted(compared, key=lambda each: dtypes.index(each.dtype)):
        parts.setdefault((each.case, each.dtype), set()).add(each.part)
    widest = [key for key in parts if key[1] == dtypes[0]] or list(parts)
    for case, dtype in widest[:MANY]:
        yield _observed(implementation, case, dtype, tuple(parts[case, dtype]), device)
    for probe in PROBES:
        fitted = fit_to_explain(probe, implementation.claims)
        if not isinstance(fitted, Unsupported) and (fitted, dtypes[0]) not in parts:
            yield _observed(implementation, fitted, dtypes[0], ("output",), device)


def _observed(
    implementation: Implementation, case: Case, dtype: str, parts: tuple[str, ...], device: str
) -> Observation:
    problem = build(case, dtype)
    gradients = any(part.startswith("gradients.") for part in parts)
    # A mask that another case lacks has no gradient there.
    names = tuple(name for name in problem.needs if f"gradients.{name}" in parts)
    problem = replace(problem, needs=names) if gradients else problem.forward_only()
    expected = dict(solve(problem, implementation.claims.conventions).parts)
    parts = tuple(part for part in dict.fromkeys(("output", *parts)) if part in expected)
    got, raised = answered(lambda: answer(implementation.run, problem.fresh(), device))
    errors = {part: _error(got, part, expected[part]) for part in parts}
    return Observation(case, problem, parts, got, expected, errors, max(errors.values()) > 1.0, raised)


def _fails(implementation: Implementation, failing: Observation, device: str, case: Case) -> bool:
    """Whether the parts that fail in one case fail in another one, too."""
    fitted = fit_to_explain(case, implementation.claims)
    if isinstance(fitted, Unsupported):
        return True
    return _observed(implementation, fitted, failing.problem.dtype, failing.parts, device).failing


def answered(call: Callable[[], Result]) -> tuple[Result | None, str]:
    """The answer, or None and the exception in words without numbers."""
    try:
        return restored(call), ""
    except (CandidateError, PathError) as error:
        return None, str(error).translate(WITHOUT_DIGITS)


def _error(got: Result | None, part: str, expected: Expected) -> float:
    array = None if got is None else part_of(got, part)
    if array is None or array.shape != expected.value.shape:
        return math.inf
    ratios = error_ratios(array.astype(np.float64), expected)
    finite = ratios[np.isfinite(ratios)]
    return float(finite.max(initial=0.0)) if finite.size == ratios.size else max(2.0, float(finite.max(initial=0.0)))


@dataclass(frozen=True)
class Score:
    """How well a hypothesis does."""

    hypothesis: Hypothesis
    explains: int
    agrees: int
    error: float


@contextmanager
def _one_thread() -> Iterator[None]:
    """Thousands of tiny calls: threads that wait for one another take longer than the work."""
    torch = imported("torch")
    threads = torch and torch.get_num_threads()
    if torch:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(threads)


def _ranked(implementation: Implementation, observed: Sequence[Observation], clauses: Set[str]) -> list[Score]:
    """Hypotheses that explain something, the best first; among equals, in the order in which they are listed."""
    failing = [each for each in observed if each.failing]
    others = [each for each in observed if not each.failing]
    end = time.perf_counter() + BUDGET
    few = failing[:: max(1, -(-len(failing) // FEW))] + others[:2]  # evenly over the order of the specification
    listed = list(hypotheses(implementation.claims.scope, implementation.claims.conventions))
    far = {each.name: each.defect is not None and each.defect.clauses[0] not in clauses for each in listed}
    listed.sort(key=lambda each: far[each.name])
    first = []
    for hypothesis in listed:
        if time.perf_counter() < end:
            first.append(_scored(hypothesis, few, 1 if far[hypothesis.name] else HOPELESS))
    best = sorted((score for score in first if score.explains), key=_rank)[:KEPT]
    return sorted((_scored(score.hypothesis, observed) for score in best), key=_rank)


def _rank(score: Score) -> tuple[float, ...]:
    return -(score.explains + score.agrees), score.hypothesis.defect is not None, score.error


def _scored(hypothesis: Hypothesis, observed: Sequence[Observation], hopeless: int = MANY) -> Score:
    """How a hypothesis does; it is given up when so many cases have passed of which it explains none."""
    explains, agrees, error = 0, 0, 0.0
    for number, each in enumerate(observed):
        if number == hopeless and not explains:
            break
        if not hypothesis.applies_to(each.problem):
            continue
        distance = each.distance(*answered(lambda each=each: hypothesis.answer(each.problem)))  # type: ignore[misc]
        if distance <= 1.0:
            explains, agrees = explains + each.failing, agrees + (not each.failing)
            error = max(error, distance)
    return Score(hypothesis, explains, agrees, error)


def _by_clauses(implementation: Implementation, checks: Sequence[FailingCheck], device: str) -> Diagnosis | None:
    """For failures that are no comparisons: the mistake that breaks the same clauses in the same words."""
    failed = {each.clause for each in checks}
    chapters = {load()[clause].chapter for clause in failed}
    dtype = next(dtype for dtype in DTYPES if any(each.dtype == dtype for each in checks))
    own = _failure_summaries(implementation, chapters, dtype, device)
    ranked = []
    for hypothesis in hypotheses(implementation.claims.scope, implementation.claims.conventions):
        defect = hypothesis.defect
        if defect is not None and failed & set(defect.clauses):
            theirs = _failure_summaries(defect.implementation, chapters, dtype, device)
            ranked.append((len(own & theirs) / max(1, len(own | theirs)), len(own & theirs), hypothesis))
    ranked.sort(key=lambda entry: -entry[0])
    if not ranked or not ranked[0][1]:
        summaries = "; ".join(sorted(words for _, words in own)[:3])
        pattern_of_clauses = f"they are: {summaries}" if own else "none showed when the checks were run again"
        return Diagnosis("", 0, len(own), math.nan, "", 0, "", pattern_of_clauses)
    (_, explains, best), second = ranked[0], ranked[1] if len(ranked) > 1 else None
    rest = (second[2].name, second[1]) if second and second[1] else ("", 0)
    return Diagnosis(best.name, explains, len(own), 0.0, *rest, best.repair, of_clauses=True)


def _failure_summaries(
    implementation: Implementation, chapters: set[str], dtype: str, device: str
) -> set[tuple[str, str]]:
    """(clause, words) of every failing check of these chapters, without the numbers."""
    summaries = set()
    for planned in Selection((implementation,), dtypes=(dtype,)).plan():
        if planned.clause.chapter in chapters:
            judge = Judge(implementation, dtype, device)
            with suppress(PathError, CandidateError):
                planned.test(judge)
            summaries |= {(planned.clause.id, each.summary or each.message) for each in judge.tally.failures}
    return summaries
