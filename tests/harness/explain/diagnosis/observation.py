"""Observations: what a candidate answered to cases, next to the reference, and how near another answer is to it."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.api.contract import Implementation, PathError, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit_to_explain
from attention_conformance.implementations.api.safe_call import CandidateError, answer, restored
from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.precision import unit_roundoff
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.explain.diagnosis.projected_rows import digits
from attention_conformance.tests.harness.judge.comparison import error_ratios, part_of

Booleans: TypeAlias = NDArray[np.bool_]
HALF_AS_MUCH = 0.5
HEADS = 4096
SCORES = 1 << 20
"""Of these in one case, with which each of hundreds of hypotheses may be tried."""
WITHOUT_DIGITS = str.maketrans("", "", string.digits)


@dataclass(frozen=True, eq=False)
class Observation:
    """What the candidate answered to one case.

    Attributes:
        got: None if it raised.
        raised: the exception in words, numbers left out.
        exception: the same as it is, and where it was raised.
        errors: its distance from the reference, in bounds, part by part.
        changed: the inputs whose numbers the call has changed.
        rows: what is compared of the output; None: all of it.
        found: what `scoring` found for hypotheses on it, by what was looked for and the id of the hypothesis.
    """

    case: Case
    problem: Problem
    parts: tuple[str, ...]
    got: Result | None
    expected: dict[str, Expected]
    errors: dict[str, float]
    failing: bool
    raised: str = ""
    exception: str = ""
    changed: tuple[str, ...] = ()
    rows: Booleans | None = None
    found: dict[tuple[str, int], tuple[object, Any]] = field(init=False, repr=False, default_factory=dict)

    @property
    def heavy(self) -> bool:
        """Whether hundreds of other answers to it would take minutes: too many scores, or heads of samples."""
        s = self.case.sizes
        heads = s.batch * s.num_heads
        return heads > HEADS or heads * s.query_length * s.key_length > SCORES

    def is_evidence(self, raised: Collection[str] | None) -> bool:
        """Whether it answers, or raises one of these: another exception may be a refusal of what is not claimed."""
        return self.got is not None or raised is None or self.raised in raised

    @cached_property
    def by_output(self) -> Observation:
        """The same with the output alone, if that is wrong: what does not explain it need not be differentiated."""
        if not self.errors["output"] > 1.0:
            return self
        return replace(self, problem=self.problem.forward_only(), parts=("output",))

    def of_part(self, part: str) -> Observation:
        """The same with nothing but the output and one other part."""
        errors = {name: self.errors[name] for name in ("output", part)}
        return replace(self, parts=("output", part), errors=errors, failing=errors[part] > 1.0)

    def without_empty_rows(self, conventions: Conventions) -> Observation:
        """The same where rows without any key are left out, with the output alone where there are some."""
        visible = np.asarray(allowed_keys(self.problem, conventions).any(-1))
        if visible.size and visible.all():
            return self
        rows = visible if self.problem.scope is Scope.OP else np.asarray(visible.all(1))
        return self.of_rows(rows[..., None])

    def empty_rows_alone(self, conventions: Conventions) -> Observation:
        """The same with nothing but the output in rows without any key."""
        visible = np.asarray(allowed_keys(self.problem, conventions).any(-1))
        rows = ~visible if self.problem.scope is Scope.OP else ~np.asarray(visible.any(1))
        return self.of_rows(rows[..., None])

    def of_rows(self, rows: Booleans) -> Observation:
        """The same with nothing but these elements of the output."""
        left = replace(self, parts=("output",), rows=np.broadcast_to(rows, self.expected["output"].value.shape))
        error = left.error("output") if rows.any() else 0.0
        return replace(left, errors={"output": error}, failing=error > 1.0)

    def judged(self, part: str, array: Array) -> Array:
        """The array with zeros in the rows that are left out."""
        wide = array.astype(np.float64)
        return wide if self.rows is None or part != "output" else np.where(self.rows, wide, 0.0)

    def error(self, part: str) -> float:
        """The largest distance from the reference, in bounds; 2 at least where a number is NaN or infinite."""
        array, expected = None if self.got is None else part_of(self.got, part), self.expected[part]
        if array is None or array.shape != expected.value.shape:
            return math.inf
        reference = Expected(self.judged(part, expected.value), expected.bound)
        ratios = error_ratios(self.judged(part, array), reference)
        finite = ratios[np.isfinite(ratios)]
        worst = max(float(finite.max(initial=0.0)), self._drift(part, array, expected.value))
        return worst if finite.size == ratios.size else max(2.0, worst)

    @property
    def shares(self) -> dict[tuple[str, str], tuple[float, float]]:
        """By part and direction, how much of the direction there is in the error, and the same in bounds."""
        found: dict[tuple[str, str], tuple[float, float]] = {}
        for part in self.parts if self.rows is None else ():
            array, expected = None if self.got is None else part_of(self.got, part), self.expected[part]
            if array is not None and array.shape == expected.value.shape:
                error = _difference(array, expected.value)
                found |= {(part, each.name): (each.share(error), each.ratio(error)) for each in expected.aligned}
        return found

    @property
    def drift(self) -> tuple[tuple[str, str], float] | None:
        """The part and direction in which it is farthest off, and how far, where each element alone is right."""
        arrays = {part: None if self.got is None else part_of(self.got, part) for part in self.parts}
        if any(a is None or _largest(a.astype(np.float64), self.expected[part]) > 1.0 for part, a in arrays.items()):
            return None
        shares = self.shares
        farthest = max(shares, key=lambda key: shares[key][1], default=None)
        return None if farthest is None else (farthest, shares[farthest][0])

    def _drift(self, part: str, array: Array, other: Array | Floats) -> float:
        """How far the difference of two answers points in one direction, in units of the aligned bounds."""
        if self.rows is not None:
            return 0.0
        difference = _difference(array, other)
        drifts = (each.ratio(difference) for each in self.expected[part].aligned)
        return max((drift for drift in drifts if math.isfinite(drift)), default=0.0)

    @cached_property
    def wrong_numbers(self) -> bool:
        """Whether a finite number is wrong, or the shape: NaN is the same whatever made it."""
        for part in self.parts:
            array = None if self.got is None else part_of(self.got, part)
            if array is not None and array.shape != self.expected[part].value.shape:
                return bool(array.size and np.isfinite(array).all())
            if array is not None:
                wide = self.judged(part, array)
                reference = Expected(self.judged(part, self.expected[part].value), self.expected[part].bound)
                if (error_ratios(wide, reference)[np.isfinite(wide)] > 1.0).any():
                    return True
        return False

    def distance(self, other: Result | None, raised: str = "") -> float:
        """How far another answer is from the candidate's, in units of what would count as the same.

        It counts as the same if it is as near as two right answers may be, or shares at least half of the digits by
        which the candidate is away from the reference, or half of all that the dtype has; and never if the reference is
        nearly as near.
        """
        if self.got is None or other is None:
            return 0.0 if self.got is other and self.raised == raised else math.inf
        farthest = 0.0
        for part in self._comparable(other):  # the output first: gradients count only where it is the same
            farthest = max(farthest, self._distance(part, self.got, other))
            if farthest > 1.0:
                break
        return farthest

    def _comparable(self, other: Result) -> tuple[str, ...]:
        """The parts that are compared: of a wrong output nothing else where the other answer has no gradients."""
        alone = not other.gradients and self.errors.get("output", 0.0) > 1.0
        return tuple(part for part in self.parts if not (alone and part.startswith("gradients.")))

    def _distance(self, part: str, got: Result, other: Result) -> float:
        own, theirs = part_of(got, part), part_of(other, part)
        if own is None or theirs is None or own.shape != theirs.shape:
            return 0.0 if own is theirs else math.inf
        if own.shape != self.expected[part].value.shape:
            return 0.0 if np.allclose(own, theirs, rtol=digits(self.problem.dtype), equal_nan=True) else math.inf
        if part not in self._allowances:
            self._allowances[part] = self._allowance(part, own)
        wide, bound, limit = self._allowances[part]
        apart = _largest(wide, Expected(self.judged(part, theirs), bound)) / limit
        if apart > 1.0:
            return apart
        reference = self.expected[part].value
        drift, theirs_apart = self._drift(part, own, reference), self._drift(part, own, theirs)
        if drift <= 1.0:
            return max(apart, theirs_apart / 2.0)
        # Each element alone is right, so that a direction is all that is known: most of the error has to be explained.
        left = np.linalg.norm(own.astype(np.float64) - theirs) / np.linalg.norm(own.astype(np.float64) - reference)
        return max(apart, theirs_apart / min(2.0, drift / 2.0), 2.0 * float(left))

    @cached_property
    def _allowances(self) -> dict[str, tuple[Floats, Floats, float]]:
        """What `_allowance` found, by part: thousands of answers are compared with one observation."""
        return {}

    def _allowance(self, part: str, own: Array) -> tuple[Floats, Floats, float]:
        """The candidate's numbers, the bounds of a distance from them, and how many of these are the same answer."""
        reference = self.expected[part]
        # Where exact zeros are expected, the bound is no measure of the roundings of wrong answers.
        finite = reference.bound[np.isfinite(reference.bound)]
        bound = np.maximum(reference.bound, finite.mean() if finite.size else 0.0)
        wide = self.judged(part, own)
        value = self.judged(part, reference.value)
        error = _largest_finite(wide, Expected(value, bound))  # NaN and infinity have to be the same anyway
        own_bound = Expected(value, reference.bound)
        if error <= 1.0 < _largest_finite(wide, own_bound):
            error, bound = _largest_finite(wide, own_bound), reference.bound
        half = max(math.sqrt(error), error * math.sqrt(unit_roundoff(self.problem.dtype)))
        return wide, bound, 2.0 if error <= 1.0 else min(max(2.0, half), error / 2.0)


