"""Conventions: the answers of an implementation where the field disagrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from enum import StrEnum


class Alignment(StrEnum):
    """Which corner a causal mask starts from when Lq and Lk differ."""

    TOP_LEFT = "top-left"
    """Query i sees keys 0..i."""
    BOTTOM_RIGHT = "bottom-right"
    """Query i sees keys 0..i + Lk - Lq."""
    BOTTOM_RIGHT_REAL = "bottom-right-real"
    """The same with the real length of each sample, up to its last real key, in place of Lk."""


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
    MASK_ALONE = "mask-alone"
    """The mask takes the place of the flag."""
    FLAG_ALONE = "flag-alone"
    """The flag takes the place of the mask."""


class Polarity(StrEnum):
    """What True means in a boolean mask of the implementation's own interface."""

    MAY_ATTEND = "may-attend"
    MASKED_OUT = "masked-out"


class SoftmaxPrecision(StrEnum):
    """The precision of the softmax, and to what each of its weights is exact."""

    WORKING = "working"
    """That of the input, and float32 for half types: the specification's default."""
    FLOAT32 = "float32"
    """float32 at most, whatever the input."""
    ROW = "row"
    """That of the input, and each weight to the largest that its row may have, 1, as in a running mean."""


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
    INCLUDING_IF_CAUSAL = "including-if-causal"
    """With the causal flag including, without it excluding."""


class PaddedPositions(StrEnum):
    """Whether padded keys count where positions are counted."""

    COUNTED = "counted"
    """Padding keeps its positions: the specification's default."""
    SKIPPED = "skipped"
    """Only real keys are counted: a token stands where the last real key up to it stands among the real ones."""


class PaddedTokens(StrEnum):
    """What self-attention answers for tokens that padding hides as keys."""

    COMPUTED = "computed"
    """They see the real keys, as other queries do: the specification's default."""
    UNSPECIFIED = "unspecified"
    """Anything, as nobody reads it; gradients, to which it belongs, are unspecified, too."""


class DropoutSharing(StrEnum):
    """Which weights share one choice of dropout."""

    NONE = "none"
    """Each weight has its own: the specification's default."""
    HEADS = "heads"
    SAMPLES = "samples"
    BOTH = "heads-and-samples"
    """All heads of all samples."""


class FullDropout(StrEnum):
    """The answer to dropout with the probability 1."""

    ZEROS = "zeros"
    """Every weight is dropped: the specification's default."""
    ERROR = "error"
    """The call is refused with an error."""


class RotaryPairing(StrEnum):
    """Which components of a head are rotated together."""

    HALVES = "halves"
    """Component c with c + d_k / 2; the specification's default."""
    INTERLEAVED = "interleaved"
    """Component 2 c with 2 c + 1."""


class TableForm(StrEnum):
    """What rows the tables of cosines and sines have that a caller gives for rotations."""

    POSITIONS = "positions"
    """One for each position, of r / 2 numbers; the specification's default."""
    TOKENS = "tokens"
    """One for each token of each sample, of r / 2 numbers."""
    DOUBLED = "doubled"
    """One for each token of each sample, of r numbers, of which the two of a pair are the same."""


class NormKind(StrEnum):
    """What queries and keys are divided by where they are normalised."""

    RMS = "rms"
    """The root of the mean of the squares; the specification's default."""
    LAYER = "layer"
    """Their standard deviation, after their mean has been subtracted."""
    L2 = "l2"
    """Their length."""


class NormSpan(StrEnum):
    """Over what they are normalised."""

    HEAD = "head"
    """Each head's part, with one gain for all heads; the specification's default."""
    WIDTH = "width"
    """All heads of a token together, with a gain for each component."""
    BARE = "bare"
    """Each head's part, without a gain."""


class NormOrder(StrEnum):
    """Whether rotations come after their norms or before."""

    FIRST = "first"
    """Norm, then rotation; the specification's default."""
    LAST = "last"
    """Rotation, then norm."""


class NormGain(StrEnum):
    """What the gain that is given multiplies by."""

    PLAIN = "plain"
    """Itself; the specification's default."""
    PLUS_ONE = "plus-one"
    """1 + itself."""


