"""The judge: asks one implementation the cases of one clause, in one dtype, and keeps the count.

Its `assert_...` methods are the whole vocabulary of the conformance tests. They collect instead of stopping, so that a
verdict can show the plainest of all failing cases.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from attention_conformance.implementations.adapters.native import native
from attention_conformance.implementations.api.contract import Claims, Implementation, PathError, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.global_state import kept_global_state
from attention_conformance.reference.bounds.precision import unit_roundoff
from attention_conformance.reference.expected import Expected, Solution, solve
from attention_conformance.reference.stacking import solve_each, stackable
from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.spec.features import Conventions, Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Array, Problem
from attention_conformance.tests.harness.judge.comparison import Comparison, compare
from attention_conformance.tests.harness.judge.influence import wrong_keys
from attention_conformance.tests.report.verdict import Failure

Seen = TypeVar("Seen")


RETURNED_AS = {
    "weights": Feature.WEIGHTS,
    "averaged_weights": Feature.AVERAGED_WEIGHTS,
    "log_sum_exp": Feature.LOG_SUM_EXP,
}
"""The features that promise parts beside output and gradients."""


class CandidateError(Exception):
    """The candidate raised where it should have answered."""


class FailureLimitError(Exception):
    """The judge has reached its failure limit."""


@dataclass(frozen=True)
class Tier:
    """How much is asked: `examples` of random search, the strength of the covering array, long sequences."""

    name: str
    strength: int
    examples: int
    long: bool


TIERS = {
    "quick": Tier("quick", strength=2, examples=0, long=False),
    "full": Tier("full", strength=2, examples=200, long=False),
    "exhaustive": Tier("exhaustive", strength=3, examples=1000, long=True),
}


np.empty(2**25 - 2**16, np.uint8)
"""Freed at once, it makes the GNU C library keep what is freed later, up to twice as much: otherwise each array of a
large case gets fresh pages, which take longer than what is computed in them."""


@lru_cache(maxsize=1024)
def _expected(
    case: Case, dtypes: tuple[str, ...], conventions: Conventions, gradients: bool, returned: tuple[str, ...]
) -> Mapping[str, Mapping[str, Expected]]:
    """The reference's answers to a case by dtype, shared by all implementations that claim the same conventions.

    Their traces are not kept: they take several times the memory.
    """
    problems = [build(case, dtype) for dtype in dtypes]
    asked = problems if gradients else [problem.forward_only() for problem in problems]
    return dict(zip(dtypes, solve_each(asked, conventions, returned), strict=True))


@dataclass
class Judge:
    """One clause's questions to one implementation in one dtype.

    Attributes:
        checks, inconclusive, failed, worst: see `Verdict`.
        squares, compared: the sum of the squares of relative errors of outputs, in units of u, and their number.
        failures: every failed check, in the order asked.
        unable: why cases could not be asked.
        beside: the dtypes in which the same is asked as well, so that the reference may solve a case for all in one go.
        failure_limit: the failed check after which no more are asked; None asks them all.
    """

    implementation: Implementation
    dtype: str
    device: str = "cpu"
    tier: Tier = TIERS["quick"]
    checks: int = 0
    inconclusive: int = 0
    failed: int = 0
    worst: float | None = None
    squares: float = 0.0
    compared: int = 0
    failures: list[Failure] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    failure_limit: int | None = None
    beside: tuple[str, ...] = ()

    @property
    def claims(self) -> Claims:
        return self.implementation.claims

    @property
    def rms(self) -> float | None:
        """See `Verdict`."""
        return math.sqrt(self.squares / self.compared) if self.compared else None

    @property
    def conventions(self) -> Conventions:
        return self.claims.conventions

    def cases(self, *wanted: Case) -> Iterator[Case]:
        """The wanted cases as near as the claims allow, each once; what cannot be asked is noted.

        Every second case of the default widths gets d_v = d_k: some kernels take no other, and are reached so.
        """
        seen: set[Case] = set()
        for number, case in enumerate(wanted):
            ordinary = (case.sizes.d_k, case.sizes.d_v) == (Sizes.d_k, Sizes.d_v)
            fitted = fit(case.sized(d_v=case.sizes.d_k) if ordinary and number % 2 else case, self.claims)
            if isinstance(fitted, Unsupported):
                self.unsupported.append(fitted.reason)
            elif fitted not in seen:
                seen.add(fitted)
                yield fitted

    def problem(self, case: Case) -> Problem:
        """The case's numbers in this dtype, asking for the gradients that are claimed."""
        problem = build(case, self.dtype)
        if Feature.GRADIENTS not in self.claims:
            return problem.forward_only()
        if Feature.MASK_GRADIENT in self.claims or "attn_mask" not in problem.needs:
            return problem
        return problem.but(needs=tuple(name for name in problem.needs if name != "attn_mask"))

    def parts(self) -> tuple[str, ...]:
        """Everything that is claimed to be returned."""
        gradients = ("gradients",) if Feature.GRADIENTS in self.claims else ()
        return ("output", *self.returned, *gradients)

    @property
    def returned(self) -> tuple[str, ...]:
        """What is claimed to be returned beside the output, gradients apart."""
        return tuple(part for part, feature in RETURNED_AS.items() if feature in self.claims)

    def solution(self, case: Case) -> Solution:
        """The reference's answer to a case, with its trace."""
        return self.solve(build(case, self.dtype))

    def solve(self, problem: Problem) -> Solution:
        """The reference's answer to a problem that is no case of its own."""
        return solve(problem, self.conventions, returned=self.returned)

    def expected(self, case: Case, gradients: bool = False, also: tuple[str, ...] = ()) -> Mapping[str, Expected]:
        """What the reference answers, part by part: what is claimed, and `also` what is not."""
        dtypes = self.beside if self.dtype in self.beside and stackable(case) else (self.dtype,)
        returned = tuple(dict.fromkeys(self.returned + also))
        return _expected(case, dtypes, self.conventions, gradients, returned)[self.dtype]

    def run(self, problem: Problem) -> Result:
        """The candidate's answer to a fresh copy of the problem.

        Raises:
            CandidateError: it raised, or gave back something that is no `Result`.
        """
        return self.run_with(problem.fresh())

    def run_with(self, problem: Problem) -> Result:
        """The candidate's answer to these very arrays, which it may keep or spoil."""
        with kept_global_state():
            return self.run_unrestored(problem)

    def run_unrestored(self, problem: Problem) -> Result:
        """The same, and whatever the call does to the state of the process stays done."""
        result = _guarded(lambda: self.implementation.run(problem, self.device))
        if not isinstance(result, Result):
            raise CandidateError(f"returned {type(result).__name__}, not a Result")
        return result

    def watch(self, problem: Problem, watched: Callable[[Callable[[], object]], Seen]) -> Seen:
        """What is seen of the candidate's own calls for a copy of the problem, made ready beforehand.

        Raises:
            CandidateError: it raised.
        """
        with kept_global_state():
            return _guarded(lambda: watched(native(self.implementation, problem.fresh(), self.device).call))

    def call(self, name: str, *arguments: int) -> Array:
        """What a plain function of the candidate answers.

        Raises:
            CandidateError: it raised, or gave back something that is no array of floats.
        """
        with kept_global_state():
            found = _guarded(lambda: self.implementation.functions[name](*arguments))
        if not isinstance(found, np.ndarray) or found.dtype.name not in DTYPES:
            kind = f"an array of {found.dtype}" if isinstance(found, np.ndarray) else type(found).__name__
            raise CandidateError(f"{name} returned {kind}, not an array of one of {', '.join(DTYPES)}")
        return found

    def record(self, case: Case, comparison: Comparison, context: str = "", part: str = "") -> None:
        """Counts one check; a inconclusive one apart. `context` explains a failure in the clause's own terms.

        `part` is what was held against the reference's answer to the case, if that is what was done.
        """
        if comparison.inconclusive:
            self.inconclusive += 1
            return
        self.checks += 1
        self.worst = max(self.worst or 0.0, comparison.worst)
        if comparison.relative is not None:
            relative = comparison.relative / unit_roundoff(self.dtype)
            self.squares, self.compared = self.squares + relative * relative, self.compared + 1
        if comparison.message:
            self.failed += 1
            message = f"{context}: {comparison.message}" if context else comparison.message
            self.failures.append(Failure(message, case.to_json(), self.dtype, part))
            if self.failed == self.failure_limit:
                raise FailureLimitError

    def assert_that(self, case: Case, holds: bool, message: str) -> None:
        """One check without numbers."""
        self.record(case, Comparison(0.0) if holds else Comparison(np.inf, message))

    def assert_conforms(self, case: Case, *parts: str, exactly: bool = False, context: str = "") -> None:
        """Output, or the named parts, equal the reference within the bounds; `exactly`: with no error at all.

        Part `gradients` stands for all gradients that are claimed. They are asked for only when named, so that the
        answer without gradients is judged too.
        """
        wanted = parts or ("output",)
        problem = self.problem(case)
        if not any(part.startswith("gradients") for part in wanted):
            problem = problem.forward_only()
        try:
            result = self.run(problem)
        except CandidateError as error:
            asked = next(self._expanded(reversed(wanted), problem), "output")
            self.record(case, Comparison(np.inf, str(error)), part=asked)
            return
        expected = self.expected(case, gradients=problem.cotangent is not None)
        for part in self._expanded(wanted, problem):
            meant = expected[part]
            meant = Expected(meant.value, np.zeros_like(meant.bound)) if exactly else meant
            compared = compare(part, part_of(result, part), meant, self.dtype)
            self.record(case, compared, context, part)

    def explained(self, failure: Failure) -> Failure:
        """The failure, with the keys that a query wrongly saw or missed where that can be told.

        It takes a call for each key, and so it is asked of the one failure that is shown.
        """
        if not failure.part or not failure.message.startswith(failure.part):
            return failure
        case = Case.from_json(failure.case)
        context = wrong_keys(self.problem(case), self.conventions, self.run, case.poison)
        return replace(failure, message=f"{context}: {failure.message}") if context else failure

    def assert_conforms_or_refuses(self, case: Case, context: str = "") -> None:
        """Output within the bounds, or an exception; one check either way."""
        try:
            self.run(self.problem(case).forward_only())
        except CandidateError:
            self.assert_that(case, True, "")
        else:
            self.assert_conforms(case, context=context)

    def along(self, way: str) -> Judge:
        """A judge of another way to call the implementation; what it counts is added to this one by `include`."""
        implementation = replace(self.implementation, run=self.implementation.alternatives[way])
        # The failure limit would end the test before its counts are included.
        return Judge(
            implementation, self.dtype, self.device, self.tier, unsupported=self.unsupported, beside=self.beside
        )

    def include(self, other: Judge) -> None:
        """Adds the counts of a judge that `along` made."""
        self.checks, self.inconclusive = self.checks + other.checks, self.inconclusive + other.inconclusive
        self.failed, self.failures = self.failed + other.failed, self.failures + other.failures
        self.squares, self.compared = self.squares + other.squares, self.compared + other.compared
        self.worst = self.worst if other.worst is None else max(self.worst or 0.0, other.worst)

    def _expanded(self, parts: Iterable[str], problem: Problem) -> Iterator[str]:
        for part in parts:
            name = part.removeprefix("gradients.")
            if part == "gradients":
                yield from (f"gradients.{name}" for name in problem.needs)
            elif part.startswith("gradients.") and name not in problem.needs:
                self.unsupported.append(f"{name} is no input of its own")
            else:
                yield part

    def assert_answers(
        self,
        case: Case,
        problem: Problem,
        expected: Expected,
        context: str,
        part: str = "output",
        of: Callable[[Array], Array] = lambda array: array,
        as_is: bool = False,
    ) -> None:
        """The answer to a problem made from the case, or what `of` takes from it, equals what a relation says.

        `as_is` hands over these very arrays.
        """
        try:
            result = self.run_with(problem) if as_is else self.run(problem)
        except CandidateError as error:
            self.assert_that(case, False, f"{context}: {error}")
            return
        self.record(case, compare(part, _taken(part_of(result, part), of), expected, self.dtype), context)

    def assert_raises(self, call: Callable[[], object], what: str) -> None:
        """A constructor refuses what makes no sense."""
        try:
            call()
        except Exception:
            self.assert_that(Case(), True, "")
        else:
            self.assert_that(Case(), False, f"{what} was accepted")

    def own(self, case: Case, problem: Problem) -> Array | None:
        """The candidate's output for a problem, or None after recording that it raised."""
        try:
            return self.run(problem.forward_only()).output
        except CandidateError as error:
            self.assert_that(case, False, str(error))
            return None

    def assert_refuses(self, case: Case, problem: Problem, what: str, as_is: bool = False) -> None:
        """The problem makes no sense, and the candidate says so by an exception; `as_is` hands over these arrays."""
        try:
            result = self.run_with(problem) if as_is else self.run(problem)
        except CandidateError:
            self.assert_that(case, True, "")
        else:
            self.assert_that(case, False, f"{what} was accepted, with an answer of shape {result.output.shape}")


def _guarded(call: Callable[[], Seen]) -> Seen:
    """What a call into the candidate gives back; whatever it raises becomes a `CandidateError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a candidate may warn; what it answers is judged
            return call()
    except (KeyboardInterrupt, PathError):
        raise
    except BaseException as error:
        # SystemExit, or pytest's own skip and exit, must not let a candidate out of its verdict.
        told = str(error).strip().splitlines() or ["no message"]
        raise CandidateError(f"raised {type(error).__name__}: {told[0]}") from error


def _taken(got: Array | None, of: Callable[[Array], Array]) -> Array | None:
    try:
        return None if got is None else of(got)
    except IndexError:
        return got  # an answer of another shape is told as such


def part_of(result: Result, part: str) -> Array | None:
    """`output`, `weights`, ..., or `gradients.NAME` of a result; None if it is not there."""
    if part.startswith("gradients."):
        return result.gradients.get(part.removeprefix("gradients."))
    found: Array | None = getattr(result, part)
    return found
