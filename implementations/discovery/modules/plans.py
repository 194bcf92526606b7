"""Plans: how a module class is built and called, and what it claims as far as its interface shows that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import Call
from attention_conformance.implementations.adapters.torch_module import TorchModule
from attention_conformance.implementations.api.contract import Claims
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.always import with_premises
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    CAUSAL,
    EVERYWHERE,
    EXTENTS,
    PLAIN,
    ClaimCheck,
    check_answer,
    equal_outputs,
    extras_seen,
    parts,
)
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.documented_windows import states_own_counted
from attention_conformance.implementations.discovery.extras import (
    Extra,
    ignored_parts,
    returns_scores,
)
from attention_conformance.implementations.discovery.key_masks import with_key_mask
from attention_conformance.implementations.discovery.mask_notes import without_masks_of_others
from attention_conformance.implementations.discovery.modules.biases import with_bias
from attention_conformance.implementations.discovery.modules.constructor_names import EXACT
from attention_conformance.implementations.discovery.modules.constructors import (
    LOOKS,
    Constructor,
    built,
)
from attention_conformance.implementations.discovery.modules.context_masks import with_own_mask_open
from attention_conformance.implementations.discovery.modules.flag_masks import (
    without_flags,
    without_swallowed,
    without_unstated,
)
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.head_masks import with_head_mask
from attention_conformance.implementations.discovery.modules.head_sizes import with_head_sizes
from attention_conformance.implementations.discovery.modules.layout import (
    fit_of_call,
    limits_of,
    needs_even,
    usual_fit,
)
from attention_conformance.implementations.discovery.modules.masks_of_itself import masks_of_itself
from attention_conformance.implementations.discovery.modules.mirrors import Mirror
from attention_conformance.implementations.discovery.modules.module_forms import found_form, norms_inside
from attention_conformance.implementations.discovery.modules.module_masks import (
    SHAPES,
    as_seen,
    with_mask_form,
    with_one_head_in_groups,
)
from attention_conformance.implementations.discovery.modules.module_runs import module_run, with_groups
from attention_conformance.implementations.discovery.modules.narrow_windows import with_narrow_window
from attention_conformance.implementations.discovery.modules.other_forms import refuse_other_forms
from attention_conformance.implementations.discovery.modules.promises import (
    has_published_interface,
    is_unscaled,
)
from attention_conformance.implementations.discovery.modules.query_key_norms import FoundNorm
from attention_conformance.implementations.discovery.modules.self_options import (
    OF_CONTEXT,
    alone_with,
    in_self_attention_alone,
)
from attention_conformance.implementations.discovery.modules.stated_bases import stated_base
from attention_conformance.implementations.discovery.modules.stated_meanings import with_stated_meaning
from attention_conformance.implementations.discovery.modules.unnamed_module_masks import with_unnamed_mask
from attention_conformance.implementations.discovery.probe import HALF
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.cases import Case, MaskShape, Padding
from attention_conformance.spec.conventions import Conventions, DefaultScale
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import NO_PREMISES, Premises

ALWAYS = EVERYWHERE | {Feature.PROJECTIONS}
OF_WINDOWS = ("sliding_window", "window_size", "window", "attention_window")
"""Names of a window in an object of settings."""
BY_PARAMETER = {"b_q": Feature.BIAS, "w_o": Feature.OUTPUT_PROJECTION, "b_o": Feature.OUTPUT_BIAS}
"""What a parameter claims that the module has."""


@dataclass(frozen=True)
class ModulePlan:
    """How a module class is built and called.

    Attributes:
        evaluating: it is put into evaluation mode, because it answers at random in training mode.
        extras: what it returns after its output.
        check: its claims, as far as constructor, parameters and forward show them.
        notes: on parts of its answer that are not used.
        always: what it does in each call, seen as its parameters were read.
        documented: its own name of a mask in which True means what its documentation states, and not what is seen.
        norms: of queries and keys, which are taken out until its premises are known.
    """

    make: Constructor
    call: ModuleCall
    evaluating: bool
    extras: tuple[Extra, ...]
    check: ClaimCheck
    notes: tuple[str, ...]
    always: Premises = NO_PREMISES
    norms: FoundNorm | None = None
    documented: str = ""

    @property
    def has_modes(self) -> bool:
        """Whether it is a module of torch, which can be put into evaluation mode, and not a class of another kind."""
        return not (isinstance(self.make.kind, type) and issubclass(self.make.kind, Mirror))

    @property
    def drops(self) -> bool:
        """Whether it can be put into evaluation mode, in which nothing is dropped."""
        return self.has_modes or bool(getattr(self.make.kind, "drops", False))

    @property
    def in_parts(self) -> bool:
        """Whether it is judged as it is built, too: a module of torch, or what is given more than projections."""
        return self.has_modes or bool(getattr(self.make.kind, "in_parts", False))

    def under(self, given: Premises) -> tuple[ModulePlan, list[str]]:
        """The plan with the premises that are given or seen, and a note on each."""
        if self.always.rotary_base and not given.rotary_base:
            given = replace(given, rotary_base=self.always.rotary_base)
        if self.always.alibi and not given.alibi:
            given = replace(given, alibi=True, interleaved=self.always.interleaved)
        given = replace(given, length=given.length or self.always.length)
        if self.always.scale is not None and given.scale is None:
            given = replace(given, scale=self.always.scale)
        check, notes = with_premises(replace(self.check, function=self.call), given, self.make.kind)
        call = check.function
        assert isinstance(call, ModuleCall)
        plan = replace(self, call=call, check=check)
        plan, notes = (plan, notes) if given.rotary_base else plan._with_stated_base(notes)
        plan, notes = (plan, notes) if given.window_left is not None else plan._with_stated_window(notes)
        return plan._with_norms(notes) if self.norms is not None else (plan, notes)

    def _with_stated_base(self, notes: list[str]) -> tuple[ModulePlan, list[str]]:
        """The plan with the base of rotations that the class names, where another one is seen: a mistake."""
        premises, stated = self.check.claims.premises, stated_base(self.make)
        seen = premises.rotary_base
        if not seen or premises.rotary_dim is not None or stated is None or abs(seen / stated[1] - 1.0) < HALF:
            return self, notes
        claims = replace(self.check.claims, premises=replace(premises, rotary_base=float(stated[1])))
        note = f"its {stated[0]!r} is {stated[1]:g}, and its rotations are those of {seen:g}"
        return replace(self, check=replace(self.check, claims=claims).stating(note)), notes

    def _with_stated_window(self, notes: list[str]) -> tuple[ModulePlan, list[str]]:
        """The plan with the window that its documentation states, where one key more or less is seen: a mistake."""
        premises, counted = self.check.claims.premises, states_own_counted(self.make.kind)
        seen = premises.window_left
        if seen is None or counted is None or premises.window_right:  # of both sides the number may be that of all keys
            return self, notes
        with torch.random.fork_rng(devices=[]):
            numbers = {number - counted for number in _windows(built(self.make))}
        near = numbers & {seen - 1, seen + 1}
        if seen in numbers or not near:
            return self, notes
        stated = min(near)
        claims = replace(self.check.claims, premises=replace(premises, window_left=stated))
        note = f"by its documentation a query sees {stated} keys before its own, and it is seen to see {seen}"
        return replace(self, check=replace(self.check, claims=claims).stating(note)), notes

    def _with_norms(self, notes: list[str]) -> tuple[ModulePlan, list[str]]:
        """The plan with the norms of queries and keys in place, which all before was seen without."""
        assert self.norms is not None
        make, claims = self.make.with_norms(self.norms), self.check.claims
        always = self.norms.always(claims.premises)
        conventions = self.norms.claimed(claims.conventions, self.norms.spanning(make.width, make.heads))
        check = replace(
            self.check,
            adapt=partial(module_run, make, evaluating=self.evaluating),
            claims=replace(claims, premises=always, conventions=conventions),
        )
        note = f"always {', '.join(self.norms.always(NO_PREMISES).settings())}, by {' and '.join(self.norms.paths)}"
        return replace(self, make=make, check=check), [*notes, note]

    def run(self, call: Call | None = None, make: Constructor | None = None, **keywords: Any) -> TorchModule:
        """A `run`, by default in its own mode and with what it returns after its output."""
        own = {extra.position: extra.name for extra in self.extras}
        return module_run(
            make or self.make, call or self.call, **{"evaluating": self.evaluating, "extras": own, **keywords}
        )


def plan_module(kind: type[nn.Module], conventions: Conventions, device: str, observed: bool = False) -> ModulePlan:
    """How the class is built and called.

    Args:
        kind: the class.
        conventions: what it claims.
        device: where it runs.
        observed: whether it claims what is seen of masks whose names promise nothing.

    Raises:
        TargetError: it cannot be built, filled with weights or called.
    """
    with torch.random.fork_rng(devices=[]):
        make, call, variant = found_form(kind, conventions.bool_mask)
        make = with_groups(make)
        features = features_of(make, call) | make.features
    if variant is not None and variant.premises.rotary_base:
        conventions = replace(conventions, rotary_pairing=variant.pairing)
    if variant is not None and is_unscaled(kind, variant):
        conventions = replace(conventions, default_scale=DefaultScale.ONE)
    length = make.tokens if make.window in EXACT else 0
    fits, premises = usual_fit(call, make.kv_heads), Premises(length=length)
    claims = Claims(Scope.MODULE, features, conventions, fit=fits, premises=premises, alone=call.optional)
    check = ClaimCheck(call, partial(module_run, make), claims, device).in_first_dtype()
    published = has_published_interface(kind)
    if make.look != LOOKS[0] and not published:
        check, _ = with_head_sizes(make, call, check)
    check = check.stating(*(f"built with {part.name} as its {name!r}" for name, part in make.parts.items()))
    if conventions.default_scale is DefaultScale.ONE:
        check = check.stating("its scores are not scaled")
    make = with_narrow_window(make, lambda each: replace(check, adapt=partial(module_run, each)))
    check = replace(check, adapt=partial(module_run, make))
    first, second = check.run(PLAIN), check.run(PLAIN)
    check_answer(first, lambda answer: isinstance(answer, torch.Tensor), "a tensor")
    evaluating = not second.error and not equal_outputs(first, second)
    check = replace(check, adapt=partial(module_run, make, evaluating=evaluating))
    refuse_other_forms(make, call, check, variant)
    call = with_own_mask_open(call, check)
    call, check = with_unnamed_mask(call, check, kind) if observed and not published else (call, check)
    of_itself, stated_alone = masks_of_itself(call, check, kind) if observed and not published else (frozenset(), ())
    check = replace(check, claims=alone_with(check.claims, of_itself)).stating(*stated_alone)
    context = check.claims.features & OF_CONTEXT if of_itself else frozenset()  # masks are seen without it
    call, check, masks = with_mask_form(call, check.without(context), kind, observed, published)
    check = check.claiming(context)
    call = call if published else with_one_head_in_groups(call, check)
    call, check, of_bias = (call, check, frozenset()) if published else with_bias(call, check, kind)
    of_itself |= of_bias
    alone = replace(call, flag_with_mask=False)
    call = _unless_only(*((call, alone) if published else (alone, call)), check, CAUSAL, {"is_causal"})
    both = replace(BIASED, mask_shape=MaskShape.SHARED, padding=Padding.RIGHT)
    call = _unless_only(call, replace(call, float_padding=False), check, both, {"key_padding_mask", "float_mask"})
    even = call.rotates or (needs_even(make, call) and not published)
    limits = limits_of(make, call)
    if {call.form, call.bias_form} & SHAPES.keys() or even or limits:
        fit = partial(fit_of_call, call, even, limits, make.kv_heads)
        check = replace(check, claims=alone_with(replace(check.claims, fit=fit), of_itself))
    check, sizes = (check, []) if published else with_head_sizes(make, call, check)
    meaning = replace(check.claims.conventions, bool_mask=call.polarity)
    check = replace(check, function=call, claims=replace(check.claims, conventions=meaning))
    check = with_key_mask(check, kind) if observed else check
    call = check.function if isinstance(check.function, ModuleCall) else call
    check, flags = without_flags(call, check) if observed else (check, [])
    check, seen = as_seen(call, check.without(context)) if observed else (check, [])
    check = check.claiming(context)
    check = in_self_attention_alone(call, kind, check)
    check, stated = without_unstated(kind, call, check)
    check, swallowed = without_swallowed(call, check, published)
    check, others = without_masks_of_others(check, kind)
    call, check = with_head_mask(call, check)
    call, check, documented = with_stated_meaning(call, check, kind) if observed else (call, check, "")
    seen = [*limits.notes, *sizes, *masks, *flags, *seen, *stated, *swallowed, *others]
    plain = check.run(PLAIN)
    extras = extras_seen(check, plain, EXTENTS, returns_scores(kind))
    always = replace(NO_PREMISES if variant is None else variant.premises, causal=False, length=length)
    notes = (*ignored_parts(parts(plain), extras), *seen)
    return ModulePlan(make, call, evaluating, extras, check, notes, always, norms_inside(make, call), documented)


def _windows(module: nn.Module) -> list[int]:
    """The numbers of tokens that a module keeps by the name of a window, or reads from settings that it keeps."""
    kept = [(name, value) for part in module.modules() for name, value in vars(part).items()]
    read = [f"{name}.{word}" for name, _ in kept for word in OF_WINDOWS]
    text = code_of(type(module))
    kept += [(each, safe_call(partial(attrgetter(each), module)).value) for each in read if f"self.{each}" in text]
    return [value for name, value in kept if "window" in words_of(name) and type(value) is int and value > 0]


def features_of(make: Constructor, call: ModuleCall) -> frozenset[Feature]:
    """What its parameters and its call claim."""
    features = ALWAYS | call.options.features
    features |= {feature for name, feature in BY_PARAMETER.items() if name in make.held_names(built(make))}
    features |= {Feature.INPUT_WIDTHS} if make.widths else set()
    features -= {Feature.HEADS} if make.one_head else set()
    different = {1: set(), 2: {Feature.CROSS}, 3: {Feature.CROSS, Feature.KEY_VALUE}}
    return features | different[_different_inputs(make, call)]


def _different_inputs(make: Constructor, call: ModuleCall) -> int:
    """How many of query, key and value differ: those of its call, or as many as the mode that it needs leaves."""
    needed = {word for name, value in make.options.items() if value is True for word in words_of(name)}
    return 1 if "self" in needed else min(2, call.inputs) if needed & {"cross", "encoder"} else call.inputs


def _unless_only(call: ModuleCall, other: ModuleCall, check: ClaimCheck, case: Case, options: set[str]) -> ModuleCall:
    """The usual call, unless only the other one raises no error; where it has these options."""
    if not options <= set(call.options.spelled):
        return call
    usual, unusual = (replace(check, function=each).run(case).error for each in (call, other))
    return other if usual and not unusual else call
