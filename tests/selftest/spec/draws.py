"""What the bounds are tried on: cases drawn at random, by number, and a few chosen ones."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Scores, Sizes, Values

T = TypeVar("T")

LONGEST = 300
PATTERNS = (Pattern.RANDOM, Pattern.RANDOM, Pattern.SEGMENTS, Pattern.FIRST_TILE, Pattern.SINGLE_KEY, Pattern.EMPTY_ROW)
PADDINGS = (Padding.NONE, Padding.NONE, Padding.RIGHT, Padding.LEFT, Padding.HOLES, Padding.QUERY_LENGTHS)

ORDINARY = Case(sizes=Sizes(key_length=7))
"""Seven keys with a largest weight of about a half."""
MANY_EQUAL = Case(sizes=Sizes(key_length=1500), scores=Scores.EQUAL, values=Values.CONSTANT)
"""Weights of 1/1500, beneath the range of an 8-bit float, and values that do not cancel."""
GENTLE = Case(sizes=Sizes(key_length=4), score_std=0.5)
"""Few keys and small scores, where bfloat16 leaves the gradients some digits."""
POINTED = (ORDINARY, MANY_EQUAL, GENTLE)
"""On one of these every wrong answer shows in every dtype."""


def drawn_case(number: int, longest: int = LONGEST) -> Case:
    """An op case: up to `longest` keys, scores with standard deviations of 0.5 to 30, every mask."""
    rng = np.random.default_rng([number, longest])
    sizes = Sizes(
        batch=int(rng.integers(1, 4)),
        num_heads=int(rng.integers(1, 4)),
        query_length=int(rng.integers(1, 33)),
        key_length=round(spread_out(rng, 1, longest)),
        d_k=one_of(rng, (1, 2, 3, 4, 8, 16, 33, 64)),
        d_v=one_of(rng, (1, 2, 3, 5, 8, 16, 33)),
    )
    causal = bool(rng.integers(4) == 0)
    return Case(
        sizes=sizes,
        seed=number,
        scores=one_of(rng, (*[Scores.NORMAL] * 8, Scores.RISING, Scores.EQUAL)),
        score_std=spread_out(rng, 0.5, 30.0),
        # A kernel of torch that masks the future before it scales is known to fail on negative scales.
        scale=None if causal else one_of(rng, (None, None, None, 0.3, 1.0, -0.5)),
        mask=one_of(rng, tuple(MaskKind)),
        mask_shape=one_of(rng, tuple(MaskShape)),
        pattern=one_of(rng, PATTERNS),
        padding=one_of(rng, PADDINGS),
        causal=causal,
    )


def one_of(rng: np.random.Generator, choices: tuple[T, ...]) -> T:
    return choices[int(rng.integers(len(choices)))]


def spread_out(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
