"""The options of a case that need a claim: their examples, and the arguments by which callables take them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from attention_conformance.spec.features import NOTHING, Extension, Feature, Packing, PositionIds, QkNorm, RotaryTables
from attention_conformance.spec.gates_and_splits import KeySplits, OutputGates
from attention_conformance.spec.stored_keys import Codes


@dataclass(frozen=True)
class CaseOption:
    """An option of a case, and the keyword arguments by which callables take it.

    Attributes:
        feature: what an implementation that supports it claims.
        setting: the field or property of `Extension` that differs from the default where a case has it. Its value is
            passed, unless the problem has arrays with the names of the arguments.
        example: a case that has it; options are detected, and combined with each other, by their examples.
        keywords: the suite's name of each argument, and the names that others give it.
        neutral: what a required parameter is given where a problem does not use the option.
        draw: (generator, num_heads, extension) -> its array, of no round numbers.
        unfelt: the number that fills its array where that has no effect, for callables that need one in each call.
        convention: the field of `Conventions` on which the answer depends, or nothing.
        presumed: what else the example has, without which the option means nothing.
    """

    feature: Feature
    setting: str
    example: Extension
    keywords: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    neutral: object = None
    draw: Callable[[Any, int, Extension], Any] | None = None
    unfelt: float | None = None
    convention: str = ""
    presumed: Extension = NOTHING

    def used(self, extension: Extension) -> bool:
        """Whether a case with this extension has it."""
        return bool(getattr(extension, self.setting) != getattr(NOTHING, self.setting))

    def without_effect(self, heads: int) -> Any:
        """Its array where it changes nothing, for so many heads; None where it has none."""
        if self.draw is None or self.unfelt is None:
            return None
        return np.full(self.draw(np.random.default_rng(0), heads, self.example).shape, self.unfelt)


def _slopes(rng: Any, heads: int, usual: bool) -> Any:
    return interleaved_slopes(heads) if usual else rng.uniform(0.1, 0.9, heads)


def interleaved_slopes(heads: int) -> Any:
    """(H,), those of ALiBi: of powers of two 2 ** (-8 h / H); of others, every second one of twice as many heads, too.

    The rule `alibi-rule=interleaved`, written out once more for what is drawn: the reference has its own.
    """
    below = 1 << (max(1, heads).bit_length() - 1)
    few, many = (2.0 ** (-8.0 * np.arange(1, n + 1) / n) for n in (below, 2 * below))
    return np.concatenate([few, many[::2]])[:heads]


CASE_OPTIONS = (
    CaseOption(Feature.DROPOUT, "dropout_p", Extension(dropout=0.5, dropout_seed=1), {"dropout_p": ()}),
    CaseOption(Feature.EVALUATION, "training", Extension(evaluation=True), {"training": ()}),
    CaseOption(
        Feature.WINDOW,
        "window_size",
        Extension(window_left=2, window_right=1),
        {"window_size": ()},
        neutral=(-1, -1),
        convention="window_count",
    ),
    CaseOption(
        Feature.SOFTCAP,
        "softcap",
        Extension(softcap=2.0),
        {
            "softcap": (
                "logits_soft_cap",
                "logit_cap",
                "soft_cap",
                "logit_softcap",
                "logits_softcap",
                "attn_logits_soft_cap",
                "attn_logit_softcapping",
                "attn_logit_softcap",
            )
        },
    ),
    CaseOption(
        Feature.ROTARY, "rotary_base", Extension(rotary_base=100.0), {"rotary_base": ()}, convention="rotary_pairing"
    ),
    CaseOption(
        Feature.PARTIAL_ROTARY,
        "rotary_dim",
        Extension(rotary_base=100.0, rotary_dim=2),
        {"rotary_dim": ("rotary_embedding_dim", "rotary_ndims")},
        presumed=Extension(rotary_base=100.0),
    ),
    CaseOption(
        Feature.POSITION_IDS,
        "position_ids",
        Extension(rotary_base=100.0, position_ids=PositionIds.ASCENDING),
        {
            "query_positions": ("q_position_ids", "q_positions", "position_ids"),
            "key_positions": ("k_position_ids", "kv_position_ids", "k_positions", "kv_positions"),
        },
        presumed=Extension(rotary_base=100.0),
    ),
    CaseOption(
        Feature.ROTARY_TABLES,
        "rotary_tables",
        Extension(rotary_tables=RotaryTables.POSITIONS),
        {"rotary_cos": ("cos", "cos_cache"), "rotary_sin": ("sin", "sin_cache")},
        convention="rotary_pairing",
    ),
    CaseOption(Feature.QUERY_START, "query_start", Extension(query_start=2), {"query_start": ("q_offset",)}),
    CaseOption(
        Feature.QUERY_STARTS, "query_starts", Extension(query_starts=True), {"query_starts": ("q_offsets", "q_starts")}
    ),
    CaseOption(
        Feature.QUERY_LENS,
        "query_lens",
        Extension(query_lens=True),
        {"query_lens": ("query_seq_lengths", "q_seq_lens", "q_lens")},
        convention="padded_queries",
    ),
    CaseOption(
        Feature.SINKS,
        "sinks",
        Extension(sinks=True),
        {"sinks": ("sink", "learnable_sink", "attn_sink", "attn_sinks", "sink_logits", "s_aux")},
        draw=lambda rng, heads, _: 1.5 * rng.standard_normal(heads),
        unfelt=-np.inf,
    ),
    CaseOption(
        Feature.ALIBI,
        "alibi",
        Extension(alibi=True),
        {"alibi_slopes": ("slopes",)},
        draw=lambda rng, heads, extension: _slopes(rng, heads, extension.usual_slopes),
        unfelt=0.0,
    ),
    CaseOption(
        Feature.ALIBI_SAMPLES,
        "alibi_samples",
        Extension(alibi=True, alibi_samples=True),
        presumed=Extension(alibi=True),
    ),
    CaseOption(
        Feature.RELATIVE_BIAS,
        "relative_bias",
        Extension(relative_bias=2),
        {"relative_bias": ()},
        draw=lambda rng, heads, extension: rng.standard_normal((heads, 2 * extension.relative_bias + 1)),
        unfelt=0.0,
    ),
    CaseOption(Feature.ZERO_ATTN, "zero_attn", Extension(zero_attn=True), {"add_zero_attn": ()}, neutral=False),
    CaseOption(Feature.BIAS_KV, "bias_kv", Extension(bias_kv=True)),
    CaseOption(
        Feature.HEAD_GATES,
        "head_gates",
        Extension(head_gates=True),
        {"head_gates": ()},
        draw=lambda rng, heads, _: rng.uniform(0.4, 1.6, heads) * [-1.0 if h % 3 == 1 else 1.0 for h in range(heads)],
        unfelt=1.0,
    ),
    CaseOption(Feature.OUTPUT_GATES, "output_gates", Extension(output_gates=OutputGates.CHANNEL), {"gate_logits": ()}),
    CaseOption(
        Feature.QK_NORM,
        "qk_norm",
        Extension(qk_norm=QkNorm.HEAD),
        {
            "query_norm": (),
            "key_norm": (),
        },
        convention="norm_kind",
    ),
    CaseOption(
        Feature.NORM_EPSILON,
        "norm_epsilon",
        Extension(qk_norm=QkNorm.HEAD, norm_epsilon=0.25),
        {"norm_epsilon": ("norm_eps", "qk_norm_eps")},
        presumed=Extension(qk_norm=QkNorm.HEAD),
    ),
    CaseOption(
        Feature.KEY_SPLITS,
        "key_splits",
        Extension(key_splits=KeySplits.PAIR),
        {"split_lengths": ("kv_split_lengths", "chunk_lengths")},
    ),
    CaseOption(
        Feature.BUCKETED_BIAS,
        "bucketed_bias",
        Extension(bucketed_bias=6),
        {"bucketed_bias": ()},
        draw=lambda rng, heads, extension: rng.standard_normal((extension.bucketed_bias, heads)),
        unfelt=0.0,
    ),
    CaseOption(
        Feature.BUCKET_DISTANCE,
        "max_distance",
        Extension(bucketed_bias=6, max_distance=5),
        {"max_distance": ()},
        presumed=Extension(bucketed_bias=6),
    ),
    CaseOption(
        Feature.BUCKET_DIRECTIONS,
        "bidirectional",
        Extension(bucketed_bias=6, bidirectional=False),
        {"bidirectional": ()},
        neutral=True,
        presumed=Extension(bucketed_bias=6),
    ),
    CaseOption(
        Feature.SEGMENTS,
        "has_segments",
        Extension(packing=Packing.SEGMENTS),
        {"query_segments": ("q_segment_ids", "segment_ids"), "key_segments": ("kv_segment_ids",)},
    ),
    CaseOption(
        Feature.CUMULATIVE_LENGTHS,
        "has_lengths",
        Extension(packing=Packing.LENGTHS),
        {"cu_seqlens_q": (), "cu_seqlens_k": ()},
    ),
    CaseOption(
        Feature.PAGED,
        "page_size",
        Extension(page_size=3),
        {"block_table": ("block_tables", "page_table"), "page_size": ()},
    ),
    CaseOption(
        Feature.CACHE_ROWS,
        "cache_rows",
        Extension(cache_rows=2),
        {"cache_batch_idx": (), "cache_rows": ()},
    ),
    CaseOption(
        Feature.QUANTISED,
        "codes",
        Extension(codes=Codes.INT8),
        {"key_scale": ("k_scale", "k_descale"), "value_scale": ("v_scale", "v_descale"), "codes": ()},
    ),
    CaseOption(Feature.LATENT, "latent", Extension(latent=6, decoupled=2), {"w_uk": (), "w_uv": ()}),
)
"""In the order in which their arrays are drawn."""


@lru_cache(maxsize=4096)
def used_options(extension: Extension) -> tuple[CaseOption, ...]:
    """Those that a case with this extension has; kept, as each call of a candidate asks for them."""
    return tuple(option for option in CASE_OPTIONS if option.used(extension))


def lacks_presumed(extension: Extension) -> bool:
    """Whether it has an option without what that presumes, and so means nothing; tables rotate as a base does."""
    return any(not _presumed(option, extension) for option in used_options(extension))


def _presumed(option: CaseOption, extension: Extension) -> bool:
    if option.presumed.rotates:
        return extension.rotates
    return all(other.used(extension) for other in CASE_OPTIONS if other.used(option.presumed))
