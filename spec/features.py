"""What an implementation may claim, and which answer it claims where the field disagrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from enum import StrEnum


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


class Alignment(StrEnum):
    """Which corner a causal mask starts from when Lq and Lk differ."""

    TOP_LEFT = "top-left"
    """Query i sees keys 0..i."""
    BOTTOM_RIGHT = "bottom-right"
    """Query i sees keys 0..i + Lk - Lq."""


class EmptyRow(StrEnum):
    """The answer for a query that may attend to no key."""

    ZEROS = "zeros"
    """Output, weights and gradients are zero: the specification's default."""
    NAN = "nan"
    """The output is NaN; gradients are unspecified."""
    UNIFORM = "uniform"
    """The mean of all values, masked ones included."""


class CausalWithMask(StrEnum):
    """What happens when the causal flag and a mask are given together."""

    INTERSECT = "intersect"
    """A query sees what both allow: the specification's default."""
    ERROR = "error"
    """The call is refused with an error."""
    EITHER = "either"
    """Refused, or intersected; never one of the two in silence."""


class Polarity(StrEnum):
    """What True means in a boolean mask of the implementation's own interface."""

    MAY_ATTEND = "may-attend"
    MASKED_OUT = "masked-out"


class SoftmaxPrecision(StrEnum):
    """The precision of the softmax for float64 input."""

    WORKING = "working"
    """That of the input, and float32 for half types: the specification's default."""
    FLOAT32 = "float32"
    """float32 at most, whatever the input."""


class GroupOrder(StrEnum):
    """Which of the H_k key heads a query head h of H uses."""

    CONSECUTIVE = "consecutive"
    """h // (H / H_k): consecutive query heads share one; the specification's default."""
    TILED = "tiled"
    """h % H_k."""


class WindowCount(StrEnum):
    """What a window of w to the left counts."""

    EXCLUDING = "excluding"
    """Keys in addition to the query's own: i - w .. i; the specification's default."""
    INCLUDING = "including"
    """Keys with the query's own: i - w + 1 .. i."""


class RotaryPairing(StrEnum):
    """Which components of a head are rotated together."""

    HALVES = "halves"
    """Component c with c + d_k / 2; the specification's default."""
    INTERLEAVED = "interleaved"
    """Component 2 c with 2 c + 1."""


class SinusoidOrder(StrEnum):
    """Where sines and cosines stand in the sinusoidal encoding."""

    INTERLEAVED = "interleaved"
    """Each sine before the cosine of the same frequency: the specification's default."""
    HALVES = "halves"
    """All sines before all cosines."""


class AlibiRule(StrEnum):
    """The slopes for a number of heads that is no power of two; for powers of two the rules agree."""

    INTERLEAVED = "interleaved"
    """Those of the power of two below, then every second one of the power of two above: the specification's default."""
    GEOMETRIC = "geometric"
    """2 ** (-8 h / H) for h = 1 .. H."""


class ReturnedWeights(StrEnum):
    """At which stage returned weights are taken."""

    BEFORE_DROPOUT = "before-dropout"
    """Rows sum to 1: the specification's default."""
    AFTER_DROPOUT = "after-dropout"


class LogBase(StrEnum):
    """The base of returned log-sum-exps."""

    E = "e"
    TWO = "2"


@dataclass(frozen=True)
class Conventions:
    """The claimed answers where the field disagrees.

    The defaults are the specification's. An empty row has an answer for each kind of mask,
    because real libraries answer differently by kind.
    """

    causal_alignment: Alignment = Alignment.TOP_LEFT
    causal_with_mask: CausalWithMask = CausalWithMask.INTERSECT
    empty_row_bool: EmptyRow = EmptyRow.ZEROS
    empty_row_float: EmptyRow = EmptyRow.ZEROS
    empty_row_padding: EmptyRow = EmptyRow.ZEROS
    empty_row_causal: EmptyRow = EmptyRow.ZEROS
    bool_mask: Polarity = Polarity.MAY_ATTEND
    softmax_precision: SoftmaxPrecision = SoftmaxPrecision.WORKING
    group_order: GroupOrder = GroupOrder.CONSECUTIVE
    window_count: WindowCount = WindowCount.EXCLUDING
    rotary_pairing: RotaryPairing = RotaryPairing.HALVES
    sinusoid_order: SinusoidOrder = SinusoidOrder.INTERLEAVED
    alibi_rule: AlibiRule = AlibiRule.INTERLEAVED
    returned_weights: ReturnedWeights = ReturnedWeights.BEFORE_DROPOUT
    log_sum_exp_base: LogBase = LogBase.E

    def claiming(self, settings: Mapping[str, str]) -> Conventions:
        """These conventions with KEY=VALUE settings applied; `empty-row` sets all four kinds.

        Raises:
            ValueError: a key or value that does not exist; the message lists what does.
        """
        changes: dict[str, StrEnum] = {}
        for key, value in settings.items():
            for name in _fields_of(key):
                changes[name] = _choice(key, type(getattr(self, name)), value)
        return replace(self, **changes)  # type: ignore[arg-type]  # _choice made each of its field's type

    def items(self) -> list[tuple[str, str]]:
        """(key, value) pairs in the spelling of the command line."""
        return [(_key(f.name), str(getattr(self, f.name))) for f in fields(self)]


def _key(name: str) -> str:
    return name.replace("_", "-")


def _fields_of(key: str) -> list[str]:
    names = [f.name for f in fields(Conventions)]
    if key == "empty-row":
        return [name for name in names if name.startswith("empty_row")]
    found = [name for name in names if _key(name) == key]
    if not found:
        known = ["empty-row", *map(_key, names)]
        near = get_close_matches(key, known, 1)
        meant = f"did you mean {near[0]!r}? There are" if near else "there are"
        raise ValueError(f"no convention is named {key!r}; {meant}: {', '.join(known)}")
    return found


def _choice(key: str, kind: type[StrEnum], value: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"convention {key} cannot be {value!r}; choose from: {', '.join(kind)}") from None
