"""Features: what an implementation may claim, and what a case may have beyond the core."""

from dataclasses import dataclass
from enum import StrEnum

from attention_conformance.spec.gates_and_splits import KeySplits, OutputGates
from attention_conformance.spec.stored_keys import Codes, ScaledBy


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
    PARTIAL_ROTARY = "partial-rotary"
    """Rotates only the first components of query and key."""
    POSITION_IDS = "position-ids"
    """The caller may give the positions by which queries and keys are rotated."""
    ROTARY_TABLES = "rotary-tables"
    """The caller may give the cosines and sines by which queries and keys are rotated."""
    ROTARY_SCALING = "rotary-scaling"
    """Offers the cosines and sines of rotations that are scaled for longer sequences."""
    ROTARY_AXES = "rotary-axes"
    """Offers the cosines and sines of rotations by positions on several axes."""
    ALIBI = "alibi"
    """Subtracts a multiple of the distance from the scores, a slope for each head."""
    ALIBI_SAMPLES = "alibi-samples"
    """These slopes may differ from sample to sample."""
    ALIBI_SLOPES = "alibi-slopes"
    """Offers the slopes for a number of heads."""
    RELATIVE_BIAS = "relative-bias"
    """Adds a learned bias for each head and distance to the scores."""
    SINUSOIDS = "sinusoids"
    """Offers the sinusoidal encoding of positions."""
    BUCKETED_BIAS = "bucketed-bias"
    """A learned bias for each head and bucket of distances is added to the scores."""
    BUCKET_DISTANCE = "bucket-distance"
    """The distance from which on all share the last bucket is an argument."""
    BUCKET_DIRECTIONS = "bucket-directions"
    """Whether keys after the query have buckets of their own is an argument."""
    SINKS = "sinks"
    """A learned logit for each head that takes a part of the softmax."""
    ZERO_ATTN = "zero-attn"
    """A key and a value of zeros in addition to those given."""
    BIAS_KV = "bias-kv"
    """A learned key and value in addition to those given."""
    QUERY_START = "query-start"
    """The caller may give the position of the first query in the key sequence."""
    QUERY_STARTS = "query-starts"
    """The caller may give that position for each sample."""
    QUERY_LENS = "query-lens"
    """The caller may give how many first queries of each sample are real."""
    CACHE = "cache"
    """Can be fed a sequence piece by piece, keeping keys and values."""
    STATIC_CACHE = "static-cache"
    """The cache may have room for more than it holds."""
    RING_CACHE = "ring-cache"
    """The cache may keep only the last keys, where a window allows it."""
    KEY_SPLITS = "key-splits"
    """Answers the keys in splits of given lengths, and merges the answers."""
    SEGMENTS = "segments"
    """Several documents in one sequence, separated by segment ids."""
    CUMULATIVE_LENGTHS = "cumulative-lengths"
    """Several documents in one sequence, separated by their lengths."""
    QUANTISED = "quantised"
    """Takes keys and values as codes of 8 bits, with scales."""
    LATENT = "latent"
    """Takes keys and values of all heads as one latent for each token, with the matrices that expand it."""
    PAGED = "paged"
    """Takes keys and values in pages of a shared pool, and a table of the pages of each sample."""
    CACHE_ROWS = "cache-rows"
    """Takes keys and values in rows of a cache, one for each sample, and the numbers of these rows."""
    QK_NORM = "qk-norm"
    """Queries and keys are divided by their size before they are multiplied, and have a learned gain."""
    NORM_EPSILON = "norm-epsilon"
    """The caller may give the number that keeps that from dividing by 0."""
    HEAD_GATES = "head-gates"
    """A factor for the output of each head."""
    OUTPUT_GATES = "output-gates"
    """The sigmoid of given logits, for each query and channel of each head, multiplies the output."""
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
    WIDE_SCORES = "wide-scores"
    """Keeps the scores of half types in float32: then they neither round nor overflow."""
    COMPILED = "compiled"
    """Can be compiled ahead of its first call."""
    EXPORTED = "exported"
    """Can be exported as a graph."""
    NO_GRAD = "no-grad"
    """Answers while no gradients are recorded."""
    DOUBLE_BACKWARD = "double-backward"
    """Its gradients are differentiable."""
    LOG_SUM_EXP_GRADIENT = "log-sum-exp-gradient"
    """Its log-sum-exp is differentiable."""
    AS_BUILT = "as-built"
    """Has parts that no equation describes, such as gates and tables, and can be called with them in place."""
    LINEAR_MEMORY = "linear-memory"
    """Needs memory linear in the lengths, beyond masks."""


