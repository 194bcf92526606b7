"""Functions with the signatures of shipped kernels, and bodies of our own: one sequence at a time, right or wrong."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Function: TypeAlias = Callable[..., Any]
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Sequence:
    """Attention of one sequence, and the one mistake that it makes, if any."""

    wrong: str = ""
    only_half: bool = False

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool = False,
        scale: float | None = None,
        window: tuple[int, int] = (-1, -1),
        softcap: float | None = 0.0,
        slopes: Tensor | None = None,
        mask: Tensor | None = None,
        dropout: float = 0.0,
        first: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(Lq, H, d), (Lk, Hk, d), (Lk, Hk, d_v) -> (Lq, H, d_v), (H, Lq); `first`: where the first query stands."""
        if self.only_half and query.dtype not in HALVES:
            raise RuntimeError("only fp16 and bf16 data type are supported")
        if key.shape[:2] != value.shape[:2]:
            raise RuntimeError("key and value must have one length and number of heads")
        wide = query.dtype if query.dtype is torch.float64 else torch.float32
        q, k, v = (x.to(wide).swapaxes(0, 1) for x in (query, key, value))
        groups = len(q) // max(1, len(k))
        order = torch.arange(len(q)) % len(k) if self.wrong == "groups" else torch.arange(len(q)) // groups
        q_length, k_length = q.shape[1], k.shape[1]
        corner = 0 if self.wrong == "corner" else k_length - q_length
        ahead = torch.arange(k_length) - (torch.arange(q_length) + (corner if first is None else first))[:, None]
        by = q.shape[-1] ** -0.5 if scale is None else scale
        s = q @ k[order].mT * (by * 1.02 if self.wrong == "scale" else by)
        if softcap and self.wrong != "softcap":
            s = softcap * torch.tanh(s / softcap)
        if slopes is not None:
            distance = ahead if self.wrong == "slopes" else ahead.abs()
            s = s - slopes.to(wide)[:, None, None] * distance
        left, right = (side + (side > 0) if self.wrong == "window" else side for side in window)
        hidden = torch.zeros_like(ahead, dtype=torch.bool)
        hidden |= (ahead > int(self.wrong == "causal")) if causal else False
        hidden |= (ahead < -left) if left >= 0 else False
        hidden |= (ahead > right) if right >= 0 else False
        hidden = hidden if mask is None or self.wrong == "mask" else hidden | ~mask
        s = s.masked_fill(hidden, -torch.inf)
        empty = hidden.all(-1)[None, :, None] if k_length else torch.ones(1, q_length, 1, dtype=torch.bool)
        p = torch.where(empty, 0.0, torch.where(empty, 0.0, s).softmax(-1))
        if dropout and self.wrong != "dropout":
            p = torch.dropout(p, dropout, train=True)
        log = torch.where(empty, 0.0, s).logsumexp(-1).masked_fill(empty[..., 0], -torch.inf)
        log = log * 1.02 if self.wrong == "log" else log
        v = v.flip(1) if self.wrong == "value" else v
        return (p @ v[order]).swapaxes(0, 1).to(query.dtype), log


