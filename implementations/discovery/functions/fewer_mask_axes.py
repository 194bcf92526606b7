"""Masks of fewer axes: of functions that document no other, take those of keys, or are given a number of heads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from attention_conformance.implementations.adapters.jax_programs import Compiled
from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, ClaimCheck
from attention_conformance.implementations.discovery.cut_masks import is_cut
from attention_conformance.implementations.discovery.documented import (
    as_written,
    documented_polarity,
    states_masks_of_keys,
    states_numbers_alone,
)
from attention_conformance.implementations.discovery.documented_axes import most_axes, states_two_axes_alone
from attention_conformance.implementations.discovery.functions.function_calls import ArrayKind, RenamedCall
from attention_conformance.implementations.discovery.functions.function_masks import (
    has_lengths_first,
    hides_padding,
    in_form,
    ways_of_keys,
    with_all_axes,
    with_bias_form,
)
from attention_conformance.implementations.discovery.functions.other_keys import OtherKeys
from attention_conformance.implementations.discovery.modules.mask_effects import PADDED, mask_of_keys
from attention_conformance.implementations.discovery.vocabulary import MaskForm
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature

KINDS = {Feature.BOOL_MASK: MASKED, Feature.FLOAT_MASK: BIASED}
OF_HEADS_IN_SAMPLES = (MaskForm.EITHER, MaskForm.FLAT, MaskForm.SAMPLE, MaskForm.SHARED)
"""As torch.nn.functional.multi_head_attention_forward takes them, or fewer."""
OF_ALL_SAMPLES = (MaskForm.HEADS, MaskForm.SHARED)
"""As biases of positions lie."""
OF_ALL_HEADS = (MaskForm.SAMPLE, MaskForm.SHARED)


def with_mask_axes(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck:
    """The check of a call that gives masks as many axes as are taken, where all of four raise.

    A name that is published promises four, unless other words or the number of heads among its parameters state that
    masks are those of torch.nn.MultiheadAttention.
    """
    check = with_bias_form(check, kind)
    call = check.function
    assert isinstance(call, RenamedCall)
    if (own := call.options.spelled.get("bool_mask", "")) and states_numbers_alone(as_written(call.function), own):
        kinds = {Feature.FLOAT_MASK: BIASED}
    else:
        kinds = KINDS
    apart = {Feature.FLOAT_MASK} if call.bias_form is not None else set()
    cases = {feature: case for feature, case in kinds.items() if feature in check.claims.features - apart}
    name = own or call.options.spelled.get("float_mask", "")
    raised = bool(cases) and all(check.run(case).error for case in cases.values())
    forms = _forms(call, own) if cases else ()
    if not raised and not (forms and _cuts(check, cases.values(), name)):
        return with_all_axes(check, kind)
    for enough, form in product((all, any), forms):  # of booleans alone, where no form takes numbers, too
        fewer = in_form(check, kind, replace(call, form=form), check.claims.conventions.bool_mask)
        taken = [not fewer.run(case).error and not is_cut(fewer, case) for case in cases.values()]
        if enough(taken):
            kept = fewer.without(KINDS.keys() - kinds.keys())
            return kept.stating(f"its {name!r} is given as {form}")
    if not raised:
        return with_all_axes(check, kind)
    return _of_keys(check, kind, own) or with_all_axes(check, kind)


def _cuts(check: ClaimCheck, cases: Iterable[Case], name: str) -> bool:
    """Whether it cuts each mask of more axes than it documents."""
    stated = most_axes(as_written(check.function), name)
    return stated < 4 and all(check.run(case).error or is_cut(check, case) for case in cases)


def _of_keys(check: ClaimCheck, kind: ArrayKind, own: str) -> ClaimCheck | None:
    """The check of a call whose masks are those of keys, as is documented, or as they are seen to hide these alone."""
    call = check.function
    assert isinstance(call, RenamedCall)
    if not own or "key_padding_mask" in call.options:
        return None
    written = as_written(call.function)
    meaning = documented_polarity(written, own) or check.claims.conventions.bool_mask
    ways = ways_of_keys(check, kind, [meaning])
    seen = [*filter(hides_padding, ways)]
    if not seen and states_masks_of_keys(written, own):  # it is judged as such, whatever it hides
        seen = [way for way in ways if not way.run(PADDED).error]
    found = mask_of_keys(check, seen[:1], own, [lambda way: True])
    return found and found[0].stating(found[1])


def _forms(call: RenamedCall, own: str) -> tuple[MaskForm, ...]:
    if own and states_two_axes_alone(as_written(call.function), own):
        return (MaskForm.SHARED,)
    if not own:
        return OF_ALL_SAMPLES
    inner = call.function.function if isinstance(call.function, Compiled) else call.function
    if isinstance(inner, OtherKeys):  # with axes of heads of its own
        return OF_ALL_HEADS
    laid_out = getattr(call.function, "call", None)  # whose class needs torch
    of_tokens = (MaskForm.LENGTHS_FIRST,) if has_lengths_first(call) else ()
    return (*(OF_HEADS_IN_SAMPLES if getattr(laid_out, "heads", "") else ()), *of_tokens)