PLAIN_FEATURES = frozenset(
    {
        Feature.CORE,
        Feature.HEADS,
        Feature.VALUE_WIDTH,
        Feature.CROSS,
        Feature.KEY_VALUE,
        Feature.SCALE,
        Feature.BOOL_MASK,
        Feature.FLOAT_MASK,
        Feature.CAUSAL,
    }
)
"""What a function of query, key, value, attn_mask, is_causal and scale usually offers, without gradients."""


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
    IDLE_DOCUMENTS = "idle-documents"
    """LENGTHS, and one document has keys but no query; the first and the last have neither."""


class PositionIds(StrEnum):
    """The positions that are given for the rotation of queries and keys."""

    NONE = "none"
    """They are counted; see `Extension`."""
    ASCENDING = "ascending"
    """They rise from another start in each sample, and skip some numbers."""
    RESTARTING = "restarting"
    """They count from 0 again in the middle of a row, as in packed sequences."""
    LEFT_PADDED = "left-padded"
    """They count from the first token that is no padding, if there is any on the left; before it they are 0."""
    FAR = "far"
    """They rise from 2003 in the first sample, from 4099 in the second, and skip some: no half type holds them."""


class RotaryTables(StrEnum):
    """The cosines and sines that are given for the rotation of queries and keys."""

    NONE = "none"
    """They follow from a base, or there is no rotation."""
    POSITIONS = "positions"
    """A row for each position, (positions, r / 2)."""
    TOKENS = "tokens"
    """A row for each token of each sample, (B, L, r / 2), the same for queries and keys, which are as many."""
    DOUBLED = "doubled"
    """As `TOKENS`, with a number for each component, (B, L, r): all of them, and once more."""
    REPEATED = "repeated"
    """The same with each number twice in a row."""


class QkNorm(StrEnum):
    """What queries and keys are divided by, and what gains are given."""

    NONE = "none"
    """Nothing."""
    HEAD = "head"
    """The size of each head's part; a gain for each component of a head, (d_k,), that all heads share."""
    WIDTH = "width"
    """The size of all heads of a token together; a gain for each component of each head, (H * d_k,)."""
    BARE = "bare"
    """As `HEAD`, without a gain."""


MAX_DISTANCE = 128
"""From where on all distances share a bucket where nothing is given."""


