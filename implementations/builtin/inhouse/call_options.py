"""The options of a call, by the names in which the suite passes them, and what heads they go with."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from attention_conformance.spec.features import MAX_DISTANCE

T = TypeVar("T")
Shape: TypeAlias = tuple[int, ...]
PAIRS: tuple[tuple[str, str], ...] = (
    ("query_segments", "key_segments"),
    ("cu_seqlens_q", "cu_seqlens_k"),
    ("query_positions", "key_positions"),
    ("rotary_cos", "rotary_sin"),
)
GAINS = ("query_norm", "key_norm")
"""Options of queries, and those of keys that go with them."""


@dataclass(frozen=True)
class Options(Generic[T]):
    """The options in addition to softmax(scale * Q K^T) V; T is the kind of the arrays.

    Key j stands at position j, query i at query_start + i; where there are documents, both count from the start of
    their own one, and a query sees keys of its own document only.

    Attributes:
        attn_mask: broadcasts to (B, H, Lq, Lk); True = may attend, or numbers that are added to the scores.
        key_padding_mask: (B, Lk), True = may attend.
        is_causal: no query sees a later key.
        scale: multiplies the scores; None is 1 / sqrt(d_k).
        window_size: so far a query sees to the left and to the right of its own position; -1 is no limit.
        softcap: scores become softcap * tanh(scores / softcap), before anything is added to them.
        rotary_base: the first r components of query and key are rotated by position * rotary_base ** (-2 c / r),
            component c with c + r / 2.
        rotary_dim: r; None is d_k.
        query_positions: (B, Lq) or (Lq,), by which queries are rotated, and by nothing else; key_positions (B, Lk).
        rotary_cos: (positions, r / 2), in place of cosines of angles by a base: queries and keys take the rows of their
            positions; or (B, L, r / 2), a row for each token; rotary_sin.
        query_start: the position of the first query; None is 0.
        query_starts: (B,), that position for each sample.
        query_lens: (B,), how many first queries of each sample are real; the others see no key.
        alibi_slopes: (H,) or (B, H); slope * distance is taken off the scores.
        relative_bias: (H, 2 R + 1), added to the scores by distance, the middle one for none; the outermost ones
            count for all distances beyond.
        bucketed_bias: (buckets, H), added to the scores by bucket: half of them, of each side if bidirectional, hold
            one distance each, the others grow by one factor, and the last one begins before max_distance.
        sinks: (H,) logits that take a share of the softmax and have no value.
        split_lengths: (splits,) integers that sum to Lk: so many keys at a time are answered, and the answers merged.
        query_norm: (d_k,), or (H * d_k,): queries are divided by the root of their mean square, over each head or over
            all of a token, and multiplied by this, before they are rotated; key_norm (d_k,) or (Hk * d_k,).
        norm_epsilon: what is added to the mean of the squares; None is 1e-6.
        head_gates: (H,) factors of the outputs of the heads.
        gate_logits: (B, H, Lq, d_v), or (B, H, Lq, 1): their sigmoids multiply the outputs.
        query_segments: (B, Lq) numbers of documents; key_segments (B, Lk).
        cu_seqlens_q: the same by cumulative lengths 0, n_1, n_1 + n_2, ..., Lq, for all samples; cu_seqlens_k.
        add_zero_attn: a key and a value of zeros follow the others, seen by every query.
        enable_gqa: key and value may have fewer heads; neighbouring query heads share one.
        dropout_p: the probability with which a weight is dropped; the others grow by 1 / (1 - p).
        valid_lens: (B,) or (B, Lq), how many leading keys may be attended to.
    """

    attn_mask: T | None = None
    key_padding_mask: T | None = None
    is_causal: bool = False
    scale: float | None = None
    window_size: tuple[int, int] = (-1, -1)
    softcap: float | None = None
    rotary_base: float | None = None
    rotary_dim: int | None = None
    query_positions: T | None = None
    key_positions: T | None = None
    rotary_cos: T | None = None
    rotary_sin: T | None = None
    query_start: int | None = None
    query_starts: T | None = None
    query_lens: T | None = None
    alibi_slopes: T | None = None
    relative_bias: T | None = None
    bucketed_bias: T | None = None
    max_distance: int = MAX_DISTANCE
    bidirectional: bool = True
    sinks: T | None = None
    query_norm: T | None = None
    key_norm: T | None = None
    norm_epsilon: float | None = None
    head_gates: T | None = None
    gate_logits: T | None = None
    split_lengths: T | None = None
    query_segments: T | None = None
    key_segments: T | None = None
    cu_seqlens_q: T | None = None
    cu_seqlens_k: T | None = None
    add_zero_attn: bool = False
    enable_gqa: bool = False
    dropout_p: float = 0.0
    valid_lens: T | None = None

    def __post_init__(self) -> None:
        for pair in (*PAIRS, GAINS):
            if len({getattr(self, name) is None for name in pair}) > 1:
                raise ValueError(f"{pair[0]} and {pair[1]} need each other")
        if self.norm_epsilon is not None and not self.norm_epsilon >= 0.0:
            raise ValueError(f"norm_epsilon cannot be negative, as {self.norm_epsilon} is")
        if self.query_start is not None and self.query_starts is not None:
            raise ValueError("query_start is for all samples, query_starts for each: give one of them")
        if not 0.0 <= self.dropout_p <= 1.0:
            raise ValueError(f"dropout_p is a probability, not {self.dropout_p}")
        if self.softcap is not None and not self.softcap > 0.0:
            raise ValueError(f"softcap must be above 0, not {self.softcap}")


def starts(count: int, most: int) -> list[float]:
    """The distances at which the buckets of one side begin, from that of distance 1 on."""
    exact = count // 2
    grown = (exact * (most / exact) ** (n / (count - exact)) for n in range(count - exact))
    return [*range(1, exact), *grown]


EPSILON = 1e-6
"""Of norms, where none is given."""


def check(query: Shape, key: Shape, value: Shape, call: Options[Any]) -> None:
    """Refuses heads of shapes that do not fit together.

    Raises:
        ValueError: with the shapes.
    """
    shapes = f"{tuple(query)}, {tuple(key)} and {tuple(value)}"
    if query[-1] != key[-1] or key[:-1] != value[:-1] or query[0] != key[0]:
        raise ValueError(f"query and key need one width, key and value one length, all one batch: got {shapes}")
    if query[1] != key[1] and not (call.enable_gqa and key[1] and query[1] % key[1] == 0):
        raise ValueError(f"key heads must be as many as query heads, or with enable_gqa divide them: got {shapes}")
    for gain, heads in ((call.query_norm, query), (call.key_norm, key)):
        if gain is not None and tuple(gain.shape) not in ((heads[-1],), (heads[1] * heads[-1],)):
            raise ValueError(f"a gain of norms has the width of a head or of all heads: got {tuple(gain.shape)}")
    if call.rotary_base is not None:
        check_rotary(query[-1], call.rotary_dim)


def check_rotary(width: int, dim: int | None) -> None:
    """Refuses a number of components that cannot be rotated in pairs.

    Raises:
        ValueError: it is odd, or more than the width.
    """
    rotated = width if dim is None else dim
    if rotated % 2:
        raise ValueError(f"rotary embedding rotates pairs: it needs an even width, not {rotated}")
    if not 0 < rotated <= width:
        raise ValueError(f"rotary_dim must be 2 to {width}, the width of a head, not {rotated}")


def supported(options: Mapping[str, Any], names: Set[str]) -> Options[Any]:
    """The options of a function that has some of them only.

    Raises:
        ValueError: it does not support one.
    """
    if odd := sorted(options.keys() - names):
        raise ValueError(f"{odd[0]} is not supported, only: {', '.join(sorted(names))}")
    return Options(**options)
