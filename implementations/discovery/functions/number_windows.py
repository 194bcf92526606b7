"""Windows that a function takes as one number: which keys it shows for it, and which windows a number can state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.always import Booleans, changes
from attention_conformance.implementations.discovery.claim_checks import OPTION_CASES, PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.documented_windows import states_own_counted
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Alignment
from attention_conformance.spec.features import Feature

NUMBERS = (3, 5)
"""That a window is given to see what it means."""
SQUARE = PLAIN.sized(query_length=11, key_length=11)
MORE_KEYS = PLAIN.sized(query_length=7, key_length=12)
LONGER = 12
"""Tokens of such a call, less the number."""
NO_WINDOW = "not judged: the keys that it shows are no window that the suite knows"


class Sides(StrEnum):
    """Which sides of a query a number limits."""

    BEFORE = "keys before the query"
    BEFORE_ALONE = "keys before the query, and hides those after it"
    BOTH = "keys before the query, and as many after it"


@dataclass(frozen=True)
class NumberWindow:
    """What a function means by the number of a window.

    Attributes:
        sides: see `Sides`.
        counted: 1 where the number counts the query's own key, too.
        halved: whether it counts all keys of both sides and the own one.
        least: the smallest limit that it can state: for some, 0 is no window.
        causal: whether a window is taken with the causal flag alone.
    """

    sides: Sides
    counted: int = 0
    halved: bool = False
    least: int = 0
    causal: bool = False

    @property
    def in_words(self) -> str:
        """For notes."""
        counted = ", all together" if self.halved else ", its own included" if self.counted else ""
        return f"a number of {self.sides}{counted}"

    def number(self, window: tuple[int, int]) -> int:
        """What states this window (l, r)."""
        return 2 * window[0] + 1 if self.halved else window[0] + self.counted

    def reach(self, number: int) -> int:
        """How many keys before its own a query sees."""
        return number // 2 if self.halved else number - self.counted

    def shown(self, queries: int, keys: int, number: int, causal: bool, start: int) -> Booleans:
        """(Lq, Lk), True = may be seen; the first query stands at this key."""
        ahead = _ahead(queries, keys, start)
        right = {Sides.BEFORE: keys, Sides.BEFORE_ALONE: 0, Sides.BOTH: self.reach(number)}[self.sides]
        return np.asarray((ahead >= -self.reach(number)) & (ahead <= (min(right, 0) if causal else right)))

    def fit(self, fit_others: Fit, case: Case) -> Case | Unsupported:
        """The fit of windows: those that a number can state."""
        fitted = fit_others(case)
        if isinstance(fitted, Unsupported) or not fitted.extension.windowed:
            return fitted
        if fitted.extension.window_left is None:
            return Unsupported("its window has no limit to the right alone")
        left = max(self.least, fitted.extension.window_left)
        right = {Sides.BEFORE: None, Sides.BEFORE_ALONE: 0, Sides.BOTH: left}[self.sides]
        stated = fitted.extended(window_left=left, window_right=right)
        return replace(stated, causal=True) if self.causal else stated


MEANINGS = (
    *(NumberWindow(sides, counted) for sides in Sides for counted in (1, 0)),
    NumberWindow(Sides.BOTH, halved=True),
)


OTHERS = ((16, 12), (12, 16))
"""Numbers of queries and keys."""


def with_number_windows(check: ClaimCheck, names: Iterable[str]) -> tuple[ClaimCheck, dict[str, str]]:
    """The check with windows, as a number for these parameters means them; why others are not judged, by name."""
    why: dict[str, str] = {}
    for name in names:
        check, found = _with_number_window(check, name)
        why |= found
    return check, why


def without_refused_windows(check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check without windows of other lengths of queries and keys, where a statement of its own refuses these."""
    if Feature.WINDOW not in check.claims or Feature.CROSS not in check.claims:
        return check, []
    outcomes = [check.run(OPTION_CASES[Feature.WINDOW].sized(query_length=q, key_length=k)) for q, k in OTHERS]
    if not (refused := [each.error for each in outcomes if each.refused]):
        return check, []
    claims = replace(check.claims, fit=partial(of_one_length, check.claims.fit))
    return replace(check, claims=claims), [unclaimed("windows of other lengths of keys", refused[0])]


