"""Attention that knows positions: sinusoids, rotary embeddings, ALiBi and its slopes, relative biases."""

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.modes import op_modes
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.inhouse.call_options import supported
from attention_conformance.implementations.builtin.inhouse.head_attention import softmax
from attention_conformance.implementations.builtin.inhouse.online import wide
from attention_conformance.implementations.builtin.inhouse.rotary import rotated_pair
from attention_conformance.implementations.builtin.inhouse.scaled_tables import axes_rotary, scaled_rotary
from attention_conformance.implementations.builtin.inhouse.tile_masks import INFINITY, Masks
from attention_conformance.implementations.builtin.sdpa import SDPA_FEATURES
from attention_conformance.spec.conventions import (
    AlibiRule,
    Conventions,
    LogBase,
    RotaryPairing,
    SinusoidOrder,
    TableForm,
)
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array


def sinusoids(length: int, width: int, order: SinusoidOrder = SinusoidOrder.INTERLEAVED) -> Array:
    """(length, width): sines and cosines of the positions, to be added to embeddings of an even width."""
    angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
    parts = np.sin(angles), np.cos(angles)
    apart = order is SinusoidOrder.HALVES
    joined = np.concatenate(parts, -1) if apart else np.stack(parts, -1).reshape(length, width)
    return joined.astype(np.float32)


def alibi_slopes(num_heads: int, rule: AlibiRule = AlibiRule.INTERLEAVED) -> Array:
    """(num_heads,): the slope of each head."""
    below = 2 ** math.floor(math.log2(num_heads))
    if rule is AlibiRule.GEOMETRIC or below == num_heads:
        return (2.0 ** (-8.0 / num_heads * np.arange(1, num_heads + 1))).astype(np.float32)
    between = alibi_slopes(2 * below)[::2]
    return np.concatenate([alibi_slopes(below), between[: num_heads - below]])


State: TypeAlias = tuple[Tensor, Tensor]

SUPPORTED = {
    *("attn_mask", "key_padding_mask", "is_causal", "scale"),
    *(
        "rotary_base",
        "rotary_dim",
        "rotary_cos",
        "rotary_sin",
        "query_positions",
        "key_positions",
        "alibi_slopes",
        "relative_bias",
        "bucketed_bias",
        "max_distance",
        "bidirectional",
    ),
    *("query_start", "query_starts", "valid_lens", "split_lengths", "gate_logits"),
}
"""The options of `attention`."""


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    pairing: RotaryPairing = RotaryPairing.HALVES,
    form: TableForm = TableForm.POSITIONS,
    base: float = math.e,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """softmax(scale * Q K^T + biases) V for every sample and head; half types are worked on in float32.

    Args:
        query: (B, H, Lq, d_k).
        key: (B, H, Lk, d_k).
        value: (B, H, Lk, d_v).
        pairing: which components of query and key are rotated together.
        form: of the tables of cosines and sines.
        base: of the log-sum-exp, and of the powers by which splits of the keys are merged.
        options: those of `SUPPORTED`; see `Options`.

    Returns:
        The output (B, H, Lq, d_v), the weights (B, H, Lq, Lk) and the log-sum-exp (B, H, Lq). A query that may attend
        to no key gets zeros.
    """
    call, dtype = supported(options, SUPPORTED), query.dtype
    masks = Masks.of(call, query, key)
    q, k, v = (x.to(wide(dtype)) for x in (query, key, value))
    q, k = rotated_pair(q, k, masks, call.rotary_base, call.rotary_dim, pairing, form)
    scores = q @ k.mT * (query.shape[-1] ** -0.5 if call.scale is None else call.scale)
    visible, added = masks.visible(masks.whole), masks.added(masks.whole, scores.dtype)
    scores = scores if added is None else scores + added
    scores = scores if visible is None else scores.masked_fill(~visible, -INFINITY)
    lengths = [key.shape[-2]] if call.split_lengths is None else call.split_lengths.tolist()
    states = [_state(s, rows, base) for s, rows in zip(scores.split(lengths, -1), v.split(lengths, -2), strict=True)]
    output, log_sum_exp = reduce(partial(merge_state, base=base), states)
    output = output if call.gate_logits is None else output * call.gate_logits.to(output.dtype).sigmoid()
    return output.to(dtype), softmax(scores, None).to(dtype), log_sum_exp.to(dtype)


