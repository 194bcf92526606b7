"""Meetings: cases in which any two uncommon things come together, and with them as many others as hide no mistake.

A mistake that shows under two or three conditions only needs a case that has them all, in which keys still count.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

from attention_conformance.spec.cases import Case, Layout, MaskKind, MaskShape, Padding, Pattern
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.covering import mended
from attention_conformance.spec.features import NOTHING, Packing
from attention_conformance.spec.meeting_levels import LEVELS, OFTEN, USUAL, Call, Level, blinds, covers_up, hides

MOST_TOGETHER = 9
"""Uncommon things in one case."""
MOST_HIDING = 3
"""Of these, things that hide keys."""
MOST_ROWS = 60
"""Queries of a case of which a window or documents leave few keys, and a mask some of these."""
MOST_COMPARED = 40
"""Levels that are compared by the triples that they bring, which takes time."""
MOST_ONES = 2**8
"""Ones whose sum is exact in every dtype, one after the other."""
MOST_SCORES, MOST_NUMBERS, MOST_PRODUCTS = 20_000, 85_000, 250_000
"""Of a case: larger ones take longer, and show no more."""
_FIELDS = tuple(frozenset(vars(whole)) for whole in (USUAL, USUAL.sizes, NOTHING, Call()))
Allowed: TypeAlias = Callable[[Case, Call], bool]
Going: TypeAlias = Callable[..., bool]


def meetings(allowed: Allowed, conventions: Conventions) -> Iterator[tuple[Case, Call]]:
    """Cases and calls in which each level meets each that is often so, as far as they go together and are allowed."""
    goes = GoesTogether(allowed, conventions)
    live = [level for level in LEVELS if goes([level])]
    often = _bits(n for n, level in enumerate(live) if level in OFTEN)
    meeting = _Meeting(live, often, _fitting(live, often, goes))
    for begun in meeting.still_open(goes):
        chosen = meeting.extended(begun, goes)
        meeting.close(chosen)
        case, call = made([live[n] for n in chosen])
        yield replace(case, seed=USUAL.seed + meeting.count), call


def _fitting(live: Sequence[Level], often: int, goes: Going) -> list[int]:
    """For each level the bits of those beside which it goes; pairs of what is never often so are not tried."""
    beside = [0] * len(live)
    for n, m in combinations(range(len(live)), 2):
        seldom = not (1 << n | 1 << m) & often
        if _apart(live[n], live[m]) and (seldom or goes([live[n], live[m]])):
            beside[n] |= 1 << m
            beside[m] |= 1 << n
    return beside


class _Meeting:
    """Which pairs and triples have still to meet.

    Attributes:
        open_pairs: for each level the bits of those that it has to meet; of two, one at least is often so.
        seen: for two that are often so the bits of all that were with them.
    """

    def __init__(self, live: Sequence[Level], often: int, beside: Sequence[int]) -> None:
        self.live, self.often, self.beside, self.count = live, often, beside, -1
        self.blind = _bits(n for n, level in enumerate(live) if blinds(level))
        self.hiding = _bits(n for n, level in enumerate(live) if hides(level))
        self.covering = [_bits(m for m, other in enumerate(live) if covers_up(other, level)) for level in live]
        self.open_pairs = [bits if often >> n & 1 else bits & often for n, bits in enumerate(beside)]
        self.seen = defaultdict[tuple[int, int], int](int)

    def still_open(self, goes: Going) -> Iterator[list[int]]:
        """First the pairs that have not met when it is their turn, then triples of what mistakes are often about."""
        for first in range(len(self.live)):
            while others := self.open_pairs[first]:
                yield [first, next(_numbers(others))]
        for first, second, third in combinations(_numbers(self.often), 3):
            chosen = [first, second, third]
            beside = self.beside[first] & self.beside[second] & 1 << third and self.beside[first] >> second & 1
            if beside and not self.seen[first, second] >> third & 1 and goes([self.live[n] for n in chosen]):
                yield chosen

    def close(self, chosen: Sequence[int]) -> None:
        """These have met, but for what another one hides."""
        self.count += 1
        together = _bits(chosen)
        for n, m in combinations(chosen, 2):
            pair, over = 1 << n | 1 << m, self.covering[n] | self.covering[m] | self.blind
            others = together & ~pair
            if over & others or (self.hiding & others).bit_count() >= MOST_HIDING:
                continue
            self.open_pairs[n] &= ~(1 << m)
            self.open_pairs[m] &= ~(1 << n)
        for n, m in combinations(sorted(chosen), 2):
            if self.often >> n & self.often >> m & 1:
                self.seen[n, m] |= together

    def extended(self, chosen: list[int], goes: Going) -> list[int]:
        """More levels, each of which meets as many as any other could, while the first two still meet."""
        blind = _bits(chosen) & self.blind  # beside one that blinds only its own pairs meet
        possible = (1 << len(self.live)) - 1 & ~self.blind
        for n in chosen:
            possible &= ~self.covering[n]
        most = min(MOST_HIDING, MOST_HIDING - 1 + (_bits(chosen) & self.hiding).bit_count())
        while len(chosen) < MOST_TOGETHER:
            fitting = possible
            for n in chosen:
                fitting &= self.beside[n]
            ranked = self._ranked(fitting, blind or _bits(chosen), chosen)
            best = next((n for n in ranked if goes([self.live[m] for m in (*chosen, n)], most)), None)
            if best is None:
                break
            chosen = [*chosen, best]
        return chosen

    def _ranked(self, fitting: int, together: int, chosen: Sequence[int]) -> Iterator[int]:
        """Those by which most pairs meet; of as many, first those by which most triples do, if they do at all."""
        by_pairs = defaultdict[int, list[int]](list)
        for n in _numbers(fitting):
            by_pairs[(self.open_pairs[n] & together).bit_count()].append(n)
        for pairs, numbers in sorted(by_pairs.items(), reverse=True):
            ranked = sorted((-self._triples(n, together, chosen), n) for n in numbers[:MOST_COMPARED])
            yield from (n for triples, n in ranked if pairs or triples)

    def _triples(self, n: int, together: int, chosen: Sequence[int]) -> int:
        """How many new ones would meet."""
        usual = [m for m in chosen if self.often >> m & 1]
        fresh = sum(not self.seen[min(a, b), max(a, b)] >> n & 1 for a, b in combinations(usual, 2))
        if self.often >> n & 1:
            fresh += sum((together & ~self.seen[min(n, m), max(n, m)]).bit_count() for m in usual)
        return fresh


def _bits(numbers: Iterator[int] | Sequence[int]) -> int:
    return sum(1 << n for n in numbers)


def _numbers(bits: int) -> Iterator[int]:
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1


def _apart(first: Level, second: Level) -> bool:
    """Whether no field is set to two values, nor both set the same."""
    common = first.keys() & second.keys()
    return first != second and all(first[name] == second[name] for name in common)


@dataclass(frozen=True)
class GoesTogether:
    """Whether levels go together: their case is allowed, and needs no mending."""

    allowed: Allowed
    conventions: Conventions

    def __call__(self, levels: Sequence[Level], most_hiding: int = MOST_HIDING) -> bool:
        hiding = sum(map(hides, levels))
        if hiding > most_hiding or sum(map(blinds, levels)) > 1:
            return False
        case, call = made(levels)
        if case.causal and case.sizes.query_length == 1 and len(levels) > 2:
            return False  # it sees one key, and nothing else is seen
        if hiding and case.scale is not None and case.scale <= 0.0:
            return False  # shipping kernels multiply what is hidden, minus infinity, by the factor as well
        return (
            _small(case)
            and _shows(case, call)
            and mended(case, self.conventions, any_row=_few_rows(case)) == case
            and self.allowed(case, call)
        )


def _small(case: Case) -> bool:
    s = case.sizes
    rows = s.num_heads * s.query_length + s.kv_heads * s.key_length
    scores = s.batch * s.num_heads * s.query_length * s.key_length
    products, numbers = scores * max(s.d_k, s.d_v), s.batch * rows * (s.d_k + s.d_v)
    return scores <= MOST_SCORES and numbers <= MOST_NUMBERS and products <= MOST_PRODUCTS


def _few_rows(case: Case) -> bool:
    """Whether some of a few seeds is likely to leave each of them a key."""
    return case.sizes.batch * case.sizes.num_heads * case.sizes.query_length <= MOST_ROWS


def _shows(case: Case, call: Call) -> bool:
    """Whether what the levels set has an effect, and sums of ones are exact."""
    s = case.sizes  # in self-attention there are as many queries as keys
    if call.cotangent == "ones" and s.batch * max(s.query_length, s.key_length) > MOST_ONES:
        return False
    if call.cotangent == "row" and s.query_length == 1:
        return False
    if (call.needs == "nothing" and call.cotangent) or (call.apart and case.layout is not Layout.CONTIGUOUS):
        return False
    if call.needs == "attn_mask" and case.mask not in (MaskKind.FLOAT, MaskKind.INFINITE):
        return False
    if s.d_k == 1 and (call.apart or case.layout is not Layout.CONTIGUOUS):
        return False  # an axis of one component has any stride, which kernels may refuse
    if case.pattern is Pattern.FIRST_TILE and not _alone(case):
        return False
    return case.layout is not Layout.PACKED or s.query_length == s.key_length


def _alone(case: Case) -> bool:
    """Whether nothing but its mask hides keys, so that a mask of one half leaves each query a key."""
    hidden = case.causal or case.padding is not Padding.NONE or case.extension.packing is not Packing.NONE
    return not hidden and not case.extension.windowed


def made(levels: Sequence[Level]) -> tuple[Case, Call]:
    """The usual case and call with these levels; what shapes a mask has one to shape."""
    changes = {name: value for level in levels for name, value in level.items()}
    if changes.get("layout") is Layout.PACKED and "query_length" not in changes:
        changes["query_length"] = changes.get("key_length", USUAL.sizes.key_length)
    own, sized, extended, called = ({n: changes[n] for n in changes.keys() & names} for names in _FIELDS)
    sizes = replace(USUAL.sizes, **sized) if sized else USUAL.sizes
    case = replace(USUAL, sizes=sizes, **own).extended(**extended)
    shaped = case.mask_shape is not MaskShape.FULL or case.pattern is not Pattern.RANDOM
    if case.mask is MaskKind.NONE and (shaped or called.get("needs") == "attn_mask"):
        added = called.get("needs") == "attn_mask" or case.mask_shape is MaskShape.QUERIES
        case = replace(case, mask=MaskKind.FLOAT if added else MaskKind.BOOL)
    return case, Call(**called)
