"""Covering: cases in which every pair (or triple) of option values meets, from a maintained covering-array library.

The library takes longer for the pairs than a candidate for its answers, so they are stored in `covering.json`, which
`python -m attention_conformance.spec.covering` writes.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.cases import NOT_FIRST, Case, Layout, MaskKind, MaskShape, Padding, Sizes
from attention_conformance.spec.conventions import Alignment, CausalWithMask, Conventions
from attention_conformance.spec.features import NOTHING, Extension, Packing, PositionIds, QkNorm, RotaryTables

SIZES = (
    Sizes(),
    Sizes(batch=17, num_heads=2, query_length=7, key_length=5, d_k=3, d_v=5),
    Sizes(batch=2, num_heads=2, query_length=2, key_length=2, d_k=2, d_v=2),
    Sizes(batch=4, num_heads=3, query_length=4, key_length=4, d_k=5, d_v=5),
    Sizes(batch=1, num_heads=18, query_length=6, key_length=11, d_k=8, d_v=8),
    Sizes(batch=2, num_heads=1, query_length=1, key_length=128, d_k=7, d_v=4),
    Sizes(batch=1, num_heads=1, query_length=3, key_length=1, d_k=1, d_v=1),
    Sizes(batch=1, num_heads=1, query_length=67, key_length=67, d_k=16, d_v=6),
    Sizes(batch=1, num_heads=2, query_length=9, key_length=67, d_k=136, d_v=67),
)
"""Different and coprime extents, deliberate coincidences (B = H, Lq = Lk, B = Lq = Lk, extents of 1), and each extent
once beyond a tile, a vector or a launch, so that every option meets that too."""

_STORED = ("page_size", "cache_rows", "shared_prefix", "codes", "scaled_by", "latent", "decoupled")
APART = (*_STORED, "query_lens", "alibi_samples")
"""What is combined with other options in a chapter of its own: how keys and values are stored, numbers of samples."""
_EXAMPLES = {
    f.name: values
    for f in fields(Extension)
    if f.name not in APART
    and not f.name.startswith(("dropout", "evaluation"))
    and len(values := tuple(dict.fromkeys((f.default, *(getattr(o.example, f.name) for o in CASE_OPTIONS))))) > 1
}
"""The fields of an extension, with their defaults and what the examples of options set."""
STORED_SHAPES, STORED_LAYOUTS = 6, 6
"""So many shapes of masks and layouts are combined with the other options; the others are checked on their own."""
FACTORS: Mapping[str, Sequence[Any]] = {
    "sizes": SIZES,
    "score_std": (1.5, 6.0),
    "mask": tuple(MaskKind),
    "mask_shape": tuple(MaskShape)[:STORED_SHAPES],
    "padding": (Padding.NONE, Padding.RIGHT, Padding.LEFT, Padding.HOLES, Padding.LENGTHS, Padding.QUERY_LENGTHS),
    "causal": (False, True),
    "scale": (None, 0.3, 1.7),
    "layout": tuple(Layout)[:STORED_LAYOUTS],
    "num_kv_heads": (0, 1, 2),
    **_EXAMPLES,
    "window_right": (None, 0, 1),
}
"""The options of a case that are combined, with their values."""


_OWN = frozenset(f.name for f in fields(Case))
_EXTENSION = frozenset(f.name for f in fields(Extension))

AROUND_WINDOWS = ("mask", "padding", "sizes", "packing", "query_starts")
TIED: tuple[tuple[str, ...], ...] = (
    ("causal", "mask"),
    ("causal", "sizes"),
    ("mask", "mask_shape"),
    ("causal", "padding"),
    ("mask", "padding"),
    ("packing", "causal"),
    ("packing", "mask"),
    ("packing", "padding"),
    ("packing", "query_start"),
    ("packing", "query_starts"),
    ("query_starts", "query_start"),
    ("rotary_dim", "rotary_base", "rotary_tables"),
    ("position_ids", "rotary_base", "rotary_tables"),
    ("rotary_tables", "rotary_base"),
    ("norm_epsilon", "qk_norm"),
    ("max_distance", "bucketed_bias"),
    ("bidirectional", "bucketed_bias"),
    ("zero_attn", "causal"),
    ("bias_kv", "causal"),
    *((side, other) for side in ("window_left", "window_right") for other in AROUND_WINDOWS),
)
"""Options some of whose values do not go together; `mended` knows which."""


STORED = Path(__file__).with_name("covering.json")
Live = Mapping[str, tuple[Any, ...]]
"""The options that are combined, with those of their values that are allowed."""


def combinations(allowed: Callable[[Case], bool], conventions: Conventions, strength: int = 2) -> tuple[Case, ...]:
    """Cases in which all values that are allowed alone meet, `strength` at a time, each with a seed of its own."""
    live = allowed_values(allowed)
    found = _projected(live, conventions) if strength == 2 else _array(live, conventions, strength)
    return tuple(replace(case, seed=number) for number, case in enumerate(dict.fromkeys(found)))


def allowed_values(allowed: Callable[[Case], bool]) -> Live:
    """The options with those of their values that are allowed alone; options without any are left out."""
    values = {
        name: tuple(level for level in levels if allowed(combined({name: level}))) for name, levels in FACTORS.items()
    }
    return {name: levels for name, levels in values.items() if levels}


def _projected(live: Live, conventions: Conventions) -> list[Case]:
    """The stored rows with the first allowed value in place of any other: pairs of allowed ones still meet."""
    rows = []
    for stored in _stored()[str(_takes_both(conventions))]:
        wanted = {name: levels[number] for (name, levels), number in zip(FACTORS.items(), stored, strict=True)}
        row = {name: wanted[name] if wanted[name] in levels else levels[0] for name, levels in live.items()}
        rows.append(mended(combined(row), conventions))
    return rows


@cache
def _stored() -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = json.loads(STORED.read_text())
    return found


def _takes_both(conventions: Conventions) -> bool:
    """Whether a mask may be combined with the causal flag: all of the conventions that the rows depend on."""
    return conventions.causal_with_mask is CausalWithMask.INTERSECT


def combined(levels: Mapping[str, Any]) -> Case:
    """The case with these options, those of its sizes and its extension included."""
    own, extension = ({n: v for n, v in levels.items() if n in names} for names in (_OWN, _EXTENSION))
    case = Case(**own).extended(**extension)
    if not levels.get("num_kv_heads"):
        return case
    # Groups of two and three where the heads allow it, else all heads in one group.
    wanted, heads = levels["num_kv_heads"], case.sizes.num_heads
    return case.sized(num_kv_heads=wanted if heads % wanted == 0 else 1)


def _array(live: Live, conventions: Conventions, strength: int) -> list[Case]:
    return [combined({n: live[n][i] for n, i in row.items()}) for row in _rows(live, conventions, strength)]


def _rows(live: Live, conventions: Conventions, strength: int) -> list[dict[str, int]]:
    """The numbers of the values by option, in the order of `live`."""
    from covertable import make  # only here: the quick tier does without

    def apart(names: tuple[str, ...]) -> dict[str, Any]:
        @cache  # the library checks the same few pairs many thousand times
        def goes(*numbers: int) -> bool:
            case = combined({name: live[name][number] for name, number in zip(names, numbers, strict=True)})
            return mended(case, conventions) == case

        def evaluate(row: Mapping[str, int]) -> bool:
            return goes(*(row[name] for name in names))

        return {"operator": "fn", "requires": list(names), "evaluate": evaluate}

    numbers = {name: list(range(len(found))) for name, found in live.items()}
    constraints = [apart(names) for names in TIED if set(names) <= set(live)]
    return [dict(row) for row in make(numbers, strength=min(strength, len(live)), constraints=constraints)]


def written() -> str:
    """What `covering.json` holds: rows of value numbers, for masks combined with a causal flag and for none."""
    full = {name: tuple(levels) for name, levels in FACTORS.items()}
    kinds = {str(_takes_both(c)): c for c in (Conventions(), Conventions(causal_with_mask=CausalWithMask.ERROR))}
    rows = {kind: _rows(full, conventions, 2) for kind, conventions in kinds.items()}
    lines = (f'"{kind}": [\n{_lines([[row[n] for n in FACTORS] for row in found])}\n]' for kind, found in rows.items())
    return "{" + ",\n".join(lines) + "}\n"


def _lines(rows: Iterable[Sequence[int]]) -> str:
    return ",\n".join(json.dumps(list(row)) for row in rows)


def mended(case: Case, conventions: Conventions, any_row: bool = False) -> Case:
    """The nearest case without an empty row, and without a mask combined with a causal flag that does not take one.

    `any_row`: a case stays as it is where its seed decides whether a row is left empty.
    """
    combined_masks = case.causal and case.mask is not MaskKind.NONE
    if combined_masks and conventions.causal_with_mask is not CausalWithMask.INTERSECT:
        case = replace(case, mask=MaskKind.NONE)
    full = any_row and conventions.causal_alignment is Alignment.TOP_LEFT
    if case.causal and case.sizes.query_length > case.sizes.key_length and not full:
        case = replace(case, causal=False)
    if case.mask_shape is MaskShape.QUERIES and case.mask in (MaskKind.BOOL, MaskKind.INFINITE):
        case = replace(case, mask_shape=MaskShape.KEYS)
    if case.causal and case.padding in NOT_FIRST:
        case = replace(case, padding=Padding.RIGHT)
    if case.padding is Padding.QUERY_LENGTHS and case.mask is not MaskKind.NONE and not any_row:
        case = replace(case, padding=Padding.LENGTHS)
    return _mended_extension(case, any_row)


def _mended_extension(case: Case, any_row: bool) -> Case:
    """Options of the rotation only where there is one; windows and documents only where no row can be left empty."""
    extension, s = case.extension, case.sizes
    if extension.latent:
        case = case.extended(codes=NOTHING.codes)  # no source says what scales codes of latents have
    if extension.page_size:
        case = case.extended(cache_rows=0)
    if extension.rotary_tables is not RotaryTables.NONE:
        case = case.extended(rotary_base=None)
    if not extension.rotates:
        case = case.extended(rotary_dim=None, position_ids=PositionIds.NONE)
    if extension.qk_norm is QkNorm.NONE:
        case = case.extended(norm_epsilon=None)
    if not extension.bucketed_bias:
        case = case.extended(max_distance=NOTHING.max_distance, bidirectional=True)
    holes = case.mask in (MaskKind.BOOL, MaskKind.INFINITE) or case.padding is not Padding.NONE
    if extension.query_starts:
        case = case.extended(query_start=None)
    started = extension.query_starts or extension.query_start is not None
    emptying = (holes or case.causal) and not any_row
    if extension.packing is not Packing.NONE and (started or emptying or (holes and extension.has_lengths)):
        case = case.extended(packing=Packing.NONE)  # no clause says what masks do with cumulative lengths
    if case.causal:
        # A shipping module fails on this in every combination; chapter sinks checks it alone.
        case = case.extended(zero_attn=False, bias_kv=False)
    wide = s.query_length > s.key_length or extension.query_starts
    if extension.windowed and (wide or ((holes or extension.packing is not Packing.NONE) and not any_row)):
        case = case.extended(window_left=None, window_right=None)
    return case


if __name__ == "__main__":
    STORED.write_text(written())
