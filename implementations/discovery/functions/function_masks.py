"""Masks of functions: in which shape, with which meaning and of which kind one is taken, seen by its effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf
from typing import Any

from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    MASKED,
    PLAIN,
    ClaimCheck,
    near_outputs,
    output_of,
)
from attention_conformance.implementations.discovery.cut_masks import uncut
from attention_conformance.implementations.discovery.documented import (
    as_written,
    documented_polarity,
    states_any_axes,
    states_masks_of_samples,
)
from attention_conformance.implementations.discovery.documented_axes import most_axes, promises_masks_of_samples
from attention_conformance.implementations.discovery.functions.function_calls import ArrayKind, RenamedCall
from attention_conformance.implementations.discovery.grouped_masks import takes_one_head_alone
from attention_conformance.implementations.discovery.key_masks import with_key_mask
from attention_conformance.implementations.discovery.modules.mask_effects import (
    NUMBERS,
    PADDED,
    has_effect,
    mask_of_keys,
)
from attention_conformance.implementations.discovery.modules.module_masks import (
    BY_KEY,
    SHAPES,
    fit_form,
    shaped,
)
from attention_conformance.implementations.discovery.rows_without_keys import ADDED
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.implementations.discovery.vocabulary import KeysForm, MaskForm
from attention_conformance.spec.cases import Case, MaskShape, Pattern
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature

FORMS = (MaskForm.GIVEN, MaskForm.SAMPLE, MaskForm.SHARED, MaskForm.FULL)
BIAS_FORMS = (MaskForm.GIVEN, MaskForm.FULL, MaskForm.HEADS, MaskForm.SAMPLE, MaskForm.SHARED)
"""Of added numbers with a parameter of their own."""
OF_FEWER_AXES = (BY_KEY, replace(MASKED, mask_shape=MaskShape.SHARED))
"""Masks that broadcast: a name that promises no form promises neither."""
OF_FEWER_ADDED = (
    replace(BIASED, mask_shape=MaskShape.SHARED),
    replace(BIASED, mask_shape=MaskShape.KEYS).sized(query_length=70, key_length=5),
)
"""Numbers that broadcast, over more queries than a usual block has as well."""
OF_ONE_KEY = OF_FEWER_ADDED[0].sized(key_length=1)
"""Whose last axis may be taken for one of heads, as a bias with one for all heads is known by it."""
GIVEN_AS = "its {!r} is given as {}"
SAMPLES = "(B, Lq, Lk), as its documentation has them"
PUBLISHED = "attn_mask"
"""The name under which masks of torch's function have any axes that broadcast."""
NUMBERS_ADDED = frozenset({Feature.FLOAT_MASK, Feature.MASK_GRADIENT})
OF_MASKS = NUMBERS_ADDED | {Feature.BOOL_MASK}
SHORT_CAUSAL = replace(PLAIN, causal=True).sized(query_length=4, key_length=4)
"""A call with the flag that is short: what ends the process in a long one is still to be judged."""


