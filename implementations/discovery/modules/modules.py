"""Modules: a class like torch.nn.MultiheadAttention, or a part of it, as an implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from torch import nn

from attention_conformance.implementations.adapters.modes import Modes, module_modes
from attention_conformance.implementations.adapters.tensors import tensors
from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.always import without_broken_lengths
from attention_conformance.implementations.discovery.claim_checks import (
    OPTION_CASES,
    PLAIN,
    AdapterRun,
    ClaimCheck,
    core_claims,
    drops_output,
    near_outputs,
    option_claims,
    with_returned_weights,
)
from attention_conformance.implementations.discovery.coarser_dtypes import with_precision
from attention_conformance.implementations.discovery.documented_inputs import states_samples_first
from attention_conformance.implementations.discovery.extras import (
    EXTRA_FEATURES,
    Chosen,
)
from attention_conformance.implementations.discovery.finite_fills import causal_fill_as_seen
from attention_conformance.implementations.discovery.functions.size_limits import without_unequal_lengths
from attention_conformance.implementations.discovery.kept_modes import own_modes, promised_modes
from attention_conformance.implementations.discovery.mask_notes import mask_findings, masks_as_seen
from attention_conformance.implementations.discovery.modules.added_positions import positions_judged
from attention_conformance.implementations.discovery.modules.biases import biases_next_to_masks, forms_of
from attention_conformance.implementations.discovery.modules.constructed_options import with_constructed_options
from attention_conformance.implementations.discovery.modules.constructors import without_other_widths
from attention_conformance.implementations.discovery.modules.context_masks import BOTH_MASKS
from attention_conformance.implementations.discovery.modules.dropping import DROPPING, without_own_draws
from attention_conformance.implementations.discovery.modules.emptied_twice import without_rows_emptied_twice
from attention_conformance.implementations.discovery.modules.layout import fit_of_heads, holds_table
from attention_conformance.implementations.discovery.modules.left_out import (
    felt_numbers,
    inputs_left_out,
    left_out,
    without_narrow,
)
from attention_conformance.implementations.discovery.modules.limited_caches import limits_stated
from attention_conformance.implementations.discovery.modules.mask_ranks import unknown_masks
from attention_conformance.implementations.discovery.modules.mirrors import Mirror
from attention_conformance.implementations.discovery.modules.module_masks import IN_ITS
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.implementations.discovery.modules.neutrals import Neutral
from attention_conformance.implementations.discovery.modules.other_calls import (
    PROMISED,
    calls_after_flags,
    other_calls,
)
from attention_conformance.implementations.discovery.modules.own_backward import own_backward
from attention_conformance.implementations.discovery.modules.own_cache import unused_caches
from attention_conformance.implementations.discovery.modules.packed_samples import SHORTER_DOCUMENT
from attention_conformance.implementations.discovery.modules.parts_not_judged import not_judged
from attention_conformance.implementations.discovery.modules.plans import ModulePlan, plan_module
from attention_conformance.implementations.discovery.modules.promises import (
    has_published_interface,
    padding_polarity,
)
from attention_conformance.implementations.discovery.modules.renewed import without_needless_emptying
from attention_conformance.implementations.discovery.modules.replaced_tables import with_replaced_tables
from attention_conformance.implementations.discovery.modules.seen_latents import masks_judged
from attention_conformance.implementations.discovery.modules.torch_inside import without_rows_of_torch
from attention_conformance.implementations.discovery.modules.value_widths import with_value_width
from attention_conformance.implementations.discovery.modules.whole_modules import as_built, plain_problem
from attention_conformance.implementations.discovery.modules.window_options import with_window_option
from attention_conformance.implementations.discovery.padded_positions import padded_positions_as_seen
from attention_conformance.implementations.discovery.rows_without_keys import empty_rows_of_window
from attention_conformance.implementations.discovery.unclaimed import unclaimed, with_notes
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.cases import Layout
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.premises import NO_PREMISES, Premises

TRANSPOSED = replace(PLAIN, layout=Layout.TRANSPOSED)
UNEQUAL = (PLAIN.sized(query_length=5, key_length=7), PLAIN.sized(query_length=7, key_length=5))
DISTANCES = {Neutral.BOTH_SIDES, Neutral.SAMPLE_BOTH_SIDES, Neutral.PAIRED_POSITIONS}
"""Tables with a row for each distance between queries and keys, of as many as there are of both."""
POSITIONS = {Neutral.POSITIONS, Neutral.ONE_POSITIONS, Neutral.SAMPLE_POSITIONS, Neutral.LENGTH_POSITIONS}
"""Those with a row for each key, in which distances may lie as well."""
OF_A_CACHE = {"start", "cache", "past"}
"""Words in the names of what is given so that a cache is used."""
LAYOUTS = (
    *("(B, L, E)", "(B, E, L)", "(B, E, H, W)", "(B, H, W, E)", "(B, H, W, E)", "(B, 1, L, E)"),
    *("(B, L, E), its answer (B, H, L, d)", "(B, L, E), its answer (B, L, H, d)"),
)
"""Of inputs, by `ModuleCall.spatial`."""


def module_candidate(
    name: str, kind: type[nn.Module], settings: Mapping[str, str], device: str, premises: Premises = NO_PREMISES
) -> Implementation:
    """Wraps a module class; what its constructor and forward do not take is not claimed.

    True in its boolean masks means masked out, as in torch.nn.MultiheadAttention, unless the settings state otherwise,
    or its documentation does of a padding mask alone.

    Raises:
        TargetError: it cannot be built, filled with weights or called.
        ValueError: a setting that does not exist.
    """
    conventions = Conventions(bool_mask=padding_polarity(kind)).claiming(settings)
    plan = plan_module(kind, conventions, device, observed="bool-mask" not in settings)
    plan, always = without_needless_emptying(plan).under(premises)
    plan, windows = with_window_option(plan)
    plan, constructed = with_constructed_options(plan)
    published = has_published_interface(kind)
    check, option_notes = _option_claims(plan, published)
    check, own_draws = without_own_draws(check, kind)
    check = check if "padded-positions" in settings else padded_positions_as_seen(check)
    check = check if any("row" in key for key in settings) else empty_rows_of_window(check)
    check = causal_fill_as_seen(with_value_width(check, plan.make))
    check, twice = without_rows_emptied_twice(check)
    check, empty = without_rows_of_torch(check, plan.make)
    check, one_length = _without_refused_lengths(check, plan)
    check, unequal = (check, {}) if published else without_broken_lengths(check)
    if "returned-weights" not in settings:
        check = with_returned_weights(check, plan.extras)
    claims, notes = core_claims(check, exact_dtype=isinstance(kind, type) and issubclass(kind, Mirror))
    claims, notes = without_narrow(plan.make, claims, notes)
    if Feature.GRADIENTS in claims and (kept_graph := _kept_graph(plan, check)):
        claims = replace(claims, features=claims.features - {Feature.GRADIENTS, Feature.MASK_GRADIENT})
        notes = (*notes, kept_graph)
    if not published:
        claims, rounded = with_precision(check, claims, settings, kind)
        check = check.stating(*rounded)
        if (error := check.run(TRANSPOSED).error) and Feature.VIEWS in claims:
            claims = replace(claims, features=claims.features - {Feature.VIEWS})
            notes = (*notes, unclaimed("views", error))
    kept = {SHORTER_DOCUMENT, BOTH_MASKS, *(PROMISED if published else ())}
    alternatives = {other: run for other, run in other_calls(plan) if other in kept or check.succeeds(run)}
    alternatives |= dict(calls_after_flags(plan))
    biases = {} if published else biases_next_to_masks(plan.call, plan.check, kind)
    alternatives |= {IN_ITS.format(name): plan.run(way) for name, way in biases.items()}
    features = claims.features.union(EXTRA_FEATURES[extra.name] for extra in plan.extras)
    claims = replace(claims, fit=fit_of_heads(plan.make, claims), conventions=claims.conventions.claiming(settings))
    claims = replace(claims, features=features if alternatives else features - {Feature.ALTERNATIVES})
    mode = ["in eval mode, because it answers at random in training mode"] if plan.evaluating else []
    layout = "(L, B, E)" if plan.call.length_first else LAYOUTS[plan.call.spatial]
    modes, raising = _modes(plan, published, replace(check, claims=claims))
    felt = felt_numbers(plan.make, plan.call)
    whole = partial(as_built, felt=felt) if plan.in_parts else own_backward
    modes = modes | whole(plan.make, plan.call, replace(check, claims=claims))
    judged = replace(check, claims=claims)
    given = forms_of(plan.call, biases)
    modes = with_replaced_tables(modes, plan.make, plan.call, given, plain_problem(judged) if given else None)
    refused, broken = without_other_widths(plan.make)
    notes = (*notes, unclaimed("input-widths", refused)) if refused else notes
    completed = (*plan.make.completed, *getattr(kind, "completed", ()))
    findings = dict.fromkeys(completed, "not judged: None, its default, raises")
    findings |= {"kdim": f"not judged: {broken}"} if published and broken else {}
    findings = (
        findings
        | unequal
        | windows
        | constructed
        | own_draws
        | mask_findings(kind, plan.call.options, judged, plan.call.of_context.values())
    )
    findings = findings | unused_caches(kind, alternatives, modes)
    elsewhere = {*positions_judged(modes), *masks_judged(modes)}
    findings = findings | inputs_left_out(plan.make, plan.call, {*elsewhere, *biases}, felt)
    findings = findings | not_judged(modes, plan.make, plan.call, judged) | unknown_masks(plan.call, judged)
    as_seen = () if published or plan.documented else masks_as_seen(plan.call.options, judged)
    check = check.stating(*(f"numbers are added as its {name!r}, too" for name in biases))
    check = check.stating(
        *left_out(plan.make, plan.call, {*biases, *masks_judged(modes)}), *limits_stated(alternatives.values(), modes)
    )
    options = plan.call.options.knowing({*biases})
    before = [*always, *options.notes, *mode, *check.stated]
    notes = (
        f"a module class, {layout}",
        *before,
        *plan.notes,
        *notes,
        *option_notes,
        *twice,
        *one_length,
        *empty,
        *raising,
    )
    claims = replace(claims, features=claims.features | set(modes))
    construct = plan.make.constructs and partial(_built_and_called, plan)
    samples_first = None if published else states_samples_first(kind)
    run, layouts = _as_stated(plan, samples_first, judged)
    made = Implementation(name, claims, run, construct=construct, alternatives=alternatives, modes=modes)
    documented = (plan.documented,) if plan.documented else ()
    made = replace(with_notes(made, notes), findings=findings, as_seen=as_seen, stated=(*layouts, *check.stated))
    return replace(made, documented=documented)


def _as_stated(plan: ModulePlan, samples_first: bool | None, check: ClaimCheck) -> tuple[AdapterRun, tuple[str, ...]]:
    """The run in the layout that is stated, and a line where that is not the one in which it attends.

    A layout in which it raises was read wrongly: what mixes up its samples and its tokens answers in both.
    """
    call = plan.call
    if samples_first is None or call.spatial or call.length_first is not samples_first:
        return plan.run(), ()
    stated, seen = ("(B, L, E)", "(L, B, E)") if samples_first else ("(L, B, E)", "(B, L, E)")
    run = plan.run(replace(call, length_first=not samples_first))
    if not check.succeeds(run):
        return plan.run(), ()
    return run, (f"in the layout {stated} that its text states; it attends as in {seen}",)


def _without_refused_lengths(check: ClaimCheck, plan: ModulePlan) -> tuple[ClaimCheck, list[str]]:
    """The check without keys of another length where a table of all distances is given, and these are refused.

    Where it keeps such a table, or is given positions, without the side that raises: nothing states where its keys
    would be.
    """
    given = {*plan.call.tables.values()}
    if Feature.CROSS not in check.claims or not given & DISTANCES:
        return without_unequal_lengths(check) if given & POSITIONS or holds_table(plan.make) else (check, [])
    refused = [outcome.error for outcome in map(check.run, UNEQUAL) if outcome.error]
    if len(refused) < len(UNEQUAL):
        return check, []
    return check.without({Feature.CROSS}), [unclaimed("other lengths of keys", refused[0])]


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
    if not plan.has_modes or cached or (published and plan.call.length_first):
        return {}, []
    call = Chosen(plan.call, tuple(extra.position for extra in plan.extras))
    names = tuple(extra.name for extra in plan.extras)
    build = partial(built_for, plan.make, plan.evaluating)
    modes = partial(module_modes, build, call, plan.make.find_places, extras=names)
    return promised_modes(modes, check) if published else own_modes(modes, check)


def _option_claims(plan: ModulePlan, published: bool) -> tuple[ClaimCheck, list[str]]:
    """The check without claims beyond the core that calls refute, and notes on them.

    `published`: dropout is that of the weights alone, as in torch.nn.MultiheadAttention.
    """
    named = plan.make.features | plan.call.options.named.features
    modeless = plan.evaluating or not plan.drops
    check, notes = option_claims(plan.check.without(DROPPING) if modeless else plan.check, named)
    if Feature.DROPOUT in check.claims and not published and drops_output(check):
        notes.append(unclaimed("dropout", "it drops components of the output, not weights"))
        check = check.without(DROPPING)
    added = Feature.DROPOUT in check.claims and plan.call.tap
    if added and near_outputs(check.run(OPTION_CASES[Feature.DROPOUT]), check.run(PLAIN), check.dtype):
        notes.append(unclaimed("dropout", "it drops nothing before the input is added"))
        check = check.without(DROPPING)
    return check, notes
