"""The same masks again: given as numbers 0 and 1, which a call might change where it finds them in its own dtype."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import TorchModule
from attention_conformance.implementations.discovery.claim_checks import MASKED, ClaimCheck, output_of
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.mask_effects import PADDED, has_effect
from attention_conformance.implementations.discovery.modules.module_masks import is_published, shaped
from attention_conformance.implementations.discovery.modules.plans import ModulePlan
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.implementations.discovery.rows_without_keys import EMPTY
from attention_conformance.spec.cases import Case, Pattern
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

WAY = "with its masks as numbers 0 and 1, and the same ones in a second call"


@dataclass(frozen=True)
class Twice:
    """The second of two calls with the very same arguments."""

    call: ModuleCall

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Any:
        """The answer to the second call."""
        bound = self.call.bound_call(module, given, problem)
        with torch.no_grad():
            bound()
        return bound()


def masks_as_numbers(plan: ModulePlan) -> Iterator[tuple[str, TorchModule]]:
    """The call with such masks, where booleans are taken, and one call shows that these are taken alike.

    Names that are published promise no such numbers: what is no boolean is added there.
    """
    claims = plan.check.claims.features
    if plan.call.true_as or is_published(plan.call) or Feature.FLOAT_MASK in claims:
        return
    numbered = replace(plan.call, true_as=1.0)
    usual, other = (replace(plan.check, function=each) for each in (plan.call, numbered))
    some, empty = shaped(MASKED, plan.call.form), replace(shaped(MASKED, plan.call.form), pattern=Pattern.EMPTY_ROW)
    kinds = {Feature.BOOL_MASK: (some, empty), Feature.KEY_PADDING: (PADDED, EMPTY)}
    taken = [cases for feature, cases in kinds.items() if feature in claims]
    if taken and all(has_effect(other, each) and _alike(usual, other, none) for each, none in taken):
        yield WAY, plan.run(Twice(numbered))


def _alike(one: ClaimCheck, other: ClaimCheck, case: Case) -> bool:
    """Whether both answer rows without keys in the same way, or in none."""
    first, second = one.run(case), other.run(case)
    if first.error or second.error:
        return bool(first.error and second.error)
    return near(output_of(first), output_of(second), one.dtype)
