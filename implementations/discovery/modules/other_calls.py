"""Other calls: ways to build and call a module class that have to give the same answer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, cast

import torch
from torch import nn

from attention_conformance.implementations.adapters.native import WITHOUT_WEIGHTS
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import TorchModule
from attention_conformance.implementations.adapters.transforms import Through, unbatched
from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import CallOutcome
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    EXTENTS,
    MASKED,
    PLAIN,
    extras_seen,
    parts,
)
from attention_conformance.implementations.discovery.extras import returns_scores
from attention_conformance.implementations.discovery.functions.on_request import FLAGS
from attention_conformance.implementations.discovery.modules.built_otherwise import OF_SLICES
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built
from attention_conformance.implementations.discovery.modules.context_masks import BOTH_MASKS, with_both_masks
from attention_conformance.implementations.discovery.modules.dropping import RATE, with_dropout
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.harder_inputs import TOKENS
from attention_conformance.implementations.discovery.modules.kept_context import with_kept_context
from attention_conformance.implementations.discovery.modules.limited_caches import answers_of, within_limit
from attention_conformance.implementations.discovery.modules.mask_ranks import promised_per_key
from attention_conformance.implementations.discovery.modules.module_masks import shaped
from attention_conformance.implementations.discovery.modules.own_cache import InPieces, calls_in_pieces
from attention_conformance.implementations.discovery.modules.packed_samples import BEHIND_OTHERS
from attention_conformance.implementations.discovery.modules.plans import ModulePlan
from attention_conformance.implementations.discovery.modules.promises import (
    has_published_interface,
    takes_float_padding,
)
from attention_conformance.implementations.discovery.modules.same_masks import masks_as_numbers
from attention_conformance.implementations.discovery.signatures import required
from attention_conformance.implementations.discovery.vocabulary import INPUTS, MaskForm, words_of
from attention_conformance.spec.cases import MaskShape
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem

OF_STATE = {"cache", "present", "past", "incremental", "state", "kv"}
"""Words in the names of flags with which a module keeps or returns what later calls may use."""
SAMPLES_OTHERWISE = "in the other layout, without a batch axis"
AVERAGED_OF_SAMPLES = "with averaged weights, without a batch axis"
PROMISED = frozenset({WITHOUT_WEIGHTS, SAMPLES_OTHERWISE, AVERAGED_OF_SAMPLES})
"""What the published interface promises: where that raises, it fails."""


LONG = PLAIN.sized(query_length=TOKENS, key_length=TOKENS)
"""More tokens than any case in which other calls are judged."""
SLICES = (1, 4)
"""Heads or samples that are computed at once, of which few numbers are multiples."""


@dataclass(frozen=True)
class AfterMethod:
    """A call that comes after one of a method that chooses how a module computes the same answer."""

    call: ModuleCall
    method: str
    argument: object

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Any:
        """The answer to the call."""
        getattr(module, self.method)(self.argument)
        return self.call(module, given, problem)


@dataclass(frozen=True)
class AfterFlag:
    """A call that comes after one of another sequence with a flag, which leaves nothing for it."""

    call: ModuleCall
    flag: str

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Any:
        """The answer to the last call."""
        flipped = {name: given[name].flip(0) for name in INPUTS if name in given}
        with torch.no_grad():
            replace(self.call, always={**self.call.always, self.flag: True})(module, {**given, **flipped}, problem)
        return replace(self.call, resets="")(module, given, problem)  # what it does not use need not be emptied


@dataclass(frozen=True)
class OfSamples:
    """A call without a batch axis, for one sample after the other."""

    call: ModuleCall

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Any:
        """The answers, stacked."""
        return self.call(Through(unbatched, module), given, problem)


def _takes_samples(plan: ModulePlan) -> bool:
    """Whether it has the published interface, and answers without a batch axis as it is usually called."""
    return _is_published(plan) and plan.has_modes and not plan.check.error_of(plan.run(OfSamples(plan.call)))


def other_calls(plan: ModulePlan) -> Iterator[tuple[str, TorchModule]]:
    """Other ways to build and call it that should give the same answer."""
    yield from _called_otherwise(plan)
    yield from masks_as_numbers(plan)
    if plan.check.claims.premises.hides_later:
        ways = calls_in_pieces(plan.make.kind, plan.call)
        yield from ((way, plan.run(_limited(plan, call), extras={})) for way, call in ways)
    kept = with_kept_context(plan.make, plan.call, plan.check) if plan.has_modes else ()
    yield from ((way, plan.run(call)) for way, call in kept)
    if not plan.evaluating and plan.has_modes:
        yield "in evaluation mode", plan.run(evaluating=True)
        yield "in inference mode", plan.run(context=torch.inference_mode)
    if "batch_first" in plan.make.options:
        laid = replace(plan.make, options={**plan.make.options, "batch_first": plan.call.length_first})
        yield "in the other layout", plan.run(replace(plan.call, length_first=not plan.call.length_first), laid)
        if not plan.call.length_first and _takes_samples(plan):
            yield SAMPLES_OTHERWISE, plan.run(OfSamples(plan.call), laid)
    if (packing := plan.call.packing) is not None:
        for others, way in enumerate(BEHIND_OTHERS, 1):
            yield way, plan.run(replace(plan.call, packing=replace(packing, others=others)))
    for method, argument in product(_methods_of_slices(plan.make.kind), SLICES):
        yield f"after {method}({argument})", plan.run(AfterMethod(plan.call, method, argument))
    requested = dict(_requested(plan))
    yield from ((way, plan.run(call, extras=extras)) for way, (call, extras) in requested.items())
    if (make := _with_dropout(plan)) is not None:
        evaluated = "in evaluation mode, built with dropout"
        yield evaluated, plan.run(make=make, evaluating=True)
        for way, (call, extras) in {**requested, **_without_weights(plan)}.items():
            yield f"{way}, {evaluated}", plan.run(call, make, evaluating=True, extras=extras)


def _limited(plan: ModulePlan, way: InPieces) -> InPieces:
    """The call in pieces of as many tokens as its cache keeps, where these are a limited number by what it states."""
    fitted = fit(LONG, plan.check.claims)
    if isinstance(fitted, Unsupported):
        return way
    problem = build(fitted, "float64").forward_only()
    whole, pieces = (answers_of(plan.run(call, extras={}), plan.check.device) for call in (plan.call, way))
    return within_limit(way, plan.make.kind, whole, pieces, problem)


def _methods_of_slices(kind: object) -> list[str]:
    """Methods of its own that set in slices of how many heads or samples it computes."""
    own = (
        {name: each for name, each in vars(kind).items() if inspect.isfunction(each)} if isinstance(kind, type) else {}
    )
    return [n for n, each in own.items() if words_of(n) & OF_SLICES and "set" in words_of(n) and _takes_one(each)]


def _takes_one(method: Any) -> bool:
    parameters = [*inspect.signature(method).parameters.values()][1:]
    return bool(parameters) and [required(each) for each in parameters[1:]] == [False] * len(parameters[1:])


def calls_after_flags(plan: ModulePlan) -> Iterator[tuple[str, TorchModule]]:
    """The usual call after one with a flag, which need not succeed: the one with the flag does."""
    for flag in _flags(plan):
        flagged = replace(plan.call, always={**plan.call.always, flag: True})
        if not replace(plan.check, function=flagged).run(PLAIN).error:
            yield f"after a call with {flag}", plan.run(AfterFlag(plan.call, flag))


def _flags(plan: ModulePlan) -> list[str]:
    """Those of its forward that are off by default, and that the suite does not set for reasons of its own."""
    parameters = inspect.signature(cast("type[nn.Module]", plan.make.kind).forward).parameters.values()
    known = {*plan.call.options.spelled.values(), *plan.call.always, *plan.call.tables}
    return [p.name for p in parameters if p.default is False and p.name not in known and words_of(p.name) & OF_STATE]


def _with_dropout(plan: ModulePlan) -> Constructor | None:
    """How it is built with dropout; None where it has none, or no modes."""
    with torch.random.fork_rng(devices=[]):
        drops = bool(plan.make.rates) or with_dropout(built(plan.make))
    rates = dict.fromkeys(plan.make.rates, RATE)
    options = {**plan.make.options, **rates}
    return replace(plan.make, options=options, dropping=True) if drops and plan.drops else None


def _requested(plan: ModulePlan) -> Iterator[tuple[str, tuple[ModuleCall, dict[int, str]]]]:
    """Calls in which a flag lets it return more, and what that is by its place in the answer."""
    usual = _shapes(plan.check.run(PLAIN))
    parameters = inspect.signature(cast("type[nn.Module]", plan.make.kind).forward).parameters.values()
    named = {p.name for p in parameters if isinstance(p.default, bool)} & FLAGS
    for name in sorted(named - {flag for flag, given in plan.call.always.items() if given}):
        call = replace(plan.call, always={**plan.call.always, name: True})
        check = replace(plan.check, function=call)
        outcome = check.run(PLAIN)
        shapes = [] if outcome.error else _shapes(outcome)
        if len(shapes) > len(usual) and shapes[0] == usual[0]:
            extras = extras_seen(check, outcome, EXTENTS, returns_scores(plan.make.kind))
            yield f"with {name}", (call, {extra.position: extra.name for extra in extras})


def _shapes(outcome: CallOutcome[Any]) -> list[tuple[int, ...]]:
    """Of the arrays in an answer."""
    return [tuple(part.shape) for part in parts(outcome) if isinstance(part, torch.Tensor)]


def _without_weights(plan: ModulePlan) -> dict[str, tuple[ModuleCall, dict[int, str]]]:
    """The call that wants no weights, as `_requested`, where there is one."""
    spelled = _spelled(plan)
    if "need_weights" not in spelled:
        return {}
    call = replace(plan.call, always={spelled["need_weights"]: False}, alone=_is_published(plan))
    return {WITHOUT_WEIGHTS: (call, {})}


def _spelled(plan: ModulePlan) -> Mapping[str, str]:
    """Its own names for the options; with those that only a **kwargs takes, where it passes them on."""
    kind, options = plan.make.kind, plan.call.options
    passed_on = isinstance(kind, type) and issubclass(kind, nn.MultiheadAttention)
    return options.spelled if passed_on else options.named.spelled


def _is_published(plan: ModulePlan) -> bool:
    return isinstance(plan.make.kind, type) and has_published_interface(plan.make.kind)


def _called_otherwise(plan: ModulePlan) -> Iterator[tuple[str, TorchModule]]:
    call, kind, published, spelled = plan.call, plan.make.kind, _is_published(plan), _spelled(plan)
    for without, extras in _without_weights(plan).values():
        yield WITHOUT_WEIGHTS, plan.run(without, extras=extras)
        fast = plan.run(without, extras=extras, evaluating=True, context=torch.inference_mode)
        yield "without weights, in evaluation and inference mode", fast
    if {"need_weights", "average_attn_weights"} <= set(spelled) and call.always.get(spelled["need_weights"]):
        always = {spelled["need_weights"]: True, spelled["average_attn_weights"]: True}
        averaged = replace(call, always=always)
        yield "with averaged weights", plan.run(averaged, extras={1: "averaged_weights"})
        if _takes_samples(plan):
            yield AVERAGED_OF_SAMPLES, plan.run(OfSamples(averaged), extras={1: "averaged_weights"})
    if published and isinstance(kind, type) and takes_float_padding(kind, call.options.named.spelled):
        added = replace(call, padding_added=True)
        if not replace(plan.check, function=added).run(replace(BIASED, mask_shape=MaskShape.KEYS)).error:
            yield "with numbers in its key_padding_mask", plan.run(added)
    if (both := with_both_masks(call, plan.check)) is not None:
        yield BOTH_MASKS, plan.run(both)
    if (per_key := promised_per_key(call, plan.check)) is not None:
        yield f"with its {per_key.name!r} as (B, Lk)", plan.run(per_key)
    if call.form is MaskForm.FLAT and "bool_mask" in spelled:
        either = replace(call, form=MaskForm.EITHER)
        if published or not replace(plan.check, function=either).run(shaped(MASKED, MaskForm.SHARED)).error:
            yield "with one mask for all samples and heads", plan.run(either)
