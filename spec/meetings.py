"""Meetings: cases in which two uncommon things come together, and little else does.

A covering array of all options hides a mistake that shows under two of them only, where a third one changes the answer
as little as a mask of one key does. Here everything else is as usual, so that what goes wrong between two is seen.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.cases import Case, Layout, MaskKind, MaskShape, Padding, Pattern, Scores
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.covering import mended
from attention_conformance.spec.features import NOTHING, Feature

USUAL = Case(seed=400).sized(batch=3, num_heads=2, query_length=5, key_length=7, d_k=6, d_v=4)
MOST_TOGETHER = 5
"""Uncommon things in one case."""
_APART = (Feature.DROPOUT, Feature.EVALUATION)


@dataclass(frozen=True)
class Call:
    """How a case is put to an implementation.

    Attributes:
        needs: the only input whose gradient is taken, or "nothing"; empty for all.
        cotangent: "ones", or "row" for zeros but in the last row; empty for dense random numbers.
        again: a call of the same sizes and options, with other numbers, comes first.
    """

    needs: str = ""
    cotangent: str = ""
    again: bool = False

    @property
    def usual(self) -> bool:
        return self == Call()

    def __str__(self) -> str:
        requiring = "none" if self.needs == "nothing" else f"only {self.needs}"
        parts = (
            self.needs and f"of the inputs {requiring} requires a gradient",
            self.cotangent and f"the cotangent is {COTANGENTS[self.cotangent]}",
            self.again and "after a call of the same sizes with other numbers",
        )
        return ", ".join(part for part in parts if part)


MOST_ONES = 2**8
"""Ones whose sum is exact in every dtype, one after the other."""
COTANGENTS = {"ones": "1 everywhere", "row": "0 but for the last query"}

Level = Mapping[str, Any]
"""Fields of a case, its sizes, its extension, or of a `Call`, with what they become."""
_SIZES: Mapping[str, Sequence[Level]] = {
    "batch": ({"batch": 1}, {"batch": 9}),
    "heads": ({"num_heads": 1}, {"num_heads": 3}, {"num_heads": 6, "num_kv_heads": 2}),
    "lengths": (
        {"query_length": 1},
        {"query_length": 7},
        {"query_length": 9},
        {"query_length": 3, "key_length": 131},
        {"query_length": 67, "key_length": 67},
    ),
    "widths": ({"d_k": 8, "d_v": 8}, {"d_k": 4, "d_v": 6}, {"d_k": 64, "d_v": 64}),
}
_MASKS: Mapping[str, Sequence[Level]] = {
    "mask": (
        *({"mask": MaskKind.BOOL, "mask_shape": s} for s in (MaskShape.FULL, MaskShape.KEYS, MaskShape.SHARED)),
        *({"mask": MaskKind.FLOAT, "mask_shape": s} for s in (MaskShape.FULL, MaskShape.HEAD, MaskShape.SHARED)),
        {"mask": MaskKind.INFINITE},
        {"mask": MaskKind.BOOL, "pattern": Pattern.ALL},
        {"mask": MaskKind.FLOAT, "mask_offset": -50.0},
    ),
    "padding": tuple({"padding": p} for p in (Padding.RIGHT, Padding.LEFT, Padding.LENGTHS, Padding.QUERY_LENGTHS)),
    "causal": ({"causal": True},),
}
_NUMBERS: Mapping[str, Sequence[Level]] = {
    "scale": ({"scale": 0.3}, {"scale": 1.7}),
    "scores": ({"scores": Scores.RISING}, {"score_std": 5.0}),
    "values": ({"value_scale": 20.0},),
    "layout": tuple({"layout": layout} for layout in (Layout.TRANSPOSED, Layout.SLICED, Layout.BROADCAST)),
}
_CALLS: Mapping[str, Sequence[Level]] = {
    "needs": tuple({"needs": name} for name in ("nothing", "query", "key", "value")),
    "cotangent": tuple({"cotangent": kind} for kind in COTANGENTS),
    "again": ({"again": True},),
}


def _of_options() -> Iterator[tuple[str, Sequence[Level]]]:
    for option in CASE_OPTIONS:
        if option.feature not in _APART:
            changes = {name: value for name, value in vars(option.example).items() if value != getattr(NOTHING, name)}
            more = ({"window_left": 3}, {"window_right": 1}) if option.feature is Feature.WINDOW else ()
            yield option.setting, (changes, *more)
    yield "dropout", ({"dropout_seed": 1},)
    yield "evaluation", ({"evaluation": True},)


FACTORS: Mapping[str, Sequence[Level]] = {**_SIZES, **_MASKS, **_NUMBERS, **dict(_of_options()), **_CALLS}
"""What can be uncommon about a call, by what excludes each other; all that is not named here is as in `USUAL`."""


def meetings(allowed: Callable[[Case], bool], conventions: Conventions) -> Iterator[tuple[Case, Call]]:
    """Cases and calls in which any two levels meet that go together, of those whose cases are allowed."""
    levels = [(factor, level) for factor, each in FACTORS.items() for level in each]
    goes = _Going(allowed, conventions)
    live = [each for each in levels if goes([each])]
    open_pairs = {(a, b) for a, b in combinations(range(len(live)), 2) if live[a][0] != live[b][0]}
    open_pairs = {(a, b) for a, b in open_pairs if goes([live[a], live[b]])}
    number = 0
    for pair in sorted(open_pairs):
        if pair in open_pairs:
            chosen = _extended(list(pair), live, open_pairs, goes)
            open_pairs.difference_update(combinations(sorted(chosen), 2))
            case, call = _made([live[n] for n in chosen])
            yield replace(case, seed=USUAL.seed + number), call
            number += 1


@dataclass(frozen=True)
class _Going:
    """Whether levels go together: their case is allowed, and needs no mending."""

    allowed: Callable[[Case], bool]
    conventions: Conventions

    def __call__(self, levels: Sequence[tuple[str, Level]]) -> bool:
        case, call = _made(levels)
        s = case.sizes  # in self-attention there are as many queries as keys
        if call.cotangent == "ones" and s.batch * max(s.query_length, s.key_length) > MOST_ONES:
            return False
        return self.allowed(case) and mended(case, self.conventions) == case


def _made(levels: Sequence[tuple[str, Level]]) -> tuple[Case, Call]:
    changes = {name: value for _, level in levels for name, value in level.items()}
    own = {name: value for name, value in changes.items() if name in vars(USUAL)}
    sized = {name: value for name, value in changes.items() if name in vars(USUAL.sizes)}
    extended = {name: value for name, value in changes.items() if name in vars(NOTHING)}
    called = {name: value for name, value in changes.items() if name in vars(Call())}
    return replace(USUAL, **own).sized(**sized).extended(**extended), Call(**called)


def _extended(
    chosen: list[int], live: Sequence[tuple[str, Level]], open_pairs: set[tuple[int, int]], goes: _Going
) -> list[int]:
    """More levels, each of which makes as many open pairs meet as any other could."""
    while len(chosen) < MOST_TOGETHER:
        taken = {live[n][0] for n in chosen}
        gains = [
            (sum((min(n, m), max(n, m)) in open_pairs for m in chosen), -n)
            for n in range(len(live))
            if live[n][0] not in taken
        ]
        best = next(
            (-n for gain, n in sorted(gains, reverse=True) if gain and goes([live[m] for m in (*chosen, -n)])), None
        )
        if best is None:
            break
        chosen = [*chosen, best]
    return chosen
