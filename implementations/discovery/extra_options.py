"""Extra options: what a candidate may take beyond the core, and a problem that shows each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from attention_conformance.spec.extensions import Extension, Packing
from attention_conformance.spec.features import Conventions, Feature, RotaryPairing, WindowCount
from attention_conformance.spec.problem import Array

OFFERED = "offered"


@dataclass(frozen=True)
class ExtraOption:
    """One thing beyond the core.

    Attributes:
        topic: what findings call it.
        feature: what a candidate that has it claims.
        extension: what a problem sets to use it, in addition to the flag `causal`.
        arrays: (num_heads, key_length) -> its arrays in float64; parameters of a module are not among them.
        meanings: the conventions under which the reference gives the known answers, by the names of these answers.
    """

    topic: str
    feature: Feature
    extension: Extension
    arrays: Callable[[int, int], Mapping[str, Array]] = lambda heads, keys: {}
    meanings: Mapping[str, Conventions] = field(default_factory=lambda: {OFFERED: Conventions()})
    causal: bool = False
    module_only: bool = False


def drawn(heads: int, *shape: int) -> Array:
    """Numbers between 0.3 and 1.4, all different."""
    return np.random.default_rng(8).uniform(0.3, 1.4, (heads, *shape))


def _segments(heads: int, keys: int) -> Mapping[str, Array]:
    ids = np.array([[0] * 3 + [1] * (keys - 3), [0] * 4 + [1] * (keys - 4)])
    return {"query_segments": ids, "key_segments": ids.copy()}


def _documents(heads: int, keys: int) -> Mapping[str, Array]:
    return {name: np.array([3, keys - 3]) for name in ("query_lengths", "key_lengths")}


EXTRA_OPTIONS = (
    ExtraOption(
        "window",
        Feature.WINDOW,
        Extension(window_left=2, window_right=1),
        meanings={str(each): Conventions(window_count=each) for each in WindowCount},
    ),
    ExtraOption("softcap", Feature.SOFTCAP, Extension(softcap=1.5)),
    ExtraOption(
        "rotary embedding",
        Feature.ROTARY,
        Extension(rotary_base=50.0),
        meanings={str(each): Conventions(rotary_pairing=each) for each in RotaryPairing},
    ),
    ExtraOption("query start", Feature.QUERY_START, Extension(query_start=2), causal=True),
    ExtraOption("ALiBi", Feature.ALIBI, Extension(alibi=True), lambda heads, _: {"alibi_slopes": drawn(heads)}),
    ExtraOption(
        "relative bias",
        Feature.RELATIVE_BIAS,
        Extension(relative_bias=2),
        lambda heads, _: {"relative_bias": drawn(heads, 5)},
    ),
    ExtraOption("sinks", Feature.SINKS, Extension(sinks=True), lambda heads, _: {"sinks": drawn(heads)}),
    ExtraOption("key of zeros", Feature.ZERO_ATTN, Extension(zero_attn=True)),
    ExtraOption("learned key and value", Feature.BIAS_KV, Extension(bias_kv=True), module_only=True),
    ExtraOption(
        "head gates", Feature.HEAD_GATES, Extension(head_gates=True), lambda heads, _: {"head_gates": drawn(heads)}
    ),
    ExtraOption("segments", Feature.SEGMENTS, Extension(packing=Packing.SEGMENTS), _segments),
    ExtraOption("cumulative lengths", Feature.CUMULATIVE_LENGTHS, Extension(packing=Packing.LENGTHS), _documents),
)
DROPOUT = Extension(dropout=0.5, dropout_seed=1)