def _state(scores: Tensor, value: Tensor, base: float) -> State:
    """Output (B, H, Lq, d_v) and log-sum-exp (B, H, Lq) over some of the keys; zeros and minus infinity for none."""
    empty = (scores == -INFINITY).all(-1)
    log_sum_exp = scores.masked_fill(empty[..., None], 0.0).logsumexp(-1) / math.log(base)
    return softmax(scores, None) @ value, torch.where(empty, -INFINITY, log_sum_exp)


def merge_state(first: State, second: State, base: float = math.e) -> State:
    """The state over the keys of both; log-sum-exps are to the base."""
    logs = torch.stack([first[1], second[1]])
    empty = (logs == -INFINITY).all(0)
    natural = logs.masked_fill(empty, 0.0) * math.log(base)
    shares = natural.softmax(0)[..., None]
    output = shares[0] * first[0] + shares[1] * second[0]
    return output, torch.where(empty, -INFINITY, natural.logsumexp(0) / math.log(base))


_TABLES: dict[str, Callable[..., Array]] = {"scaled_rotary": scaled_rotary, "axes_rotary": axes_rotary}
_FUNCTIONS = {Feature.SINUSOIDS, Feature.ALIBI_SLOPES, Feature.ROTARY_SCALING, Feature.ROTARY_AXES}
_ROTARY = {Feature.ROTARY, Feature.PARTIAL_ROTARY, Feature.POSITION_IDS, Feature.ROTARY_TABLES}
_STARTS = {Feature.QUERY_START, Feature.QUERY_STARTS, Feature.VALID_LENS, Feature.KEY_SPLITS}
_BUCKETS = {Feature.BUCKETED_BIAS, Feature.BUCKET_DISTANCE, Feature.BUCKET_DIRECTIONS}
_BY_POSITION = _ROTARY | _STARTS | _BUCKETS | {Feature.ALIBI, Feature.RELATIVE_BIAS}
_RETURNED = {Feature.WEIGHTS, Feature.LOG_SUM_EXP, Feature.LOG_SUM_EXP_GRADIENT}
_EXTRAS = ("weights", "log_sum_exp")
_FEATURES = SDPA_FEATURES | _FUNCTIONS | _BY_POSITION | _RETURNED | {Feature.KEY_PADDING, Feature.OUTPUT_GATES}
_OTHER = Conventions(
    rotary_pairing=RotaryPairing.INTERLEAVED,
    rotary_tables=TableForm.DOUBLED,
    sinusoid_order=SinusoidOrder.HALVES,
    alibi_rule=AlibiRule.GEOMETRIC,
    log_sum_exp_base=LogBase.TWO,
)
_other = partial(attention, pairing=_OTHER.rotary_pairing, form=_OTHER.rotary_tables, base=2.0)

POSITIONS = (
    Implementation(
        "inhouse.positions",
        Claims(Scope.OP, _FEATURES),
        torch_op(attention, extras=_EXTRAS),
        "a function in torch that knows positions, with the functions that make sinusoids and slopes",
        modes=op_modes(attention, Feature.LOG_SUM_EXP_GRADIENT, extras=_EXTRAS),
        functions={"sinusoids": sinusoids, "alibi_slopes": alibi_slopes, **_TABLES},
    ),
    Implementation(
        "inhouse.positions.other",
        Claims(Scope.OP, _FEATURES, _OTHER),
        torch_op(_other, extras=_EXTRAS),
        "the same with the other pairing, order of sinusoids and rule for slopes, and with logarithms to base 2",
        modes=op_modes(_other, Feature.LOG_SUM_EXP_GRADIENT, extras=_EXTRAS),
        functions={
            "sinusoids": partial(sinusoids, order=_OTHER.sinusoid_order),
            "alibi_slopes": partial(alibi_slopes, rule=_OTHER.alibi_rule),
            **_TABLES,
        },
    ),
)
"""With the specification's conventions, and with the other ones."""
