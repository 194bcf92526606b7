"""At once: two mistakes in different steps of one computation, as one hypothesis."""

from dataclasses import replace
from functools import partial

from attention_conformance.implementations.defects import Defect
from attention_conformance.spec.conventions import Conventions
from attention_conformance.tests.harness.explain.diagnosis.causes import Hypothesis
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, answered
from attention_conformance.tests.harness.judge.comparison import part_of


def edits(claimed: Conventions) -> list[Hypothesis]:
    from attention_conformance.tests.harness.explain.diagnosis.edits import edited

    return edited(claimed)


def wrong(hypothesis: Hypothesis, each: Observation) -> bool:
    """Whether a mistake shows by itself in a case, as the claims have it."""
    if not hypothesis.affects(each.problem):
        return False
    other, _ = answered(partial(hypothesis.answer, each.problem))
    if other is None:
        return True
    own = replace(each, got=other)
    return any(own.error(part) > 1.0 for part in each.parts if part_of(other, part) is not None)


def has_steps(hypothesis: Hypothesis) -> bool:
    """Whether it can be made together with other defects."""
    return hypothesis.defect is not None and bool(hypothesis.defect.replaced)


def is_edit(hypothesis: Hypothesis) -> bool:
    return hypothesis.edit is not None


def at_once(one: Hypothesis, two: Hypothesis, claimed: Conventions) -> Hypothesis | None:
    """Both at once, under the name of the second one; None where they cannot be, or change the same step."""
    if one.edit is not None and two.edit is not None:
        from attention_conformance.tests.harness.explain.diagnosis.edits import both as both_edits

        return both_edits(one.edit, two.edit, claimed)
    first, second = one.defect, two.defect
    if first is None or second is None or not second.replaced or {*first.replaced} & {*second.replaced}:
        return None
    return _both_defects(first, second)


def _both_defects(one: Defect, two: Defect) -> Hypothesis:
    # Here, as both import torch, which the judge of a right candidate does without.
    from attention_conformance.implementations.adapters.torch_op import torch_op
    from attention_conformance.implementations.defects.breaking import in_steps

    run = torch_op(in_steps({**one.replaced, **two.replaced}), extras=("weights", "log_sum_exp"))
    return Hypothesis(two.id, two.text.repair, lambda problem: run(problem.fresh(), "cpu"))
