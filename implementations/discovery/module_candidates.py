"""Module classes as candidates: what a plan for building and calling one can claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import nn

from attention_conformance.implementations.adapters.native import WITHOUT_WEIGHTS
from attention_conformance.implementations.adapters.torch_module import TorchModule
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.claim_checks import (
    ClaimCheck,
    core_claims,
    drops_output,
    option_claims,
    with_returned_weights,
)
from attention_conformance.implementations.discovery.extras import EXTRA_FEATURES
from attention_conformance.implementations.discovery.modules import ModulePlan, plan_module
from attention_conformance.implementations.discovery.vocabulary import MaskForm
from attention_conformance.spec.conventions import Conventions, Polarity
from attention_conformance.spec.features import Feature

DROPPING = {Feature.DROPOUT, Feature.EVALUATION}


def module_candidate(name: str, kind: type[nn.Module], settings: Mapping[str, str], device: str) -> Implementation:
    """Wraps a module class; what its constructor and forward do not take is not claimed.

    True in its boolean masks means masked out, as in torch.nn.MultiheadAttention, unless the settings state otherwise.

    Raises:
        TargetError: it cannot be built, filled with weights or called.
        ValueError: a setting that does not exist.
    """
    conventions = Conventions(bool_mask=Polarity.MASKED_OUT).claiming(settings)
    plan = plan_module(kind, conventions, device)
    check, option_notes = _option_claims(plan)
    if "returned-weights" not in settings:
        check = with_returned_weights(check, plan.extras)
    claims, notes = core_claims(check)
    alternatives = {other: run for other, run in _alternatives(plan) if check.succeeds(run)}
    features = claims.features.union(EXTRA_FEATURES[extra.name] for extra in plan.extras)
    claims = replace(claims, features=features if alternatives else features - {Feature.ALTERNATIVES})
    mode = ["in eval mode, because it answers at random in training mode"] if plan.evaluating else []
    layout = "(L, B, E)" if plan.call.length_first else "(B, L, E)"
    every_note = [*plan.call.options.notes, *mode, *plan.notes, *notes, *option_notes]
    about = "; ".join([f"a module class, {layout}", *every_note])
    return Implementation(name, claims, plan.run(), about, construct=plan.make.construct, alternatives=alternatives)


def _option_claims(plan: ModulePlan) -> tuple[ClaimCheck, list[str]]:
    """The check without claims beyond the core that calls refute, and notes on them."""
    named = plan.make.features | plan.call.options.named.features
    check, notes = option_claims(plan.check.without(DROPPING) if plan.evaluating else plan.check, named)
    if Feature.DROPOUT in check.claims and drops_output(check):
        notes.append("dropout not claimed: it drops components of the output, not weights")
        check = check.without(DROPPING)
    return check, notes


def _alternatives(plan: ModulePlan) -> Iterator[tuple[str, TorchModule]]:
    """Other ways to build and call it that should give the same answer."""
    yield from _called_otherwise(plan)
    if not plan.evaluating:
        yield "in evaluation mode", plan.run(evaluating=True, extras={})
        yield "in inference mode", plan.run(extras={}, context=torch.inference_mode)
    if "batch_first" in plan.make.options:
        make = replace(plan.make, options={**plan.make.options, "batch_first": plan.call.length_first})
        yield "in the other layout", plan.run(replace(plan.call, length_first=not plan.call.length_first), make)
    if plan.make.rates:
        make = replace(plan.make, options={**plan.make.options, **dict.fromkeys(plan.make.rates, 0.5)})
        yield "in evaluation mode, built with dropout", plan.run(make=make, evaluating=True)


def _called_otherwise(plan: ModulePlan) -> Iterator[tuple[str, TorchModule]]:
    call, spelled = plan.call, plan.call.options.spelled
    if "need_weights" in spelled:
        without = replace(call, always={spelled["need_weights"]: False})
        yield WITHOUT_WEIGHTS, plan.run(without)
        fast = plan.run(without, evaluating=True, context=torch.inference_mode)
        yield "without weights, in evaluation and inference mode", fast
    if {"need_weights", "average_attn_weights"} <= set(spelled):
        always = {spelled["need_weights"]: True, spelled["average_attn_weights"]: True}
        yield "with averaged weights", plan.run(replace(call, always=always), extras={1: "averaged_weights"})
    if call.form is MaskForm.FLAT and "bool_mask" in spelled:
        yield "with one mask for all samples and heads", plan.run(replace(call, form=MaskForm.EITHER))
