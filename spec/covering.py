"""Covering: cases in which every pair (or triple) of option values meets, from a maintained covering-array library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from covertable import make

from spec.cases import Case, Layout, MaskKind, MaskShape, Padding, Sizes
from spec.features import CausalWithMask, Conventions

SIZES = (
    Sizes(),
    Sizes(batch=3, num_heads=2, query_length=7, key_length=5, d_k=3, d_v=5),
    Sizes(batch=2, num_heads=2, query_length=2, key_length=2, d_k=2, d_v=2),
    Sizes(batch=4, num_heads=3, query_length=4, key_length=4, d_k=5, d_v=5),
    Sizes(batch=1, num_heads=6, query_length=6, key_length=11, d_k=8, d_v=8),
    Sizes(batch=2, num_heads=1, query_length=1, key_length=9, d_k=7, d_v=4),
    Sizes(batch=1, num_heads=1, query_length=3, key_length=1, d_k=1, d_v=1),
    Sizes(batch=2, num_heads=3, query_length=17, key_length=17, d_k=16, d_v=6),
    Sizes(batch=2, num_heads=2, query_length=9, key_length=33, d_k=33, d_v=31),
)
"""Different and coprime extents, and deliberate coincidences: B = H, Lq = Lk, B = Lq = Lk, extents of 1."""

FACTORS: Mapping[str, Sequence[Any]] = {
    "sizes": SIZES,
    "spread": (1.5, 6.0),
    "mask": tuple(MaskKind),
    "mask_shape": tuple(shape for shape in MaskShape if len(shape.split(",")) in (2, 4)),
    "padding": (
        Padding.NONE,
        Padding.RIGHT,
        Padding.LEFT,
        Padding.HOLES,
        Padding.LENGTHS,
        Padding.QUERY_LENGTHS,
    ),
    "causal": (False, True),
    "scale": (None, 0.3, 1.7),
    "layout": tuple(Layout),
}
"""The options of a case that are combined, with their values."""


TIED = (("causal", "mask"), ("causal", "sizes"), ("mask", "mask_shape"), ("causal", "padding"), ("mask", "padding"))
"""Options some of whose values do not go together; `mended` knows which."""


def combinations(allowed: Callable[[Case], bool], conventions: Conventions, strength: int = 2) -> tuple[Case, ...]:
    """Cases in which all values that are allowed alone meet, `strength` at a time, each with a seed of its own."""
    values = {
        name: tuple(level for level in levels if allowed(_alone(name, level))) for name, levels in FACTORS.items()
    }
    live = tuple((name, levels) for name, levels in values.items() if len(levels) > 1)
    return tuple(replace(case, seed=number) for number, case in enumerate(_array(live, conventions, strength)))


def _alone(name: str, level: Any) -> Case:
    return Case(**{name: level})


@lru_cache(maxsize=64)
def _array(live: tuple[tuple[str, tuple[Any, ...]], ...], conventions: Conventions, strength: int) -> tuple[Case, ...]:
    levels = dict(live)

    def case(row: Mapping[str, int], names: Iterable[str]) -> Case:
        return Case(**{name: levels[name][row[name]] for name in names})

    def apart(names: tuple[str, str]) -> dict[str, Any]:
        def evaluate(row: Mapping[str, int]) -> bool:
            return mended(case(row, names), conventions) == case(row, names)

        return {"operator": "fn", "requires": list(names), "evaluate": evaluate}

    numbers = {name: list(range(len(found))) for name, found in live}
    constraints = [apart(names) for names in TIED if set(names) <= set(levels)]
    rows = make(numbers, strength=min(strength, len(live)), constraints=constraints)
    return tuple(case(row, levels) for row in rows)


def mended(case: Case, conventions: Conventions) -> Case:
    """The nearest case without an empty row, and without a mask beside a causal flag that does not take one."""
    beside = case.causal and case.mask is not MaskKind.NONE
    if beside and conventions.causal_with_mask is not CausalWithMask.INTERSECT:
        case = replace(case, mask=MaskKind.NONE)
    if case.causal and case.sizes.query_length > case.sizes.key_length:
        case = replace(case, causal=False)
    if case.mask_shape is MaskShape.QUERIES and case.mask in (MaskKind.BOOL, MaskKind.INFINITE):
        case = replace(case, mask_shape=MaskShape.KEYS)
    if case.causal and case.padding in (Padding.LEFT, Padding.HOLES):
        case = replace(case, padding=Padding.RIGHT)
    if case.padding is Padding.QUERY_LENGTHS and case.mask is not MaskKind.NONE:
        case = replace(case, padding=Padding.LENGTHS)
    return case
