"""Biases of modules: numbers that are added to the scores by a parameter of their own, under any name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from attention_conformance.implementations.adapters.mha_interface import inputs_of
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.discovery.claim_checks import BIASED, ClaimCheck
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.left_out import never_given
from attention_conformance.implementations.discovery.modules.mask_effects import has_effect
from attention_conformance.implementations.discovery.modules.module_masks import has_axes, shaped
from attention_conformance.implementations.discovery.modules.self_options import alone_with, without_context
from attention_conformance.implementations.discovery.rows_without_keys import ADDED
from attention_conformance.implementations.discovery.signatures import Options
from attention_conformance.implementations.discovery.vocabulary import MaskForm, is_bias_of_scores
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

FORMS = (
    *(MaskForm.FULL, MaskForm.ONE_SAMPLE, MaskForm.HEADS, MaskForm.SAMPLE),
    *(MaskForm.SHARED, MaskForm.FLAT),
)
ADDED_NUMBERS = frozenset({Feature.FLOAT_MASK, Feature.MASK_GRADIENT})


@dataclass(frozen=True)
class ThroughBias:
    """A call in which added numbers come as a bias next to the mask that takes them, too.

    Attributes:
        call: with that bias.
        usual: without it, for what the form of the bias has no axis for.
        alone: whether it says nothing of another sequence.
    """

    call: ModuleCall
    usual: ModuleCall
    alone: bool = False

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Any:
        """The module's answer to the problem's tensors."""
        query, key, _ = inputs_of(given)
        mask = given.get("attn_mask")
        formed = mask is None or has_axes(self.call.bias_form or self.call.form, mask.shape)
        takes = formed and (query is key or not self.alone)
        return (self.call if takes else self.usual)(module, given, problem)


def with_bias(call: ModuleCall, check: ClaimCheck, kind: object) -> tuple[ModuleCall, ClaimCheck, frozenset[Feature]]:
    """The call with the parameter of added numbers where its mask takes none, and what it claims without a context.

    One that has a known name has the form in which it acts as a bias.
    """
    apart = "float_mask" in call.options and call.options.named.has_bias_apart
    own = call.options.spelled.get("float_mask", "")
    if own and has_effect(replace(check, function=call), shaped(ADDED, call.form)):
        return call, check, frozenset()
    for name in [own] if apart else never_given(kind, call):
        if (found := bias_of(call, check, name)) is not None:
            way, alone = found
            of_itself = ADDED_NUMBERS - {Feature.MASK_GRADIENT} if alone else frozenset()
            claimed = check.claiming(ADDED_NUMBERS)
            seen = [] if apart else [f"numbers are added as its {name!r}"]
            return way, replace(claimed, claims=alone_with(claimed.claims, of_itself)).stating(*seen), of_itself
    return call, check, frozenset()


def bias_of(call: ModuleCall, check: ClaimCheck, name: str) -> tuple[ModuleCall, bool] | None:
    """The call with this parameter for added numbers, and whether it acts so in self-attention alone.

    In the first form in which they act so. What is a bias of scores by its name is one, whatever it does.
    """
    ways = {form: replace(call, options=_with(call.options, name), bias_form=form) for form in FORMS}
    checks = [(check, False), *([(without_context(check), True)] if call.optional else [])]
    for each, alone in checks:
        for form, way in ways.items():
            if has_effect(_claiming(each, way), shaped(ADDED, form)):
                return way, alone
    for each, alone in checks if is_bias_of_scores(name) else ():
        for form, way in ways.items():
            case = shaped(BIASED, form)
            if not (claimed := _claiming(each, way)).run(case).error and not claimed.ignores(case):
                return way, alone
    return None


def _with(options: Options, name: str) -> Options:
    """The options with a parameter for added numbers."""
    others = tuple(each for each in options.other_masks if each != name)
    spelled = {**options.spelled, "float_mask": name}
    return replace(options.knowing({name}), spelled=spelled, other_masks=others)


def _claiming(check: ClaimCheck, way: ModuleCall) -> ClaimCheck:
    return replace(check, function=way).claiming(ADDED_NUMBERS)


def biases_next_to_masks(call: ModuleCall, check: ClaimCheck, kind: object) -> dict[str, ThroughBias]:
    """The calls with added numbers in each other parameter for them, where a mask or a bias takes them already."""
    names = never_given(kind, call) if Feature.FLOAT_MASK in check.claims else []
    found = {name: way for name in names if (way := bias_of(call, check, name)) is not None}
    return {name: ThroughBias(way, call, alone) for name, (way, alone) in found.items()}


def forms_of(call: ModuleCall, others: Mapping[str, ThroughBias]) -> dict[str, MaskForm]:
    """The forms of all biases that a module is given, by their parameters."""
    own = {} if call.bias_form is None else {call.options.spelled["float_mask"]: call.bias_form}
    return own | {name: each.call.bias_form for name, each in others.items() if each.call.bias_form is not None}
