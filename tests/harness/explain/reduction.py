"""Reduction: a failing case made smaller for as long as the same part still fails in the same way, and its numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import PathError, Unsupported
from attention_conformance.implementations.api.fitting import fit_to_explain
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.expected import Expected
from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.case_options import lacks_presumed
from attention_conformance.spec.cases import (
    Case,
    Embedding,
    Layout,
    MaskKind,
    MaskShape,
    Padding,
    Pattern,
    Poison,
    Scores,
    Values,
)
from attention_conformance.spec.features import NOTHING, Feature
from attention_conformance.spec.problem import DTYPES, Array, Problem
from attention_conformance.tests.harness.judge.comparison import Comparison, compare, error_ratios, no_answer, part_of
from attention_conformance.tests.harness.judge.judge import Judge

EXTENTS = ("batch", "num_heads", "query_length", "key_length", "d_k", "d_v")
SEEDS = (1, 2)
"""Other numbers to try where the original ones no longer show the failure in a smaller problem."""
MOST_COTANGENTS = 48
"""Elements of the cotangent that are tried alone; each takes a call."""
PLAIN: tuple[dict[str, object], ...] = (
    {"layout": Layout.CONTIGUOUS},
    {"poison": Poison.NONE},
    {"padding": Padding.NONE},
    {"padding": Padding.RIGHT},
    {"mask": MaskKind.NONE, "mask_shape": MaskShape.FULL, "pattern": Pattern.RANDOM, "mask_offset": 0.0},
    {"mask": MaskKind.BOOL},
    {"mask": MaskKind.FLOAT},
    {"mask_offset": 0.0},
    {"pattern": Pattern.ALL},
    {"pattern": Pattern.RANDOM},
    {"mask_shape": MaskShape.SHARED},
    {"mask_shape": MaskShape.FULL},
    {"causal": False},
    {"scale": None},
    {"scores": Scores.NORMAL},
    {"values": Values.NORMAL},
    {"score_std": Case.score_std},
    {"value_scale": Case.value_scale},
)
"""What is removed from a case, one line at a time."""
SIMPLER = {"mask": list(MaskKind), "pattern": [Pattern.ALL, *Pattern], "mask_shape": [MaskShape.SHARED, *MaskShape]}
"""Where options replace one another, the simpler ones first: nothing goes back to a later one."""


@dataclass(frozen=True)
class Recipe:
    """A problem in few words: a case, and what was done to its numbers.

    Attributes:
        decimals: the numbers are rounded to so many decimals; None leaves them.
        cotangent: the only element of the cotangent that is not 0, and is 1; None leaves it.
    """

    case: Case
    decimals: int | None = None
    cotangent: tuple[int, ...] | None = None

    def problem(self, judge: Judge, part: str) -> Problem:
        """The problem that the judge runs for this part."""
        problem = judge.problem(self.case)
        if not part.startswith("gradients."):
            problem = problem.forward_only()
        if self.decimals is not None:
            problem = problem.with_arrays({n: _decimal(a, self.decimals) for n, a in problem.arrays().items()})
        if self.cotangent is not None and problem.cotangent is not None:
            single = np.zeros_like(problem.cotangent)
            single[self.cotangent] = 1
            problem = replace(problem, cotangent=single)
        return problem


@dataclass(frozen=True, eq=False)
class Outcome:
    """The comparison of one part of one answer with the reference.

    Attributes:
        got: what was answered, if anything.
        expected: what the reference answers; None if nothing was answered.
    """

    comparison: Comparison
    problem: Problem
    part: str
    got: Array | None = None
    expected: Expected | None = None

    @property
    def fails(self) -> bool:
        return self.comparison.kind is not None

    def fails_like(self, other: Outcome) -> bool:
        """Whether both fail in the same way, by the same exception if by one."""
        one, two = self.comparison, other.comparison
        return self.fails and (one.kind, one.summary) == (two.kind, two.summary)

    @property
    def worst(self) -> tuple[int, ...]:
        """The element that is furthest off, in units of its bound; those that are not finite come first."""
        assert self.got is not None
        assert self.expected is not None
        ratios = np.nan_to_num(error_ratios(self.got.astype(np.float64), self.expected), nan=np.inf)
        return tuple(int(i) for i in np.unravel_index(int(np.argmax(ratios)), ratios.shape))


@dataclass(frozen=True, eq=False)
class Counterexample:
    """The smallest failing problem of a reduction.

    Attributes:
        calls: of the candidate, for finding it.
        outcome: how it fails.
    """

    recipe: Recipe
    outcome: Outcome
    calls: int


def outcome(judge: Judge, problem: Problem, part: str) -> Outcome:
    """Runs a problem, and compares one part of the answer with the reference."""
    try:
        result = judge.run(problem)
    except CandidateError as error:
        return Outcome(no_answer(error), problem, part)
    except PathError as error:
        return Outcome(no_answer(CandidateError(str(error))), problem, part)
    got, expected = part_of(result, part), judge.solve(problem).parts[part]
    return Outcome(compare(part, got, expected, judge.dtype), problem, part, got, expected)


@dataclass
class Reduction:
    """The search for the smallest failing recipe.

    Attributes:
        until: the latest time, by `time.perf_counter`.
        smallest: so far; at first the case as it is.
        most: the largest number of calls.
    """

    judge: Judge
    part: str
    until: float
    smallest: Counterexample
    most: int = 600
    calls: int = 1
    tried: set[Recipe] = field(default_factory=set)

    def attempt(self, recipe: Recipe) -> bool:
        """Runs a recipe, and keeps it if it fails as the one before did."""
        if self.calls >= self.most or time.perf_counter() > self.until or recipe in self.tried:
            return False
        self.tried.add(recipe)
        try:
            problem = recipe.problem(self.judge, self.part)
        except Exception:  # a case that cannot be built is none to show
            return False
        if self.lost(problem) or self.strays(recipe.case):
            return False
        self.calls += 1
        result = outcome(self.judge, problem, self.part)
        if not result.fails_like(self.smallest.outcome):
            return False
        self.smallest = Counterexample(recipe, result, self.calls)
        return True

    def lost(self, problem: Problem) -> bool:
        """Whether the problem lacks the part, or has rows without keys where the one before has none."""
        if self.part.startswith("gradients.") and self.part.removeprefix("gradients.") not in problem.needs:
            return True
        return self.empties(problem) and not self.empties(self.smallest.outcome.problem)

    def empties(self, problem: Problem) -> bool:
        """Whether a row may see no key: conventions rule what it gets."""
        return not allowed_keys(problem, self.judge.conventions).any(-1).all()

    def strays(self, case: Case) -> bool:
        """Whether another length is the longer one now, under a causal flag."""
        before, after = self.smallest.recipe.case.sizes, case.sizes
        signs = (np.sign(s.query_length - s.key_length) for s in (before, after))
        return case.causal and len(set(map(int, signs))) > 1

    def fitted(self, case: Case) -> Iterator[Case]:
        """The case as the claims allow it, if they do."""
        nearest = fit_to_explain(case, self.judge.claims)
        if not isinstance(nearest, Unsupported):
            yield nearest

    def run(self) -> Counterexample:
        """The smallest recipe that fails as the case does."""
        while any([self.simplify(), self.shrink(), self.narrow()]):
            pass
        self.single()
        self.round()
        return replace(self.smallest, calls=self.calls)

    def simplify(self) -> bool:
        """Removes one option after another; whether any was removed."""
        return self.each(
            lambda case: (
                [_changed(case, change) for change in PLAIN if _simpler(case, change)] + _without_extension(case)
            )
        )

    def shrink(self) -> bool:
        """Makes one extent after another smaller, equal lengths together; whether any was changed."""
        together = [EXTENTS[2:4], EXTENTS[4:], *((name,) for name in EXTENTS)]
        moved = [self.each(partial(_sized, names=names)) for names in together]
        return any(moved)

    def narrow(self) -> bool:
        """Makes the free input widths of a module smaller; whether any was changed."""
        free = Feature.MODEL_WIDTH in self.judge.claims
        return self.each(_narrowed, fitted=False) if free else False

    def each(self, moves: Callable[[Case], list[Case]], fitted: bool = True) -> bool:
        """Goes through moves from the smallest, again after each that still fails."""
        before = self.smallest.recipe.case
        progress = True
        while progress:
            recipe = self.smallest.recipe
            moved = moves(recipe.case)
            cases = (c for m in moved for c in (self.fitted(m) if fitted else [m]) if c != recipe.case)
            progress = any(self.attempt(replace(recipe, case=case)) for case in cases)
        return self.smallest.recipe.case != before

    def single(self) -> None:
        """All of the cotangent but one element set to 0."""
        cotangent, recipe = self.smallest.outcome.problem.cotangent, self.smallest.recipe
        if cotangent is not None and cotangent.size <= MOST_COTANGENTS:
            any(self.attempt(replace(recipe, cotangent=index)) for index in np.ndindex(cotangent.shape))

    def round(self) -> None:
        """Numbers with few digits, none of which becomes 0: that would hide more than it shows."""
        recipe, given = self.smallest.recipe, self.smallest.outcome.problem.arrays().values()
        for decimals in (0, 1, 2, 3):
            lost = any(np.count_nonzero(a) > np.count_nonzero(_decimal(a, decimals)) for a in given)
            if not lost and self.attempt(replace(recipe, decimals=decimals)):
                return


def reduce(judge: Judge, case: Case, part: str, seconds: float) -> Counterexample | None:
    """The smallest problem that this time suffices for, in which the part fails as in the case; None: it does not."""
    until, recipe = time.perf_counter() + seconds, Recipe(case)
    first = outcome(judge, recipe.problem(judge, part), part)
    return Reduction(judge, part, until, Counterexample(recipe, first, 1)).run() if first.fails else None


def _decimal(array: Array, decimals: int) -> Array:
    if array.dtype.kind in "bi":
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        # Adding 0 turns -0.0, which reads badly, into 0.0.
        return (np.round(array.astype(np.float64), decimals) + 0.0).astype(DTYPES[array.dtype.name])


def _changed(case: Case, change: dict[str, object]) -> Case:
    return replace(case, **change)  # type: ignore[arg-type]  # PLAIN names fields with their types


def _without_extension(case: Case) -> list[Case]:
    """The case without one of its extensions, and without groups."""
    plain = [f.name for f in fields(NOTHING) if getattr(case.extension, f.name) != getattr(NOTHING, f.name)]
    simpler = (case.extended(**{name: getattr(NOTHING, name)}) for name in plain)
    cases = [each for each in simpler if not lacks_presumed(each.extension)]
    return cases + ([case.sized(num_kv_heads=0)] if case.sizes.num_kv_heads else [])


def _simpler(case: Case, change: dict[str, object]) -> bool:
    if case.mask is MaskKind.NONE and {"mask", "pattern", "mask_shape", "mask_offset"} & set(change):
        return False
    if change == {"padding": Padding.RIGHT} and case.padding is Padding.NONE:
        return False
    for name, order in SIMPLER.items():
        if len(change) == 1 and name in change:
            return bool(order.index(change[name]) < order.index(getattr(case, name)))
    return _changed(case, change) != case


def _sized(case: Case, names: tuple[str, ...]) -> list[Case]:
    """The case with these extents, which have to be equal, made smaller: 1 first, then ever closer."""
    extents = {getattr(case.sizes, name) for name in names}
    if len(extents) > 1:
        return []
    (now,) = extents
    smaller = sorted({size for size in (1, 2, 3, now // 2, now - now // 4, now - 1) if 0 < size < now})
    sized = [_regrouped(case.sized(**dict.fromkeys(names, size))) for size in smaller]
    return [replace(each, seed=seed) for each in sized for seed in (case.seed, *SEEDS)]


def _regrouped(case: Case) -> Case:
    """The case with all heads in one group where its groups do not divide them any more."""
    groups = case.sizes.num_kv_heads
    return case.sized(num_kv_heads=1) if groups and case.sizes.num_heads % groups else case


def _narrowed(case: Case) -> list[Case]:
    form = case.module
    if form is None or form.embedding is not Embedding.RANDOM:
        return []
    out = form.out_dim == form.query_dim and form.output_projection
    widths = [w for w in (1, 2, 4) if w < max(form.query_dim, form.key_dim, form.value_dim)]
    return [
        replace(
            case,
            module=replace(form, query_dim=w, key_dim=w, value_dim=w, out_dim=w if out else form.out_dim),
        )
        for w in widths
    ]


MOST_NUMBERS = 40
"""In all arrays together, so that they fit on a screen."""
SHORT = {"query": "q", "key": "k", "value": "v", "attn_mask": "mask"}
"""Short names of arrays; the others keep their names."""


def lines(counterexample: Counterexample, heading: str = "smallest failing case") -> Iterator[str]:
    """A counterexample, a line each."""
    outcome = counterexample.outcome
    yield f"{heading}: {counterexample.recipe.case}"
    if not fits(outcome):
        yield f"  seed {counterexample.recipe.case.seed}, too many numbers for a screen"
    else:
        arrays = {SHORT.get(n, n): a for n, a in outcome.problem.arrays().items()}
        if outcome.expected is not None:
            arrays |= {"expected": outcome.expected.value}
        if outcome.got is not None:
            arrays |= {"got": outcome.got}
        width = max(map(len, arrays))
        yield from (f"  {name:{width}} {shape(array)} = {numbers(array)}" for name, array in arrays.items())
    yield f"  {outcome.comparison.message}"


def fits(outcome: Outcome) -> bool:
    """Whether all its numbers fit on a screen."""
    given = [*outcome.problem.arrays().values(), *([] if outcome.got is None else [outcome.got])]
    expected = 0 if outcome.expected is None else outcome.expected.value.size
    return sum(array.size for array in given) + expected <= MOST_NUMBERS


def shape(array: Array) -> str:
    """Such as (1, 1, 2, 3)."""
    return f"({', '.join(map(str, array.shape))})"


def numbers(array: Array, digits: int = 6) -> str:
    """An array as nested lists of numbers with so many digits at most."""
    if array.ndim == 0:
        return str(array) if array.dtype.kind in "bi" else f"{float(array):.{digits}g}"
    return f"[{', '.join(numbers(np.asarray(part), digits) for part in array)}]"