def batch(sequence: Sequence, query: Any, key: Any, value: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """(B, L, H, d) each -> (B, Lq, H, d_v) and (B, H, Lq)."""
    assert query.shape[-1] == key.shape[-1]
    assert len(query) == len(key) == len(value)
    assert key.shape[1:3] == value.shape[1:3]
    assert query.shape[2] % max(1, key.shape[2]) == 0
    slopes = options.pop("slopes", None)
    given = enumerate(zip(query, key, value, strict=True))
    answers = [sequence(*rows, **options, slopes=of_sample(slopes, b)) for b, rows in given]
    outputs, logs = zip(*answers, strict=True)
    return torch.stack(outputs), torch.stack(logs)


def of_sample(slopes: Tensor | None, number: int) -> Tensor | None:
    """(H,), of slopes (H,) or (B, H)."""
    return slopes if slopes is None or slopes.ndim == 1 else slopes[number]


def _gathered(
    key: Tensor, value: Tensor, table: Tensor, ends: list[tuple[int, int]], wrong: bool
) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
    """Keys and values with all the room in the pages of each sample, and where its own begin and end."""
    pages = (table[:1].expand_as(table) if wrong else table).long()
    room = pages.shape[1] * key.shape[1]
    held = [(b * room, b * room + end - begin) for b, (begin, end) in enumerate(ends)]
    return key[pages].flatten(0, 2), value[pages].flatten(0, 2), held


def flash(sequence: Sequence) -> dict[str, Function]:
    """The functions of FlashAttention."""

    def flash_attn_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Any:
        options: dict[str, Any] = {"causal": causal, "scale": softmax_scale, "window": window_size, "softcap": softcap}
        output, log = batch(sequence, q, k, v, **options, slopes=alibi_slopes, dropout=dropout_p)
        return (output, log, None) if return_attn_probs else output

    def flash_attn_kvpacked_func(
        q: Tensor,
        kv: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Any:
        rest = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
        return flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], *rest)

    def flash_attn_qkvpacked_func(
        qkv: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Any:
        rest = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
        return flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], *rest)

    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Tensor | None = None,
    ) -> Any:
        assert cu_seqlens_q.dtype is cu_seqlens_k.dtype is torch.int32
        assert max_seqlen_q == cu_seqlens_q.diff().max()
        assert max_seqlen_k == cu_seqlens_k.diff().max()
        options: dict[str, Any] = {"causal": causal, "scale": softmax_scale, "window": window_size, "softcap": softcap}
        ends = [list(zip(e[:-1].tolist(), e[1:].tolist(), strict=True)) for e in (cu_seqlens_q, cu_seqlens_k)]
        assert k.shape[:2] == v.shape[:2]
        if block_table is not None:
            if k.shape[1] % 16:
                raise RuntimeError("a page needs a multiple of 16 tokens")
            k, v, ends[1] = _gathered(k, v, block_table, ends[1], sequence.wrong == "table")
        if sequence.wrong == "documents":
            ends = [[(0, len(q))], [(0, len(k))]]
        answers = [
            sequence(q[a:b], k[c:d], v[c:d], **options, slopes=alibi_slopes, dropout=dropout_p)
            for (a, b), (c, d) in zip(*ends, strict=True)
        ]
        outputs, logs = zip(*answers, strict=True)
        return (torch.cat(outputs), torch.cat(logs, 1), None) if return_attn_probs else torch.cat(outputs)

    def varlen_attn(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> Tensor:
        assert enable_gqa is (query.shape[1] != key.shape[1])
        given = (query, key, value, cu_seq_q, cu_seq_k, max_q, max_k)
        output: Tensor = flash_attn_varlen_func(*given, softmax_scale=scale, window_size=window_size)
        return output

    functions = (
        varlen_attn,
        flash_attn_func,
        flash_attn_kvpacked_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_func,
    )
    return {function.__name__: function for function in functions}


def flashinfer(sequence: Sequence) -> dict[str, Function]:
    """The functions of FlashInfer for one request."""

    def single_prefill_with_kv_cache(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale_q: Tensor | None = None,
        scale_k: Tensor | None = None,
        scale_v: Tensor | None = None,
        o_dtype: torch.dtype | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        kv_layout: str = "NHD",
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        backend: str = "auto",
        return_lse: bool = False,
    ) -> Any:
        assert q.is_contiguous()
        if pos_encoding_mode == "ROPE_LLAMA":
            start = k.shape[0] - q.shape[0] if sequence.wrong != "rotary" else 0
            q, k = _rotated(q, start, rope_theta or 1e4), _rotated(k, 0, rope_theta or 1e4)
        options: dict[str, Any] = {
            "scale": sm_scale,
            "window": (window_left, -1),
            "softcap": logits_soft_cap,
            "mask": custom_mask,
        }
        output, log = sequence(q, k, v, **options, causal=causal and custom_mask is None)
        return (output, log.mT / math.log(2.0)) if return_lse else output

    def single_decode_with_kv_cache(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_layout: str = "NHD",
        pos_encoding_mode: str = "NONE",
        use_tensor_cores: bool = False,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        return_lse: bool = False,
    ) -> Any:
        given: dict[str, Any] = {
            "pos_encoding_mode": pos_encoding_mode,
            "window_left": window_left,
            "rope_theta": rope_theta,
        }
        scored: dict[str, Any] = {"logits_soft_cap": logits_soft_cap, "sm_scale": sm_scale}
        output, log = single_prefill_with_kv_cache(q[None], k, v, **given, **scored, return_lse=True)
        return (output[0], log[0]) if return_lse else output[0]

    return {f.__name__: f for f in (single_prefill_with_kv_cache, single_decode_with_kv_cache)}


def _rotated(x: Tensor, start: int, base: float) -> Tensor:
    """(L, H, d), component c paired with c + d / 2; angles in float64, as of a table."""
    half = x.shape[-1] // 2
    positions = torch.arange(x.shape[0], dtype=torch.float64) + start
    angles = positions[:, None] * base ** (-torch.arange(half, dtype=torch.float64) / half)
    wide = x if x.dtype is torch.float64 else x.float()
    cosines, sines = (each[:, None].to(wide.dtype) for each in (angles.cos(), angles.sin()))
    a, b = wide.chunk(2, -1)
    return torch.cat([a * cosines - b * sines, a * sines + b * cosines], -1).to(x.dtype)


def composed(wrong: str) -> dict[str, Function]:
    """Functions of xFormers, transformers and ONNX that are composed of single operations."""

    def memory_efficient_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_bias: Tensor | None = None,
        p: float = 0.0,
        scale: float | None = None,
        *,
        op: object = None,
        output_dtype: torch.dtype | None = None,
    ) -> Tensor:
        q, k, v = (x.swapaxes(1, 2) for x in (query, key, value))
        assert attn_bias is None or attn_bias.shape == (*q.shape[:3], k.shape[2])
        s = q * (query.shape[-1] ** -0.5 if scale is None else scale) @ k.mT
        s = s if attn_bias is None else s + attn_bias * (0.9 if wrong == "mask" else 1.0)
        weights = torch.dropout(torch.softmax(s, -1), p, train=True)
        return (weights @ v).swapaxes(1, 2)

    def eager_attention_forward(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        groups: Any = module.num_key_value_groups
        k, v = (x.repeat_interleave(groups, 1) for x in (key, value))
        s = query @ k.mT * scaling
        if attention_mask is not None:
            s = s + attention_mask[:, :, :, : k.shape[-2]]
        weights = s.softmax(-1, dtype=torch.float32).to(query.dtype)
        weights = torch.nn.functional.dropout(weights, dropout, module.training)
        weights = weights * 1.02 if wrong == "gain" else weights
        return (weights @ v).swapaxes(1, 2).contiguous(), weights

    def attention(
        Q: Any,  # noqa: N803
        K: Any,  # noqa: N803
        V: Any,  # noqa: N803
        attn_mask: Any = None,
        past_key: Any = None,
        past_value: Any = None,
        nonpad_kv_seqlen: Any = None,
        *,
        is_causal: int = 0,
        kv_num_heads: int | None = None,
        q_num_heads: int | None = None,
        scale: float | None = None,
        softcap: float = 0.0,
        qk_matmul_output_mode: int = 0,
    ) -> Any:
        kind = Q.dtype
        q, k, v = (x.astype(np.promote_types(kind, np.float32)) for x in (Q, K, V))
        k, v = (x.repeat(q.shape[1] // max(1, x.shape[1]), 1) for x in (k, v))
        s = np.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(q.shape[-1] ** -0.5 if scale is None else scale)
        s = np.tanh(s / softcap) * softcap if softcap else s
        if attn_mask is not None and attn_mask.dtype == bool:
            s = np.where(attn_mask, s, -np.inf).astype(s.dtype)
        elif attn_mask is not None:
            s = s + attn_mask.astype(s.dtype)
        (rows, keys), ends = s.shape[-2:], nonpad_kv_seqlen
        last = np.full((1, 1, 1, 1), keys) if ends is None else ends[:, None, None, None]
        start = (0 if ends is None else last.max() - rows if wrong == "starts" else last - rows) + (wrong == "causal")
        hidden = (np.arange(keys) > np.arange(rows)[:, None] + start) & bool(is_causal)
        s = np.where((np.arange(keys) >= last) | hidden, -np.inf, s).astype(s.dtype)
        top = s.max(-1, keepdims=True, initial=-np.inf)
        e = np.exp(s - np.where(np.isfinite(top), top, 0.0).astype(s.dtype))
        weights = e / np.maximum(e.sum(-1, keepdims=True), np.finfo(s.dtype).tiny)
        return np.matmul(weights, v).astype(kind), K, V, weights.astype(kind)

    return {f.__name__: f for f in (memory_efficient_attention, eager_attention_forward, attention)}
