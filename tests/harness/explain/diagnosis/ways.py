"""Ways: what is wrong where a candidate is right as it is called by default, and not where it is called otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit_to_explain
from attention_conformance.implementations.api.safe_call import answer
from attention_conformance.spec.cases import Case
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis, FailingCheck
from attention_conformance.tests.harness.explain.diagnosis.kept import kept
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, answered, observed
from attention_conformance.tests.harness.explain.diagnosis.probes import PROBES

ALTERNATIVES, EVALUATION = "relations.alternatives", "dropout.evaluation"
DROPPED = "unexpected dropout"
NO_DROPOUT = "Drop nothing in evaluation mode: training=self.training in F.dropout, a rate of 0.0 elsewhere."
AGAIN = 3
"""So many calls with the same inputs."""
ENOUGH = 12
"""Failing cases along one way, at most, that are looked at."""

Along = Callable[[Implementation, Sequence[FailingCheck]], Diagnosis]
"""Diagnoses an implementation that is called in another way."""


def along_ways(
    implementation: Implementation, checks: Sequence[FailingCheck], device: str, diagnosed: Along
) -> Diagnosis | None:
    """What is wrong in another way of calling it, of all that fail; None where none does."""
    if found := _dropping(implementation, checks, device):
        return found
    for check in checks:
        if check.clause == ALTERNATIVES:
            ways = {way: replace(implementation, run=run) for way, run in implementation.alternatives.items()}
            for way in sorted(ways, key=lambda way: not _fails(ways[way], check, device)):
                if found := _along(ways[way], check, device, diagnosed):
                    return replace(found, when=(way, *found.when))
    return None


def _fails(implementation: Implementation, check: FailingCheck, device: str) -> bool:
    """Whether it is along this way that the case of the check fails."""
    return observed(implementation, check.case, check.dtype, ("output",), device).failing


def _dropping(implementation: Implementation, checks: Sequence[FailingCheck], device: str) -> Diagnosis | None:
    """Whether the same call in evaluation mode gives other answers each time."""
    for check in checks:
        if check.clause == EVALUATION and _drawn(implementation, check.case, check.dtype, device):
            number = len([each for each in checks if each.clause == EVALUATION])
            return Diagnosis(DROPPED, number, len(checks), repair=NO_DROPOUT, when=("in evaluation mode",))
    return None


def _drawn(implementation: Implementation, case: Case, dtype: str, device: str) -> bool:
    """Whether each of a few calls of one case gives another answer."""
    problem = build(case, dtype).forward_only()
    results = [answered(lambda: answer(implementation.run, problem.fresh(), device))[0] for _ in range(AGAIN)]
    outputs = [each.output for each in results if each is not None]
    pairs = [(one, two) for n, one in enumerate(outputs) for two in outputs[:n]]
    return len(outputs) == AGAIN and not any(np.array_equal(one, two, equal_nan=True) for one, two in pairs)


def _along(implementation: Implementation, check: FailingCheck, device: str, diagnosed: Along) -> Diagnosis | None:
    """What is wrong along one way, if anything is."""
    failing = [each for each in _observed(implementation, check, device) if each.failing][:ENOUGH]
    if not failing:
        return None
    base = failing[0].case
    if _drawn(implementation, base, check.dtype, device):
        return Diagnosis(DROPPED, len(failing), len(failing), repair=NO_DROPOUT)
    if found := kept(implementation, base, check.dtype, device):
        return found
    return diagnosed(implementation, [replace(check, case=each.case, part="output") for each in failing])


def _observed(implementation: Implementation, check: FailingCheck, device: str) -> Iterator[Observation]:
    """The failing case and the probes, along this way."""
    fitted = [fit_to_explain(each, implementation.claims) for each in (check.case, *PROBES)]
    for case in dict.fromkeys(each for each in fitted if not isinstance(each, Unsupported)):
        yield observed(implementation, case, check.dtype, ("output",), device)
