"""Cases drawn at random, by number: what the bounds are tried on."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from spec.cases import Case, MaskKind, MaskShape, ModuleForm, Padding, Pattern, Scores, Sharing, Sizes

T = TypeVar("T")

LONGEST = 300
PATTERNS = (
    Pattern.RANDOM,
    Pattern.RANDOM,
    Pattern.SEGMENTS,
    Pattern.FIRST_TILE,
    Pattern.SINGLE_KEY,
    Pattern.EMPTY_ROW,
)
PADDINGS = (Padding.NONE, Padding.NONE, Padding.RIGHT, Padding.LEFT, Padding.HOLES, Padding.QUERY_LENGTHS)


def drawn_case(number: int, longest: int = LONGEST) -> Case:
    """An op case: up to `longest` keys, scores with standard deviations of 0.5 to 30, every mask."""
    rng = np.random.default_rng([number, longest])
    sizes = Sizes(
        batch=int(rng.integers(1, 4)),
        num_heads=int(rng.integers(1, 4)),
        query_length=int(rng.integers(1, 33)),
        key_length=round(_spread_out(rng, 1, longest)),
        d_k=_one_of(rng, (1, 2, 3, 4, 8, 16, 33, 64)),
        d_v=_one_of(rng, (1, 2, 3, 5, 8, 16, 33)),
    )
    return Case(
        sizes=sizes,
        seed=number,
        scores=_one_of(rng, (*[Scores.NORMAL] * 8, Scores.RISING, Scores.EQUAL)),
        spread=_spread_out(rng, 0.5, 30.0),
        scale=_one_of(rng, (None, None, None, 0.3, 1.0, -0.5)),
        mask=_one_of(rng, tuple(MaskKind)),
        mask_shape=_one_of(rng, tuple(MaskShape)),
        pattern=_one_of(rng, PATTERNS),
        padding=_one_of(rng, PADDINGS),
        causal=bool(rng.integers(4) == 0),
    )


def drawn_module_case(number: int, longest: int = 64) -> Case:
    """The same as self-attention of a module as wide as its heads together, with all biases."""
    case = drawn_case(number, longest)
    s = case.sizes
    width = s.num_heads * s.d_k
    form = ModuleForm(
        Sharing.SELF, width, width, width, width, bias=True, output_projection=True, output_bias=True
    )
    square = case.sized(d_v=s.d_k, query_length=s.key_length)
    return Case(**{**vars(square), "module": form, "scores": Scores.NORMAL, "scale": None})


def _one_of(rng: np.random.Generator, choices: tuple[T, ...]) -> T:
    return choices[int(rng.integers(len(choices)))]


def _spread_out(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
