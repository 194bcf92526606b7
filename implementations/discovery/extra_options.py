"""Extra options: what a candidate may take beyond the core, and a problem that shows each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from attention_conformance.implementations.discovery.findings import OFFERED
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Extension, Feature, Packing
from attention_conformance.spec.problem import Array


@dataclass(frozen=True)
class ExtraOption:
    """One thing beyond the core.

    Attributes:
        feature: what a candidate that has it claims; findings on it have its name.
        extension: what a problem sets to use it, in addition to the flag `causal`.
        arrays: (num_heads, key_length) -> its arrays in float64; parameters of a module are not among them.
        convention: the field of `Conventions` on which its answer depends, or nothing.
    """

    feature: Feature
    extension: Extension
    arrays: Callable[[int, int], Mapping[str, Array]] = lambda heads, keys: {}
    convention: str = ""
    causal: bool = False
    module_only: bool = False

    @property
    def meanings(self) -> Mapping[str, Conventions]:
        """The conventions under which the reference gives the known answers, by the names of these answers."""
        if not self.convention:
            return {OFFERED: Conventions()}
        values = type(getattr(Conventions(), self.convention))
        return {str(value): Conventions().claiming({self.convention.replace("_", "-"): value}) for value in values}


def drawn(heads: int, *shape: int) -> Array:
    """Numbers between 0.3 and 1.4, all different."""
    return np.random.default_rng(8).uniform(0.3, 1.4, (heads, *shape))


def _segments(heads: int, keys: int) -> Mapping[str, Array]:
    ids = np.array([[0] * 3 + [1] * (keys - 3), [0] * 4 + [1] * (keys - 4)])
    return {"query_segments": ids, "key_segments": ids.copy()}


def _documents(heads: int, keys: int) -> Mapping[str, Array]:
    return {name: np.array([3, keys - 3]) for name in ("query_lengths", "key_lengths")}


EXTRA_OPTIONS = (
    ExtraOption(Feature.WINDOW, Extension(window_left=2, window_right=1), convention="window_count"),
    ExtraOption(Feature.SOFTCAP, Extension(softcap=1.5)),
    ExtraOption(Feature.ROTARY, Extension(rotary_base=50.0), convention="rotary_pairing"),
    ExtraOption(Feature.QUERY_START, Extension(query_start=2), causal=True),
    ExtraOption(Feature.ALIBI, Extension(alibi=True), lambda heads, _: {"alibi_slopes": drawn(heads)}),
    ExtraOption(Feature.RELATIVE_BIAS, Extension(relative_bias=2), lambda heads, _: {"relative_bias": drawn(heads, 5)}),
    ExtraOption(Feature.SINKS, Extension(sinks=True), lambda heads, _: {"sinks": drawn(heads)}),
    ExtraOption(Feature.ZERO_ATTN, Extension(zero_attn=True)),
    ExtraOption(Feature.BIAS_KV, Extension(bias_kv=True), module_only=True),
    ExtraOption(Feature.HEAD_GATES, Extension(head_gates=True), lambda heads, _: {"head_gates": drawn(heads)}),
    ExtraOption(Feature.SEGMENTS, Extension(packing=Packing.SEGMENTS), _segments),
    ExtraOption(Feature.CUMULATIVE_LENGTHS, Extension(packing=Packing.LENGTHS), _documents),
)
DROPOUT = Extension(dropout=0.5, dropout_seed=1)