def window_corner_as_seen(check: ClaimCheck) -> ClaimCheck:
    """The check with the corner from which a window of two sides starts, where no flag shows it."""
    claims = check.claims
    if not {Feature.WINDOW, Feature.CROSS} <= claims.features or Feature.CAUSAL in claims or claims.premises.causal:
        return check
    case = MORE_KEYS.extended(window_left=1, window_right=0)
    queries, keys = _lengths(check, case)
    ahead, seen = _ahead(queries, keys, keys - queries), _seen(check, case)
    if seen is None or queries == keys or not np.array_equal(seen, (ahead <= 0) & (ahead >= -1)):
        return check
    conventions = replace(claims.conventions, causal_alignment=Alignment.BOTTOM_RIGHT)
    seen_at = f"its window starts {Alignment.BOTTOM_RIGHT}"
    return replace(check, claims=replace(claims, conventions=conventions)).stating(seen_at)


def of_one_length(fit_others: Fit, case: Case) -> Case | Unsupported:
    """The fit of windows: as many keys as queries."""
    fitted = fit_others(case)
    if isinstance(fitted, Unsupported) or not fitted.extension.windowed:
        return fitted
    return fitted.sized(key_length=fitted.sizes.query_length)


def _with_number_window(check: ClaimCheck, name: str) -> tuple[ClaimCheck, dict[str, str]]:
    if Feature.WINDOW in check.claims and not check.run(OPTION_CASES[Feature.WINDOW]).error:
        return check, {}
    check, why = check.without({Feature.WINDOW}), dict[str, str]()
    for flag in (False, True)[: 1 + (Feature.CAUSAL in check.claims)]:
        found = meaning_of(check, partial(_given, check, name), flag)
        if isinstance(found, NumberWindow):
            return _claimed(check, name, *as_documented(found, check.function)), {}
        why = why or {name: found}
    if "sliding" in name.lower().split("_") and _shows_farther_keys(check, name):
        return _claimed(check, name, MEANINGS[0]), {}
    return check, why


def as_documented(seen: NumberWindow, function: object) -> tuple[NumberWindow, str]:
    """What the number means, and the words for who states it: where documentation does, one key more is a mistake."""
    counted = states_own_counted(as_written(function))
    if seen.sides is Sides.BOTH or counted is None or counted == seen.counted:
        return seen, ""
    return replace(seen, counted=int(counted)), "by its documentation "


def _shows_farther_keys(check: ClaimCheck, name: str) -> bool:
    """Whether a query sees a key that is farther away than the number, be that counted in one way or another."""
    ahead = _ahead(*_lengths(check, SQUARE), _start(check, SQUARE))
    seen = {number: _seen(_given(check, name, number), SQUARE) for number in NUMBERS}
    return any(each is not None and bool(each[ahead < -number].any()) for number, each in seen.items())


def _square(number: int, flag: bool) -> Case:
    """With a length of its own for each number: a mask that is kept by its shape, a mistake, shows another number's."""
    return replace(SQUARE, causal=flag).sized(**dict.fromkeys(("query_length", "key_length"), LONGER + number))


def _ahead(queries: int, keys: int, start: int) -> NDArray[np.int64]:
    """(Lq, Lk): how many places after the query the key stands; the first query stands at `start`."""
    return np.arange(keys) - (np.arange(queries)[:, None] + start)


