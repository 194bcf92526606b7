"""Masks and biases of functions under names that say nothing of them: keys that they hide change no answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, ClaimCheck
from attention_conformance.implementations.discovery.cut_masks import is_cut
from attention_conformance.implementations.discovery.functions.function_calls import ArrayKind, RenamedCall
from attention_conformance.implementations.discovery.functions.function_masks import (
    BIAS_FORMS,
    FORMS,
    hides_padding,
    in_form,
    ways_of_keys,
)
from attention_conformance.implementations.discovery.modules.mask_effects import has_effect
from attention_conformance.implementations.discovery.modules.module_masks import has_axes, shaped
from attention_conformance.implementations.discovery.rows_without_keys import ADDED
from attention_conformance.implementations.discovery.signatures import Options, signature_of
from attention_conformance.implementations.discovery.vocabulary import BOOLEAN_MASKS, KNOWN_NAMES, is_bias_of_scores
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature


def with_mask_as_seen(check: ClaimCheck, kind: ArrayKind) -> tuple[ClaimCheck, bool]:
    """The check with the first parameter that hides keys as its boolean mask, where no name is one of a mask.

    Looked at are those that `_unknown` gives. Also: whether there is one.
    """
    call = check.function
    assert isinstance(call, RenamedCall)
    if BOOLEAN_MASKS & call.options.spelled.keys():
        return check, False
    tried = (_masked_by(check, call, name) for name in _unknown(call))
    found = next((each for each in tried if _hides(each, kind)), None)
    return (check, False) if found is None else (found, True)


def with_pairs_as_seen(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck:
    """The check with the first parameter that hides keys from queries as its boolean mask, next to a mask of keys."""
    call = check.function
    assert isinstance(call, RenamedCall)
    if "key_padding_mask" not in call.options or "bool_mask" in call.options:
        return check
    claimed = check.claims.conventions.bool_mask
    for name, form, polarity in product(_unknown(call), FORMS, Polarity):
        masked = _masked_by(check, call, name)
        own: Any = masked.function
        hides = call.hides_padding is (polarity is claimed)  # what True means there stays as it is
        formed = in_form(masked, kind, replace(own, form=form, hides_padding=hides), polarity)
        if has_effect(formed, shaped(MASKED, form)) and hides_padding(formed) and not is_cut(formed, MASKED):
            return formed
    return check


def with_bias_as_seen(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck:
    """The check with the first parameter whose numbers act as added to the scores, where no known one is claimed to."""
    call = check.function
    assert isinstance(call, RenamedCall)
    if Feature.FLOAT_MASK in check.claims:
        return check
    added = ((name, _added_by(check, call, name, kind)) for name in _unknown(call))
    name, found = next(((name, each) for name, each in added if each is not None), ("", None))
    return check if found is None else found.stating(f"numbers are added as its {name!r}")


def _added_by(check: ClaimCheck, call: RenamedCall, name: str, kind: ArrayKind) -> ClaimCheck | None:
    """The check of the function with this parameter for added numbers, in the first form in which they act so.

    What is a bias of scores by its name is one, whatever it does.
    """
    spelled, defaults = {**call.options.spelled, "float_mask": name}, {**call.options.defaults, name: None}
    options = replace(call.options.knowing({name}), spelled=spelled, defaults=defaults)
    claiming, polarity = check.claiming({Feature.FLOAT_MASK}), check.claims.conventions.bool_mask
    ways = {
        form: in_form(claiming, kind, replace(call, options=options, bias_form=form), polarity) for form in BIAS_FORMS
    }
    seen = (each for form, each in ways.items() if has_effect(each, shaped(ADDED, form)) and not is_cut(each, ADDED))
    if (right := next(seen, None)) is not None:
        return right
    felt = ((each, shaped(BIASED, form)) for form, each in ways.items() if is_bias_of_scores(name))
    return next((each for each, case in felt if not each.run(case).error and not each.ignores(case)), None)


@dataclass(frozen=True)
class ThroughBias:
    """A function whose added numbers come as a bias next to the mask that takes them, too.

    Attributes:
        call: with that bias.
        usual: without it, for what the form of the bias has no axis for.
    """

    call: RenamedCall
    usual: RenamedCall

    def __call__(self, *inputs: Any, **options: Any) -> object:
        """The function's answer."""
        mask = options.get("attn_mask")
        taken = mask is None or has_axes(self.call.bias_form or self.call.form, mask.shape)
        return (self.call if taken else self.usual)(*inputs, **options)


def biases_next_to_masks(check: ClaimCheck, kind: ArrayKind) -> dict[str, ThroughBias]:
    """The calls with added numbers in each other parameter for them, where a mask or a bias takes them already."""
    call = check.function
    if not isinstance(call, RenamedCall) or Feature.FLOAT_MASK not in check.claims:
        return {}
    found = {name: _added_by(check, call, name, kind) for name in _unknown(call)}
    ways = {name: each.function for name, each in found.items() if each is not None}
    return {name: ThroughBias(way, call) for name, way in ways.items() if isinstance(way, RenamedCall)}


def _unknown(call: RenamedCall) -> list[str]:
    """Its parameters after the inputs that are None by default, and whose names are unknown.

    One that is a bias of scores by its name resembles none that is known.
    """
    own = call.options
    similar = {name for name in own.misspelled if not is_bias_of_scores(name)}
    taken = {*own.spelled.values(), *own.always, *similar, *KNOWN_NAMES}
    later = [*signature_of(call.function).parameters.values()][3:]
    return [p.name for p in later if p.default is None and p.name not in taken]


def _masked_by(check: ClaimCheck, call: RenamedCall, name: str) -> ClaimCheck:
    """The check of the function with this parameter as its mask, also of numbers where no other takes them."""
    own: Options = call.options
    masks = {option: name for option in ("bool_mask", "float_mask") if option not in own.spelled}
    others = tuple(each for each in own.other_masks if each != name)
    options = replace(own, spelled={**own.spelled, **masks}, defaults={**own.defaults, name: None}, other_masks=others)
    features = {Feature.BOOL_MASK} | ({Feature.FLOAT_MASK, Feature.MASK_GRADIENT} if "float_mask" in masks else set())
    return replace(check, function=replace(call, options=options)).claiming(features)


def _hides(check: ClaimCheck, kind: ArrayKind) -> bool:
    call = check.function
    assert isinstance(call, RenamedCall)
    ways = product(FORMS, Polarity)
    formed = ((in_form(check, kind, replace(call, form=form), each), form) for form, each in ways)
    return any(has_effect(each, shaped(MASKED, form)) for each, form in formed) or any(
        map(hides_padding, ways_of_keys(check, kind, Polarity))
    )