def _largest_finite(values: Floats, expected: Expected) -> float:
    ratios = error_ratios(values, expected)
    return float(ratios[np.isfinite(ratios)].max(initial=0.0))


def _largest(values: Floats, expected: Expected) -> float:
    """The largest error in bounds; infinite where only one of both is finite, or in another shape."""
    if values.shape != expected.value.shape:
        return math.inf
    return float(np.nan_to_num(error_ratios(values, expected), nan=math.inf).max(initial=0.0))


def observed(
    implementation: Implementation, case: Case, dtype: str, parts: tuple[str, ...], device: str
) -> Observation:
    """The answer to a case that the claims allow.

    The output is compared, and the parts that the case has; where one of them is a gradient, all that are answered.
    """
    problem = build(case, dtype)
    of_gradients = any(part.startswith("gradients.") for part in parts)
    problem = problem if of_gradients else problem.forward_only()
    expected = dict(solve(problem, implementation.claims.conventions).parts)
    more = [f"gradients.{name}" for name in problem.needs] if of_gradients else []
    # A mask that another case lacks has no gradient there.
    wanted = tuple(part for part in dict.fromkeys(("output", *parts)) if part in expected)
    got: Result | None = None
    raised = exception = ""
    given = problem.fresh()
    try:
        got = restored(lambda: answer(implementation.run, given, device))
    except (CandidateError, PathError) as error:
        place = f" ({error.place})" if isinstance(error, CandidateError) and error.place else ""
        raised, exception = str(error).translate(WITHOUT_DIGITS), f"{error}{place}"
    parts = (*wanted, *(p for p in more if p not in wanted and got is not None and part_of(got, p) is not None))
    after = given.arrays()
    changed = tuple(name for name, array in problem.arrays().items() if array.tobytes() != after[name].tobytes())
    made = Observation(case, problem, parts, got, expected, {}, False, raised, exception, changed)
    errors = {part: made.error(part) for part in parts}
    return replace(made, errors=errors, failing=max(errors.values()) > 1.0)


