"""Masks of modules: in which shape and with which meaning of True one is taken, seen by its effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from attention_conformance.implementations.adapters.paging import lengths_of_samples
from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.api.safe_call import CallOutcome
from attention_conformance.implementations.discovery.always import MASKS
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    MASKED,
    PLAIN,
    ClaimCheck,
    near_outputs,
    output_of,
)
from attention_conformance.implementations.discovery.cut_masks import AXES, CROWDED, is_cut
from attention_conformance.implementations.discovery.documented import documented_polarity, states_masks_of_samples
from attention_conformance.implementations.discovery.documented_axes import most_axes
from attention_conformance.implementations.discovery.documented_masks import states_padding
from attention_conformance.implementations.discovery.grouped_masks import takes_one_head_alone
from attention_conformance.implementations.discovery.modules.context_masks import (
    of_context_alone,
    of_itself_alone,
    without_unread,
)
from attention_conformance.implementations.discovery.modules.mask_effects import (
    NUMBERS,
    PADDED,
    has_effect,
    hides_keys,
    hides_queries,
    mask_of_keys,
    padded_see_themselves,
)
from attention_conformance.implementations.discovery.rows_without_keys import (
    ADDED,
    EMPTIED_BY,
    EMPTY,
    OWN_ROWS,
    ROWS,
    empty_lengths_as_seen,
    empty_rows_as_seen,
)
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.implementations.discovery.vocabulary import LENGTH_NAMES, MaskForm, is_open_mask
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern
from attention_conformance.spec.conventions import PaddedTokens, Polarity
from attention_conformance.spec.features import Feature

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.modules.forwards import ModuleCall

PUBLISHED = ("attn_mask", "key_padding_mask", "is_causal")
"""Names of a well-known interface: what they promise is judged, not observed."""
BY_KEY = replace(MASKED, mask_shape=MaskShape.KEYS)
FORMS = (
    *(MaskForm.FLAT, MaskForm.FULL, MaskForm.ONE_HEAD),
    *(MaskForm.SAMPLE, MaskForm.SHARED, MaskForm.LENGTHS_FIRST),
)
SHAPES = {
    MaskForm.ONE_HEAD: MaskShape.SAMPLE,
    MaskForm.SAMPLE: MaskShape.SAMPLE,
    MaskForm.SHARED: MaskShape.SHARED,
    MaskForm.LENGTHS_FIRST: MaskShape.SAMPLE,
    MaskForm.HEADS: MaskShape.HEADS_ONLY,
    MaskForm.ONE_SAMPLE: MaskShape.HEADS_ONLY,
}
"""The axes of masks that are the same for all heads, for all samples, or for both."""
OF_SAMPLES = (MaskShape.SAMPLE, MaskShape.SHARED, MaskShape.KEYS, MaskShape.QUERIES, MaskShape.KEYS_ONLY)
OF_ALL_SAMPLES = (MaskShape.SHARED, MaskShape.HEADS_ONLY)
OF_HEADS = (MaskShape.HEAD, MaskShape.HEADS_ONLY, MaskShape.SHARED, MaskShape.KEYS_ONLY)
COARSER = {
    MaskForm.ONE_HEAD: OF_SAMPLES,
    MaskForm.SAMPLE: OF_SAMPLES,
    MaskForm.LENGTHS_FIRST: OF_SAMPLES,
    MaskForm.SHARED: (MaskShape.SHARED, MaskShape.KEYS_ONLY),
    MaskForm.HEADS: OF_HEADS,
    MaskForm.ONE_SAMPLE: OF_HEADS,
}
"""The axes that masks of these forms can have."""


IN_ITS = "with numbers in its {!r}"
"""The name of a way to give added numbers by another parameter."""


def has_axes(form: MaskForm, shape: Sequence[int]) -> bool:
    """Whether a form has the axes in which a mask of this shape differs."""
    samples, heads = (1, 1, *shape)[-4:-2]
    kept = SHAPES.get(form)
    of_one_head, of_one_sample = kept in (MaskShape.SAMPLE, MaskShape.SHARED), kept in OF_ALL_SAMPLES
    return (heads == 1 or not of_one_head) and (samples == 1 or not of_one_sample)


def with_one_head_in_groups(call: ModuleCall, check: ClaimCheck) -> ModuleCall:
    """The call with masks of one head for all, if no others are taken where heads share keys; see `grouped_masks`."""
    if call.form is not MaskForm.FULL:
        return call
    one = replace(call, form=MaskForm.ONE_HEAD)
    each, alone = (replace(check, function=way) for way in (call, one))
    return one if takes_one_head_alone(each, alone) else call


def with_mask_form(
    call: ModuleCall, check: ClaimCheck, kind: object, observed: bool, promised: bool = False
) -> tuple[ModuleCall, ClaimCheck, list[str]]:
    """With the first form of a mask that has the right effect, or else with the first that raises no error, and notes.

    One of each sample that the documentation of its `kind` states may have that effect for one sample alone.
    `observed` states whether the meaning of True is what is seen; it is not where its names promise one. `promised`
    states whether they promise the form that the call has, which then only has to raise no error.
    """
    spelled = call.options.spelled
    if not {"bool_mask", "float_mask"} & set(spelled):
        return call, check, []
    runs = promised and "bool_mask" in spelled and (not observed or _states_polarity(call))
    if runs and not _refuses_or_cuts(call, check, kind):
        return call, check, []
    call = _as_documented(call, kind) if observed else call
    polarities = list(Polarity) if observed and not _states_polarity(call) else [call.polarity]
    polarities.sort(key=lambda polarity: polarity is not call.polarity)
    forms = [form for form in FORMS if call.length_first or form is not MaskForm.LENGTHS_FIRST]
    forms = _of_many_samples(call, check, forms, _stated_axes(kind, call))
    tried = [replace(call, form=form, polarity=polarity) for polarity in polarities for form in forms]
    for each in tried if "bool_mask" in spelled else ():
        if has_effect(replace(check, function=each), shaped(MASKED, each.form)):
            return each, check, []
    unstated = observed and not is_published(call) and {"bool_mask", "float_mask"} <= set(spelled)
    if unstated and (other := _other_kind(call, check, tried)):
        return other
    if (stated := _stated_of_samples(call, check, kind, tried)) is not None:
        return stated, check, []
    if observed and not _states_polarity(call) and (of_keys := _of_keys(call, check, kind, tried)):
        return of_keys
    for each in tried if "bool_mask" in spelled else ():
        if hides_keys(replace(check, function=each), shaped(BY_KEY, each.form)):
            return each, check, []
    case = MASKED if "bool_mask" in spelled else BIASED
    last = sorted(forms, key=lambda form: form is MaskForm.SAMPLE)
    for each in (replace(call, form=form) for form in last):
        if not replace(check, function=each).run(shaped(case, each.form)).error:
            return each, check, []
    numbers = call.options.with_masks_as("float_mask") if unstated else call.options
    for each in (replace(call, form=form, options=numbers) for form in last if unstated):
        if not replace(check, function=each).run(shaped(BIASED, each.form)).error:
            own = spelled["bool_mask"]
            return (
                each,
                check.without({Feature.BOOL_MASK}),
                [unclaimed("bool-mask", f"its {own!r} takes numbers alone")],
            )
    return call, check, []


def _as_documented(call: ModuleCall, kind: object) -> ModuleCall:
    """The call with what True means by documentation, which counts where neither meaning is seen, or both may be."""
    stated = documented_polarity(kind, call.options.spelled.get("bool_mask", ""))
    return call if stated is None or _states_polarity(call) else replace(call, polarity=stated)


def _refuses_or_cuts(call: ModuleCall, check: ClaimCheck, kind: object) -> bool:
    """Whether a mask in the form that the call has raises, or is one of more axes than it documents, which it cuts."""
    formed, case = replace(check, function=call), shaped(MASKED, call.form)
    more = AXES.get(call.form, 4) > _stated_axes(kind, call)
    return bool(formed.run(case).error) or (more and is_cut(formed, case))


def _stated_axes(kind: object, call: ModuleCall) -> int:
    """How many axes its masks may have by its documentation."""
    return most_axes(kind, call.options.spelled.get("bool_mask") or call.options.spelled["float_mask"])


def _of_many_samples(call: ModuleCall, check: ClaimCheck, forms: list[MaskForm], stated: int) -> list[MaskForm]:
    """The forms that raise nothing for more samples than queries: a mask cut to the lengths by its first axes does.

    With as many axes as are `stated`, a mask is judged, whatever is cut.
    """

    def answers(form: MaskForm) -> bool:
        each = replace(check, function=replace(call, form=form))
        return any(not each.run(shaped(case.sized(**CROWDED), form)).error for case in (MASKED, BIASED))

    return [form for form in forms if AXES.get(form, 4) <= stated or answers(form)] or forms


def _stated_of_samples(call: ModuleCall, check: ClaimCheck, kind: object, tried: list[ModuleCall]) -> ModuleCall | None:
    """A boolean mask (B, Lq, Lk) as its documentation states it, right for one sample; several may be mixed up."""
    own = call.options.named.spelled.get("bool_mask")
    if own is None or not states_masks_of_samples(kind, own):
        return None
    case = shaped(MASKED, MaskForm.SAMPLE)
    of_samples = (each for each in tried if each.form is MaskForm.SAMPLE)
    return next((each for each in of_samples if _hides_of_one(replace(check, function=each), case)), None)


def _other_kind(
    call: ModuleCall, check: ClaimCheck, tried: list[ModuleCall]
) -> tuple[ModuleCall, ClaimCheck, list[str]] | None:
    """A mask that is added to the scores, or is of numbers 0 and 1; None where it is neither."""
    own = call.options.spelled["bool_mask"]
    for each in tried:
        numeric = replace(each, true_as=1.0)
        if has_effect(replace(check, function=numeric), shaped(MASKED, each.form)):
            note = f"its {own!r} mask is given as numbers 0 and 1"
            return numeric, check.without({Feature.FLOAT_MASK, Feature.MASK_GRADIENT}), [note]
    added = call.options.with_masks_as("float_mask")
    for each in (replace(each, options=added) for each in tried):
        if has_effect(replace(check, function=each), shaped(ADDED, each.form)):
            note = unclaimed("bool-mask", f"its {own!r} mask is added to the scores")
            return each, check.without({Feature.BOOL_MASK}), [note]
    return None


def _of_keys(
    call: ModuleCall, check: ClaimCheck, kind: object, tried: list[ModuleCall]
) -> tuple[ModuleCall, ClaimCheck, list[str]] | None:
    """A mask of keys, (B, Lk), under the only name for masks; None where it is none."""
    if not {"bool_mask", "float_mask"} <= set(call.options.spelled):
        return None
    own, padding = call.options.spelled["bool_mask"], call.options.with_masks_as("key_padding_mask")
    claims = check.without(MASKS).claims
    claims = replace(claims, features=claims.features | {Feature.KEY_PADDING})
    kinds = [replace(each, options=padding) for each in {each.polarity: each for each in reversed(tried)}.values()]
    calls = [replace(each, true_as=number) for number, each in product(NUMBERS, reversed(kinds))]
    ways = [replace(check, function=each, claims=claims) for each in calls]
    rights = (partial(has_effect, case=PADDED), hides_queries)
    found = mask_of_keys(check, ways, own, rights, states_padding(kind, own))
    if found is None:
        return None
    seen = _with_bias(found[0])
    way: Any = seen.function  # the call in one of these ways
    return way, replace(check, claims=seen.claims), [found[1]]


def _with_bias(check: ClaimCheck) -> ClaimCheck:
    """The check with numbers that are added to the scores, too, where these have a parameter of their own."""
    call: Any = check.function
    if "float_mask" not in call.options:
        return check
    added = check.claiming({Feature.FLOAT_MASK, Feature.MASK_GRADIENT})
    ways = ((form, replace(added, function=replace(call, form=form))) for form in FORMS)
    found = next((way for form, way in ways if has_effect(way, shaped(ADDED, form))), None)
    masks = {option: name for option, name in call.options.spelled.items() if option != "float_mask"}
    alone = replace(check, function=replace(call, options=replace(call.options, spelled=masks)))
    return found or alone


def is_published(call: ModuleCall) -> bool:
    """Whether its masks have the names of torch.nn.MultiheadAttention."""
    return bool(set(PUBLISHED) & set(call.options.named.spelled.values()))


def _states_polarity(call: ModuleCall) -> bool:
    """Whether a name is of torch.nn.MultiheadAttention alone: torch's function has the others, and another meaning."""
    return "key_padding_mask" in call.options.named.spelled.values()


