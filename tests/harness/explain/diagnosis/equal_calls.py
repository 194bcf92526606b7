"""Equal calls: whether a case that fails at one call is right at another, so that nothing about it is the cause."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.safe_call import answer
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis, FailingCheck
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, answered

FEW = 3
"""Cases of a kind that are called again."""
CALLS = {True: 3, False: 8}
"""How often: one that fails now is right soon where it fails by chance; one that failed once may fail seldom."""
REPAIR = "Look for what an answer depends on besides its inputs: memory never written, random numbers, threads, time."


def differ(
    implementation: Implementation, seen: Sequence[Observation], compared: Sequence[FailingCheck], device: str
) -> bool:
    """Whether a case that fails is answered rightly when it is called again, or one that failed before fails again."""
    failed = {(each.case, each.dtype) for each in compared}
    light = [each for each in seen if not each.heavy and (each.case, each.problem.dtype) in failed]
    chosen = [each for kind in CALLS for each in [one for one in light if one.failing is kind][:FEW]]
    return any(fails is not each.failing for each in chosen for fails in _again(implementation, each, device))


def _again(implementation: Implementation, seen: Observation, device: str) -> Iterator[bool]:
    """Whether the same call fails, each time that it is made."""
    for _ in range(CALLS[seen.failing]):
        got, raised = answered(lambda: answer(implementation.run, seen.problem.fresh(), device))
        made = replace(seen, got=got, raised=raised)
        yield max(made.error(part) for part in seen.parts) > 1.0


def of_equal_calls(of: int) -> Diagnosis:
    """That equal calls differ, where no known mistake does so."""
    return Diagnosis("", 0, of, repair=REPAIR, differ=True)
