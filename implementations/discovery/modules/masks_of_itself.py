"""Masks of a module's own tokens: what text or code leaves out next to a context is judged in self-attention alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING

from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, ClaimCheck
from attention_conformance.implementations.discovery.documented import documents_of, said_of, split
from attention_conformance.implementations.discovery.modules.context_conditions import takes_on_one_side
from attention_conformance.implementations.discovery.modules.mask_effects import PADDED
from attention_conformance.implementations.discovery.modules.module_masks import FORMS, shaped
from attention_conformance.implementations.discovery.modules.neutrals import OF_KEYS
from attention_conformance.implementations.discovery.modules.own_cache import parameters_of
from attention_conformance.implementations.discovery.modules.self_options import is_signature, without_context
from attention_conformance.implementations.discovery.vocabulary import KEY_WORDS, OPTIONS, words_of
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.modules.forwards import ModuleCall

CASES = {"bool_mask": MASKED, "float_mask": BIASED}
"""Of masks that may have any form; those of keys have one."""
OF_OTHERS = OF_KEYS | KEY_WORDS | {"cross"}
"""Words in the names of masks that hold for another sequence."""
OWN = r"self[- ]attention"
BOTH = r"whether or not|any case|either case|both (?:cases|kinds|modes|self)"
LEFT_OUT = r"(?<!or )not|never|no|without|unless|ignored?|ignores|unused|skipped|absent|omitted|dropped|none"
OF_ITSELF = re.compile(
    rf"\b(?:{OWN}|causal|look[- ]?ahead|auto-?regressive|triang\w+|later tokens|future)\b", re.IGNORECASE
)
"""Words for what is of a sequence's own tokens."""
SHAPE = re.compile(r"[(\[]([\w.* ]+(?:,[\w.*+ ]+)+),?[)\]]")
SAMPLES = re.compile(r"b|bs|bsz|batch\w*", re.IGNORECASE)
OF_A_CACHE = re.compile(r"\bpast|\bcache", re.IGNORECASE)


def masks_of_itself(call: ModuleCall, check: ClaimCheck, kind: object) -> tuple[frozenset[Feature], tuple[str, ...]]:
    """What masks of self-attention alone claim, and what is stated of them.

    Those that change nothing next to another sequence, or are refused there, and are promised for none. Where neither
    text nor code leaves such a mask out, it is one that is ignored.
    """
    if not call.optional or call.of_context:
        return frozenset(), ()
    names = {name: options for name in call.options.spelled.values() if (options := _options(call, name))}
    found = {name: why for name in names if _acts_alone(call, check, name) and (why := _why(kind, call, name))}
    features = {f for name in found for option in _options(call, name) for f in OPTIONS[option].features}
    return frozenset(features), tuple(
        f"its {name!r} acts in self-attention alone, {why}" for name, why in found.items()
    )


def _options(call: ModuleCall, name: str) -> list[str]:
    """The kinds of masks that a parameter takes; the only one may be one of keys."""
    own = [option for option in (*CASES, "key_padding_mask") if call.options.spelled.get(option) == name]
    only = own and "key_padding_mask" not in call.options.spelled and "bool_mask" in own
    return [*own, "key_padding_mask"] if only else own


def _acts_alone(call: ModuleCall, check: ClaimCheck, name: str) -> bool:
    """Whether it has no effect next to another sequence in any form, and one in self-attention in some."""
    ways = list(_ways(call, check, name))
    if not all(each.ignores(case) or each.run(case).refused for each, case in ways):
        return False
    alone = ((without_context(each), case) for each, case in ways)
    return any(not each.run(case).error and not each.ignores(case) for each, case in alone)


def _ways(call: ModuleCall, check: ClaimCheck, name: str) -> Iterator[tuple[ClaimCheck, Case]]:
    kinds = _options(call, name)
    for form in FORMS:
        formed = replace(check, function=replace(call, form=form))
        yield from ((formed, shaped(CASES[option], form)) for option in kinds if option in CASES)
    if "key_padding_mask" in kinds:
        named = "key_padding_mask" in call.options.spelled
        options = call.options if named else call.options.with_masks_as("key_padding_mask")
        yield replace(check, function=replace(call, options=options)).claiming({Feature.KEY_PADDING}), PADDED


def _why(kind: object, call: ModuleCall, name: str) -> str:
    """By what a mask is one of self-attention alone; empty where nothing states it, or it is promised for both."""
    context = call.keywords[1]
    said = list(_said(kind, name))
    others = rf"(?:cross(?:[- ]?attention)?|encoder|memory|context|{re.escape(context)})"
    left_out = re.compile(
        rf"\b(?:only|alone)\b[^.,;]{{0,30}}\b{OWN}|\b{OWN}[^.,;]{{0,30}}\b(?:only|alone)\b"
        rf"|\b(?:{LEFT_OUT})\b[^.,;]{{0,40}}\b{others}\b|\b{others}\b[^.,;]{{0,40}}\b(?:{LEFT_OUT})\b",
        re.IGNORECASE,
    )
    if any(map(left_out.search, said)):
        return "by its documentation"
    promised = re.compile(rf"\b(?:{others}|{BOTH})\b", re.IGNORECASE)
    squares = [_is_square(kind, call, each) for each in said]
    if words_of(name) & OF_OTHERS or False in squares or any(map(promised.search, said)):
        return ""
    if True in squares or any(map(OF_ITSELF.search, (*said, name.replace("_", " ")))):
        return "by its documentation"
    return f"by a condition on {context!r}" if takes_on_one_side(kind, name, context) else ""


def _said(kind: object, name: str) -> Iterator[str]:
    """The sentences on a mask: from the one that names it to one that begins with another parameter."""
    others = {each.name for each in parameters_of(kind)} - {name}
    for part in said_of(kind, name):
        if not is_signature(part):
            after = dropwhile(lambda each: not re.search(rf"\b{re.escape(name)}\b", each), split([part]))
            yield from takewhile(lambda each: re.match(r"\W*(\w*)", each)[1] not in others, after)  # type: ignore[index]


def _is_square(kind: object, call: ModuleCall, said: str) -> bool | None:
    """Whether the last axes of a shape in what is said are of the same tokens; None for no shape that states it.

    What is of samples and their tokens is of those of the input that has this axis.
    """
    for found in SHAPE.finditer(said):
        first, last = (axis.strip() for axis in found[1].split(",")[-2:])
        if SAMPLES.fullmatch(first):
            own, other = (_axes_of(kind, each) for each in call.keywords[:2])
            if (last in own) is not (last in other):
                return last in own
        elif "1" not in (first, last) and not OF_A_CACHE.search(said):
            return first == last
    return None


def _axes_of(kind: object, name: str) -> set[str]:
    """The axes of the shape that stands behind an input's name."""
    behind = re.compile(rf"\b{re.escape(name)}\b[^()\[\]\n]{{0,40}}{SHAPE.pattern}")
    return {
        axis.strip() for text in documents_of(kind) for each in behind.finditer(text) for axis in each[1].split(",")
    }
