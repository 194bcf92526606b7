"""What a candidate always does: premises that a few calls show, without knowledge of the right answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.always_scores import with_scores
from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, PLAIN, ClaimCheck, output_of
from attention_conformance.implementations.discovery.functions.cache_names import in_single_tokens
from attention_conformance.implementations.discovery.functions.size_limits import (
    FEW_CAUSAL,
    UNEQUAL,
    with_equal_lengths,
    without_unequal_lengths,
)
from attention_conformance.implementations.discovery.probe import HALF, Floats, near
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.cases import Case, Pattern, Sharing
from attention_conformance.spec.conventions import Alignment, CausalWithMask
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.premises import NO_PREMISES, Premise, Premises
from attention_conformance.spec.problem import Problem

Booleans: TypeAlias = NDArray[np.bool_]
MASKS = {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.MASK_GRADIENT, Feature.KEY_PADDING, Feature.VALID_LENS}
FARTHER = 7
"""Keys beyond the queries in `LONGER`."""
SAME = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
"""In half types a row is the same if it differs by a spacing at most: half of the digits would hide a key of many."""
WIDE, MIDDLE = PLAIN.sized(query_length=160, key_length=160), (40, 44, 51)
"""A case that windows of up to 108 keys before and 39 after the query show in, and the keys that are changed."""
WIDE_LONGER = WIDE.sized(key_length=160 + FARTHER)
"""The same with more keys than queries."""
KEYS = (2, 5, 6)
"""Keys of the plain case that are changed."""
UNEQUAL_LENGTHS = "unequal-lengths"
"""What is not judged where fewer and more queries than keys raise."""
FEWER = 3
"""Of these, so many are cut off where a length may move the corner."""
LONGER = PLAIN.sized(query_length=9, key_length=9 + FARTHER)
"""More keys than queries: it shows which corner a causal mask starts from."""


def with_premises(check: ClaimCheck, given: Premises, written: object = None) -> tuple[ClaimCheck, list[str]]:
    """The check with the premises that are given or seen, and a note on each.

    What a candidate has a flag for is no premise: if that is ignored, it is a mistake. `written`: the function or class
    as somebody wrote it, whose documentation is read.
    """
    premises = given
    single = in_single_tokens(check.function)  # which cannot see what comes later, and have a cache to see others in
    if not given.causal and Feature.CAUSAL not in check.claims and (single or sees_no_later_key(check)):
        premises = replace(premises, causal=True)
    if Premise.WINDOW not in given.names and Feature.WINDOW not in check.claims:
        left, right = window_seen(check)
        ignored = right == 0 and Feature.CAUSAL in check.claims  # a flag: that it is always causal is a mistake
        left, right = (None, None) if ignored or (single and left == 0) else (left, right)
        premises = replace(premises, window_left=left, window_right=None if premises.causal else right)
    check, premises = with_scores(check, premises, written)
    if premises == NO_PREMISES:
        return check, []
    claims = replace(check.claims, premises=premises)
    claims = replace(claims, features=claims.features - {Feature.CAUSAL} if premises.causal else claims.features)
    check, notes = _implying(replace(check, claims=claims)), [f"always {', '.join(premises.settings())}"]
    check = _corner_of_window(check)
    if premises.causal:
        return _causal_with_others(check, notes)
    if premises.rotary_base is None:
        return check, notes
    check, unequal = without_unequal_lengths(check)  # nothing states at which positions its keys would be
    return check, [*notes, *unequal]


def without_broken_lengths(check: ClaimCheck) -> tuple[ClaimCheck, dict[str, str]]:
    """The check with as many queries as keys where it raises both with fewer and with more; and what is not judged.

    Published code of self-attention often reads one length for all, or for its triangle alone.
    """
    if Feature.CROSS not in check.claims:
        return check, {}
    for flag in (False, True) if Feature.CAUSAL in check.claims else (False,):
        errors = [check.run(case).error for case in (FEW_CAUSAL if flag else UNEQUAL)]
        if all(errors):
            under = " under its causal flag" if flag else ""
            why = f"not judged: with fewer and with more queries than keys{under} it raises {errors[0]}"
            return with_equal_lengths(check, of_causal=flag), {UNEQUAL_LENGTHS: why}
    return check, {}


def causal(check: ClaimCheck) -> ClaimCheck:
    """The check of one that is causal without a flag."""
    premises = replace(check.claims.premises, causal=True)
    return _implying(replace(check, claims=replace(check.claims, premises=premises)))


def _implying(check: ClaimCheck) -> ClaimCheck:
    """The check of a call that is not given what its premises imply."""
    call: Any = check.function  # a call with `Options`, of a function or of a module
    return replace(check, function=replace(call, options=call.options.implying(check.claims.premises)))


def corner_as_seen(check: ClaimCheck) -> ClaimCheck:
    """The check with the corner from which the triangle of a flag starts, whose name promises none."""
    if Feature.CAUSAL not in check.claims or Feature.CROSS not in check.claims:
        return check
    if _reach(check, replace(LONGER, causal=True)) != FARTHER:
        return check
    corner = Alignment.BOTTOM_RIGHT_REAL if _starts_at_lengths(check) else Alignment.BOTTOM_RIGHT
    conventions = replace(check.claims.conventions, causal_alignment=corner)
    return replace(check, claims=replace(check.claims, conventions=conventions)).stating(
        f"its causal mask starts {corner}"
    )


def _corner_of_window(check: ClaimCheck) -> ClaimCheck:
    """The check with the corner from which its own window starts, where it is seen to be the last one."""
    premises, claimed = check.claims.premises, check.claims.conventions
    sides = (premises.window_left, 0 if premises.causal else premises.window_right)
    start = claimed.causal_alignment is Alignment.TOP_LEFT and Feature.CROSS in check.claims
    if premises.window_left is None or not start or window_seen(check, WIDE_LONGER) != sides:
        return check
    claims = replace(check.claims, conventions=replace(claimed, causal_alignment=Alignment.BOTTOM_RIGHT))
    return replace(check, claims=claims).stating(f"its window starts {Alignment.BOTTOM_RIGHT}")


def _starts_at_lengths(check: ClaimCheck) -> bool:
    """Whether keys beyond a length move the corner, as if they were not there."""
    fitted = fit(replace(LONGER, causal=True), check.claims)
    if Feature.VALID_LENS not in check.claims or isinstance(fitted, Unsupported):
        return False
    problem = build(fitted, check.dtype).forward_only()
    left = problem.key.shape[2] - FEWER
    cut = problem.with_arrays(
        {name: np.ascontiguousarray(getattr(problem, name)[:, :, :left]) for name in ("key", "value")}
    )
    lengths = np.full(problem.batch, left)
    counted, without = rows(check, problem.but(valid_lens=lengths)), rows(check, cut)
    return counted is not None and without is not None and near(counted, without, check.dtype)


def _causal_with_others(check: ClaimCheck, notes: list[str]) -> tuple[ClaimCheck, list[str]]:
    """Which corner it starts from, and whether masks leave it in force."""
    claimed = check.claims.conventions
    alone = claimed.causal_with_mask is CausalWithMask.MASK_ALONE
    conventions = claimed if alone else replace(claimed, causal_with_mask=CausalWithMask.INTERSECT)
    documented = conventions.causal_alignment is not Alignment.TOP_LEFT
    if not documented and Feature.CROSS in check.claims and _reach(check, LONGER) == FARTHER:
        conventions = replace(conventions, causal_alignment=Alignment.BOTTOM_RIGHT)
        notes = [*notes, f"its causal mask starts {Alignment.BOTTOM_RIGHT}"]
    check = replace(check, claims=replace(check.claims, conventions=conventions))
    check, unequal = without_unequal_lengths(check)
    notes = [*notes, *unequal]
    if alone:
        return check, notes
    masked = {Feature.BOOL_MASK: MASKED, Feature.FLOAT_MASK: replace(BIASED, pattern=Pattern.ALL)}
    later = [any(sees_later(check, case)) for feature, case in masked.items() if feature in check.claims]
    if not any(later):
        return check, notes
    if not all(later):
        return check.without(MASKS), [*notes, unclaimed("masks", "with one it is not causal any more")]
    conventions = replace(check.claims.conventions, causal_with_mask=CausalWithMask.MASK_ALONE)
    check = replace(check, claims=replace(check.claims, conventions=conventions))
    return check.stating("a mask takes the place of its own causal one"), notes


def sees_no_later_key(check: ClaimCheck) -> bool:
    """Whether it is causal without a flag."""
    return _reach(check, PLAIN) is not None


def _reach(check: ClaimCheck, case: Case) -> int | None:
    """How many keys ahead of its own number each query sees, of one that sees no later ones; else None."""
    reaches = set()
    for key, changed in changes(check, case):
        reached = np.flatnonzero(changed)
        if not len(reached) or reached[0] == 0 or not changed[reached[0] :].all():
            return None
        reaches.add(key - int(reached[0]))
    return next(iter(reaches)) if len(reaches) == 1 else None


def window_seen(check: ClaimCheck, case: Case = WIDE) -> tuple[int | None, int | None]:
    """How many keys before and after its own number each query sees; None: no limit is seen, or not the same for all.

    What sees a key before it, but not the one at its place, is no window.
    """
    sides, fitted = set(), fit(case, check.claims)
    before = 0 if isinstance(fitted, Unsupported) else fitted.sizes.key_length - fitted.sizes.query_length
    for key, changed in changes(check, case, at=MIDDLE):
        seen, own = np.flatnonzero(changed), key - before
        if not len(seen) or not changed[seen[0] : seen[-1] + 1].all() or not changed[own]:
            return None, None
        left = int(seen[-1]) - own if seen[-1] < len(changed) - 1 else None
        sides.add((left, own - int(seen[0]) if seen[0] else None))
    return next(iter(sides)) if len(sides) == 1 else (None, None)


def sees_later(check: ClaimCheck, case: Case) -> Iterator[bool]:
    """Whether a query sees a key after it, for several keys."""
    yield from (bool(changed[:key].any()) for key, changed in changes(check, case))


def changes(
    check: ClaimCheck, case: Case, each_sample: bool = False, at: tuple[int, ...] = KEYS
) -> Iterator[tuple[int, Booleans]]:
    """A key, and the queries (Lq,) whose answers another one in its place changes; nothing where it has no answer.

    Args:
        check: the candidate.
        case: what it is called with.
        each_sample: whether the queries are those of each sample, (B, Lq).
        at: the numbers of the keys, from that at the place of the first query on.
    """
    fitted = fit(case, check.claims)
    if isinstance(fitted, Unsupported):
        return
    problem = _with_small_scores(build(fitted, check.dtype).forward_only())
    plain = rows(check, problem, finite=False)
    first = fitted.sizes.key_length - fitted.sizes.query_length
    keys = range(fitted.sizes.key_length)
    for key in [first + number for number in at] if plain is not None else []:
        if key not in keys:
            return
        other = rows(check, _with_other_token(problem, key), finite=False)
        if plain is not None and other is not None and other.shape == plain.shape:
            with np.errstate(invalid="ignore"):  # rows without keys, which may get anything
                differs = np.abs(other - plain) > SAME.get(check.dtype, HALF) * (1.0 + np.abs(plain))
            differs |= np.isfinite(other) != np.isfinite(plain)
            yield key, differs.any((*range(int(each_sample), plain.ndim - 2), -1))


def _with_small_scores(problem: Problem) -> Problem:
    """The problem with smaller queries: where scores are not scaled, large ones would hide keys from each other."""
    names = [name for name in ("w_q", "b_q") if name in problem.parameters] or ["query"]
    width = problem.arrays()[names[0]].shape[-1] // (problem.num_heads if problem.parameters else 1)
    factor = 2.0 ** -round(math.log2(max(1, width)) / 2)  # a power of two: exact in each dtype
    arrays = {name: problem.arrays()[name] for name in names}
    return problem.with_arrays({name: (x * factor).astype(x.dtype) for name, x in arrays.items()})  # bfloat16 widens


def rows(check: ClaimCheck, problem: Problem, finite: bool = True) -> Floats | None:
    """The output as (..., Lq, width), if it is finite; or if some of it is."""
    answer = check.answer(problem)
    if answer.error:
        return None
    output = safe_call(lambda: output_of(answer)).value
    if output is None or output.ndim != problem.query.ndim or output.shape[-2] != problem.query.shape[-2]:
        return None
    numbers = np.isfinite(output)
    return output if numbers.all() or (numbers.any() and not finite) else None


def _with_other_token(problem: Problem, key: int) -> Problem:
    """The problem with another key and value in one place; another token, where these are the query."""
    names = ("query",) if problem.sharing is Sharing.SELF else ("key", "value")
    arrays = {name: array.copy() for name, array in problem.arrays().items() if name in names}
    for array in arrays.values():
        array[..., key, :] = 1.0 - 2.0 * array[..., key, :]
    return problem.with_arrays(arrays)
