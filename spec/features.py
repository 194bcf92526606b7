"""Features: what an implementation may claim, and the options of a case that need a claim."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Scope(StrEnum):
    """The two levels at which attention is offered."""

    OP = "op"
    """A function of query, key and value with a head axis, (B, H, L, d)."""
    MODULE = "module"
    """Projections, heads and perhaps an output projection around the op, (B, L, width)."""


class Feature(StrEnum):
    """One thing that an implementation offers. A claimed feature is tested, an unclaimed one is not."""

    CORE = "core"
    """softmax(scale * Q K^T) V; every implementation claims it."""
    HEADS = "heads"
    """More than one head."""
    VALUE_WIDTH = "value-width"
    """d_v may differ from d_k."""
    CROSS = "cross"
    """Queries and keys may come from different sequences, of different lengths."""
    KEY_VALUE = "key-value"
    """Key and value may be two different inputs."""
    SCALE = "scale"
    """The caller may give the factor that multiplies the scores."""
    BOOL_MASK = "bool-mask"
    """A boolean attention mask."""
    FLOAT_MASK = "float-mask"
    """A float attention mask that is added to the scores."""
    KEY_PADDING = "key-padding"
    """A boolean mask (B, Lk) over the keys of each sample."""
    VALID_LENS = "valid-lens"
    """A count of leading valid keys, a sample (B,) or a query (B, Lq)."""
    CAUSAL = "causal"
    """A flag by which no query sees a later key."""
    WEIGHTS = "weights"
    """Returns the attention weights of every head."""
    AVERAGED_WEIGHTS = "averaged-weights"
    """Returns the mean of the attention weights over the heads."""
    LOG_SUM_EXP = "log-sum-exp"
    """Returns the log-sum-exp of every row of scores."""
    GRADIENTS = "gradients"
    """Differentiable in all inputs and parameters."""
    MASK_GRADIENT = "mask-gradient"
    """Differentiable in the float mask."""
    PROJECTIONS = "projections"
    """Learned maps of the inputs to query, key and value."""
    MODEL_WIDTH = "model-width"
    """The input width is free: it need not be H * d_k."""
    INPUT_WIDTHS = "input-widths"
    """Query, key and value inputs may differ in width."""
    BIAS = "bias"
    """The projections of query, key and value may have biases."""
    OUTPUT_PROJECTION = "output-projection"
    """A learned map of the concatenated heads to the output."""
    OUTPUT_BIAS = "output-bias"
    """The output projection may have a bias."""
    VIEWS = "views"
    """Takes strided, offset and broadcast views of arrays."""
    EMPTY_SIZES = "empty-sizes"
    """Takes a batch, a query sequence or a key sequence of length 0."""
    ALTERNATIVES = "alternatives"
    """Can be called in more than one way."""
    CONTAINMENT = "containment"
    """NaN and infinity in masked keys and values stay out of the output."""
    GROUPED = "grouped"
    """Fewer key and value heads than query heads."""
    DROPOUT = "dropout"
    """Drops weights at random."""
    WINDOW = "window"
    """A limit on how far a query sees to the left and to the right."""
    SOFTCAP = "softcap"
    """Scores are kept below a bound by a hyperbolic tangent."""
    ROTARY = "rotary"
    """Rotates query and key by angles that grow with their positions."""
    ALIBI = "alibi"
    """Subtracts a multiple of the distance from the scores, a slope for each head."""
    ALIBI_SLOPES = "alibi-slopes"
    """Offers the slopes for a number of heads."""
    RELATIVE_BIAS = "relative-bias"
    """Adds a learned bias for each head and distance to the scores."""
    SINUSOIDS = "sinusoids"
    """Offers the sinusoidal encoding of positions."""
    SINKS = "sinks"
    """A learned logit for each head that takes a part of the softmax."""
    ZERO_ATTN = "zero-attn"
    """A key and a value of zeros in addition to those given."""
    BIAS_KV = "bias-kv"
    """A learned key and value in addition to those given."""
    QUERY_START = "query-start"
    """The caller may give the position of the first query in the key sequence."""
    CACHE = "cache"
    """Can be fed a sequence piece by piece, keeping keys and values."""
    STATIC_CACHE = "static-cache"
    """The cache may have room for more than it holds."""
    RING_CACHE = "ring-cache"
    """The cache may keep only the last keys, where a window allows it."""
    SEGMENTS = "segments"
    """Several documents in one sequence, separated by segment ids."""
    CUMULATIVE_LENGTHS = "cumulative-lengths"
    """Several documents in one sequence, separated by their lengths."""
    HEAD_GATES = "head-gates"
    """A factor for the output of each head."""
    EVALUATION = "evaluation"
    """Has a mode for training and one for evaluation."""
    SAVED = "saved"
    """Its parameters can be saved and loaded."""
    COPIED = "copied"
    """Can be copied, and stored whole."""
    UNBATCHED = "unbatched"
    """Takes inputs without a batch axis."""
    AUTOCAST = "autocast"
    """Runs under automatic mixed precision."""
    VMAP = "vmap"
    """Can be vectorised over an extra axis."""
    COMPILED = "compiled"
    """Can be compiled ahead of its first call."""
    EXPORTED = "exported"
    """Can be exported as a graph."""
    NO_GRAD = "no-grad"
    """Answers while no gradients are recorded."""
    DOUBLE_BACKWARD = "double-backward"
    """Its gradients are differentiable."""
    LINEAR_MEMORY = "linear-memory"
    """Needs memory linear in the lengths, beyond masks."""


class Packing(StrEnum):
    """How several documents that share one sequence are separated."""

    NONE = "none"
    SEGMENTS = "segments"
    """A segment id for each query and each key; equal ids see each other."""
    LENGTHS = "lengths"
    """The lengths of the documents, one after another, as cumulative lengths count them."""
    EMPTY_SEGMENT = "empty-segment"
    """SEGMENTS, and one of them has queries but no key."""
    EMPTY_DOCUMENT = "empty-document"
    """LENGTHS, and one document has queries but no key."""


@dataclass(frozen=True)
class Extension:
    """What a problem has beyond the core. The default adds nothing.

    Positions count along the key sequence: key j is at position j, query i at `query_start` + i, or where the claimed
    causal alignment puts it; in a packed sequence both count from the start of their own document.

    Attributes:
        window_left: a query at position i sees no key before i - window_left; None: no limit.
        window_right: a query at position i sees no key after i + window_right; None: no limit.
        softcap: scores become softcap * tanh(scores / softcap) after the scale, before biases and masks.
        rotary_base: query and key are rotated by the angles position * rotary_base ** (-2 i / d_k).
        query_start: the position of the first query.
        alibi: a slope for each head is given; slope * distance is subtracted from the scores.
        relative_bias: the largest distance with a learned bias of its own, farther ones share the last; 0: none.
        sinks: a learned logit for each head joins the sum of the softmax, without a value.
        zero_attn: a key and value of zeros, which every query sees, follow the others.
        bias_kv: a learned key and value, which every query sees, follow the others.
        head_gates: a factor for each head multiplies its output.
        packing: how documents are separated.
        dropout: the probability with which a weight is dropped.
        dropout_seed: seeds the generator that chooses which; negative: the generator is used as it is. If it is not 0,
            the probability is given even if that is 0.
        evaluation: a module is in evaluation mode, whatever its dropout.
        chunks: the sequence is fed through a cache in pieces of these lengths; empty: at once.
        cache_length: positions that the cache has room for: more than the sequence has (static), or fewer (ring, where
            a window keeps queries from what was overwritten); 0: it grows.
    """

    window_left: int | None = None
    window_right: int | None = None
    softcap: float | None = None
    rotary_base: float | None = None
    query_start: int | None = None
    alibi: bool = False
    relative_bias: int = 0
    sinks: bool = False
    zero_attn: bool = False
    bias_kv: bool = False
    head_gates: bool = False
    packing: Packing = Packing.NONE
    dropout: float = 0.0
    dropout_seed: int = 0
    evaluation: bool = False
    chunks: tuple[int, ...] = ()
    cache_length: int = 0

    @property
    def windowed(self) -> bool:
        return self.window_left is not None or self.window_right is not None

    @property
    def window_size(self) -> tuple[int, int]:
        """To the left and to the right; -1: no limit."""
        left, right = (-1 if side is None else side for side in (self.window_left, self.window_right))
        return left, right

    @property
    def has_segments(self) -> bool:
        return self.packing in (Packing.SEGMENTS, Packing.EMPTY_SEGMENT)

    @property
    def has_lengths(self) -> bool:
        return self.packing in (Packing.LENGTHS, Packing.EMPTY_DOCUMENT)

    @property
    def has_dropout(self) -> bool:
        """Whether a probability of dropout is given, 0 included."""
        return self.dropout > 0.0 or self.dropout_seed != 0

    @property
    def dropout_p(self) -> float | None:
        """The probability, where one is given."""
        return self.dropout if self.has_dropout else None

    @property
    def training(self) -> bool:
        """Whether a module may be in training mode."""
        return not self.evaluation

    @property
    def extra_keys(self) -> int:
        """How many keys follow those that are given."""
        return int(self.bias_kv) + int(self.zero_attn)


NOTHING = Extension()
"""Nothing beyond the core."""


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
        convention: the field of `Conventions` on which the answer depends, or nothing.
    """

    feature: Feature
    setting: str
    example: Extension
    keywords: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    neutral: object = None
    draw: Callable[[Any, int, Extension], Any] | None = None
    convention: str = ""

    def used(self, extension: Extension) -> bool:
        """Whether a case with this extension has it."""
        return bool(getattr(extension, self.setting) != getattr(NOTHING, self.setting))


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
    CaseOption(Feature.SOFTCAP, "softcap", Extension(softcap=2.0), {"softcap": ("logits_soft_cap", "logit_cap")}),
    CaseOption(
        Feature.ROTARY, "rotary_base", Extension(rotary_base=100.0), {"rotary_base": ()}, convention="rotary_pairing"
    ),
    CaseOption(Feature.QUERY_START, "query_start", Extension(query_start=2), {"query_start": ("q_offset",)}),
    CaseOption(
        Feature.SINKS,
        "sinks",
        Extension(sinks=True),
        {"sinks": ("sink",)},
        draw=lambda rng, heads, _: 1.5 * rng.standard_normal(heads),
    ),
    CaseOption(
        Feature.ALIBI,
        "alibi",
        Extension(alibi=True),
        {"alibi_slopes": ()},
        draw=lambda rng, heads, _: rng.uniform(0.1, 0.9, heads),
    ),
    CaseOption(
        Feature.RELATIVE_BIAS,
        "relative_bias",
        Extension(relative_bias=2),
        {"relative_bias": ()},
        draw=lambda rng, heads, extension: rng.standard_normal((heads, 2 * extension.relative_bias + 1)),
    ),
    CaseOption(Feature.ZERO_ATTN, "zero_attn", Extension(zero_attn=True), {"add_zero_attn": ()}, neutral=False),
    CaseOption(Feature.BIAS_KV, "bias_kv", Extension(bias_kv=True)),
    CaseOption(
        Feature.HEAD_GATES,
        "head_gates",
        Extension(head_gates=True),
        {"head_gates": ()},
        draw=lambda rng, heads, _: rng.uniform(0.4, 1.6, heads) * [-1.0 if h % 3 == 1 else 1.0 for h in range(heads)],
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
)
"""In the order in which their arrays are drawn."""