@dataclass(frozen=True)
class Extension:
    """What a problem has beyond the core. The default adds nothing.

    Positions count along the key sequence: key j is at position j, query i at `query_start` + i, or where the claimed
    causal alignment puts it; in a packed sequence both count from the start of their own document.

    Attributes:
        window_left: a query at position i sees no key before i - window_left; None: no limit.
        window_right: a query at position i sees no key after i + window_right; None: no limit.
        softcap: scores become softcap * tanh(scores / softcap) after the scale, before biases and masks.
        rotary_base: query and key are rotated by the angles position * rotary_base ** (-2 i / rotary_dim).
        rotary_dim: so many components of query and key are rotated, the first ones; even; None: d_k, all of them.
        position_ids: which positions are given for the rotation of queries and keys; all that hides keys or adds to
            scores does not depend on them.
        rotary_tables: cosines and sines are given, and take the place of `rotary_base`.
        query_start: the position of the first query.
        query_starts: that position is given for each sample, and takes the place of `query_start`.
        query_lens: for each sample it is given how many first queries are real; the others see no key.
        alibi: a slope for each head is given; slope * distance is subtracted from the scores.
        usual_slopes: these are 2 ** (-8 h / H) for heads 1 to H, or interleaved ones, and not drawn.
        alibi_samples: a slope for each head of each sample is given.
        relative_bias: the largest distance with a learned bias of its own, farther ones share the last; 0: none.
        bucketed_bias: how many buckets of distances have a learned bias of their own in each head; 0: none.
        max_distance: from this distance on all share the last bucket.
        bidirectional: half of the buckets are for keys after the query; else those are all in the first one.
        sinks: a learned logit for each head joins the sum of the softmax, without a value.
        zero_attn: a key and value of zeros, which every query sees, follow the others.
        bias_kv: a learned key and value, which every query sees, follow the others.
        qk_norm: over what queries and keys are normalised, and with which gains.
        norm_epsilon: what their norm adds to the mean square; None: `NORM_EPSILON`.
        head_gates: a factor for each head multiplies its output.
        output_gates: for what logits are given, whose sigmoid multiplies the output.
        key_splits: in which splits the keys are answered; the answer does not depend on them.
        packing: how documents are separated.
        page_size: keys and values lie in pages of so many tokens; 0: they are contiguous.
        codes: keys and values are given as codes of this kind, and as scales by which these are multiplied.
        scaled_by: what has a scale of its own.
        latent: keys and values of all heads are made of one row of so many numbers for each token; 0: they are given.
        decoupled: so many components of query and key, the last ones, are given as they are, one key for all heads.
        cache_rows: keys and values lie in rows of a cache that has so many rows more than samples; 0: in one row after
            another.
        shared_prefix: the samples share the pages of their first keys, as far as all of them fill these.
        dropout: the probability with which a weight is dropped.
        dropout_seed: seeds the generator that chooses which; negative: the generator is used as it is. If it is not 0,
            the probability is given even if that is 0.
        evaluation: a module is in evaluation mode, whatever its dropout.
        chunks: the sequence is fed through a cache in pieces of these lengths; empty: at once.
        cache_length: positions that the cache has room for: more than the sequence has (static), or fewer (ring, where
            a window keeps queries from what was overwritten); 0: it grows.
        unwritten: what of it is not used holds NaN, and not large numbers alone.
    """

    window_left: int | None = None
    window_right: int | None = None
    softcap: float | None = None
    rotary_base: float | None = None
    rotary_dim: int | None = None
    position_ids: PositionIds = PositionIds.NONE
    rotary_tables: RotaryTables = RotaryTables.NONE
    query_start: int | None = None
    query_starts: bool = False
    query_lens: bool = False
    alibi: bool = False
    usual_slopes: bool = False
    alibi_samples: bool = False
    relative_bias: int = 0
    bucketed_bias: int = 0
    max_distance: int = MAX_DISTANCE
    bidirectional: bool = True
    sinks: bool = False
    zero_attn: bool = False
    bias_kv: bool = False
    qk_norm: QkNorm = QkNorm.NONE
    norm_epsilon: float | None = None
    head_gates: bool = False
    output_gates: OutputGates = OutputGates.NONE
    key_splits: KeySplits = KeySplits.NONE
    packing: Packing = Packing.NONE
    page_size: int = 0
    cache_rows: int = 0
    shared_prefix: bool = False
    latent: int = 0
    decoupled: int = 0
    codes: Codes = Codes.NONE
    scaled_by: ScaledBy = ScaledBy.TENSOR
    dropout: float = 0.0
    dropout_seed: int = 0
    evaluation: bool = False
    chunks: tuple[int, ...] = ()
    cache_length: int = 0
    unwritten: bool = False

    @property
    def windowed(self) -> bool:
        return self.window_left is not None or self.window_right is not None

    @property
    def window_size(self) -> tuple[int, int]:
        """To the left and to the right; -1: no limit."""
        left, right = (-1 if side is None else side for side in (self.window_left, self.window_right))
        return left, right

    @property
    def rotates(self) -> bool:
        """Whether queries and keys are rotated."""
        return self.rotary_base is not None or self.rotary_tables is not RotaryTables.NONE

    @property
    def has_segments(self) -> bool:
        return self.packing in (Packing.SEGMENTS, Packing.EMPTY_SEGMENT)

    @property
    def has_lengths(self) -> bool:
        return self.packing in (Packing.LENGTHS, Packing.EMPTY_DOCUMENT, Packing.IDLE_DOCUMENTS)

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


NORM_EPSILON = 1e-6
"""What norms of queries and keys add to the mean square where nothing is given."""
NOTHING = Extension()
"""Nothing beyond the core."""
