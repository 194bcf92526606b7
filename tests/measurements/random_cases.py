"""Random cases for implementations of others: sizes, masks and options, drawn from a number."""

from collections.abc import Set
from dataclasses import replace

import numpy as np

from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding
from attention_conformance.spec.features import NOTHING, Extension, Feature

OPTIONS = frozenset({Feature.GROUPED, Feature.WINDOW, Feature.VALID_LENS, Feature.CAUSAL})
"""What cases may have unless others are given."""


def random_case(number: int, options: Set[Feature] = OPTIONS) -> Case:
    """With some of these options, drawn so that no row is left without a key."""
    rng = np.random.default_rng([number, 29])
    heads = int(rng.choice([1, 2, 3, 4, 6]))
    groups = int(rng.choice([n for n in (1, 2, 3) if heads % n == 0]))
    keys = int(rng.integers(2, 20))
    queries = int(rng.integers(1, keys + 1))
    width = int(rng.integers(1, 17))
    kind = (MaskKind.NONE, MaskKind.BOOL, MaskKind.FLOAT)[rng.integers(3)]
    masked = kind is not MaskKind.NONE
    window = not masked and rng.integers(3) == 0 and Feature.WINDOW in options
    sides = (int(side) for side in rng.integers(4, size=2))
    case = Case(
        seed=number,
        score_std=float(rng.uniform(0.3, 6.0)),
        scale=float(rng.uniform(0.1, 1.5)) if rng.integers(2) else None,
        mask=kind,
        mask_shape=(MaskShape.FULL, MaskShape.SAMPLE)[rng.integers(2)],
        causal=not masked and bool(rng.integers(2)),
        padding=Padding.LENGTHS if not masked and not window and rng.integers(2) else Padding.NONE,
        extension=_extension(options, tuple(sides) if window else None, rng),
    )
    sizes = {"batch": int(rng.integers(1, 4)), "query_length": queries, "key_length": keys}
    kv_heads = heads // groups if Feature.GROUPED in options else heads
    return case.sized(num_heads=heads, num_kv_heads=kv_heads, d_k=width, d_v=width, **sizes)


def _extension(options: Set[Feature], window: tuple[int, ...] | None, rng: np.random.Generator) -> Extension:
    made = NOTHING if window is None else replace(NOTHING, window_left=window[0], window_right=window[1])
    if Feature.SOFTCAP in options and rng.integers(2):
        made = replace(made, softcap=float(rng.uniform(2.0, 20.0)))
    if Feature.SINKS in options:
        made = replace(made, sinks=bool(rng.integers(2)))
    if Feature.BUCKETED_BIAS in options and rng.integers(2):
        made = replace(made, bucketed_bias=8, max_distance=11, bidirectional=bool(rng.integers(2)))
    return made
