"""Functions as candidates: anything that is called with query, key and value, tensors or arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from attention_conformance.implementations.api.contract import Claims, Implementation, any_case
from attention_conformance.implementations.discovery.always import corner_as_seen, with_premises, without_broken_lengths
from attention_conformance.implementations.discovery.chunks import without_chunks
from attention_conformance.implementations.discovery.claim_checks import (
    EVERYWHERE,
    check_answer,
    check_not_alone,
    core_claims,
    extras_seen,
    one_set_of_ids,
    option_claims,
    parts,
    with_returned_weights,
)
from attention_conformance.implementations.discovery.coarser_dtypes import stated_dtype, with_precision
from attention_conformance.implementations.discovery.documented import (
    PUBLISHED_FLAG,
    as_written,
    chooses_corner,
    states_masks_of_samples,
)
from attention_conformance.implementations.discovery.extras import ignored_parts, returns_scores
from attention_conformance.implementations.discovery.finite_fills import causal_fill_as_seen
from attention_conformance.implementations.discovery.functions.block_sizes import in_small_blocks
from attention_conformance.implementations.discovery.functions.bucket_tables import with_bucket_table
from attention_conformance.implementations.discovery.functions.cache_names import lengths_of_cached
from attention_conformance.implementations.discovery.functions.dropout_forms import with_dropout_form
from attention_conformance.implementations.discovery.functions.fewer_mask_axes import with_mask_axes
from attention_conformance.implementations.discovery.functions.function_calls import (
    JAX,
    NUMPY,
    RenamedCall,
    extents,
    options_of,
    scale_given,
)
from attention_conformance.implementations.discovery.functions.function_implementation import implementation_of
from attention_conformance.implementations.discovery.functions.function_masks import (
    with_mask_form,
    with_one_head_in_groups,
    with_padding_as_seen,
    without_refused_flag,
    without_refused_masks,
)
from attention_conformance.implementations.discovery.functions.held_masks import with_held_mask
from attention_conformance.implementations.discovery.functions.ignored_masks import without_ignored
from attention_conformance.implementations.discovery.functions.kept_weights import judged_masks, without_rate_of_masks
from attention_conformance.implementations.discovery.functions.layer_numbers import unfelt_layers
from attention_conformance.implementations.discovery.functions.logs_of_nothing import log_of_nothing_as_seen
from attention_conformance.implementations.discovery.functions.number_windows import (
    window_corner_as_seen,
    with_number_windows,
    without_refused_windows,
)
from attention_conformance.implementations.discovery.functions.on_request import with_all_it_returns
from attention_conformance.implementations.discovery.functions.one_input import OneInput, of_one_input
from attention_conformance.implementations.discovery.functions.one_key_head import (
    OneKeyHead,
    TransposedKeys,
    answers_uneven,
    with_key_heads,
)
from attention_conformance.implementations.discovery.functions.one_length import without_other_lengths
from attention_conformance.implementations.discovery.functions.one_sample import (
    OneSample,
    mixes_samples,
    of_one_sample,
)
from attention_conformance.implementations.discovery.functions.other_keys import OtherKeys, other_keys
from attention_conformance.implementations.discovery.functions.own_lengths import within_own_length
from attention_conformance.implementations.discovery.functions.own_slopes import without_own_slopes
from attention_conformance.implementations.discovery.functions.prefix_keys import SETTINGS as PREFIXED
from attention_conformance.implementations.discovery.functions.prefix_keys import PrefixKeys, with_prefix_keys
from attention_conformance.implementations.discovery.functions.prefix_numbers import judged_prefix
from attention_conformance.implementations.discovery.functions.rows_of_functions import empty_rows_of_function
from attention_conformance.implementations.discovery.functions.segments_from_one import with_segments_from_one
from attention_conformance.implementations.discovery.functions.served import Served
from attention_conformance.implementations.discovery.functions.several_needed import unjudged, with_what_is_needed
from attention_conformance.implementations.discovery.functions.shaped_tables import limited
from attention_conformance.implementations.discovery.functions.size_limits import fit_few_heads, with_size_limits
from attention_conformance.implementations.discovery.functions.suited import suited_in_size
from attention_conformance.implementations.discovery.functions.table_forms import with_other_forms, with_table_form
from attention_conformance.implementations.discovery.functions.three_axes import refuses_masks, with_three_alone
from attention_conformance.implementations.discovery.functions.unknown_options import unknown_options
from attention_conformance.implementations.discovery.functions.unnamed_function_masks import (
    biases_next_to_masks,
    with_bias_as_seen,
    with_mask_as_seen,
    with_pairs_as_seen,
)
from attention_conformance.implementations.discovery.functions.window_tables import WindowTable
from attention_conformance.implementations.discovery.grouped_masks import without_masks_of_heads
from attention_conformance.implementations.discovery.mask_notes import (
    mask_findings,
    masks_as_seen,
    promises_no_meaning,
    stated_meaning,
)
from attention_conformance.implementations.discovery.modules.module_masks import IN_ITS, lengths_as_seen
from attention_conformance.implementations.discovery.norm_gains import norm_gain_as_seen
from attention_conformance.implementations.discovery.padded_positions import padded_positions_as_seen
from attention_conformance.implementations.discovery.rows_without_keys import (
    empty_rows_of_both,
    empty_rows_of_window,
    empty_rows_with_sinks,
)
from attention_conformance.implementations.discovery.shipped.shipped import as_shipped, with_cache
from attention_conformance.implementations.discovery.shipped.shipped_others import interfaces
from attention_conformance.implementations.discovery.signatures import signature_of, window_names
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.unclaimed import unclaimed, with_notes
from attention_conformance.implementations.discovery.vocabulary import FOR_BOTH
from attention_conformance.spec.conventions import CausalWithMask, Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.optional import optional
from attention_conformance.spec.premises import NO_PREMISES, Premises

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.functions.laid_out import LaidOut

torch = optional("torch")
ALWAYS = EVERYWHERE | {Feature.CROSS, Feature.KEY_VALUE, Feature.VALUE_WIDTH}
"""What every function of query, key and value is assumed to offer, unless a call shows that it does not."""


def function_candidate(
    name: str,
    function: Callable[..., object],
    settings: Mapping[str, str],
    device: str,
    premises: Premises = NO_PREMISES,
) -> Implementation:
    """Wraps a function with the parameters of torch's scaled_dot_product_attention, or a subset of them.

    The first three parameters are query, key and value. The others have names in `OPTIONS`, and take what
    `extra_options` gives.

    Raises:
        TargetError: its parameters or its answer are none of a function of query, key and value.
        ValueError: a setting that does not exist.
    """
    if as_shipped(function, interfaces()):
        return _shipped_candidate(name, function, settings, device, premises)
    if not torch:
        return _usual_candidate(name, function, settings, device, premises)
    from attention_conformance.implementations.discovery.functions.laid_out import attends_elsewhere, states_heads_first
    from attention_conformance.implementations.discovery.functions.merged_heads import with_plain_output
    from attention_conformance.implementations.discovery.functions.needed_caches import with_needed_cache
    from attention_conformance.implementations.discovery.functions.seen_windows import with_window_table

    if (serving := _serving_candidate(name, function, settings, device, premises)) is not None:
        return serving
    if (prefixed := with_prefix_keys(function)) is not None:
        made = function_candidate(name, prefixed, {**PREFIXED, **settings}, device, premises)
        return replace(made, about=f"{made.about}; {prefixed.about}", stated=(*made.stated, prefixed.about))
    if (cached := with_needed_cache(function)) is not None:
        always = replace(premises, causal=premises.causal or cached.promised)
        made = function_candidate(name, cached, settings, device, always)
        return replace(made, about=f"{made.about}; {cached.about}", stated=(*made.stated, cached.about))
    inner = with_dropout_form(function) or with_bucket_table(function) or with_window_table(function)
    needed = inner or with_what_is_needed(function) or with_segments_from_one(function)
    if needed is not None:
        try:
            made = limited(needed, function_candidate(name, needed, settings, device, premises))
        except TargetError:
            if (laid := _laid_out_candidate(name, function, settings, device, premises)) is None:
                raise
            return laid
        findings = {**made.findings, **unjudged(needed)}
        about = f"{made.about}; {needed.about}"
        return replace(made, about=about, stated=(*made.stated, needed.about), findings=findings)
    function = with_plain_output(function, device)
    usual = partial(_usual_candidate, name, settings=settings, device=device, premises=premises)
    try:
        made = usual(function)
    except TargetError:
        laid = _laid_out_candidate(name, function, settings, device, premises)
        laid = laid or _of_other_keys(name, function, settings, device, premises)
        together = (_laid_out_candidate(name, each, settings, device, premises) for each in of_one_input(function))
        laid = laid or next((each for each in together if each is not None), None)
        if laid is None or mixes_samples(laid, device):
            samples = (_made(name, each, settings, device, premises) for each in of_one_sample(function))
            laid = next((each for each in samples if each and not attends_elsewhere(each, device)), laid)
        laid = laid or _serving_candidate(name, function, settings, device, premises, by_name=False)
        if laid is None:
            raise
        return laid
    if attends_elsewhere(made, device) or states_heads_first(as_written(function)):
        in_layout = partial(_laid_out_candidate, name, settings=settings, device=device, premises=premises)
        if (laid := in_layout(function)) is not None:
            return with_all_it_returns(laid, function, in_layout)
        laid = _serving_candidate(name, function, settings, device, premises, by_name=False, single=True)
        if laid is not None:
            return laid
    if refuses_masks(made, function, device) and (three := with_three_alone(function, made)) is not None:
        laid = _laid_out_candidate(name, three, settings, device, premises)
        if laid is not None and not refuses_masks(laid, function, device):
            return laid
    if not answers_uneven(made, device):
        transposed = _made(name, TransposedKeys(function), settings, device, premises)
        if transposed is not None and answers_uneven(transposed, device):
            return transposed
    return with_all_it_returns(made, function, usual)


def _shipped_candidate(
    name: str, function: Callable[..., object], settings: Mapping[str, str], device: str, premises: Premises
) -> Implementation:
    """The same for a published interface, unless its arrays lie otherwise than those of that interface."""
    if torch and (serving := _serving_candidate(name, function, settings, device, premises, other=True)) is not None:
        return serving
    try:
        return _usual_candidate(name, function, settings, device, premises)
    except TargetError:
        shipped = as_shipped(function, interfaces())
        serving = _serving_candidate(name, function, settings, device, premises) if torch else None
        if serving is not None:  # it has these parameters, and needs others
            return serving
        if torch and (grouped := _of_other_keys(name, function, settings, device, premises)) is not None:
            return grouped
        if shipped is None or not shipped.flag:
            raise
        made = _usual_candidate(name, shipped.without_log_sum_exp(), settings, device, premises)
        refused = unclaimed("log-sum-exp", f"{shipped.flag!r} is refused")
        return replace(made, about=f"{made.about}; {refused}", unclaimed=(*made.unclaimed, refused))


def _serving_candidate(
    name: str,
    function: Callable[..., object],
    settings: Mapping[str, str],
    device: str,
    premises: Premises,
    by_name: bool = True,
    other: bool = False,
    single: bool = False,
) -> Implementation | None:
    """The same for a serving kernel; None where it is none.

    `other`: only where it has another storage than published ones. `single`: only where each sample has one query, as
    in a step of a decoder.
    """
    from attention_conformance.implementations.discovery.functions.serving import served

    made = served(function, device, by_name)
    if made is None or (other and made.storage.published) or (single and not made.storage.single):
        return None
    return _made(name, made, {**made.settings, **settings}, device, premises)


def _of_other_keys(
    name: str, function: Callable[..., object], settings: Mapping[str, str], device: str, premises: Premises
) -> Implementation | None:
    """The same for a function whose keys have other axes than its queries; None where it is none."""
    ways = chain(other_keys(function), (each(function) for each in (OneKeyHead, TransposedKeys)))
    several = (_made(name, each, settings, device, premises) for each in ways)
    return next((each for each in several if each is not None and answers_uneven(each, device)), None)


def _laid_out_candidate(
    name: str, function: Callable[..., object], settings: Mapping[str, str], device: str, premises: Premises
) -> Implementation | None:
    """The same for a function in another layout; None where none is seen."""
    from attention_conformance.implementations.discovery.functions.laid_out import laid_out

    forms = laid_out(function, device)
    several = [each for form in forms if (each := _made(name, form, settings, device, premises))]
    if not any(answers_uneven(each, device) for each in several):
        transposed = (_made(name, replace(each, keys_transposed=True), settings, device, premises) for each in forms)
        several = [each for each in transposed if each and answers_uneven(each, device)] or several
    return max(several, key=lambda each: len(each.claims.features), default=None)


def _made(
    name: str,
    adapted: LaidOut | OneKeyHead | OtherKeys | TransposedKeys | OneSample | Served,
    settings: Mapping[str, str],
    device: str,
    premises: Premises,
) -> Implementation | None:
    try:
        made = _usual_candidate(name, adapted, settings, device, premises)
    except TargetError:
        return None
    if getattr(adapted, "by_head", False):
        made = replace(made, claims=replace(made.claims, fit=partial(fit_few_heads, made.claims.fit)))
    return replace(made, about="; ".join(note for note in (made.about, adapted.about) if note))


def _usual_candidate(
    name: str, function: Callable[..., object], settings: Mapping[str, str], device: str, premises: Premises
) -> Implementation:
    shipped = as_shipped(function, interfaces())
    function, interface = (shipped, shipped.interface) if shipped else (function, None)
    options = options_of(signature_of(function))
    documented = interface.settings if interface else stated_meaning(options, as_written(function))
    conventions = Conventions(causal_with_mask=CausalWithMask.EITHER).claiming({**documented, **settings})
    fits = one_set_of_ids if any(map(options.for_both, FOR_BOTH)) else any_case
    one_key_head = isinstance(function, OneKeyHead) or (isinstance(function, OtherKeys) and function.one_head)
    fits = partial(with_key_heads, 1, fits) if one_key_head else fits
    claims = Claims(Scope.OP, ALWAYS | options.features | {Feature.GROUPED}, conventions, fit=fits)
    if shipped:
        claims = replace(claims, features=shipped.claimed(claims.features), fit=shipped.fitting[0])
    whole = getattr(function, "function", function)
    adapted = function if isinstance(function, WindowTable) else whole
    if isinstance(adapted, OneInput | Served | PrefixKeys | WindowTable):
        claims = adapted.claimed(claims)
    check, kind, plain = suited_in_size(RenamedCall(function, options), claims, device)
    check_answer(plain, kind.is_kind, expected := "an array" if kind in (NUMPY, JAX) else "a tensor")
    check_not_alone(plain, expected)
    check, limits = with_size_limits(without_own_slopes(check))
    written = as_written(function)
    check, lengths = (check, []) if interface else without_other_lengths(check, written)
    limits, masks = [*limits, *lengths], list[str]()
    if not interface and "bool_mask" not in options:
        check = with_mask_axes(check, kind)
    check, unnamed = (check, False) if interface else with_mask_as_seen(check, kind)
    options = check.function.options if unnamed and isinstance(check.function, RenamedCall) else options
    mask = options.spelled.get("bool_mask", "")
    check = with_held_mask(check) if mask and not interface else check
    open_mask = promises_no_meaning(options, check.function) or states_masks_of_samples(written, mask)
    if not interface and mask and open_mask and "bool-mask" not in {*settings, *documented}:
        check, masks = with_mask_form(check, kind)
    elif not interface:
        check, masks = without_refused_masks(with_mask_axes(check, kind) if mask else check)
    if not interface and "bool-mask" not in settings:
        check = with_pairs_as_seen(with_padding_as_seen(check, kind), kind)
    published_flag = options.spelled.get("is_causal") == PUBLISHED_FLAG
    check, flag = (check, []) if interface or published_flag else without_refused_flag(check)
    check, ignored = without_ignored(check, options, function)
    check = check if interface else with_bias_as_seen(check, kind)
    check, lengths = lengths_as_seen(check)
    ignored = [*masks, *flag, *lengths, *ignored]
    free = chooses_corner(whole)
    promised = {PUBLISHED_FLAG, "attn_mask"} & {*options.spelled.values()} and not free
    if not interface and not (published_flag and promised) and "causal-alignment" not in settings:
        check = corner_as_seen(check)
    names = [] if interface else window_names(signature_of(function))
    check, windows = with_number_windows(check, names)
    check, one_length = without_refused_windows(check)
    check = check if interface or windows or "causal-alignment" in settings else window_corner_as_seen(check)
    check = empty_rows_of_function(check, options, settings, interface)
    check, always = with_premises(check, premises, as_written(check.function))
    check, cached = lengths_of_cached(check)
    if not interface:
        without_chunks(check)
    check = check if "padded-positions" in settings else padded_positions_as_seen(check)
    check = check if "norm-gain" in settings or interface else norm_gain_as_seen(check)
    published = {PUBLISHED_FLAG, "attn_mask"} & {*options.spelled.values()}
    check, broken = (check, {}) if promised or interface else without_broken_lengths(check)
    if not any("row" in key for key in settings):
        check = empty_rows_with_sinks(empty_rows_of_both(empty_rows_of_window(check)))
    check = check if interface else causal_fill_as_seen(check)
    check, tables = with_table_form(check, options.spelled, settings)
    known = {Feature.GROUPED} if one_key_head else {Feature.WINDOW} if {*names} - windows.keys() else set()
    check, refuted = option_claims(without_rate_of_masks(check, function), options.named.features | known)
    if not published and not interface:
        check = without_masks_of_heads(with_one_head_in_groups(check, kind))
    check, refuted = with_other_forms(check), [*tables, *refuted]
    found = extras_seen(check, plain, extents(claims), returns_scores(written))
    extras = tuple(e for e in found if e.name != "averaged_weights")
    if "returned-weights" not in settings:
        check = with_returned_weights(check, extras)
    if not interface and "log-of-nothing" not in settings:
        check = log_of_nothing_as_seen(check, extras)
    check = check if interface else within_own_length(check, function, names)
    claims, notes = core_claims(check, kind.exact_dtype)
    claims, precision = with_precision(check, claims, {**documented, **settings}, written)
    check = check.stating(*precision, *scale_given(signature_of(function), options))
    if stated := stated_dtype(signature_of(function)):
        claims = replace(claims, dtypes=tuple(dtype for dtype in claims.dtypes if dtype == stated) or claims.dtypes)
        notes = (*notes, f"judged in {stated}, as its parameter 'dtype' states")
    biases = {} if shipped else biases_next_to_masks(check, kind)
    check = check.stating(*(f"numbers are added as its {each!r}, too" for each in biases))
    own = check.function.options if isinstance(check.function, RenamedCall) else options
    before = [*limits, *one_length, *cached, *always, *ignored_parts(parts(plain), extras)]
    notes = (*(shipped.notes if shipped else ()), *before, *notes)
    notes = (*notes, *own.knowing({*biases}).notes, *ignored, *refuted, *check.stated)
    blocks = {} if shipped else in_small_blocks(check)
    numbered = {IN_ITS.format(each): way for each, way in biases.items()}
    made = implementation_of(name, check, kind, claims, extras, {**blocks, **numbered})
    made = with_notes(made, [f"a function of {kind.arrays}", *notes])
    if shipped:
        return with_cache(made, shipped)
    judged, ways = replace(check, claims=claims), {*judged_masks(check, function), *judged_prefix(made, function)}
    findings = broken | windows | mask_findings(getattr(function, "function", function), own, judged, ways)
    sizes = {name for each in blocks.values() for name in each.options.always}
    seen = {*names, *findings, *sizes, *unfelt_layers(function), *biases, *ways}
    findings = unknown_options(check, function, seen) | findings
    return replace(made, findings=findings, as_seen=masks_as_seen(own, judged))
