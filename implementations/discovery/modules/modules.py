"""Modules: how a class like torch.nn.MultiheadAttention, or a part of it, is built and called, and what it claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.adapters.modes import Modes, module_modes
from attention_conformance.implementations.adapters.native import WITHOUT_WEIGHTS
from attention_conformance.implementations.adapters.tensors import tensors
from attention_conformance.implementations.adapters.torch_module import TorchModule
from attention_conformance.implementations.api.contract import Claims, Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.always import with_premises
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    CAUSAL,
    EVERYWHERE,
    EXTENTS,
    MASKED,
    OPTION_CASES,
    PLAIN,
    ClaimCheck,
    check_answer,
    core_claims,
    drops_output,
    equal_outputs,
    extras_seen,
    near_outputs,
    option_claims,
    parts,
    with_returned_weights,
)
from attention_conformance.implementations.discovery.coarser_dtypes import with_precision
from attention_conformance.implementations.discovery.extras import (
    EXTRA_FEATURES,
    Chosen,
    Extra,
    ignored_parts,
    returns_scores,
)
from attention_conformance.implementations.discovery.kept_modes import own_modes, promised_modes
from attention_conformance.implementations.discovery.mask_notes import mask_findings, masks_as_seen
from attention_conformance.implementations.discovery.modules.constructor_names import SQUARES
from attention_conformance.implementations.discovery.modules.constructors import LOOKS, Constructor, built, with_groups
from attention_conformance.implementations.discovery.modules.dropping import RATE, with_dropout
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
    fit_of_heads,
    limits_of,
    needs_even,
    usual_fit,
)
from attention_conformance.implementations.discovery.modules.left_out import inputs_left_out, left_out, without_narrow
from attention_conformance.implementations.discovery.modules.left_padding import without_rows_emptied_twice
from attention_conformance.implementations.discovery.modules.mask_ranks import PerKey, promised_per_key, unknown_masks
from attention_conformance.implementations.discovery.modules.mirrors import Mirror
from attention_conformance.implementations.discovery.modules.module_forms import found_form, norms_inside
from attention_conformance.implementations.discovery.modules.module_masks import (
    SHAPES,
    as_seen,
    shaped,
    with_mask_form,
)
from attention_conformance.implementations.discovery.modules.module_runs import built_for, module_run
from attention_conformance.implementations.discovery.modules.narrow_windows import with_narrow_window
from attention_conformance.implementations.discovery.modules.neutrals import words_of
from attention_conformance.implementations.discovery.modules.other_forms import refuse_other_forms
from attention_conformance.implementations.discovery.modules.own_backward import own_backward
from attention_conformance.implementations.discovery.modules.own_cache import InPieces, calls_in_pieces, unused_caches
from attention_conformance.implementations.discovery.modules.promises import (
    has_published_interface,
    is_unscaled,
    takes_float_padding,
)
from attention_conformance.implementations.discovery.modules.query_key_norms import FoundNorm
from attention_conformance.implementations.discovery.modules.whole_modules import as_built, not_judged
from attention_conformance.implementations.discovery.unclaimed import unclaimed, with_notes
from attention_conformance.implementations.discovery.vocabulary import MaskForm
from attention_conformance.spec.cases import Case, Layout, MaskShape, Padding
from attention_conformance.spec.conventions import Conventions, DefaultScale, Polarity
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.premises import NO_PREMISES, Premises

TRANSPOSED = replace(PLAIN, layout=Layout.TRANSPOSED)
ALWAYS = EVERYWHERE | {Feature.PROJECTIONS}
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

    def under(self, given: Premises) -> tuple[ModulePlan, list[str]]:
        """The plan with the premises that are given or seen, and a note on each."""
        if self.always.rotary_base and not given.rotary_base:
            given = replace(given, rotary_base=self.always.rotary_base)
        if self.always.alibi and not given.alibi:
            given = replace(given, alibi=True, interleaved=self.always.interleaved)
        given = replace(given, length=given.length or self.always.length)
        if self.always.scale is not None and given.scale is None:
            given = replace(given, scale=self.always.scale)
        check, notes = with_premises(replace(self.check, function=self.call), given)
        call = check.function
        assert isinstance(call, ModuleCall)
        plan = replace(self, call=call, check=check)
        return plan._with_norms(notes) if self.norms is not None else (plan, notes)

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

    def run(
        self, call: ModuleCall | InPieces | PerKey | None = None, make: Constructor | None = None, **keywords: Any
    ) -> TorchModule:
        """A `run`, by default in its own mode; another call or constructor than its own has no extras by default."""
        own = {extra.position: extra.name for extra in self.extras} if call is None and make is None else {}
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
        features = _features(make, call) | make.features
    if variant is not None and variant.premises.rotary_base:
        conventions = replace(conventions, rotary_pairing=variant.pairing)
    if variant is not None and is_unscaled(kind, variant):
        conventions = replace(conventions, default_scale=DefaultScale.ONE)
    length = make.tokens if make.window in SQUARES else 0
    fits, premises = usual_fit(call, make.kv_heads), Premises(length=length)
    claims = Claims(Scope.MODULE, features, conventions, fit=fits, premises=premises)
    check = ClaimCheck(call, partial(module_run, make), claims, device).in_first_dtype()
    published = has_published_interface(kind)
    if make.look != LOOKS[0] and not published:
        check, _ = with_head_sizes(make, call, check)
    if conventions.default_scale is DefaultScale.ONE:
        check = check.stating("its scores are not scaled")
    make = with_narrow_window(make, lambda each: replace(check, adapt=partial(module_run, each)))
    check = replace(check, adapt=partial(module_run, make))
    first, second = check.run(PLAIN), check.run(PLAIN)
    check_answer(first, lambda answer: isinstance(answer, torch.Tensor), "a tensor")
    evaluating = not second.error and not equal_outputs(first, second)
    check = replace(check, adapt=partial(module_run, make, evaluating=evaluating))
    refuse_other_forms(make, call, check, variant)
    call, check, masks = with_mask_form(call, check, observed, published)
    call = _unless_only(call, replace(call, flag_with_mask=False), check, CAUSAL, {"is_causal"})
    both = replace(BIASED, mask_shape=MaskShape.SHARED, padding=Padding.RIGHT)
    call = _unless_only(call, replace(call, float_padding=False), check, both, {"key_padding_mask", "float_mask"})
    even = call.rotates or (needs_even(make, call) and not published)
    limits = limits_of(make, call)
    if call.form in SHAPES or even or limits:
        fit = partial(fit_of_call, call, even, limits, make.kv_heads)
        check = replace(check, claims=replace(check.claims, fit=fit))
    check, sizes = (check, []) if published else with_head_sizes(make, call, check)
    meaning = replace(check.claims.conventions, bool_mask=call.polarity)
    check = replace(check, function=call, claims=replace(check.claims, conventions=meaning))
    check, flags = without_flags(call, check) if observed else (check, [])
    check, seen = as_seen(call, check) if observed else (check, [])
    check, stated = without_unstated(kind, call, check)
    call, check, swallowed = with_head_mask(call, *without_swallowed(call, check, published))
    seen = [*limits.notes, *sizes, *masks, *flags, *seen, *stated, *swallowed]
    plain = check.run(PLAIN)
    extras = extras_seen(check, plain, EXTENTS, returns_scores(kind))
    always = replace(NO_PREMISES if variant is None else variant.premises, causal=False, length=length)
    notes = (*ignored_parts(parts(plain), extras), *seen)
    return ModulePlan(make, call, evaluating, extras, check, notes, always, norms_inside(make, call))


def _features(make: Constructor, call: ModuleCall) -> frozenset[Feature]:
    features = ALWAYS | call.options.features
    features |= {feature for name, feature in BY_PARAMETER.items() if name in make.held_names(built(make))}
    features |= {Feature.INPUT_WIDTHS} if make.widths else set()
    features -= {Feature.HEADS} if make.one_head else set()
    return features | {1: set(), 2: {Feature.CROSS}, 3: {Feature.CROSS, Feature.KEY_VALUE}}[call.inputs]


def _unless_only(call: ModuleCall, other: ModuleCall, check: ClaimCheck, case: Case, options: set[str]) -> ModuleCall:
    """The call as in nn.MultiheadAttention, unless only the other one raises no error; where it has these options."""
    if not options <= set(call.options.spelled):
        return call
    usual, unusual = (replace(check, function=each).run(case).error for each in (call, other))
    return other if usual and not unusual else call


OF_A_CACHE = {"start", "cache", "past"}
"""Words in the names of what is given so that a cache is used."""
LAYOUTS = ("(B, L, E)", "(B, E, L)", "(B, E, H, W)", "(B, H, W, E)", "(B, H, W, E)")
"""Of inputs, by `ModuleCall.spatial`."""
DROPPING = {Feature.DROPOUT, Feature.EVALUATION}


def module_candidate(
    name: str, kind: type[nn.Module], settings: Mapping[str, str], device: str, premises: Premises = NO_PREMISES
) -> Implementation:
    """Wraps a module class; what its constructor and forward do not take is not claimed.

    True in its boolean masks means masked out, as in torch.nn.MultiheadAttention, unless the settings state otherwise.

    Raises:
        TargetError: it cannot be built, filled with weights or called.
        ValueError: a setting that does not exist.
    """
    conventions = Conventions(bool_mask=Polarity.MASKED_OUT).claiming(settings)
    plan = plan_module(kind, conventions, device, observed="bool-mask" not in settings)
    plan, always = plan.under(premises)
    published = has_published_interface(kind)
    check, option_notes = _option_claims(plan, published)
    check, twice = without_rows_emptied_twice(check)
    if "returned-weights" not in settings:
        check = with_returned_weights(check, plan.extras)
    claims, notes = core_claims(check, exact_dtype=isinstance(kind, type) and issubclass(kind, Mirror))
    claims, notes = without_narrow(plan.make, claims, notes)
    if Feature.GRADIENTS in claims and (kept_graph := _kept_graph(plan, check)):
        claims = replace(claims, features=claims.features - {Feature.GRADIENTS, Feature.MASK_GRADIENT})
        notes = (*notes, kept_graph)
    if not published:
        claims, rounded = with_precision(check, claims, settings)
        check = check.stating(*rounded)
        if (error := check.run(TRANSPOSED).error) and Feature.VIEWS in claims:
            claims = replace(claims, features=claims.features - {Feature.VIEWS})
            notes = (*notes, unclaimed("views", error))
    kept = {WITHOUT_WEIGHTS} if published else set()
    alternatives = {other: run for other, run in _alternatives(plan) if other in kept or check.succeeds(run)}
    features = claims.features.union(EXTRA_FEATURES[extra.name] for extra in plan.extras)
    claims = replace(claims, fit=fit_of_heads(plan.make, claims), conventions=claims.conventions.claiming(settings))
    claims = replace(claims, features=features if alternatives else features - {Feature.ALTERNATIVES})
    mode = ["in eval mode, because it answers at random in training mode"] if plan.evaluating else []
    layout = "(L, B, E)" if plan.call.length_first else LAYOUTS[plan.call.spatial]
    modes, raising = _modes(plan, published, replace(check, claims=claims))
    whole = as_built if _has_modes(plan) else own_backward
    modes = modes | whole(plan.make, plan.call, replace(check, claims=claims))
    judged = replace(check, claims=claims)
    findings = mask_findings(kind, plan.call.options, judged, plan.call.of_context.values())
    findings = findings | unused_caches(kind, alternatives, modes) | inputs_left_out(plan.make, plan.call)
    findings = findings | not_judged(modes, plan.make, plan.call, judged) | unknown_masks(plan.call, judged)
    as_seen = () if published else masks_as_seen(plan.call.options, judged)
    check = check.stating(*left_out(plan.make, plan.call))
    before = [*always, *plan.call.options.notes, *mode, *check.stated]
    notes = (f"a module class, {layout}", *before, *plan.notes, *notes, *option_notes, *twice, *raising)
    claims = replace(claims, features=claims.features | set(modes))
    construct = plan.make.constructs and partial(_built_and_called, plan)
    made = Implementation(name, claims, plan.run(), construct=construct, alternatives=alternatives, modes=modes)
    return replace(with_notes(made, notes), findings=findings, as_seen=as_seen, stated=check.stated)


def _built_and_called(plan: ModulePlan, num_heads: int, width: int) -> object:
    """The module of a total width, which may refuse the heads that do not divide it in its first call, too."""
    module = plan.make.construct(num_heads, width)
    one_width = plan.check.without({Feature.INPUT_WIDTHS, Feature.MODEL_WIDTH}).claims
    fitted = fit(PLAIN.sized(num_heads=1, d_k=width, d_v=width), one_width)
    if not isinstance(fitted, Unsupported):
        problem = build(fitted, "float32").forward_only()
        plan.call(module, tensors(problem, "cpu"), problem)
    return module


def _kept_graph(plan: ModulePlan, check: ClaimCheck) -> str:
    """A note where it is called with places in a cache, and a second call needs the gradients of the first."""
    fitted = fit(PLAIN, check.claims)
    if not any(words_of(name) & OF_A_CACHE for name in plan.call.tables) or isinstance(fitted, Unsupported):
        return ""
    run, problem = plan.run(), build(fitted, check.dtype)
    first, second = (safe_call(lambda: run(problem.fresh(), check.device)).error for _ in range(2))
    return unclaimed("gradients", f"its cache keeps those of earlier calls: {second}") if second and not first else ""


def _modes(plan: ModulePlan, published: bool, check: ClaimCheck) -> tuple[Modes, list[str]]:
    """What it can be put through, and notes on the rest; nothing where it is no module of torch, or takes a cache."""
    cached = any(words_of(name) & OF_A_CACHE for name in plan.call.tables)
    if not _has_modes(plan) or cached or (published and plan.call.length_first):
        return {}, []
    call = Chosen(plan.call, tuple(extra.position for extra in plan.extras))
    build = partial(built_for, plan.make, plan.evaluating)
    modes = partial(module_modes, build, call, plan.make.find_places, extras=tuple(each.name for each in plan.extras))
    return promised_modes(modes, check) if published else own_modes(modes, check)


def _option_claims(plan: ModulePlan, published: bool) -> tuple[ClaimCheck, list[str]]:
    """The check without claims beyond the core that calls refute, and notes on them.

    `published`: dropout is that of the weights alone, as in torch.nn.MultiheadAttention.
    """
    named = plan.make.features | plan.call.options.named.features
    modeless = plan.evaluating or not _has_modes(plan)
    check, notes = option_claims(plan.check.without(DROPPING) if modeless else plan.check, named)
    if Feature.DROPOUT in check.claims and not published and drops_output(check):
        notes.append(unclaimed("dropout", "it drops components of the output, not weights"))
        check = check.without(DROPPING)
    added = Feature.DROPOUT in check.claims and plan.call.tap
    if added and near_outputs(check.run(OPTION_CASES[Feature.DROPOUT]), check.run(PLAIN), check.dtype):
        notes.append(unclaimed("dropout", "it drops nothing before the input is added"))
        check = check.without(DROPPING)
    return check, notes


def _has_modes(plan: ModulePlan) -> bool:
    """Whether it is a module of torch, which can be put into evaluation mode, and not a class of another kind."""
    return not (isinstance(plan.make.kind, type) and issubclass(plan.make.kind, Mirror))


def _alternatives(plan: ModulePlan) -> Iterator[tuple[str, TorchModule]]:
    """Other ways to build and call it that should give the same answer."""
    yield from _called_otherwise(plan)
    if plan.check.claims.premises.hides_later:
        yield from ((way, plan.run(call, extras={})) for way, call in calls_in_pieces(plan.make.kind, plan.call))
    if not plan.evaluating and _has_modes(plan):
        yield "in evaluation mode", plan.run(evaluating=True, extras={})
        yield "in inference mode", plan.run(extras={}, context=torch.inference_mode)
    if "batch_first" in plan.make.options:
        make = replace(plan.make, options={**plan.make.options, "batch_first": plan.call.length_first})
        yield "in the other layout", plan.run(replace(plan.call, length_first=not plan.call.length_first), make)
    with torch.random.fork_rng(devices=[]):
        drops = bool(plan.make.rates) or with_dropout(built(plan.make))
    if drops and _has_modes(plan):
        options = {**plan.make.options, **dict.fromkeys(plan.make.rates, RATE)}
        make = replace(plan.make, options=options, dropping=True)
        yield "in evaluation mode, built with dropout", plan.run(make=make, evaluating=True)


def _called_otherwise(plan: ModulePlan) -> Iterator[tuple[str, TorchModule]]:
    call, kind = plan.call, plan.make.kind
    published = isinstance(kind, type) and has_published_interface(kind)
    passed_on = isinstance(kind, type) and issubclass(kind, nn.MultiheadAttention)
    spelled = call.options.spelled if passed_on else call.options.named.spelled
    if "need_weights" in spelled:
        without = replace(call, always={spelled["need_weights"]: False}, alone=published)
        yield WITHOUT_WEIGHTS, plan.run(without)
        fast = plan.run(without, evaluating=True, context=torch.inference_mode)
        yield "without weights, in evaluation and inference mode", fast
    if {"need_weights", "average_attn_weights"} <= set(spelled) and call.always.get(spelled["need_weights"]):
        always = {spelled["need_weights"]: True, spelled["average_attn_weights"]: True}
        yield "with averaged weights", plan.run(replace(call, always=always), extras={1: "averaged_weights"})
    if published and isinstance(kind, type) and takes_float_padding(kind, call.options.named.spelled):
        added = replace(call, padding_added=True)
        if not replace(plan.check, function=added).run(replace(BIASED, mask_shape=MaskShape.KEYS)).error:
            yield "with numbers in its key_padding_mask", plan.run(added)
    if (per_key := promised_per_key(call, plan.check)) is not None:
        yield f"with its {per_key.name!r} as (B, Lk)", plan.run(per_key, extras={})
    if call.form is MaskForm.FLAT and "bool_mask" in spelled:
        either = replace(call, form=MaskForm.EITHER)
        if published or not replace(plan.check, function=either).run(shaped(MASKED, MaskForm.SHARED)).error:
            yield "with one mask for all samples and heads", plan.run(either)