class NormDefault(StrEnum):
    """What is added to the mean square where the caller gives nothing."""

    FIXED = "fixed"
    """0.000001; the specification's default."""
    SPACING = "spacing"
    """The distance from 1 to the next number of the dtype, of float32 for half types."""


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


class LogOfNothing(StrEnum):
    """The log-sum-exp of a row without keys."""

    MINUS_INFINITY = "minus-infinity"
    """The logarithm of an empty sum: the specification's default."""
    PLUS_INFINITY = "plus-infinity"
    """So that the exponential of any score minus it is 0 in a backward pass."""
    LEAST = "least"
    """A finite number of at most half the least one of float32, as a fill of masked scores leaves it."""
    NAN = "nan"
    """No number, as in the row of the output: parts without keys cannot be merged."""


LEAST_LOG = -(2.0 - 2.0**-23) * 2.0**126
"""Half the least number of float32: a log-sum-exp of at most this is `LogOfNothing.LEAST`."""


class DefaultScale(StrEnum):
    """What multiplies the scores where the caller gives no scale."""

    INVERSE_ROOT = "inverse-root"
    """1/sqrt(d_k): the specification's default."""
    ONE = "one"
    """Nothing is multiplied."""


class ProductPrecision(StrEnum):
    """The precision to which the operands of matrix products are rounded, where the dtype has a finer one."""

    WORKING = "working"
    """None coarser than the dtype: the specification's default."""
    FLOAT32 = "float32"
    """float32 at most, as where everything is computed in it whatever the input is."""
    TF32X3 = "tf32x3"
    """Of float32 inputs twenty-one significant bits, each as the sum of two numbers that tensor cores read."""
    TF32 = "tf32"
    """Of float32 inputs eleven significant bits, as tensor cores read them: the others are cut off."""
    BFLOAT16 = "bfloat16"
    """Of float32 inputs eight significant bits, as some accelerators read them by default."""


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
    padded_queries: EmptyRow = EmptyRow.ZEROS
    bool_mask: Polarity = Polarity.MAY_ATTEND
    softmax_precision: SoftmaxPrecision = SoftmaxPrecision.WORKING
    group_order: GroupOrder = GroupOrder.CONSECUTIVE
    window_count: WindowCount = WindowCount.EXCLUDING
    padded_positions: PaddedPositions = PaddedPositions.COUNTED
    padded_tokens: PaddedTokens = PaddedTokens.COMPUTED
    rotary_pairing: RotaryPairing = RotaryPairing.HALVES
    rotary_tables: TableForm = TableForm.POSITIONS
    norm_kind: NormKind = NormKind.RMS
    norm_span: NormSpan = NormSpan.HEAD
    norm_order: NormOrder = NormOrder.FIRST
    norm_gain: NormGain = NormGain.PLAIN
    norm_default: NormDefault = NormDefault.FIXED
    sinusoid_order: SinusoidOrder = SinusoidOrder.INTERLEAVED
    alibi_rule: AlibiRule = AlibiRule.INTERLEAVED
    dropout_sharing: DropoutSharing = DropoutSharing.NONE
    full_dropout: FullDropout = FullDropout.ZEROS
    returned_weights: ReturnedWeights = ReturnedWeights.BEFORE_DROPOUT
    log_sum_exp_base: LogBase = LogBase.E
    log_of_nothing: LogOfNothing = LogOfNothing.MINUS_INFINITY
    default_scale: DefaultScale = DefaultScale.INVERSE_ROOT
    product_precision: ProductPrecision = ProductPrecision.WORKING

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

    def own_counted(self, causal: bool) -> bool:
        """Whether the left extent of a window counts the query's own position, with the causal flag or without."""
        with_flag = self.window_count is WindowCount.INCLUDING_IF_CAUSAL and causal
        return with_flag or self.window_count is WindowCount.INCLUDING

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


def values_of(key: str) -> type[StrEnum]:
    """The answers that a convention knows."""
    return type(getattr(Conventions(), _fields_of(key)[0]))


def _choice(key: str, kind: type[StrEnum], value: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"convention {key} cannot be {value!r}; choose from: {', '.join(kind)}") from None
