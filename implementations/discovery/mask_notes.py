"""Masks as they are judged: the meaning of True where it is only seen, and which masks a call names in vain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    CAUSAL,
    MASKED,
    PLAIN,
    ClaimCheck,
    near_outputs,
)
from attention_conformance.implementations.discovery.documented import (
    PUBLISHED_FLAG,
    as_written,
    documented_polarity,
)
from attention_conformance.implementations.discovery.documented_rows import documented_empty_row
from attention_conformance.implementations.discovery.modules.mask_effects import PADDED
from attention_conformance.implementations.discovery.modules.module_masks import FORMS, shaped
from attention_conformance.implementations.discovery.signatures import HIDING_WORDS, Options, positional, signature_of
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.implementations.discovery.vocabulary import (
    OPTIONS,
    OTHER_INPUTS,
    MaskForm,
    promises_nothing,
)
from attention_conformance.spec.cases import Case, Padding
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature, Scope

BOOLEAN = {Feature.BOOL_MASK, Feature.KEY_PADDING}
HIDING = ("bool_mask", "float_mask", "key_padding_mask", "valid_lens", "is_causal")
"""Options that hide keys: whoever reads their names in a signature takes them for judged."""
CASES = {
    Feature.BOOL_MASK: MASKED,
    Feature.FLOAT_MASK: BIASED,
    Feature.KEY_PADDING: PADDED,
    Feature.VALID_LENS: replace(PLAIN, padding=Padding.LENGTHS),
    Feature.CAUSAL: CAUSAL,
}
"""A case with each of them."""
EMPTY_ROWS = {
    Feature.BOOL_MASK: "empty_row_bool",
    Feature.FLOAT_MASK: "empty_row_float",
    Feature.KEY_PADDING: "empty_row_padding",
}
"""The convention for the rows that each of them empties."""
NOT_AS_STATED = "rows without keys"
"""What has another answer than the one that is documented."""
PUBLISHED = "attn_mask"
OF_QUERIES = "it takes one number for each token, (B, L), and changes queries alone"
OF_ANOTHER = "it belongs to {!r}, which is not given"
GIVEN = ("keywords", "always", "tables")
"""What a call of a module gives, by its own names."""
MEANINGS = {Polarity.MASKED_OUT: "hides a key", Polarity.MAY_ATTEND: "shows a key"}


def masks_as_seen(options: Options, check: ClaimCheck) -> tuple[str, ...]:
    """What True in its mask means, where no name states it. A mask that is ignored has no meaning."""
    claims, own = check.claims, _own(options)
    unstated = promises_no_meaning(options, check.function) or (claims.scope is not Scope.OP and own == PUBLISHED)
    named = unstated and any(feature in claims for feature in BOOLEAN)
    if not named or check.ignores(MASKED if Feature.BOOL_MASK in claims else PADDED):
        return ()
    meaning = str(claims.conventions.bool_mask).replace("-", " ")
    return (f"with True in {own!r} as {meaning}",)


def promises_no_meaning(options: Options, call: object) -> bool:
    """Whether no name states what True in a mask means: `attn_mask` is that of two interfaces.

    torch.nn.MultiheadAttention hides keys by True in it, as in the mask of keys next to it, and
    scaled_dot_product_attention shows them: a class is neither, unless it has the flag of the latter as well, and so is
    what reads its mask from an object.
    """
    own = _own(options)
    of_class = _is_class(as_written(call)) and options.spelled.get("is_causal") != PUBLISHED_FLAG
    of_either = of_class or "key_padding_mask" in options.spelled or bool(getattr(call, "held_as", ""))
    return promises_nothing(own) or (own == PUBLISHED and of_either)


def _is_class(written: object) -> bool:
    """Whether a function calls what somebody wrote as a class, which is not one of an operation of autograd."""
    kind = getattr(written, "__wrapped__", written)
    return isinstance(kind, type) and not hasattr(kind, "backward")


def stated_meaning(options: Options, target: object) -> dict[str, str]:
    """The convention of a mask of the published name that documentation states, which binds, whatever is promised."""
    own = options.spelled.get("bool_mask", "")
    stated = documented_polarity(target, own) if own == PUBLISHED else None
    return {"bool-mask": str(stated)} if stated else {}


def _own(options: Options) -> str:
    """Its own name for boolean masks; empty for none."""
    return options.spelled.get("bool_mask") or options.spelled.get("key_padding_mask", "")


def mask_findings(target: object, options: Options, check: ClaimCheck, given: Iterable[str] = ()) -> dict[str, str]:
    """What hides keys by its name and is not judged, or not as it is documented; `given` are under other names."""
    others = [name for name in options.other_masks if name not in {*given}]
    found = dict.fromkeys(others, "not judged: the suite knows no mask of that name")
    unjudged = (name for name in _names(options) if not _features(options, name) & check.claims.features)
    why = {n: _why(n, options, check, target) for n in unjudged if not _presumed(options, n, check)}
    found |= {name: f"not judged: {each}" for name, each in why.items()}
    own, seen = _own(options), check.claims.conventions.bool_mask
    stated = documented_polarity(target, own) if own not in found and masks_as_seen(options, check) else None
    if stated not in (None, seen):
        found[own] = f"judged as it behaves: True {MEANINGS[seen]}, and by its documentation {MEANINGS[stated]}"
    return found | _other_than_documented(target, check)


def without_masks_of_others(check: ClaimCheck, target: object) -> tuple[ClaimCheck, list[str]]:
    """The check without masks and lengths that change nothing, of another input that is never given; notes."""
    call: Any = check.function
    notes = []
    for name in _names(call.options):
        if not (owner := _owner(name, check, target)):
            continue
        features = _features(call.options, name) & check.claims.features
        cases = [shaped(CASES[each], getattr(call, "form", MaskForm.GIVEN)) for each in CASES if each in features]
        if cases and all(map(check.ignores, cases)):
            check, why = check.without(features), f"{name!r} changes nothing, and {OF_ANOTHER.format(owner)}"
            notes.append(unclaimed(", ".join(sorted(features)), why))
    return check, notes


def _owner(mask: str, check: ClaimCheck, target: Any) -> str:
    """The optional input to which a mask belongs, as both names begin with its word; empty where it is given."""
    call: Any = check.function
    signature = safe_call(lambda: signature_of(getattr(target, "forward", target))).value
    word = mask.partition("_")[0]
    if signature is None or word not in OTHER_INPUTS:
        return ""
    first = 0 if getattr(call, "keywords", ()) else 1 + getattr(call, "inputs", -1)  # of a module's forward
    given = {p.name for p in positional(signature)[:first]}
    given |= {*call.options.always}.union(*(getattr(call, each, ()) for each in GIVEN))
    words = {p.name: p.name.split("_") for p in signature.parameters.values() if p.default is None}
    own = (name for name, each in words.items() if each[0] == word and not HIDING_WORDS & {*each})
    return next((name for name in own if name not in given), "")


def _other_than_documented(target: object, check: ClaimCheck) -> dict[str, str]:
    """What it answers for rows without keys, where its documentation states another answer for all of them."""
    conventions, stated = check.claims.conventions, documented_empty_row(target)
    answers = {getattr(conventions, of) for feature, of in EMPTY_ROWS.items() if feature in check.claims}
    if stated is None or not answers or stated in answers:
        return {}
    seen = " and ".join(sorted(map(str, answers)))
    return {NOT_AS_STATED: f"judged as it behaves: they get {seen}, and by its documentation {stated}"}


def _names(options: Options) -> Iterator[str]:
    """Its own names for what hides keys, each once."""
    spelled = options.named.spelled
    yield from dict.fromkeys(spelled[option] for option in HIDING if option in spelled)


def _features(options: Options, name: str) -> set[Feature]:
    spelled = options.named.spelled
    return {f for option in HIDING if spelled.get(option) == name for f in OPTIONS[option].features}


def _presumed(options: Options, name: str, check: ClaimCheck) -> bool:
    """Whether it is what the candidate does in any case."""
    return any(check.claims.premises.implies(feature) for feature in _features(options, name))


def _why(name: str, options: Options, check: ClaimCheck, target: object) -> str:
    """What a mask does that the suite knows no claim for."""
    features = _features(options, name)
    claimed, call = check.claiming(features), check.function
    cases = [case for feature, case in CASES.items() if feature in features]
    errors = list(_errors(claimed, cases))
    if BOOLEAN & features and all(errors[: len(cases)]) and _hides_others(call, options, check):
        return OF_QUERIES
    if all(errors):
        return f"it raises {errors[0]}"
    owner = _owner(name, check, target)
    return OF_ANOTHER.format(owner) if owner else "it acts like no mask that the suite knows"


def _errors(check: ClaimCheck, cases: Sequence[Case]) -> Iterator[str]:
    """What it raises for each case, in its own form of masks first, and then in the others."""
    call: Any = check.function
    forms = list(dict.fromkeys([call.form, *FORMS])) if hasattr(call, "form") else [None]
    for form, case in product(forms, cases):
        formed = check if form is None else replace(check, function=replace(call, form=form))
        yield formed.run(case if form is None else shaped(case, form)).error


def _hides_others(call: Any, options: Options, check: ClaimCheck) -> bool:
    """Whether a mask of queries and keys takes one number for each key, and changes something."""
    if "bool_mask" not in options.spelled or not hasattr(call, "options"):
        return False
    of_keys = replace(call, options=options.with_masks_as("key_padding_mask"))
    padded = replace(check, function=of_keys).claiming({Feature.KEY_PADDING})
    hidden, plain = padded.run(PADDED), check.run(PLAIN)
    return not hidden.error and not plain.error and not near_outputs(hidden, plain, check.dtype)