def meaning_of(check: ClaimCheck, given: Callable[[int], ClaimCheck], flag: bool) -> NumberWindow | str:
    """What a number means, or why that is not known; `given` is the check of the candidate with this number."""
    cases = {number: _square(number, flag) for number in NUMBERS}
    if error := given(NUMBERS[0]).run(cases[NUMBERS[0]]).error:
        return f"not judged: it raises {error}"
    seen = {number: _seen(given(number), case) for number, case in cases.items()}
    causal = flag or check.claims.premises.causal or _shows_no_later_key(check)
    for meaning in MEANINGS:
        if all(each is not None and _is(each, meaning, n, causal, check, cases[n]) for n, each in seen.items()):
            none = meaning.number((0, 0))
            case = _square(none, flag)
            off = _seen(given(none), case)
            least = 0 if off is not None and _is(off, meaning, none, causal, check, case) else 1
            return replace(meaning, least=least, causal=flag)
    return NO_WINDOW


def _is(seen: Booleans, meaning: NumberWindow, number: int, causal: bool, check: ClaimCheck, case: Case) -> bool:
    """Whether these are the keys that the number shows."""
    return np.array_equal(seen, meaning.shown(*_lengths(check, case), number, causal, _start(check, case)))


def _given(check: ClaimCheck, name: str, number: int) -> ClaimCheck:
    """The check of the function with this window in each call."""
    call = check.function
    assert isinstance(call, RenamedCall)
    return replace(check, function=call.giving({name: number}))


def _lengths(check: ClaimCheck, case: Case) -> tuple[int, int]:
    fitted = fit(case, check.claims)
    sizes = case.sizes if isinstance(fitted, Unsupported) else fitted.sizes
    return sizes.query_length, sizes.key_length


def _start(check: ClaimCheck, case: Case) -> int:
    queries, keys = _lengths(check, case)
    return keys - queries


def _seen(check: ClaimCheck, case: Case) -> Booleans | None:
    """(Lq, Lk), True = a change of the key changes the query's answer; None where there is none."""
    queries, keys = _lengths(check, case)
    first = keys - queries
    columns = dict(changes(check, case, at=tuple(range(-first, queries))))
    return np.stack([columns[key] for key in range(keys)], -1) if columns.keys() == {*range(keys)} else None


def _shows_no_later_key(check: ClaimCheck) -> bool:
    seen = _seen(check, SQUARE)
    return seen is not None and not np.triu(seen, 1 + seen.shape[1] - seen.shape[0]).any()


def _claimed(check: ClaimCheck, name: str, meaning: NumberWindow, by: str = "") -> ClaimCheck:
    """The check with such windows, and with the corner from which they start, where no flag shows it."""
    call, claims = check.function, check.claims
    assert isinstance(call, RenamedCall)
    options = replace(call.options, spelled={**call.options.spelled, "window_size": name}, window=meaning)
    cornered = Feature.CAUSAL in claims or Feature.CROSS not in claims or claims.premises.causal
    conventions = claims.conventions
    cornered = cornered or conventions.causal_alignment is not Alignment.TOP_LEFT  # as where a cache is read
    if not cornered and (corner := next(_corners(check, name, meaning), None)) is not None:
        conventions = replace(conventions, causal_alignment=corner)
    features = claims.features | {Feature.WINDOW}
    claims = replace(claims, features=features, conventions=conventions, fit=partial(meaning.fit, claims.fit))
    stated = f"{by}its {name!r} is {meaning.in_words}"
    return replace(check, function=replace(call, options=options), claims=claims).stating(stated)


def _corners(check: ClaimCheck, name: str, meaning: NumberWindow) -> Iterator[Alignment]:
    """The corner from which it is seen to start where there are more keys than queries."""
    queries, keys = _lengths(check, MORE_KEYS)
    seen = _seen(_given(check, name, NUMBERS[0]), MORE_KEYS)
    for corner, start in ((Alignment.TOP_LEFT, 0), (Alignment.BOTTOM_RIGHT, keys - queries)):
        if seen is not None and np.array_equal(seen, meaning.shown(queries, keys, NUMBERS[0], False, start)):
            yield corner
