"""A defect under a condition: the implementation that has it there alone, and cases that show whether it can."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.cached import cached
from attention_conformance.implementations.adapters.modes import op_modes
from attention_conformance.implementations.adapters.native import Native, natively
from attention_conformance.implementations.adapters.torch_module import torch_module
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.global_state import kept_global_state
from attention_conformance.implementations.api.safe_call import CandidateError, answer
from attention_conformance.implementations.builtin.stepwise.cache_steps import CacheSteps
from attention_conformance.implementations.builtin.stepwise.layer import LAYER_PLACES, Layer, call_layer
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.implementations.defects import Defect, catalogue
from attention_conformance.implementations.defects.breaking import in_steps
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.case_limits import unusable
from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.comparison import compare, part_of
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.measurements.reach.condition import Call, Condition
from attention_conformance.tests.measurements.reach.plain_inputs import taking_stored

Note = Callable[[Call], None]
Run = Callable[[Problem, str], Result]
EXTRAS = ("weights", "log_sum_exp")
OF_MODULES = {Feature.EVALUATION, Feature.BIAS_KV}
WHOLE = (
    OP_FEATURES
    | ({option.feature for option in CASE_OPTIONS} - OF_MODULES)
    | {Feature.GROUPED, Feature.WEIGHTS, Feature.LOG_SUM_EXP}
)
"""What a defect that replaces a step can claim: all that the other steps support."""
TRANSFORMS = (Feature.NO_GRAD, Feature.AUTOCAST, Feature.VMAP)


@dataclass(frozen=True, eq=False)
class Subject:
    """A defect, and the same implementation without it."""

    chapter: str
    wrong: Implementation
    right: Implementation


def subject(name: str) -> Subject:
    """That of a defect of the catalogue; one that replaces a step claims everything, so that all options meet it."""
    (defect,) = (each for each in catalogue() if each.id == name)
    if not defect.replaced or defect.implementation.claims.conventions != Conventions():
        right = replace(defect.implementation, run=_right(defect), alternatives={}, modes={}, claims=_plain(defect))
        return Subject(defect.chapter, defect.implementation, right)
    wrong, right = (_in_steps(name, in_steps(replaced)) for replaced in (defect.replaced, {}))
    return Subject(defect.chapter, wrong, right)


def _in_steps(name: str, whole: Callable[..., Any]) -> Implementation:
    claims = Claims(Scope.OP, WHOLE | {*TRANSFORMS})
    taking = taking_stored(whole)
    modes = op_modes(taking, *TRANSFORMS, extras=EXTRAS)
    return Implementation(name, claims, torch_op(taking, extras=EXTRAS), modes=modes)


def _plain(defect: Defect) -> Claims:
    claims = defect.implementation.claims
    kept = {f for f in claims.features if f not in defect.implementation.modes} - {Feature.ALTERNATIVES}
    return replace(claims, features=frozenset(kept))


def _right(defect: Defect) -> Run:
    claims = defect.implementation.claims
    if claims.scope is Scope.MODULE:
        return torch_module(Layer, call_layer, LAYER_PLACES)
    if Feature.CACHE in claims:
        return cached(CacheSteps().open)
    return torch_op(Steps().answer, extras=EXTRAS)


@dataclass(frozen=True, eq=False)
class Watched:
    """A run of which every call is noted."""

    run: Run
    mode: str
    note: Note

    def __call__(self, problem: Problem, device: str) -> Result:
        self.note(Call(problem, self.mode))
        return self.run(problem, device)

    def native(self, problem: Problem, device: str) -> Native:
        """The call that the run would make, made ready."""
        self.note(Call(problem, self.mode))
        return natively(self.run, problem, device)


def watched(implementation: Implementation, note: Note) -> Implementation:
    """The implementation, every call of which is noted."""
    return replace(
        implementation,
        run=Watched(implementation.run, "", note),
        alternatives={name: Watched(run, name, note) for name, run in implementation.alternatives.items()},
        modes={mode: Watched(run, str(mode), note) for mode, run in implementation.modes.items()},
    )


@dataclass(frozen=True, eq=False)
class Either:
    """A run that is wrong in calls that fulfil a condition, and right in others."""

    wrong: Run
    right: Run
    mode: str
    condition: Condition
    seen: set[object]

    def _chosen(self, problem: Problem) -> Run:
        call = Call(problem, self.mode)
        call = replace(call, again=call.key in self.seen)
        self.seen.add(call.key)
        return self.wrong if self.condition.fulfilled(call) else self.right

    def __call__(self, problem: Problem, device: str) -> Result:
        return self._chosen(problem)(problem, device)

    def native(self, problem: Problem, device: str) -> Native:
        """The call that the run would make, made ready."""
        return natively(self._chosen(problem), problem, device)


def conditional(tried: Subject, condition: Condition) -> Implementation:
    """The implementation that has the defect under this condition alone."""
    wrong, right, seen = tried.wrong, tried.right, set[object]()
    modes = {mode: Either(wrong.modes[mode], run, str(mode), condition, seen) for mode, run in right.modes.items()}
    return replace(right, run=Either(wrong.run, right.run, "", condition, seen), modes=modes)


def shows(tried: Subject, condition: Condition, base: Case, parts: tuple[str, ...], dtype: str) -> bool:
    """Whether the defect shows in the case that the base becomes under a condition, and a right one passes it."""
    made = condition.made(base)
    fitted = Unsupported("no case") if unusable(made) else fit(made, tried.wrong.claims)
    if isinstance(fitted, Unsupported):
        return False
    judge = Judge(tried.wrong, dtype)
    for mode in ("", *tried.right.modes):
        problem = judge.problem(fitted).fresh()
        problem = condition.laid(problem) if condition.laid else problem
        call = Call(problem, str(mode))
        again = condition.fulfilled(replace(call, again=True))
        if not again and not condition.fulfilled(call):
            continue
        wrong, right = (each.modes[Feature(mode)] if mode else each.run for each in (tried.wrong, tried.right))
        times = 1 if condition.fulfilled(call) else 2
        expected = dict(solve(problem, judge.conventions, returned=judge.returned).parts)
        wanted = tuple(part for part in judge.expanded(parts, problem) if part in expected)
        if _differs(wrong, problem, expected, wanted, dtype, times):
            return not _differs(right, problem, expected, wanted, dtype, times)
    return False


def _differs(
    run: Run, problem: Problem, expected: dict[str, Expected], parts: tuple[str, ...], dtype: str, times: int
) -> bool:
    """Whether the last of so many answers is out of the bounds of any part."""
    try:
        with kept_global_state(), np.errstate(all="ignore"):
            for _ in range(times):
                result = answer(run, problem, "cpu")
    except CandidateError:
        return True
    return any(compare(part, part_of(result, part), expected[part], dtype).kind is not None for part in parts)
