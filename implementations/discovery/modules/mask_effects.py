"""What a mask hides, seen by the queries that a changed key changes; and in which way one of keys is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.always import KEYS, changes, rows
from attention_conformance.implementations.discovery.claim_checks import MASKED, PLAIN, ClaimCheck, output_of
from attention_conformance.implementations.discovery.probe import Floats, near
from attention_conformance.implementations.discovery.vocabulary import KEY_WORDS, KeysForm
from attention_conformance.spec.cases import Case, MaskKind, Padding, Sharing
from attention_conformance.spec.inputs import build
from attention_conformance.spec.masks import Booleans, visible

PADDED = replace(PLAIN, padding=Padding.RIGHT)
PADDED_LEFT = replace(PLAIN, padding=Padding.LEFT)
OF_PADDED = (2, 5, 12, 15)
"""Keys of `PADDED` that are changed: the third is padding in one sample, the last in both."""
NUMBERS = (0.0, 1.0, -inf)
"""As which True may be given: as a boolean, as 1, or as what is added to the score of a hidden key."""
GIVEN_AS = {0.0: "", 1.0: ", given as 0 and 1", -inf: ", given as 0 and -inf"}


def has_effect(check: ClaimCheck, case: Case) -> bool:
    """Whether a changed key changes those queries that may see it, and no others; of those alone that see it unmasked.

    What is causal in any case, or has a window, shows each key to fewer queries than a mask does.
    """
    agrees = _agrees(check, case)
    if agrees is not False:
        return bool(agrees)
    if not _hides_unmasked(check, case) or _differs_unmasked(check, case):
        return False
    return agreement(check, case, unmasked=True) == 1


def _agrees(check: ClaimCheck, case: Case) -> bool | None:
    """Whether `agreement` is whole: the first key that differs ends it. None where nothing is answered."""
    fitted = fit(case, check.claims)
    if isinstance(fitted, Unsupported):
        return None
    seen, tied = _stated(check, fitted)
    shares = _compared(check, fitted, seen, np.ones_like(seen[..., 0]), tied)
    if (first := next(shares, None)) is None:
        return None
    return first == 1 and all(share == 1 for share in shares)


def _hides_unmasked(check: ClaimCheck, case: Case) -> bool:
    """Whether the first or the last key is hidden from some query without a mask, as by a window or a causal flag."""
    fitted = fit(case, check.claims)
    if isinstance(fitted, Unsupported):
        return False
    unmasked = _without_mask(fitted)
    offset = fitted.sizes.key_length - fitted.sizes.query_length
    ends = (-offset, fitted.sizes.key_length - 1 - offset)
    return not all(queries.all() for _, queries in changes(check, unmasked, each_sample=True, at=ends))


def _differs_unmasked(check: ClaimCheck, case: Case) -> bool:
    """Whether `agreement` with what is seen unmasked is known not to be whole, by the keys alone that it compares.

    Of the queries it takes those that see one of these keys. Most ways that are tried end here, before each key is
    changed.
    """
    fitted = fit(case, check.claims)
    if isinstance(fitted, Unsupported):
        return True
    seen, tied = _stated(check, fitted)
    unmasked, masked = (
        dict(changes(check, each, each_sample=True, at=_compared_keys(fitted)))
        for each in (_without_mask(fitted), fitted)
    )
    if unmasked.keys() != masked.keys() or any(each.shape != seen.shape[:2] for each in unmasked.values()):
        return False
    stated = {key: seen[..., key] & each for key, each in unmasked.items()}
    filled = np.any([*stated.values()], 0)
    places = np.arange(seen.shape[1])
    return any(
        bool(((masked[key] != each) & filled & ((places != key) | (not tied))).any()) for key, each in stated.items()
    )


def hides_keys(check: ClaimCheck, case: Case) -> bool:
    """Whether a key that is changed changes queries of those samples that see it alone, where rows may be mixed up."""
    fitted = fit(case, check.claims)
    if isinstance(fitted, Unsupported):
        return False
    problem = build(fitted, check.dtype)
    whole = visible(fitted, problem.attn_mask, problem.key_padding_mask, None)
    seen: Booleans = np.asarray(np.asarray(whole).any((1, 2)))
    changed = list(changes(check, fitted, each_sample=True, at=KEYS))
    hidden = any(not seen[:, key].all() for key, _ in changed)
    return hidden and all(np.array_equal(queries.any(-1), seen[:, key]) for key, queries in changed)


def agreement(check: ClaimCheck, case: Case, unmasked: bool = False) -> float:
    """The share of queries that each changed key changes or leaves as the mask states; 0 where there is no answer.

    `unmasked`: as the mask states for those queries that see it without one.
    """
    fitted = fit(case, check.claims)
    if isinstance(fitted, Unsupported):
        return 0.0
    seen, tied = _stated(check, fitted)
    own = _seen_unmasked(check, fitted) if unmasked else None
    if own is not None and own.shape == seen.shape:
        seen = seen & own
    filled = seen.any(-1) | (not unmasked)  # window and mask may empty the others together, which is no rule
    compared = list(_compared(check, fitted, seen, np.asarray(filled), tied))
    return sum(compared) / len(compared) if compared else 0.0


def _stated(check: ClaimCheck, fitted: Case) -> tuple[Booleans, bool]:
    """(B, Lq, Lk), which keys each query of a case may see, and whether queries and keys are the same tokens."""
    problem = build(fitted, check.dtype)
    masked: Booleans = visible(fitted, problem.attn_mask, problem.key_padding_mask, problem.valid_lens)
    seen: Booleans = np.asarray((np.tril(masked) if fitted.causal else masked).any(1))
    return seen, problem.sharing is Sharing.SELF


def _seen_unmasked(check: ClaimCheck, fitted: Case) -> Booleans | None:
    """(B, Lq, Lk): which keys each query sees without a mask; None where there is no answer."""
    unmasked = _without_mask(fitted)
    every = tuple(range(fitted.sizes.key_length))
    own = [queries for _, queries in changes(check, unmasked, each_sample=True, at=every)]
    return np.stack(own, -1) if len(own) == len(every) else None


def _without_mask(fitted: Case) -> Case:
    return replace(fitted, mask=MaskKind.NONE, padding=Padding.NONE)


def _compared_keys(fitted: Case) -> tuple[int, ...]:
    return KEYS if fitted.padding is Padding.NONE else OF_PADDED


def _compared(check: ClaimCheck, fitted: Case, seen: Booleans, filled: Booleans, tied: bool) -> Iterator[float]:
    for key, changed in changes(check, fitted, each_sample=True, at=_compared_keys(fitted)):
        others = filled & ((np.arange(seen.shape[1]) != key) | (not tied))
        yield (
            float((changed == seen[..., key])[others].mean()) if changed.shape == others.shape and others.any() else 0.0
        )


def hides_queries(check: ClaimCheck) -> bool:
    """Whether padding is right for the tokens that are left, and the others see something else as queries."""
    fitted = fit(PADDED, check.claims)
    if isinstance(fitted, Unsupported) or fitted.module is None or fitted.module.sharing is not Sharing.SELF:
        return False
    agrees = _right_for_others(check)
    return bool(agrees) and not all(bool(each.all()) for each in agrees)


def _right_for_others(check: ClaimCheck) -> list[Booleans]:
    """For each changed key (B, L), True = as padding states; empty where the tokens that are left see others.

    Causality and padding on the right, taken for its opposite, empty rows of real tokens together, which may then see
    all that the former leaves, as without padding: padding on the left shows which one it is.
    """
    agrees: list[Booleans] = []
    unmasked = _hides_unmasked(check, PADDED)
    for case in (PADDED_LEFT, PADDED) if unmasked else (PADDED,):
        fitted = fit(case, check.claims)
        if isinstance(fitted, Unsupported):
            return []
        left, agrees = _agrees_with_padding(check, fitted, unmasked)
        if not agrees or not all(bool(each[left].all()) for each in agrees):
            return []
    return agrees


def _agrees_with_padding(check: ClaimCheck, fitted: Case, unmasked: bool) -> tuple[Booleans, list[Booleans]]:
    """(B, L), the tokens that are left, and for each changed key (B, L), True = as padding states, or its own token.

    `unmasked`: as padding states for those queries that see the key without it.
    """
    problem = build(fitted, check.dtype)
    left: Booleans = np.asarray(problem.key_padding_mask)
    tied, agrees = problem.sharing is Sharing.SELF, []
    without = changes(check, replace(fitted, padding=Padding.NONE), each_sample=True, at=OF_PADDED if unmasked else ())
    seen = dict(without)
    for key, changed in changes(check, fitted, each_sample=True, at=OF_PADDED):
        own = (np.arange(changed.shape[-1]) == key) & tied
        agrees.append((changed == (left[:, [key]] & seen.get(key, True))) | own)
    return left, agrees


def padded_see_themselves(check: ClaimCheck) -> bool:
    """Whether a padded token still sees its own value, seen by a component of tokens that no score depends on."""
    fitted = fit(PADDED, check.claims)
    if isinstance(fitted, Unsupported) or fitted.module is None or fitted.module.sharing is not Sharing.SELF:
        return False
    problem = build(fitted, check.dtype).forward_only()
    arrays = problem.arrays()
    unscored = {name: arrays[name].copy() for name in ("w_q", "w_k")}
    for weight in unscored.values():
        weight[0] = 0.0
    problem, last = problem.with_arrays(unscored), problem.query.shape[-2] - 1
    other = arrays["query"].copy()
    other[:, last, 0] += 1.0
    before, after = (rows(check, each) for each in (problem, problem.with_arrays({"query": other})))
    if before is None or after is None or np.asarray(problem.key_padding_mask)[:, last].any():
        return False
    return not any(near(one[last], two[last], check.dtype) for one, two in zip(before, after, strict=True))


def mask_of_keys(
    check: ClaimCheck,
    ways: Sequence[ClaimCheck],
    own: str,
    rights: Sequence[Callable[[ClaimCheck], bool]],
    of_padding: bool = False,
) -> tuple[ClaimCheck, str] | None:
    """The way to give a mask of keys, (B, Lk), in which it is right, or the nearest that raises nothing; and a note.

    What takes masks of keys alone is one of keys, and what it hides is judged. None where it is no mask of keys.
    `rights`: what a right one does, the plainest first, as the opposite of one meaning may look right by another.
    `of_padding`: whether its documentation states that it is one of padding.
    """
    note = f"its {own!r} mask is one of keys"
    if (way := next((each for right in rights for each in ways if right(each)), None)) is not None:
        return way, f"{note}{_given_as(way)}"
    if not check.run(MASKED).error or any(map(_is_right_for_others, ways)):
        return None
    for way in sorted(ways, key=lambda each: -agreement(each, PADDED)):
        if effect := _effect(way, of_padding or bool(KEY_WORDS & {*own.lower().split("_")})):
            return way, f"{note}{_given_as(way)}, and {effect}"
    return None


def _is_right_for_others(way: ClaimCheck) -> bool:
    """Whether the tokens that it leaves see those alone: what the others get may be meant, as nobody reads it."""
    fitted = fit(PADDED, way.claims)
    if isinstance(fitted, Unsupported) or fitted.sizes.query_length != fitted.sizes.key_length:
        return False
    return bool(_right_for_others(way))


def _given_as(way: ClaimCheck) -> str:
    form = getattr(way.function, "keys_form", KeysForm.SAMPLES)
    return (f", {form}" if form is not KeysForm.SAMPLES else "") + GIVEN_AS[getattr(way.function, "true_as", 0.0)]


def _effect(of_keys: ClaimCheck, promised: bool) -> str:
    """What a wrong mask of keys does; empty where it raises, or puts one vector in the place of some queries alone.

    In float64, where what is added to every score of a row is lost. `promised`: whether it is meant to be one of keys.
    """
    without, hidden = (of_keys.run(case, "float64") for case in (PLAIN, PADDED))
    if without.error or hidden.error:
        return ""
    plain, masked = (_rows(output_of(each)) for each in (without, hidden))
    changed = masked[[not near(one, other, "float64") for one, other in zip(plain, masked, strict=True)]]
    if not len(changed):
        return "changes nothing"
    if not near(changed, np.broadcast_to(changed[:1], changed.shape), "float64"):
        return "hides other keys"
    return "changes queries alone" if promised and _changes_queries_alone(of_keys) else ""


def _changes_queries_alone(of_keys: ClaimCheck) -> bool:
    """Whether it changes the rows of the tokens that it hides, and no others."""
    fitted = fit(PADDED, of_keys.claims)
    if isinstance(fitted, Unsupported):
        return False
    without, hidden = (output_of(of_keys.run(case, "float64")) for case in (PLAIN, PADDED))
    left: Booleans = np.asarray(build(fitted, of_keys.dtype).key_padding_mask)
    left = left if without.ndim == 3 else left[:, None]
    rows = np.ndindex(without.shape[:-1])
    same = np.reshape([near(without[row], hidden[row], "float64") for row in rows], without.shape[:-1])
    return bool((same == left).all())


def _rows(output: Floats) -> Floats:
    return output.reshape(-1, output.shape[-1])