def shaped(case: Case, form: MaskForm) -> Case:
    """The case with a mask as a form allows it."""
    kept = form not in SHAPES or case.mask_shape in COARSER[form]
    return case if kept else replace(case, mask_shape=SHAPES[form])


def fit_form(case: Case, form: MaskForm, bias_form: MaskForm | None = None) -> Case | Unsupported:
    """The fit of a form, and of another of added numbers where there is one.

    Masks of keys that differ by sample have no near one that is the same for all samples.
    """
    form = bias_form if bias_form is not None and case.mask in (MaskKind.FLOAT, MaskKind.INFINITE) else form
    of_samples = case.mask_shape is MaskShape.KEYS and case.mask is not MaskKind.NONE
    if form in (MaskForm.SHARED, MaskForm.HEADS, MaskForm.ONE_SAMPLE) and of_samples:
        return Unsupported("its masks are the same for all samples")
    return shaped(case, form)


def as_seen(call: ModuleCall, check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check with the answer to a row without keys that is seen, without masks that are not what names promise."""
    check, unread = without_unread(call, check)
    check, notes = _without_unlike(call, check)
    check, alone = of_itself_alone(call, check)
    check, another = of_context_alone(call, check)
    notes = [*unread, *notes, *alone, *another]
    check, lengths = lengths_as_seen(check)
    notes = [*notes, *lengths]
    given = [f for f, (option, _) in EMPTIED_BY.items() if f in check.claims and option in call.options.spelled]
    for feature in given:
        kinds = ROWS if given == [feature] else OWN_ROWS[feature]
        check = empty_rows_as_seen(check, shaped(EMPTIED_BY[feature][1], call.form), kinds)
    if Feature.KEY_PADDING in check.claims and not is_published(call):
        check = _padded_tokens_as_seen(check)
    if Feature.KEY_PADDING in check.claims:
        both = not given and Feature.CAUSAL not in check.claims  # if it is always causal, its triangle and padding meet
        check = empty_rows_as_seen(check, EMPTY, ("padding", "causal") if both else ("padding",))
    return empty_lengths_as_seen(check), notes


def _padded_tokens_as_seen(check: ClaimCheck) -> ClaimCheck:
    """The check with the claim that answers for padded tokens are unspecified, where they are not those of others."""
    alone = check.without({Feature.CROSS, Feature.KEY_VALUE})
    does = "are hidden as queries, too" if hides_queries(alone) else ""
    does = does or ("see themselves" if padded_see_themselves(alone) else "")
    if not does:
        return check
    conventions = replace(check.claims.conventions, padded_tokens=PaddedTokens.UNSPECIFIED)
    claimed = replace(check, claims=replace(check.claims, conventions=conventions))
    return claimed.stating(f"padded tokens {does} (padded-tokens=unspecified)")


def lengths_as_seen(check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check with valid lengths of samples alone, where those of each query raise; without others than of keys."""
    call: Any = check.function
    if call.options.spelled.get("valid_lens") in LENGTH_NAMES and not _counts_keys(check):
        return check.without({Feature.VALID_LENS}), []
    longer = PLAIN.sized(key_length=24)  # a length for each query, as many as keys, might be taken for one for each key
    of_samples, of_queries = (replace(longer, padding=each) for each in (Padding.LENGTHS, Padding.QUERY_LENGTHS))
    if Feature.VALID_LENS not in check.claims or (one := check.run(of_samples)).error:
        return check, []
    each = check.run(of_queries)
    if not (error := each.error or _another_shape(one, each)):
        return check, []
    claims = replace(check.claims, fit=partial(fit_lengths, check.claims.fit))
    return replace(check, claims=claims), [unclaimed("valid lengths of each query", error)]


def _another_shape(one: CallOutcome[Any], other: CallOutcome[Any]) -> str:
    return "its answer has another shape" if output_of(one).shape != output_of(other).shape else ""


def _counts_keys(check: ClaimCheck) -> bool:
    """Whether lengths of samples leave each its first keys; for one sample, where those of several raise nothing."""
    lengths = replace(PLAIN, padding=Padding.LENGTHS)
    return has_effect(check, lengths) or _hides_of_one(check, lengths)


def _hides_of_one(check: ClaimCheck, case: Case) -> bool:
    """Whether a mask has its effect for one sample, and raises nothing for several, where it may be wrong."""
    return not check.run(case).error and has_effect(check, case.sized(batch=1))


def fit_lengths(fit: Fit, case: Case) -> Case | Unsupported:
    """The fit of one that takes a valid length for each sample, and none for each query."""
    return fit(lengths_of_samples(case))


def _without_unlike(call: ModuleCall, check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check without masks of unpublished names that raise, and without floats where zeros mask.

    `attn_mask` alone is a name that others use for masks of 0 and 1 as well; `mask` is, next to a published flag too.
    """
    published = set(PUBLISHED) & set(call.options.named.spelled.values())
    promised = published - {"attn_mask"} and not is_open_mask(call.options.spelled.get("float_mask", ""))
    if promised or not {"bool_mask", "float_mask"} <= set(call.options.spelled) or not MASKS & check.claims.features:
        return check, []
    if not published and (error := check.run(shaped(MASKED, call.form)).error):
        return check.without(MASKS), [unclaimed("masks", error)]
    if Feature.FLOAT_MASK not in check.claims:
        return check, []
    plain, zeros = check.run(PLAIN), check.run(shaped(replace(BIASED, pattern=Pattern.ALL), call.form))
    drawn = check.run(shaped(BIASED, call.form))  # some look at a mask only where it is not zero
    added = not zeros.error and not drawn.error and near_outputs(plain, zeros, check.dtype)
    numeric = replace(check, function=replace(call, true_as=1.0))
    if added and not has_effect(numeric, shaped(MASKED, call.form)):
        return check, []
    why = zeros.error or drawn.error or f"{'ones' if added else 'zeros'} in it mask keys, so that it is boolean"
    return check.without({Feature.FLOAT_MASK, Feature.MASK_GRADIENT}), [unclaimed("float-mask", why)]
