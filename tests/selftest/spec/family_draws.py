"""Cases of the attention family drawn at random, by number: what its bounds are tried on."""

from __future__ import annotations

import numpy as np

from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Sizes
from attention_conformance.spec.features import Extension, Packing
from attention_conformance.tests.selftest.spec.draws import one_of, spread_out

LONGEST = 200


def drawn_family_case(number: int, longest: int = LONGEST) -> Case:
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
    drawn = Extension(
        window_left=int(rng.integers(0, 2 * sizes.key_length)) if plain else None,
        softcap=spread_out(rng, 1.0, 60.0),
        rotary_base=one_of(rng, (10.0, 1e4, 5e5)),
        query_start=start if causal or rng.integers(2) else None,
        alibi=True,
        relative_bias=int(rng.integers(1, 9)),
        sinks=True,
        zero_attn=True,
        head_gates=True,
        dropout=one_of(rng, (0.1, 0.5)),
        dropout_seed=int(rng.integers(1000)),
    )
    names = (
        "window_left",
        "softcap",
        "rotary_base",
        "alibi",
        "relative_bias",
        "sinks",
        "zero_attn",
        "head_gates",
        "dropout",
    )
    chosen = rng.choice(names, size=int(rng.integers(1, 5)), replace=False)
    asked = {name: getattr(drawn, name) for name in (*chosen, "query_start", "dropout_seed")}
    return Extension(packing=packing, **asked)
