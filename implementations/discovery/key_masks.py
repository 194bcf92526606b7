"""Masks of keys, (B, Lk), under names that the suite does not list: known by what they do, or by documentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attention_conformance.implementations.discovery.claim_checks import ClaimCheck
from attention_conformance.implementations.discovery.documented import (
    documented_polarity,
    says_key,
    states_masks_of_keys,
)
from attention_conformance.implementations.discovery.modules.mask_effects import PADDED, has_effect
from attention_conformance.implementations.discovery.vocabulary import KEY_WORDS
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature

OPTION = "key_padding_mask"
OF_KEYS = KEY_WORDS | {"element", "elements", "token", "tokens", "source", "src", "item", "items"}
"""Words in the names of masks of keys that stand next to another mask."""
ATTENDED = ("bool_mask", "float_mask")


def with_key_mask(check: ClaimCheck, target: object) -> ClaimCheck:
    """The check with a mask of keys next to another mask, where one of no known name is seen to hide them.

    One of keys by its name and shape in the documentation is judged by what that states, whatever it hides.
    """
    call: Any = check.function
    if OPTION in call.options or not any(option in call.options for option in ATTENDED):
        return check
    names = [name for name in call.options.other_masks if _may_be(call, name)]
    names.sort(key=lambda name: not _words(name) & OF_KEYS)
    ways = [each for name in names for each in _ways(check, name)]
    if (seen := next((each for each in ways if has_effect(each, PADDED)), None)) is not None:
        return _stating(seen)
    stated = (each for name in names for each in _documented(check, name, target))
    return next((_stating(each) for each in stated if not each.run(PADDED).refused), check)


def _may_be(call: Any, name: str) -> bool:
    """Whether it is a mask by its name, and none that is given otherwise, as one of an optional context is."""
    given = {*getattr(call, "tables", ()), *getattr(call, "of_context", {}).values(), *call.options.always}
    return bool(_words(name) & {"mask", "masks"}) and name not in given


def _words(name: str) -> set[str]:
    return {*name.lower().split("_")}


def _ways(check: ClaimCheck, name: str) -> Iterator[ClaimCheck]:
    """The check with this mask of keys, in which True means what it does in the other mask, or the opposite."""
    call: Any = check.function
    options, others = call.options, tuple(each for each in call.options.other_masks if each != name)
    similar = {each: known for each, known in options.misspelled.items() if each != name}
    spelled = {**options.spelled, OPTION: name}
    named = replace(call, options=replace(options, spelled=spelled, other_masks=others, misspelled=similar))
    if hasattr(call, "float_padding"):  # a module's masks have one meaning
        ways = [replace(named, float_padding=False)]
    else:
        ways = [replace(named, hides_padding=hides) for hides in (False, True)]
    for each in ways:
        yield replace(check, function=each).claiming({Feature.KEY_PADDING})


def _documented(check: ClaimCheck, name: str, target: object) -> Iterator[ClaimCheck]:
    """The check with this mask, if it is one of keys by its documentation, and with the meaning that this states."""
    call: Any = check.function
    named = bool(_words(name) & KEY_WORDS) or says_key(target, name)
    if not named or getattr(call, "optional", False) or not states_masks_of_keys(target, name):
        return
    stated = documented_polarity(target, name)
    yield from (each for each in _ways(check, name) if _meaning(each) is stated)


def _meaning(check: ClaimCheck) -> Polarity:
    """What True in its mask of keys means."""
    usual = check.claims.conventions.bool_mask
    if not getattr(check.function, "hides_padding", False):
        return usual
    return Polarity.MASKED_OUT if usual is Polarity.MAY_ATTEND else Polarity.MAY_ATTEND


def _stating(check: ClaimCheck) -> ClaimCheck:
    call: Any = check.function
    meaning = str(_meaning(check)).replace("-", " ")
    return check.stating(f"its {call.options.spelled[OPTION]!r} mask is one of keys, and True means {meaning}")