def with_all_axes(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck:
    """The check of a call that gives added numbers all four axes, where fewer raise and no published name takes them.

    Rows of an `attn_bias` are often read from its third axis, and those of each block of queries cut out of it.
    """
    call = check.function
    assert isinstance(call, RenamedCall)
    own = call.options.spelled.get("float_mask")
    if own in (None, PUBLISHED) or Feature.FLOAT_MASK not in check.claims:
        return check
    if states_any_axes(as_written(call.function), own) or not any(check.run(each).error for each in OF_FEWER_ADDED):
        return check
    formed = in_form(check, kind, replace(call, form=MaskForm.FULL), check.claims.conventions.bool_mask)
    taken = not any(formed.run(each).error for each in (*OF_FEWER_ADDED, BIASED))
    return formed.stating(GIVEN_AS.format(own, MaskForm.FULL)) if taken else check


def with_bias_form(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck:
    """The check with the form of added numbers whose parameter is not that of masks: the first that has its effect.

    Else the first that raises nothing, in which it is judged. It has all four axes where fewer raise.
    """
    call = check.function
    assert isinstance(call, RenamedCall)
    own, named = call.options.spelled.get("float_mask", ""), call.options.named
    apart = "bool_mask" in named and named.has_bias_apart and call.bias_form is None
    if not apart or Feature.FLOAT_MASK not in check.claims:
        return check
    forms = BIAS_FORMS[:1] if states_any_axes(as_written(call.function), own) else BIAS_FORMS
    polarity = check.claims.conventions.bool_mask
    tried = {form: in_form(check, kind, replace(call, bias_form=form), polarity) for form in forms}
    stated = most_axes(as_written(call.function), own)
    tried = {form: tried[form] for form in uncut(forms, tried.__getitem__, stated, [BIASED])}
    taken = {form: each for form, each in tried.items() if len(forms) == 1 or _takes_numbers(each, form)}
    seen = (form for form, each in taken.items() if has_effect(each, shaped(ADDED, form)))
    form = next(seen, next(iter(taken), None))
    if form is None:
        return check
    return taken[form] if form is MaskForm.GIVEN else taken[form].stating(GIVEN_AS.format(own, form))


def _takes_numbers(check: ClaimCheck, form: MaskForm) -> bool:
    """Whether it answers in its usual shape with added numbers of this form, whichever of their axes broadcast."""
    fewer = (*OF_FEWER_ADDED, OF_ONE_KEY) if form in (MaskForm.GIVEN, MaskForm.FULL) else ()
    outcomes = (
        (check.run(shaped(case, form)), check.run(replace(PLAIN, sizes=case.sizes))) for case in (BIASED, *fewer)
    )
    return all(not one.error and output_of(one).shape == output_of(plain).shape for one, plain in outcomes)


def without_refused_masks(check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check without masks where every kind of them raises: as an object with arrays inside is expected, or as a
    statement of its own refuses them, whatever its name promises.
    """
    kinds = {Feature.BOOL_MASK: MASKED, Feature.FLOAT_MASK: BIASED}
    outcomes = [check.run(case) for feature, case in kinds.items() if feature in check.claims]
    if not outcomes or not all(each.wanted or each.refused for each in outcomes):
        return check, []
    wanted = outcomes[0].wanted
    why = f"it takes an object with {wanted!r}, and no array" if wanted else outcomes[0].error
    return check.without(OF_MASKS), [unclaimed("masks", why)]


def without_refused_flag(check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check without a causal flag where a statement of its own refuses True: it takes texts, for example."""
    if Feature.CAUSAL not in check.claims or not (outcome := check.run(SHORT_CAUSAL)).refused:
        return check, []
    call = check.function
    assert isinstance(call, RenamedCall)
    others = {n: x for n, x in call.options.defaults.items() if n != call.options.spelled.get("is_causal")}
    kept = replace(check, function=replace(call, options=replace(call.options, defaults=others)))
    return kept.without({Feature.CAUSAL}), [unclaimed("a causal flag", outcome.error)]


def with_mask_form(check: ClaimCheck, kind: ArrayKind) -> tuple[ClaimCheck, list[str]]:
    """The check with the form and the polarity in which a mask of an unpublished name has its effect, and notes.

    What raises in each form is not claimed; what is ignored is.
    """
    check = with_bias_form(check, kind)
    call = check.function
    assert isinstance(call, RenamedCall)
    own = call.options.spelled["bool_mask"]
    stated = documented_polarity(as_written(call.function), own)  # counts where neither meaning is seen
    check = in_form(check, kind, call, stated) if stated else check
    claimed = check.claims.conventions.bool_mask
    polarities = sorted(Polarity, key=lambda each: each is not claimed)
    rigid: ClaimCheck | None = None
    forms = forms_of(check, kind, own)
    for polarity, form in product(polarities, forms):
        formed = in_form(check, kind, replace(call, form=form), polarity)
        if has_effect(formed, shaped(MASKED, form)):
            if not any(formed.run(shaped(each, form)).error for each in OF_FEWER_AXES):
                whole = _with_whole_keys(_of_documented_samples(formed, kind), kind)
                return whole, _form_notes(own, form, forms)
            rigid = rigid or formed  # it may be one that has to have fewer axes
        added = formed.without({Feature.BOOL_MASK})
        if (
            rigid is None
            and polarity is claimed
            and not call.options.has_bias_apart
            and has_effect(added, shaped(ADDED, form))
            and not _masks(formed, form)
        ):
            each = with_all_axes(added, kind)
            given = MaskForm.FULL if each is not added else form
            return _with_whole_keys(each, kind), _form_notes(own, given, forms)
    if rigid is not None:
        call = rigid.function
        assert isinstance(call, RenamedCall)
        return _of_documented_samples(rigid, kind), _form_notes(own, call.form, forms, rigid=True)
    apart = call.bias_form is not None
    for number, polarity, form in product((1.0, -inf) if apart else (1.0,), polarities, forms):
        numeric = in_form(check, kind, replace(call, form=form, true_as=number), polarity)
        numeric = numeric if apart else numeric.without(NUMBERS_ADDED)
        if has_effect(numeric, shaped(MASKED, form)):
            return numeric, [f"its {own!r} mask is given as numbers 0 and {number:g}", *_form_notes(own, form, forms)]
    for polarity, form in product(polarities, forms):
        formed = in_form(check, kind, replace(call, form=form), polarity)
        if has_effect(formed, shaped(OF_FEWER_AXES[1], form)) and not formed.run(shaped(MASKED, form)).error:
            return formed, [f"its {own!r} hides what it states where all samples and heads have the same mask"]
    if found := mask_of_keys(check, ways_of_keys(check, kind, polarities), own, [hides_padding]):
        return found[0], [found[1]]
    errors = [check.run(case).error for case in (MASKED, BIASED)]
    return (check.without(OF_MASKS), [unclaimed("masks", errors[0])]) if all(errors) else (check, [])


def _form_notes(own: str, form: MaskForm, forms: Sequence[MaskForm], rigid: bool = False) -> list[str]:
    """In which form its mask is given, where that is not the first that is tried of all."""
    stated = form is MaskForm.LENGTHS_FIRST or (form is MaskForm.FULL and not rigid)
    return [GIVEN_AS.format(own, form)] if stated or not {*FORMS} <= {*forms} else []


def forms_of(check: ClaimCheck, kind: ArrayKind, own: str) -> Sequence[MaskForm]:
    """The forms in which its mask of this name may come: none of more axes that it cuts, unless it documents some."""
    call = check.function
    assert isinstance(call, RenamedCall)
    stated, polarity = most_axes(as_written(call.function), own), check.claims.conventions.bool_mask
    forms = (*FORMS, MaskForm.LENGTHS_FIRST) if has_lengths_first(call) else FORMS
    return uncut(forms, lambda form: in_form(check, kind, replace(call, form=form), polarity), stated)


def _of_documented_samples(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck:
    """The check with a mask for each sample, which its documentation states and it takes, whatever that hides.

    One that folds samples and heads into one axis may repeat such masks in the wrong order.
    """
    call, polarity = check.function, check.claims.conventions.bool_mask
    assert isinstance(call, RenamedCall)
    own = call.options.spelled["bool_mask"]
    if call.form is not MaskForm.SHARED or not states_masks_of_samples(as_written(call.function), own):
        return check
    formed, flat = (
        in_form(check, kind, replace(call, form=form), polarity) for form in (MaskForm.SAMPLE, MaskForm.FLAT)
    )
    refused = formed.run(shaped(MASKED, MaskForm.SAMPLE)).error or has_effect(flat, shaped(MASKED, MaskForm.FLAT))
    return check if refused else formed.stating(GIVEN_AS.format(own, SAMPLES))


def ways_of_keys(check: ClaimCheck, kind: ArrayKind, polarities: Iterable[Polarity]) -> list[ClaimCheck]:
    """The check of calls in which the parameter of attention masks takes masks of keys alone, in each form."""
    call = check.function
    assert isinstance(call, RenamedCall)
    of_keys = replace(call, options=call.options.with_masks_as("key_padding_mask"))
    forms = KeysForm if has_lengths_first(call) else (KeysForm.SAMPLES, KeysForm.PER_HEAD)
    ways_given = product(forms, NUMBERS, polarities)
    calls = [(replace(of_keys, true_as=number, keys_form=form), polarity) for form, number, polarity in ways_given]
    lost = {Feature.BOOL_MASK} if call.options.has_bias_apart else OF_MASKS
    return [in_form(check, kind, *each).without(lost).claiming({Feature.KEY_PADDING}) for each in calls]


def has_lengths_first(call: RenamedCall) -> bool:
    """Whether the tokens of its inputs come before samples, as in (L, B, H, d): those of its masks may, too."""
    axes = getattr(getattr(call.function, "call", None), "axes", "")
    return 0 <= axes.find("L") < axes.find("B")


def hides_padding(check: ClaimCheck) -> bool:
    """Whether its mask of keys hides the padding, and nothing else."""
    return has_effect(check, PADDED)


def _with_whole_keys(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck:
    """The check of a call that gives a mask with one number for all keys as one for each, where the former raises."""
    call, polarity = check.function, check.claims.conventions.bool_mask
    assert isinstance(call, RenamedCall)
    kinds = {Feature.BOOL_MASK: MASKED, Feature.FLOAT_MASK: BIASED}
    given = next((case for feature, case in kinds.items() if feature in check.claims), MASKED)
    of_queries = replace(given, mask_shape=MaskShape.QUERIES)
    if call.form is not MaskForm.GIVEN or not check.run(of_queries).error:
        return check
    whole = in_form(check, kind, replace(call, form=MaskForm.WHOLE_KEYS), polarity)
    return check if whole.run(of_queries).error else whole


def with_one_head_in_groups(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck:
    """The check of a call with masks of one head for all, if no others are taken where heads share keys."""
    call, polarity = check.function, check.claims.conventions.bool_mask
    assert isinstance(call, RenamedCall)
    if call.bias_form is MaskForm.FULL:
        shared, masks = replace(call, bias_form=MaskForm.ONE_HEAD), {Feature.BOOL_MASK}
        one = in_form(check, kind, shared, polarity)
        if takes_one_head_alone(check.without(masks), one.without(masks)):
            check, call = one, shared
    if call.form is not MaskForm.FULL:
        return check
    one = in_form(check, kind, replace(call, form=MaskForm.ONE_HEAD), polarity)
    return one if takes_one_head_alone(check, one) else check


def with_masks_of_samples(check: ClaimCheck) -> dict[str, RenamedCall]:
    """The call with masks of three axes, whose first one are samples, by what it is.

    Where it does not take them it is none, unless its documentation states that queries of four axes may have these.
    """
    call = check.function
    assert isinstance(call, RenamedCall)
    if call.form is not MaskForm.GIVEN or Feature.BOOL_MASK not in check.claims:
        return {}
    other, way = replace(call, form=MaskForm.NO_HEADS), f"with its masks as {SAMPLES}"
    own, query = call.options.spelled.get("bool_mask", ""), next(iter(signature_of(call.function).parameters), "")
    if promises_masks_of_samples(as_written(call.function), own, query):
        return {way: other}
    case = replace(MASKED, mask_shape=MaskShape.SAMPLE)
    return {} if replace(check, function=other).run(case).error else {way: other}


def with_padding_as_seen(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck:
    """The check with what True in a mask of keys means, where that is the opposite of what it is meant to mean.

    As in torch.nn.MultiheadAttention it may hide a key, in a function whose other masks show one by it. Where neither
    is seen, its documentation states it.
    """
    call = check.function
    assert isinstance(call, RenamedCall)
    own = call.options.spelled.get("key_padding_mask")
    if own is None:
        return with_key_mask(check, as_written(call.function))
    if Feature.KEY_PADDING not in check.claims or has_effect(check, PADDED):
        return check
    otherwise = (each(check, kind) for each in (_with_keys_of_samples, _with_keys_first))
    if (given := next((each for each in otherwise if each is not None), None)) is not None:
        return given
    other = kind.check(replace(call, hides_padding=True), check.claims, check.device, check.dtype)
    stated = documented_polarity(as_written(call.function), own)
    if not has_effect(other, PADDED) and stated in (None, check.claims.conventions.bool_mask):
        return check
    means = "masked out" if check.claims.conventions.bool_mask is Polarity.MAY_ATTEND else "may attend"
    return replace(check, function=other.function).stating(f"True in its {own!r} means {means}")


def _with_keys_of_samples(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck | None:
    """The check of a call with inputs (B * H, L, d) that repeats the mask of keys (B, Lk) for its heads by itself."""
    call = check.function
    assert isinstance(call, RenamedCall)
    laid: Any = call.function
    if getattr(laid, "keys_of_samples", True) or not check.run(PADDED).error:
        return None
    other = replace(call, function=replace(laid, keys_of_samples=True))
    made = kind.check(other, check.claims, check.device, check.dtype)
    return None if made.run(PADDED).error else with_padding_as_seen(made, kind)


def _with_keys_first(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck | None:
    """The check of a call that takes its mask of keys as (Lk, B), and raises with (B, Lk)."""
    call = check.function
    assert isinstance(call, RenamedCall)
    if call.keys_form is not KeysForm.SAMPLES or not has_lengths_first(call) or not check.run(PADDED).error:
        return None
    made = replace(check, function=replace(call, keys_form=KeysForm.LENGTHS_FIRST))
    if made.run(PADDED).error:
        return None
    own = call.options.spelled["key_padding_mask"]
    return with_padding_as_seen(made, kind).stating(GIVEN_AS.format(own, KeysForm.LENGTHS_FIRST))


def in_form(check: ClaimCheck, kind: ArrayKind, call: RenamedCall, polarity: Polarity) -> ClaimCheck:
    """The check of a call that takes its masks in a form."""
    claims = replace(check.claims, conventions=replace(check.claims.conventions, bool_mask=polarity))
    if {call.form, call.bias_form} & SHAPES.keys():
        before = claims.fit  # in another form, if it is one of these
        own = before.args[0] if isinstance(before, partial) and before.func is _fit_in_form else before
        claims = replace(claims, fit=partial(_fit_in_form, own, call.form, call.bias_form))
    return kind.check(call, claims, check.device, check.dtype).stating(*check.stated)


def _fit_in_form(own: Fit, form: MaskForm, bias_form: MaskForm | None, case: Case) -> Case | Unsupported:
    """The nearest case of its own fit, with masks of this form."""
    fitted = own(case)
    return fitted if isinstance(fitted, Unsupported) else fit_form(fitted, form, bias_form)


def _masks(check: ClaimCheck, form: MaskForm) -> bool:
    """Whether a boolean mask changes more than numbers would, which may be a mistake; it is none where all raise."""
    case = shaped(MASKED, form)
    masked, open_one = check.run(case), check.run(replace(case, pattern=Pattern.ALL))
    if masked.error and open_one.error:
        return False
    refused = bool(masked.error or open_one.error)
    return refused or not near_outputs(open_one, check.run(PLAIN), check.dtype)
