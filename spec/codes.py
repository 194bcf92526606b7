"""Codes: keys and values as numbers of 8 bits, and the scales by which these are multiplied."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.spec.cases import Case
from attention_conformance.spec.problem import Array
from attention_conformance.spec.stored_keys import Codes, ScaledBy

Floats: TypeAlias = NDArray[np.float64]
LARGEST = {Codes.INT8: 127.0, Codes.E4M3: 448.0, Codes.E5M2: 448.0}
"""The largest code that is drawn: of e5m2, whose largest is 57344, such that products stay within float16."""
FORMS = {Codes.E4M3: (3, -6), Codes.E5M2: (2, -14)}
"""Bits of the fraction, and the exponent of the smallest normal number."""
BLOCKS = 3
SPREAD = 4.0
"""So many standard deviations have codes, at a scale of middle size."""


def scales(case: Case) -> dict[str, Array]:
    """`key_scale` and `value_scale`, no two alike: (B or 1, Hk or 1, Lk, n or 1, 1)."""
    kind, s = case.extension.codes, case.sizes
    if kind is Codes.NONE:
        return {}
    blocks = min(BLOCKS, s.key_length)
    shape = {
        ScaledBy.TENSOR: (1, 1, 1, 1),
        ScaledBy.HEAD: (1, s.kv_heads, 1, 1),
        ScaledBy.SAMPLE: (s.batch, s.kv_heads, 1, 1),
        ScaledBy.TOKEN: (s.batch, s.kv_heads, s.key_length, 1),
        ScaledBy.BLOCK: (s.batch, s.kv_heads, blocks, 1),
    }[case.extension.scaled_by]
    rng = np.random.default_rng([case.seed, s.num_heads, 6])
    sizes = {"key_scale": case.score_std**0.5, "value_scale": case.value_scale}
    return {name: rng.uniform(0.4, 1.6, shape) * (SPREAD * size / LARGEST[kind]) for name, size in sizes.items()}


def spread(scale: Array, length: int) -> Array:
    """A scale as it broadcasts to (B, Hk, Lk, d): that of each block for each of its tokens."""
    blocks = scale.shape[-2]
    if blocks in (1, length):
        return scale
    return np.repeat(scale, -(-length // blocks), -2)[..., :length, :]


def coded(rows: Array, scale: Array, kind: Codes) -> Array:
    """The nearest codes of rows (B, Hk, Lk, d)."""
    wanted = np.clip(rows / spread(scale, rows.shape[-2]), -LARGEST[kind], LARGEST[kind])
    if kind is Codes.INT8:
        return np.asarray(np.rint(wanted))
    bits, least = FORMS[kind]
    exponent = np.maximum(np.frexp(wanted)[1] - 1, least)
    step = np.ldexp(1.0, exponent - bits)
    return np.asarray(np.rint(wanted / step) * step)