MANY_SCORES = 2**14
"""So many take the reference as long as some small cases: a budget of calls would be one of minutes."""


@dataclass
class Prober:
    """Answers whether the candidate fails cases that are made for the question, a limited number of them.

    Attributes:
        left: how many calls may still be made; one with many scores counts as several.
        seen: what was observed so far.
        whole: whether rows without any key are compared, too.
        drift: that of the failing case from which others are made: a case with half as much of it fails as well, and
            one with less than a quarter passes, whatever its bounds.
        raised: exceptions that are failures; others may be refusals, and show nothing. None: all are.
    """

    implementation: Implementation
    dtype: str
    parts: tuple[str, ...]
    device: str
    left: int
    seen: dict[Case, Observation | None]
    whole: bool = True
    drift: tuple[tuple[str, str], float] | None = None
    raised: frozenset[str] | None = None

    def fails(self, case: Case) -> bool | None:
        """Whether it fails; None where the claims exclude the case, or no call is left, or it would not show."""
        seen = self.observe(case)
        if seen is None or seen.failing or self.drift is None:
            return None if seen is None else seen.failing
        direction, amount = self.drift
        share = seen.shares.get(direction, (math.nan, 0.0))[0] / amount
        return True if share >= HALF_AS_MUCH else False if abs(share) < HALF_AS_MUCH / 2.0 else None

    def observe(self, case: Case) -> Observation | None:
        """The observation of exactly this case, made only once."""
        if case not in self.seen:
            fitted = fit_to_explain(case, self.implementation.claims)
            whole_groups = case.sizes.num_heads % case.sizes.kv_heads == 0
            if not whole_groups or isinstance(fitted, Unsupported) or fitted.sizes != case.sizes or self.left <= 0:
                return None
            s = fitted.sizes
            self.left -= 1 + s.batch * s.num_heads * s.query_length * s.key_length // MANY_SCORES
            made = observed(self.implementation, fitted, self.dtype, self.parts, self.device)
            if not made.is_evidence(self.raised):
                return self.seen.setdefault(case, None)
            self.seen[case] = made if self.whole else made.without_empty_rows(self.implementation.claims.conventions)
        return self.seen[case]


def answered(
    call: Callable[[], Result], safely: Callable[[Callable[[], Result]], Result] = restored
) -> tuple[Result | None, str]:
    """The answer, or None and the exception in words without numbers; `safely` makes the call."""
    try:
        return safely(call), ""
    except (CandidateError, PathError) as error:
        return None, str(error).translate(WITHOUT_DIGITS)


def _difference(array: Array | Floats, other: Array | Floats) -> Floats:
    """In float64; zero also where both are the same infinity."""
    wide, than = array.astype(np.float64), other.astype(np.float64)
    return np.subtract(wide, than, out=np.zeros_like(wide), where=wide != than)
