"""Notes on masks: the meaning of True that was seen, and which masks a call names that are not judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from attention_conformance.implementations.discovery.claim_checks import MASKED, PLAIN, ClaimCheck, near_outputs
from attention_conformance.implementations.discovery.signatures import Options
from attention_conformance.implementations.discovery.vocabulary import MASK_NAMES
from attention_conformance.spec.cases import Padding
from attention_conformance.spec.features import Feature

PADDED = replace(PLAIN, padding=Padding.RIGHT)
BOOLEAN = {Feature.BOOL_MASK, Feature.KEY_PADDING}


def mask_notes(options: Options, check: ClaimCheck, given: Iterable[str] = ()) -> list[str]:
    """The notes on masks; `given` are masks that it is given under other names. One that is ignored has no meaning."""
    claims = check.claims
    own = options.spelled.get("bool_mask") or options.spelled.get("key_padding_mask", "")
    meaning = str(claims.conventions.bool_mask).replace("-", " ")
    named = own in MASK_NAMES and any(feature in claims for feature in BOOLEAN)
    seen = named and not check.ignores(MASKED if Feature.BOOL_MASK in claims else PADDED)
    others = [name for name in options.other_masks if name not in {*given}]
    listed = ", ".join(map(repr, others))
    unjudged = [f"finding: {listed} not judged: the suite knows no mask of that name next to {own!r}"] if others else []
    return [*([f"as seen: True in its {own!r} means {meaning}"] if seen else []), *unjudged]


def no_form_note(call: Any, check: ClaimCheck, error: str) -> str:
    """The note on masks that raise in each form for queries and keys: whether one of keys does something unknown."""
    own = call.options.spelled["bool_mask"]
    of_keys = replace(call, options=call.options.with_masks_as("key_padding_mask"))
    claims = replace(check.claims, features=check.claims.features | {Feature.KEY_PADDING})
    padded = replace(check, function=of_keys, claims=claims)
    hidden, plain = padded.run(PADDED), check.run(PLAIN)
    if hidden.error or plain.error or near_outputs(hidden, plain, check.dtype):
        return f"masks not claimed: {error}"
    return f"finding: its {own!r} takes one number for each key, (B, Lk), and hides other keys than it should"
