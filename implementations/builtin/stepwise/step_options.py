"""What one call of attention in steps is given."""

from dataclasses import dataclass

from torch import Tensor

from attention_conformance.spec.features import MAX_DISTANCE


@dataclass(frozen=True)
class CallOptions:
    """The options of one call, by the names in which the suite passes them; see `extra_options`."""

    attn_mask: Tensor | None = None
    key_padding_mask: Tensor | None = None
    valid_lens: Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    window_size: tuple[int, int] = (-1, -1)
    softcap: float | None = None
    rotary_base: float | None = None
    rotary_dim: int | None = None
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None
    rotary_cos: Tensor | None = None
    rotary_sin: Tensor | None = None
    query_start: int | None = None
    query_starts: Tensor | None = None
    query_lens: Tensor | None = None
    alibi_slopes: Tensor | None = None
    relative_bias: Tensor | None = None
    bucketed_bias: Tensor | None = None
    max_distance: int = MAX_DISTANCE
    bidirectional: bool = True
    sinks: Tensor | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    norm_epsilon: float | None = None
    head_gates: Tensor | None = None
    gate_logits: Tensor | None = None
    split_lengths: Tensor | None = None
    query_segments: Tensor | None = None
    key_segments: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    add_zero_attn: bool = False
    enable_gqa: bool = False
    dropout_p: float = 0.0

    @property
    def packed(self) -> bool:
        return self.query_segments is not None or self.cu_seqlens_q is not None

    @property
    def positioned(self) -> bool:
        """Whether positions do not just count from the first query and key."""
        return self.packed or self.query_start is not None or self.query_starts is not None
