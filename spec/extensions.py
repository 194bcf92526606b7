"""Extensions: what a problem has beyond softmax(scale * Q K^T + mask) V."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    def has_dropout(self) -> bool:
        """Whether a probability of dropout is given, 0 included."""
        return self.dropout > 0.0 or self.dropout_seed != 0

    @property
    def extra_keys(self) -> int:
        """How many keys follow those that are given."""
        return int(self.bias_kv) + int(self.zero_attn)


NOTHING = Extension()
"""Nothing beyond the core."""
