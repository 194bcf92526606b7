"""Changed inputs: a call that writes into its inputs is the cause of wrong gradients, which are made of them later."""

from collections.abc import Sequence

from attention_conformance.spec.conventions import Conventions
from attention_conformance.tests.harness.explain.diagnosis.causes import Hypothesis
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis
from attention_conformance.tests.harness.explain.diagnosis.naming import RAISING
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation
from attention_conformance.tests.harness.explain.diagnosis.scoring import scored

CLAUSE = "effects.inputs"
REPAIR = "Compute on a copy: a call leaves its inputs as they were, for its backward pass and for its caller."


def changed_inputs(
    listed: Sequence[Hypothesis],
    failing: Sequence[Observation],
    passing: Sequence[Observation],
    claimed: Conventions,
) -> Diagnosis | None:
    """What is changed where nothing but gradients is wrong, and each wrong one is that of a call that changes inputs.

    A known mistake that does so has its own name.
    """
    answering = [each for each in failing if each.got is not None]
    changing = [each for each in failing if each.changed]
    if not changing or any(not each.changed or each.errors["output"] > 1.0 for each in answering):
        return None
    for each in listed:
        if each.defect is not None and each.defect.clauses[0] == CLAUSE:
            score = scored(each, failing, passing, claimed)
            if len(score.explained) == len(failing) and not score.contradicting:
                agrees = len(score.agreeing)
                return Diagnosis(each.name, len(failing), len(failing), agrees, repair=each.repair, breaks=(CLAUSE,))
    names = dict.fromkeys(name for each in changing for name in each.changed)
    rest = RAISING if len(changing) < len(failing) else ""
    name = f"{', '.join(names)} changed in place"
    return Diagnosis(name, len(changing), len(failing), repair=REPAIR, rest=rest, breaks=(CLAUSE,))
