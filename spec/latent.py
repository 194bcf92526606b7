"""Latents: keys and values of all heads as one short row for each token, and the matrices that expand it."""

import numpy as np

from attention_conformance.spec.cases import Case
from attention_conformance.spec.problem import Array


def rotary_width(case: Case) -> int:
    """Components of query and key that are not expanded from the latent, the last ones; one at least is."""
    return min(case.extension.decoupled, case.sizes.d_k - 1)


def latent_rows(case: Case) -> Array:
    """(B, 1, Lk, r + d_rope): the latent of each token, and behind it the rotary part of its key."""
    s, rng = case.sizes, np.random.default_rng([case.seed, case.sizes.num_heads, 7])
    width = case.extension.latent + rotary_width(case)
    return np.asarray(rng.standard_normal((s.batch, 1, s.key_length, width)) * case.score_std**0.5)


def up_projections(case: Case) -> dict[str, Array]:
    """`w_uk` (H, d_nope, r) and `w_uv` (H, d_v, r), such that keys have the size of the latent."""
    s, rank = case.sizes, case.extension.latent
    if not rank:
        return {}
    rng = np.random.default_rng([case.seed, s.num_heads, 8])
    widths = {"w_uk": (s.d_k - rotary_width(case), 1.0), "w_uv": (s.d_v, case.value_scale)}
    return {n: rng.standard_normal((s.num_heads, d, rank)) * (size * rank**-0.5) for n, (d, size) in widths.items()}
