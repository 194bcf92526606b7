"""Attention in steps: right as it is, and wrong in one place if a step is replaced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.sdpa import SDPA_FEATURES
from attention_conformance.implementations.builtin.stepwise.step_options import CallOptions
from attention_conformance.spec.conventions import Alignment, Conventions
from attention_conformance.spec.features import NORM_EPSILON, Feature

OP_FEATURES = SDPA_FEATURES | {Feature.KEY_PADDING}
"""What `Steps` claims at least; options of `CallOptions` are features more."""
EXTRA_FEATURES = {
    "weights": Feature.WEIGHTS,
    "averaged_weights": Feature.AVERAGED_WEIGHTS,
    "log_sum_exp": Feature.LOG_SUM_EXP,
}
"""What is claimed by returning an extra array."""
BOTTOM_RIGHT = Conventions(causal_alignment=Alignment.BOTTOM_RIGHT)
Softmax: TypeAlias = Callable[[Tensor], Tensor]
State: TypeAlias = tuple[Tensor, Tensor]
"""Output (B, H, Lq, d_v) and log-sum-exp (B, H, Lq) over some of the keys."""
Positions: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Of queries (B, Lq) and keys (B, Lk) in their documents, and (B, Lq, Lk), True = of one document."""
INFINITY = float("inf")


def factor(query: Tensor, scale: float | None) -> float:
    """The scale given, or 1/sqrt(d_k)."""
    return query.shape[-1] ** -0.5 if scale is None else scale


def score(query: Tensor, key: Tensor, by: float) -> Tensor:
    return query @ key.transpose(-1, -2) * by


def add_mask(scores: Tensor, mask: Tensor) -> Tensor:
    """A boolean mask keeps where it is True, a float mask is added."""
    if mask.dtype is torch.bool:
        return scores.masked_fill(~mask, -INFINITY)
    return scores.masked_fill(mask == -INFINITY, -INFINITY) + mask


def add_padding(scores: Tensor, padding: Tensor) -> Tensor:
    """(B, Lk), True = real."""
    return scores.masked_fill(~padding[:, None, None, :], -INFINITY)


def add_lengths(scores: Tensor, lengths: Tensor) -> Tensor:
    """(B,) or (B, Lq) counts of leading keys that are real."""
    counts = lengths.reshape(len(lengths), 1, -1, 1)
    return scores.masked_fill(torch.arange(scores.shape[-1]) >= counts, -INFINITY)


def add_causal(scores: Tensor) -> Tensor:
    """Top-left."""
    return scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -INFINITY)


def add_bottom_right(scores: Tensor) -> Tensor:
    """The causal triangle that ends at the last key."""
    later = torch.ones_like(scores).triu(1 + scores.shape[-1] - scores.shape[-2]).bool()
    return scores.masked_fill(later, -INFINITY)


def softmax(scores: Tensor) -> Tensor:
    """Over the keys; zeros for a row of minus infinities, whose gradient is 0."""
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    return torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, scores), -1))


