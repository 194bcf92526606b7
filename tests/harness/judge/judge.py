"""The judge: runs the cases of one clause against one implementation in one dtype, and counts the checks.

Its `assert_...` methods are the whole vocabulary of the conformance tests. They collect instead of stopping, so that a
verdict can show the plainest of all failing cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from attention_conformance.implementations.api.contract import Claims, Implementation, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.global_state import kept_global_state
from attention_conformance.implementations.api.safe_call import EXIT_NAMES, CandidateError, LostError, function_answer
from attention_conformance.implementations.worker.observer import Observer
from attention_conformance.implementations.worker.remote import observer_of, runs_ahead
from attention_conformance.reference.bounds.precision import operands_exact, unit_roundoff
from attention_conformance.reference.expected import Expected, Solution, solve
from attention_conformance.reference.stacking import expected_answers, stackable
from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Array, Problem
from attention_conformance.tests.harness.judge.call_time import begun_in_time
from attention_conformance.tests.harness.judge.comparison import (
    RETURNED_AS,
    Comparison,
    compare,
    lacks_room,
    no_answer,
    part_of,
    selected,
)
from attention_conformance.tests.harness.judge.tally import Counts, Tally
from attention_conformance.tests.harness.judge.tiers import TIERS, Tier
from attention_conformance.tests.report.verdict import Failure, FailureKind

CALLS_AHEAD = 3
"""Calls that have begun before the first of them is compared: judge and candidate seldom take equally long."""


class FailureLimitError(Exception):
    """The judge has reached its failure limit."""


np.empty(2**25 - 2**16, np.uint8)
"""Freed at once, it makes the GNU C library keep what is freed later, up to twice as much: otherwise each array of a
large case gets fresh pages, which take longer than what is computed in them."""


@dataclass(frozen=True)
class Judge:
    """The checks of one clause on one implementation in one dtype.

    Attributes:
        counts: the checks so far. Whatever `dataclasses.replace` makes of a judge counts here too.
        dtypes_together: the dtypes in which the same cases are run, so that the reference solves each case for all.
        selected: the dtypes that the run is limited to; empty for all.
        failure_limit: the failed check after which `FailureLimitError` ends the test; None for no limit.
        until: the monotonic time from which on `BudgetSpentError` ends the test before a call; None for no limit.
    """

    implementation: Implementation
    dtype: str
    device: str = "cpu"
    tier: Tier = TIERS["quick"]
    counts: Counts = field(default_factory=Counts)
    failure_limit: int | None = None
    until: float | None = None
    dtypes_together: tuple[str, ...] = ()
    selected: tuple[str, ...] = ()

    @property
    def tally(self) -> Tally:
        self.settle()
        return self.counts.tally

    @property
    def unsupported(self) -> list[str]:
        self.settle()
        return self.counts.unsupported

    def settle(self) -> None:
        """Makes the checks whose calls have begun; whatever is counted, called or observed comes after them."""
        self.counts.settle()

    @property
    def claims(self) -> Claims:
        return self.implementation.claims

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The claimed dtypes of the run, the widest first."""
        return tuple(d for d in DTYPES if d in self.claims.dtypes and d in (self.selected or DTYPES))

    @property
    def conventions(self) -> Conventions:
        return self.claims.conventions

    def cases(self, *proposed: Case) -> Iterator[Case]:
        """The proposed cases as near as the claims allow, each once; why a case is left out is noted.

        Every second case of the default widths gets d_v = d_k: some kernels support nothing else.
        """
        done: set[Case] = set()
        for number, case in enumerate(proposed):
            ordinary = (case.sizes.d_k, case.sizes.d_v) == (Sizes.d_k, Sizes.d_v)
            sized = case.sized(d_v=case.sizes.d_k) if ordinary and number % 2 else case
            fitted = fit(self.tier.drawn(sized), self.claims)
            if isinstance(fitted, Unsupported):
                self.unsupported.append(fitted.reason)
            elif fitted not in done:
                done.add(fitted)
                yield fitted

    def allows(self, case: Case) -> bool:
        """Whether the claims allow exactly this case, from which a problem is made; why not is noted."""
        fitted = fit(case, self.claims)
        if fitted != case:
            self.unsupported.append(fitted.reason if isinstance(fitted, Unsupported) else f"its claims exclude {case}")
        return fitted == case

    def problem(self, case: Case) -> Problem:
        """The case's numbers in this dtype, with the gradients that are claimed."""
        problem = build(case, self.dtype)
        if Feature.GRADIENTS not in self.claims:
            return problem.forward_only()
        if Feature.MASK_GRADIENT in self.claims or "attn_mask" not in problem.needs:
            return problem
        return problem.but(needs=tuple(name for name in problem.needs if name != "attn_mask"))

    def problems(self, case: Case) -> list[Problem]:
        """The case's problem without gradients, and with them if they are claimed."""
        whole = self.problem(case)
        return [whole.forward_only(), *([whole] if Feature.GRADIENTS in self.claims else [])]

    def parts(self) -> tuple[str, ...]:
        """Everything that is claimed to be returned."""
        gradients = ("gradients",) if Feature.GRADIENTS in self.claims else ()
        return ("output", *self.returned, *gradients)

    @property
    def returned(self) -> tuple[str, ...]:
        """What is claimed to be returned in addition to the output, without gradients."""
        return tuple(part for part, feature in RETURNED_AS.items() if feature in self.claims)

    def solution(self, case: Case) -> Solution:
        """The reference's answer to a case, with its trace."""
        return self.solve(build(case, self.dtype))

    def solve(self, problem: Problem) -> Solution:
        """The reference's answer to a problem that is not made from a case."""
        return solve(problem, self.conventions, returned=self.returned)

    def expected(self, case: Case, gradients: bool = False, also: tuple[str, ...] = ()) -> Mapping[str, Expected]:
        """What the reference answers, part by part: the claimed parts, and the parts in `also`."""
        together = self.dtype in self.dtypes_together and stackable(case, self.dtypes_together)
        dtypes = self.dtypes_together if together else (self.dtype,)
        returned = tuple(dict.fromkeys(self.returned + also))
        return expected_answers(case, dtypes, self.conventions, gradients, returned)[self.dtype]

    def run(self, problem: Problem) -> Result:
        """The candidate's answer to a fresh copy of the problem.

        Raises:
            CandidateError: see `safe_call.answer`; also from the methods below.
        """
        return self.run_with(problem.fresh())

    def run_with(self, problem: Problem) -> Result:
        """The candidate's answer to these very arrays, which it may keep or change."""
        return self.begun(problem)()

    def begun(self, problem: Problem) -> Callable[[], Result]:
        """The same in two steps: while the candidate computes, the checks of earlier calls are made."""
        call = begun_in_time(self.implementation, problem, self.device, self.until)
        self.settle()
        return call

    @property
    def observer(self) -> Observer:
        """What observes the process in which the candidate's calls are made."""
        self.settle()
        return observer_of(self.implementation)

    def observes(self, request: str) -> bool:
        """Whether an observation, by the name of its request, can be made; why it cannot is noted."""
        if reason := self.observer.lacks(request, self.device):
            self.unsupported.append(reason)
        return not reason

    def call(self, name: str, *arguments: object) -> Array:
        """What a plain function of the candidate returns."""
        self.settle()
        with kept_global_state():
            return function_answer(name, self.implementation.functions[name], arguments)

    def record(self, case: Case, comparison: Comparison, context: str = "", part: str = "") -> None:
        """Counts one check. `context` explains a failure in the clause's own terms, without numbers.

        `part` is what was compared with the reference's answer to the case, if that is what was done.
        """
        self.settle()
        if comparison.inconclusive:
            self.counts.add_inconclusive(comparison.unspecified)
            return
        relative = (comparison.relative or 0.0) / unit_roundoff(self.dtype)
        compared = int(comparison.relative is not None)
        failures = () if comparison.kind is None else (self._failure(case, comparison, comparison.kind, context, part),)
        self.counts.tally += Tally(1, 0, comparison.worst, relative * relative, compared, failures)
        if failures:
            self.end_at_limit()

    def _failure(self, case: Case, comparison: Comparison, kind: FailureKind, context: str, part: str) -> Failure:
        message = f"{context}: {comparison.message}" if context else comparison.message
        return Failure(message, case.to_json(), self.dtype, part, kind, context or comparison.summary, comparison.place)

    def end_at_limit(self) -> None:
        """Ends the test where so many checks have failed.

        Raises:
            FailureLimitError: the failure limit is reached.
        """
        if self.failure_limit is not None and self.tally.failed >= self.failure_limit:
            raise FailureLimitError

    def record_error(self, case: Case, error: CandidateError, context: str = "", part: str = "") -> None:
        """Counts one failed check: it raised, or gave nothing usable; FailureLimitError where it cannot go on."""
        if reason := lacks_room(case.sizes, error):
            self.unsupported.append(reason)
            self.counts.left_out.append(reason)
            return
        # A loss is not compared again: each time would cost a process.
        self.record(case, no_answer(error), context, "" if isinstance(error, LostError) else part)
        if isinstance(error, LostError) and error.fault:
            raise FailureLimitError

    def record_refusal(self, case: Case, error: CandidateError) -> None:
        """Counts one check that held: the candidate raised, as it should. To die or to exit is no refusal."""
        if isinstance(error, LostError) or error.exception in EXIT_NAMES:
            self.record_error(case, error)
        else:
            self.assert_that(case, True, "")

    def assert_that(
        self, case: Case, holds: bool, message: str, details: str = "", kind: FailureKind = FailureKind.PROPERTY
    ) -> None:
        """One check without a reference; `details` of a failure has the numbers and places."""
        text = f"{message}: {details}" if details else message
        self.record(case, Comparison(0.0) if holds else Comparison(np.inf, text, kind=kind, summary=message))

    def assert_conforms(self, case: Case, *parts: str, exactly: bool = False, context: str = "") -> None:
        """Output, or the named parts, equal the reference within the bounds; `exactly`: with no error at all.

        Part `gradients` stands for all gradients that are claimed. They are computed only when named, so that the
        answer without gradients is judged too.
        """
        wanted = parts or ("output",)
        problem = self.problem(case)
        if not any(part.startswith("gradients") for part in wanted):
            problem = problem.forward_only()
        run = begun_in_time(self.implementation, problem.fresh(), self.device, self.until)

        def check() -> None:
            expected = self.expected(case, gradients=problem.cotangent is not None)
            try:
                result = run()
            except CandidateError as error:
                self.record_error(case, error, part=next(self.expanded(reversed(wanted), problem), "output"))
                return
            for part in self.expanded(wanted, problem):
                reference = expected[part]
                if exactly and operands_exact(self.dtype, self.conventions):
                    reference = Expected(reference.value, np.zeros_like(reference.bound))
                self.record(case, self.compared(part, part_of(result, part), reference), context, part)

        self._later(check)

    def _later(self, check: Callable[[], None]) -> None:
        """Makes a check whose call has begun; where another process computes, after the next calls have begun."""
        self.counts.waiting.append(check)
        self.counts.settle(CALLS_AHEAD if runs_ahead(self.implementation) else 0)

    def assert_all_conform(
        self,
        cases: Iterable[Case],
        *parts: str,
        context: Callable[[Case], str] = lambda case: "",
    ) -> None:
        """`assert_conforms` for each case in turn."""
        for case in cases:
            self.assert_conforms(case, *parts, context=context(case))

    def assert_conforms_or_refuses(self, case: Case, context: str = "") -> None:
        """Output within the bounds, or an exception; one check either way."""
        try:
            self.run(self.problem(case).forward_only())
        except CandidateError as error:
            self.record_refusal(case, error)
        else:
            self.assert_conforms(case, context=context)

    def along(self, alternative: str) -> Judge:
        """A judge of another way to call the implementation, without a failure limit."""
        implementation = replace(self.implementation, run=self.implementation.alternatives[alternative])
        return replace(self, implementation=implementation, failure_limit=None)

    def expanded(self, parts: Iterable[str], problem: Problem) -> Iterator[str]:
        """The parts, with each needed gradient by its name in place of `gradients`."""
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
        of: Callable[[Array], Array] | None = None,
        as_is: bool = False,
    ) -> None:
        """The answer to a problem made from the case equals what a relation states.

        `of` is what is compared of both; `as_is` passes these very arrays.
        """
        run = begun_in_time(self.implementation, problem if as_is else problem.fresh(), self.device, self.until)

        def check() -> None:
            try:
                got, wanted = part_of(run(), part), expected
            except CandidateError as error:
                self.record_error(case, error, context)
                return
            if of is not None:
                got, wanted = selected(got, of), expected.only(of)
            self.record(case, self.compared(part, got, wanted), context)

        self._later(check)

    def own(self, case: Case, problem: Problem, bound: Array | None = None) -> Expected | None:
        """The candidate's output for a problem, as what another call has to repeat within the bound.

        By default that is twice the bound of the case. None after recording that the candidate raised, or that its
        shape is not that of the bound.
        """
        result = self.answer(case, problem.forward_only())
        if bound is None:
            whole = self.expected(case)["output"]
            bound = np.broadcast_to(2.0 * whole.bound, whole.value.shape)
        if result is None or not self.fits(case, result, bound.shape):
            return None
        return Expected(result.output.astype(np.float64), bound)

    def fits(self, case: Case, result: Result, shape: tuple[int, ...]) -> bool:
        """Whether the output has this shape; a failed check is recorded if not."""
        if result.output.shape != shape:
            message = f"output has shape {result.output.shape}, expected {shape}"
            self.assert_that(case, False, message, kind=FailureKind.SHAPE)
        return result.output.shape == shape

    def answer(self, case: Case, problem: Problem, context: str = "", as_is: bool = False) -> Result | None:
        """The candidate's answer to a problem made from the case, or None after recording that there is none."""
        try:
            return self.run_with(problem) if as_is else self.run(problem)
        except CandidateError as error:
            self.record_error(case, error, context)
            return None

    def compared(self, part: str, got: Array | None, expected: Expected) -> Comparison:
        """The outcome of one comparison, in which nothing below the clause's largest error so far is worked out."""
        return compare(part, got, expected, self.dtype, min(self.counts.tally.worst or 0.0, 1.0))

    def compare(
        self, case: Case, result: Result, expected: Mapping[str, Expected], parts: Iterable[str], context: str = ""
    ) -> None:
        """One check for each of the parts of an answer."""
        for part in parts:
            self.record(case, self.compared(part, part_of(result, part), expected[part]), context)

    def assert_refuses(self, case: Case, problem: Problem, what: str, as_is: bool = False) -> None:
        """The problem makes no sense, and the candidate raises an exception; `as_is` passes these very arrays."""
        try:
            result = self.run_with(problem) if as_is else self.run(problem)
        except CandidateError as error:
            self.record_refusal(case, error)
        else:
            message = f"{what} was accepted, with an answer of shape {result.output.shape}"
            self.assert_that(case, False, message, kind=FailureKind.ACCEPTED)
