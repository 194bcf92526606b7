"""What the bounds are tried on: cases drawn at random, by number, and a few chosen ones."""

from typing import Any, TypeVar

import numpy as np

from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Scores, Sizes, Values
from attention_conformance.spec.features import Extension, Packing

T = TypeVar("T")

LONGEST, LONGEST_OF_FAMILY = 300, 200
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


def drawn_family_case(number: int, longest: int = LONGEST_OF_FAMILY) -> Case:
    """An op case with one to four of the family's options, up to `longest` keys, and scores of ordinary sizes."""
    rng = np.random.default_rng([number, longest, 7])
    keys = round(spread_out(rng, 1, longest))
    causal = bool(rng.integers(2))
    packing = one_of(rng, (*[Packing.NONE] * 5, Packing.SEGMENTS, Packing.LENGTHS))
    queries = keys if causal and packing is not Packing.NONE else int(rng.integers(1, min(keys, 32) + 1))
    shared = int(rng.integers(1, 4))
    groups = one_of(rng, (1, 1, 2, 3))
    sizes = Sizes(
        batch=int(rng.integers(1, 3)),
        num_heads=groups * shared,
        num_kv_heads=shared,
        query_length=min(queries, 48),
        key_length=min(keys, 48) if causal and packing is not Packing.NONE else keys,
        d_k=one_of(rng, (2, 4, 8, 16, 64)),
        d_v=one_of(rng, (1, 2, 3, 8, 16)),
    )
    return Case(
        sizes=sizes,
        seed=number,
        score_std=spread_out(rng, 0.5, 12.0),
        mask=one_of(rng, (*[MaskKind.NONE] * 3, *MaskKind)),
        mask_shape=one_of(rng, (MaskShape.FULL, MaskShape.SHARED, MaskShape.KEYS)),
        padding=one_of(rng, (Padding.NONE, Padding.NONE, Padding.RIGHT)),
        causal=causal,
        extension=_drawn_extension(rng, packing, sizes, causal),
    )


def _drawn_extension(rng: np.random.Generator, packing: Packing, sizes: Sizes, causal: bool) -> Extension:
    plain = packing is Packing.NONE
    start = int(rng.integers(0, max(1, sizes.key_length - sizes.query_length) + 1)) if plain else None
    drawn: dict[str, Any] = {
        "window_left": int(rng.integers(0, 2 * sizes.key_length)) if plain else None,
        "softcap": spread_out(rng, 1.0, 60.0),
        "rotary_base": one_of(rng, (10.0, 1e4, 5e5)),
        "query_start": start if causal or rng.integers(2) else None,
        "alibi": True,
        "relative_bias": int(rng.integers(1, 9)),
        "sinks": True,
        "zero_attn": True,
        "head_gates": True,
        "dropout": one_of(rng, (0.1, 0.5)),
        "dropout_seed": int(rng.integers(1000)),
    }
    without_effect = ("query_start", "dropout_seed")
    names = [name for name in drawn if name not in without_effect]
    chosen = rng.choice(names, size=int(rng.integers(1, 5)), replace=False)
    return Extension(packing=packing, **{name: drawn[name] for name in (*chosen, *without_effect)})
