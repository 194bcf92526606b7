"""Levels: what can be uncommon about a case or the call of it, each as the fields that it sets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.cases import Case, Layout, MaskKind, MaskShape, Padding, Pattern, Scores
from attention_conformance.spec.covering import STORED_SHAPES
from attention_conformance.spec.features import NOTHING, Feature
from attention_conformance.spec.gates_and_splits import KeySplits, OutputGates
from attention_conformance.spec.stored_keys import Codes, ScaledBy

USUAL = Case(seed=400).sized(batch=3, num_heads=2, query_length=5, key_length=7, d_k=6, d_v=4)


@dataclass(frozen=True)
class Call:
    """How a case is put to an implementation.

    Attributes:
        needs: the only input whose gradient is taken, or "nothing"; empty for all.
        cotangent: "ones", or "row" for zeros but in the last row; empty for dense random numbers.
        again: a call of the same sizes and options, with other numbers, comes first.
        apart: the one input that lies in memory as `lies` states; empty for none.
    """

    needs: str = ""
    cotangent: str = ""
    again: bool = False
    apart: str = ""
    lies: Layout = Layout.CONTIGUOUS

    @property
    def usual(self) -> bool:
        return self == Call()

    def __str__(self) -> str:
        requiring = "none" if self.needs == "nothing" else f"only {self.needs}"
        parts = (
            self.needs and f"of the inputs {requiring} requires a gradient",
            self.cotangent and f"the cotangent is {COTANGENTS[self.cotangent]}",
            self.again and "after a call of the same sizes with other numbers",
            self.apart and f"{self.apart} alone is {self.lies}",
        )
        return ", ".join(part for part in parts if part)


COTANGENTS = {"ones": "1 everywhere", "row": "0 but for the last query"}
Level = Mapping[str, Any]
"""Fields of a case, its sizes, its extension, or of a `Call`, with what they become."""
ONE = {"batch": 1}
_SIZES: tuple[Level, ...] = (
    *({"batch": batch} for batch in (9, 259)),
    *({"num_heads": heads} for heads in (1, 3, 35)),
    *({"num_heads": 6, "num_kv_heads": shared} for shared in (1, 2)),
    *({"query_length": queries} for queries in (1, 9)),
    {"key_length": 1},
    {"query_length": 5, "key_length": 64},
    {"query_length": 3, "key_length": 1031, **ONE},
    {"query_length": 2, "key_length": 4099, **ONE},
    {"query_length": 131, "key_length": 131, "num_heads": 1, **ONE},
    {"query_length": 1027, "key_length": 5, **ONE},
    *({"d_k": width, "d_v": width} for width in (1, 8, 64)),
    {"d_k": 4, "d_v": 6},
    {"d_k": 12, "d_v": 131},
    {"d_k": 264, "d_v": 257, **ONE},
)
_MASKS: tuple[Level, ...] = (
    # The rarer shapes may be refused by what takes masks of four axes: they are checked on their own.
    *({"mask_shape": shape} for shape in tuple(MaskShape)[1:STORED_SHAPES]),
    *({"pattern": pattern} for pattern in (Pattern.ALL, Pattern.FIRST_TILE, Pattern.RULES)),
    {"mask": MaskKind.FLOAT, "mask_offset": -50.0},
    *({"padding": p} for p in (Padding.LEFT, Padding.HOLES, Padding.QUERY_LENGTHS)),
)
_NUMBERS: tuple[Level, ...] = (
    *({"scale": scale} for scale in (1.7, 1.0, -0.7, 0.0)),
    *({"scores": scores} for scores in (Scores.RISING, Scores.ONE_HOT)),
    {"score_std": 5.0},
    *({"value_scale": scale} for scale in (1e4, 1e-5)),
)
_LAYOUTS: tuple[Level, ...] = (
    *({"layout": lies} for lies in (Layout.SLICED, Layout.BROADCAST, Layout.OFFSET, Layout.PACKED)),
    *(
        {"apart": name, "lies": lies}
        for name in ("query", "key", "value")
        for lies in (Layout.TRANSPOSED, Layout.SLICED)
    ),
)
_CALLS: tuple[Level, ...] = (
    *({"needs": name} for name in ("nothing", "query", "key", "value", "attn_mask")),
    *({"cotangent": kind} for kind in COTANGENTS),
    {"again": True},
)
_MORE: tuple[Level, ...] = (
    {"window_left": 3},
    {"window_left": 0},
    {"window_left": 30},
    {"window_right": 1},
    {"softcap": 30.0},
    {"rotary_base": 10000.0},
    *({"query_start": start} for start in (0, 20)),
    {"output_gates": OutputGates.HEAD},
    {"key_splits": KeySplits.EMPTY},
    {"page_size": 16},
    {"page_size": 3, "shared_prefix": True},
    {"codes": Codes.E4M3},
    *({"codes": Codes.INT8, "scaled_by": by} for by in (ScaledBy.HEAD, ScaledBy.TOKEN)),
    {"dropout_seed": 1},
    {"evaluation": True},
)
"""Other values of options than those of their examples."""
_APART = (Feature.DROPOUT, Feature.EVALUATION)


def _of_options() -> Iterator[Level]:
    for option in CASE_OPTIONS:
        if option.feature not in _APART:
            yield {name: value for name, value in vars(option.example).items() if value != getattr(NOTHING, name)}


OFTEN: tuple[Level, ...] = (
    *({"mask": kind} for kind in (MaskKind.BOOL, MaskKind.FLOAT, MaskKind.INFINITE)),
    *({"padding": p} for p in (Padding.RIGHT, Padding.LENGTHS)),
    {"causal": True},
    {"scale": 0.3},
    {"num_heads": 4, "num_kv_heads": 2},
    {"batch": 1},
    {"query_length": 1, "key_length": 131},
    {"query_length": 67, "key_length": 67, **ONE},
    {"layout": Layout.TRANSPOSED},
    *_of_options(),
)
"""What mistakes are often about: any three of these meet, and each of them meets each level."""
LEVELS: tuple[Level, ...] = (*OFTEN, *_SIZES, *_MASKS, *_NUMBERS, *_LAYOUTS, *_MORE, *_CALLS)
"""What can be uncommon about a call; all that is not named here is as in `USUAL`."""

_HIDING = {
    *("padding", "causal", "scores", "packing", "query_start", "query_starts", "window_left", "window_right", "pattern")
}


def hides(level: Level) -> bool:
    """Whether some keys count little or not at all with it, so that what is wrong with them does not show."""
    masks = level.get("mask") in (MaskKind.BOOL, MaskKind.INFINITE)
    return masks or level.get("query_length") == 1 or bool(_HIDING & level.keys())


def blinds(level: Level) -> bool:
    """Whether little is left to be wrong with it, so that it shows only what is wrong with itself."""
    alone = level.get("key_length") == 1 or level.get("window_left") == 0
    return alone or level.get("scale") == 0.0 or level.get("scores") is Scores.ONE_HOT


def covers_up(level: Level, other: Level) -> bool:
    """Whether what is wrong with the other may not show beside the first.

    A given scale covers up what the width does to the one that is not given; the shape of a mask and what it leaves,
    what is wrong with others; the gradient of one input, that of the others.
    """
    if level.keys() & {"needs", "cotangent"}:
        return not other.keys() & {"needs", "cotangent"}
    if level.keys() & {"mask_shape", "pattern"}:
        return "mask" in other
    return "scale" in level and "d_k" in other