def mix(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value


def log_sum_exp(scores: Tensor) -> Tensor:
    """Over the keys; minus infinity for a row of minus infinities, whose gradient is 0."""
    empty = (scores == -INFINITY).all(-1)
    return torch.where(empty, -INFINITY, torch.logsumexp(torch.where(empty[..., None], 0.0, scores), -1))


def repeat_kv(rows: Tensor, num_heads: int) -> Tensor:
    """(B, Hk, L, d) -> (B, H, L, d): adjacent query heads share a key head."""
    return rows.repeat_interleave(num_heads // rows.shape[1], 1) if rows.shape[1] != num_heads else rows


def repeat_kv_tiled(rows: Tensor, num_heads: int) -> Tensor:
    """(B, Hk, L, d) -> (B, H, L, d): query head h uses key head h % Hk."""
    return rows.repeat(1, num_heads // rows.shape[1], 1, 1) if rows.shape[1] != num_heads else rows


def rotate(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary embedding of (B, H, L, d) at positions (B, L), component c paired with c + d / 2."""
    half = rows.shape[-1] // 2
    return rotate_by(rows, positions[..., None] * base ** (-torch.arange(half, dtype=torch.float64) / half))


def rotate_first(rows: Tensor, dim: int, rotate: Callable[[Tensor], Tensor]) -> Tensor:
    """The first `dim` components of (B, H, L, d) rotated, the others as they are."""
    return torch.cat([rotate(rows[..., :dim]), rows[..., dim:]], -1)


def rotate_by(rows: Tensor, angles: Tensor) -> Tensor:
    """Rows (B, H, L, d) rotated by angles (B, L, d / 2)."""
    return rotate_pairs(rows, angles.cos(), angles.sin())


def rotate_pairs(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rows (B, H, L, d) with their first r components rotated, by cosines and sines (B, L, r / 2)."""
    cosines, sines, half = cosines[:, None].to(rows.dtype), sines[:, None].to(rows.dtype), cosines.shape[-1]
    first, second, rest = rows[..., :half], rows[..., half : 2 * half], rows[..., 2 * half :]
    return torch.cat([first * cosines - second * sines, first * sines + second * cosines, rest], -1)


def row_of(table: Tensor, positions: Tensor) -> Tensor:
    """(positions, r / 2) -> (B, L, r / 2): the rows of tokens at positions (B, L)."""
    return table[positions]


def norm(rows: Tensor, gain: Tensor | None, epsilon: float) -> Tensor:
    """(B, H, L, d) by the root of the mean square of each head's part, times a gain (d,)."""
    unit = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + epsilon)
    return unit if gain is None else unit * gain


def cap(scores: Tensor, softcap: float) -> Tensor:
    return softcap * torch.tanh(scores / softcap)


def add_alibi(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    """Subtracts slopes (H,) or (B, H) times the distance."""
    return scores - slopes[..., None, None] * ahead.abs()[:, None]


def add_relative(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    """The entry (H, 2 R + 1) of each distance, the outermost ones for all beyond."""
    most = table.shape[-1] // 2
    return scores + table[:, ahead.clamp(-most, most) + most].transpose(0, 1)


def bucket(ahead: Tensor, count: int, most: int, bidirectional: bool) -> Tensor:
    """The row of a table of biases for keys so far ahead (B, Lq, Lk): exact for small distances, then by logarithm."""
    if bidirectional:
        return bucket(-ahead.abs(), count // 2, most, False) + count // 2 * (ahead > 0)
    distance, exact = (-ahead).clamp(min=0), count // 2
    octaves = torch.log(distance.clamp(min=exact).double() / exact) / math.log(most / exact)
    return torch.where(distance < exact, distance, exact + (octaves * (count - exact)).long()).clamp(max=count - 1)


def add_buckets(scores: Tensor, table: Tensor, of: Tensor) -> Tensor:
    """The entry (buckets, H) of each bucket (B, Lq, Lk)."""
    return scores + table[of].movedim(-1, 1)


def add_triangle(scores: Tensor, ahead: Tensor) -> Tensor:
    """The causal flag where positions do not just count from the first query and key."""
    return scores.masked_fill((ahead > 0)[:, None], -INFINITY)


def add_window(scores: Tensor, ahead: Tensor, window: tuple[int, int]) -> Tensor:
    """Keys i - left .. i + right; -1 is no limit."""
    left, right = window
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    hidden = hidden | (ahead < -left) if left >= 0 else hidden
    hidden = hidden | (ahead > right) if right >= 0 else hidden
    return scores.masked_fill(hidden[:, None], -INFINITY)


def add_documents(scores: Tensor, same_document: Tensor) -> Tensor:
    """(B, Lq, Lk), True = of one document."""
    return scores.masked_fill(~same_document[:, None], -INFINITY)


def add_query_lengths(scores: Tensor, lengths: Tensor) -> Tensor:
    """(B,): queries beyond the length of their sample see no key."""
    beyond = torch.arange(scores.shape[-2]) >= lengths[:, None]
    return scores.masked_fill(beyond[:, None, :, None], -INFINITY)


def add_zero_key(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """One more key and value, of zeros."""
    return torch.nn.functional.pad(key, (0, 0, 0, 1)), torch.nn.functional.pad(value, (0, 0, 0, 1))


def add_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """(B, H, Lq, Lk) -> (B, H, Lq, Lk + 1): the sink's logit comes last."""
    column = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], -1)


def drop(weights: Tensor, rate: float) -> Tensor:
    return torch.dropout(weights, rate, train=True)


def gate(heads: Tensor, gates: Tensor) -> Tensor:
    return heads * gates[:, None, None]


def open_output(heads: Tensor, logits: Tensor) -> Tensor:
    """(B, H, Lq, d_v) times the sigmoids of logits of that shape, or (B, H, Lq, 1)."""
    return heads * torch.sigmoid(logits)


def split(joined: Tensor, value: Tensor, lengths: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Scores (B, H, Lq, n) and values (B, H, n, d_v) of each split; the last one has extra keys and the sink, too."""
    ends = list(accumulate(lengths))[:-1]
    return list(zip(joined.tensor_split(ends, -1), value.tensor_split(ends, -2), strict=True))


def merge(states: Sequence[State]) -> State:
    """Outputs and log-sum-exps of the splits -> those of all keys."""
    outputs, logs = zip(*states, strict=True)
    return combine(torch.stack(outputs, -1), softmax(torch.stack(logs, -1))), log_sum_exp(torch.stack(logs, -1))


def combine(outputs: Tensor, shares: Tensor) -> Tensor:
    """(B, H, Lq, d_v, splits), (B, H, Lq, splits) -> (B, H, Lq, d_v)."""
    return (outputs * shares[..., None, :]).sum(-1)


def positions(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    batch, queries, keys = len(query), query.shape[-2], key.shape[-2]
    of_query = documents(call.query_segments, call.cu_seqlens_q, batch, queries)
    of_key = documents(call.key_segments, call.cu_seqlens_k, batch, keys)
    start = (call.query_start or 0) if call.query_starts is None else call.query_starts[:, None]
    counted = position_in_document if call.packed else position_in_row
    return counted(of_query) + start, counted(of_key), of_query[:, :, None] == of_key[:, None, :]


def rotated_at(of_query: Tensor, of_key: Tensor, call: CallOptions) -> tuple[Tensor, Tensor]:
    """(B, Lq) and (B, Lk): the positions that are given for the rotation, or else those that are counted."""
    given = call.query_positions, call.key_positions
    return of_query if given[0] is None else given[0], of_key if given[1] is None else given[1]


def documents(segments: Tensor | None, ends: Tensor | None, batch: int, length: int) -> Tensor:
    """(B, L): the document of each token, given by ids (B, L), by cumulative lengths, or not at all."""
    if segments is not None:
        return segments
    if ends is None:
        return torch.zeros(batch, length, dtype=torch.long)
    return torch.repeat_interleave(torch.arange(len(ends) - 1), ends.diff()).expand(batch, length)


def position_in_document(of: Tensor) -> Tensor:
    """(B, L): how many tokens of the same document come before each."""
    return (of[:, :, None] == of[:, None, :]).tril(-1).sum(-1)


def position_in_row(of: Tensor) -> Tensor:
    """The same where all are of one document."""
    return torch.arange(of.shape[1]).expand(of.shape)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """float32 for half types."""
    return torch.float32 if dtype.itemsize < 4 else dtype


@dataclass(frozen=True)
class Steps:
    """Scaled dot-product attention; if `wide`, half types are computed in float32 and rounded once at the end."""

    wide: bool = True
    factor: Callable[[Tensor, float | None], float] = factor
    positions: Callable[[Tensor, Tensor, CallOptions], Positions] = positions
    rotated_at: Callable[[Tensor, Tensor, CallOptions], tuple[Tensor, Tensor]] = rotated_at
    norm: Callable[[Tensor, Tensor | None, float], Tensor] = norm
    rotate: Callable[[Tensor, Tensor, float], Tensor] = rotate
    rotate_first: Callable[[Tensor, int, Callable[[Tensor], Tensor]], Tensor] = rotate_first
    row_of: Callable[[Tensor, Tensor], Tensor] = row_of
    rotate_pairs: Callable[[Tensor, Tensor, Tensor], Tensor] = rotate_pairs
    repeat_kv: Callable[[Tensor, int], Tensor] = repeat_kv
    add_zero_key: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = add_zero_key
    score: Callable[[Tensor, Tensor, float], Tensor] = score
    cap: Callable[[Tensor, float], Tensor] = cap
    add_alibi: Callable[[Tensor, Tensor, Tensor], Tensor] = add_alibi
    add_relative: Callable[[Tensor, Tensor, Tensor], Tensor] = add_relative
    bucket: Callable[[Tensor, int, int, bool], Tensor] = bucket
    add_buckets: Callable[[Tensor, Tensor, Tensor], Tensor] = add_buckets
    add_mask: Callable[[Tensor, Tensor], Tensor] = add_mask
    add_padding: Callable[[Tensor, Tensor], Tensor] = add_padding
    add_lengths: Callable[[Tensor, Tensor], Tensor] = add_lengths
    add_query_lengths: Callable[[Tensor, Tensor], Tensor] = add_query_lengths
    add_causal: Callable[[Tensor], Tensor] = add_causal
    add_triangle: Callable[[Tensor, Tensor], Tensor] = add_triangle
    add_window: Callable[[Tensor, Tensor, tuple[int, int]], Tensor] = add_window
    add_documents: Callable[[Tensor, Tensor], Tensor] = add_documents
    add_sinks: Callable[[Tensor, Tensor], Tensor] = add_sinks
    softmax: Softmax = softmax
    drop: Callable[[Tensor, float], Tensor] = drop
    mix: Callable[[Tensor, Tensor], Tensor] = mix
    gate: Callable[[Tensor, Tensor], Tensor] = gate
    open_output: Callable[[Tensor, Tensor], Tensor] = open_output
    log_sum_exp: Softmax = log_sum_exp
    split: Callable[[Tensor, Tensor, Sequence[int]], list[tuple[Tensor, Tensor]]] = split
    log_of_split: Softmax = log_sum_exp
    merge: Callable[[Sequence[State]], State] = merge

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return self.answer(query, key, value, **options)[0]

    def answer(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Output, weights and log-sum-exp."""
        call, dtype = CallOptions(**options), query.dtype
        q, k, v = (x.to(accumulator(dtype) if self.wide else dtype) for x in (query, key, value))
        q, k, v, where = self._prepared(q, k, v, call)
        scores = self.score(q, k, self.factor(query, call.scale))
        scores = scores if call.softcap is None else self.cap(scores, call.softcap)
        scores = self._masked(self._biased(scores, where[0], call, key.shape[-2]), where, call, key.shape[-2])
        joined = scores if call.sinks is None else self.add_sinks(scores, call.sinks)
        weights = self.softmax(joined)[..., : scores.shape[-1]]
        dropped = self.drop(weights, call.dropout_p) if call.dropout_p else weights
        mixed, lse = self.mix(dropped, v), self.log_sum_exp(joined)
        if call.split_lengths is not None:
            mixed, lse = self._merged(joined, v, call.split_lengths.tolist())
        mixed = mixed if call.head_gates is None else self.gate(mixed, call.head_gates.to(mixed.dtype))
        mixed = mixed if call.gate_logits is None else self.open_output(mixed, call.gate_logits.to(mixed.dtype))
        output, p, lse = (x.to(dtype) for x in (mixed, weights, lse))
        return output, p, lse

    def _merged(self, joined: Tensor, value: Tensor, lengths: Sequence[int]) -> State:
        """Output and log-sum-exp; dropout is for keys that are not split."""
        return self.merge(
            [
                (self.mix(self.softmax(scores)[..., : rows.shape[-2]], rows), self.log_of_split(scores))
                for scores, rows in self.split(joined, value, lengths)
            ]
        )

    def _prepared(
        self, q: Tensor, k: Tensor, v: Tensor, call: CallOptions
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Query, key and value as they are multiplied; how far keys are ahead (B, Lq, Lk), and which are together."""
        of_query, of_key, same_document = self.positions(q, k, call)
        if call.query_norm is not None and call.key_norm is not None:
            epsilon = NORM_EPSILON if call.norm_epsilon is None else call.norm_epsilon
            q, k = (self.norm(x, g.to(x.dtype), epsilon) for x, g in ((q, call.query_norm), (k, call.key_norm)))
        at = self.rotated_at(of_query, of_key, call)
        q, k = (self._rotated(x, there, call) for x, there in zip((q, k), at, strict=True))
        k, v = self.repeat_kv(k, q.shape[1]), self.repeat_kv(v, q.shape[1])
        if call.add_zero_attn:
            k, v = self.add_zero_key(k, v)
        return q, k, v, (of_key[:, None, :] - of_query[:, :, None], same_document)

    def _rotated(self, rows: Tensor, at: Tensor, call: CallOptions) -> Tensor:
        base, dim = call.rotary_base, call.rotary_dim
        if call.rotary_cos is not None and call.rotary_sin is not None:
            return self.rotate_pairs(rows, self.row_of(call.rotary_cos, at), self.row_of(call.rotary_sin, at))
        if base is None:
            return rows
        if dim is None:
            return self.rotate(rows, at, base)
        return self.rotate_first(rows, dim, lambda part: self.rotate(part, at, base))

    def _biased(self, scores: Tensor, ahead: Tensor, call: CallOptions, keys: int) -> Tensor:
        given, rest = scores[..., :keys], scores[..., keys:]
        if call.alibi_slopes is not None:
            given = self.add_alibi(given, call.alibi_slopes.to(scores.dtype), ahead)
        if call.relative_bias is not None:
            given = self.add_relative(given, call.relative_bias.to(scores.dtype), ahead)
        if (table := call.bucketed_bias) is not None:
            of = self.bucket(ahead, len(table), call.max_distance, call.bidirectional)
            given = self.add_buckets(given, table.to(scores.dtype), of)
        return torch.cat([given, rest], -1) if rest.shape[-1] else given

    def _masked(self, scores: Tensor, where: tuple[Tensor, Tensor], call: CallOptions, keys: int) -> Tensor:
        given, rest = scores[..., :keys], scores[..., keys:]
        if call.attn_mask is not None:
            given = self.add_mask(given, call.attn_mask)
        if call.key_padding_mask is not None:
            given = self.add_padding(given, call.key_padding_mask)
        if call.valid_lens is not None:
            given = self.add_lengths(given, call.valid_lens)
        if call.query_lens is not None:
            given = self.add_query_lengths(given, call.query_lens)
        if call.is_causal:
            given = self.add_triangle(given, where[0]) if call.positioned else self.add_causal(given)
        if call.window_size != (-1, -1):
            given = self.add_window(given, where[0], call.window_size)
        if call.packed:
            given = self.add_documents(given, where[1])
        return torch.cat([given, rest], -1) if rest.shape[-1] else given
