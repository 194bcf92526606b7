"""Attention in tiles: a function whose forward and backward pass need memory linear in the lengths."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention_conformance.implementations.builtin.inhouse.call_options import EPSILON, Options, check
from attention_conformance.implementations.builtin.inhouse.online import (
    ROWS,
    TILE,
    Operands,
    Plan,
    attend,
    retrace,
    wide,
)
from attention_conformance.implementations.builtin.inhouse.rotary import rotated_pair
from attention_conformance.implementations.builtin.inhouse.seeded_dropout import Dropout, drawn_seed
from attention_conformance.implementations.builtin.inhouse.tile_masks import Masks


class TiledAttention(torch.autograd.Function):
    """Output and log-sum-exp; no weight outlives its tile, the way back makes them again."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *given: Any) -> tuple[Tensor, Tensor]:
        """See `attend`."""
        output, lse = attend(plan, Operands(*given))
        ctx.plan = plan
        ctx.save_for_backward(*given, output, lse)
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
        """See `retrace`."""
        *given, output, lse = ctx.saved_tensors
        _, *needed = ctx.needs_input_grad
        names = zip(Operands._fields[3:5], needed[3:5], strict=True)
        spared: dict[str, Any] = {name: None for name, is_needed in names if not is_needed}
        rows = (x.to(d_output.dtype) for x in given[:3])
        operands = Operands(*rows, *given[3:])._replace(**spared)
        centre = (d_output * output).sum(-1, keepdim=True) - d_lse[..., None]
        gradients = retrace(ctx.plan, operands, lse, d_output, centre)
        rounded = (None if x is None or y is None else y.to(x.dtype) for x, y in zip(given, gradients, strict=True))
        return None, *rounded


def tiled_attention(
    query: Tensor, key: Tensor, value: Tensor, *, tile: int | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """softmax(scale * Q K^T + ...) V for every sample and head; half types are worked on in float32.

    Gradients go to query, key, value, float mask, relative biases, sinks, gains, gates and their logits. Dropout takes
    a seed from torch's generator.

    Args:
        query: (B, H, Lq, d_k).
        key: (B, Hk, Lk, d_k).
        value: (B, Hk, Lk, d_v).
        tile: so many keys at a time; None is as many as suit.
        options: see `Options`.

    Returns:
        The output (B, H, Lq, d_v) and the log-sum-exp of the scores (B, H, Lq), which is in float32 for half types.
        A query that may see no key gets zeros, and minus infinity.

    Raises:
        ValueError: shapes or options that make no sense.
    """
    call = Options[Tensor](**options)
    check(query.shape, key.shape, value.shape, call)
    dtype = wide(query.dtype)
    masks = Masks.of(call, query, key)
    # Products of bfloat16 are many times faster than of float32; what is normalised or rotated would be rounded again.
    rotates = call.rotary_base is not None or call.rotary_cos is not None
    fast = query.dtype is torch.bfloat16 and not rotates and call.query_norm is None
    q, k = (query, key) if fast else (query.to(dtype), key.to(dtype))
    if call.query_norm is not None and call.key_norm is not None:
        q, k = (normalised(x, gain, call.norm_epsilon) for x, gain in ((q, call.query_norm), (k, call.key_norm)))
    q, k = rotated_pair(q, k, masks, call.rotary_base, call.rotary_dim)
    output, lse = in_tiles(q, k, value.to(q.dtype), masks, tile)
    if call.head_gates is not None:
        output = output * call.head_gates.to(dtype)[:, None, None]
    if call.gate_logits is not None:
        output = output * torch.sigmoid(call.gate_logits.to(dtype))
    return output.to(query.dtype), lse


def in_tiles(query: Tensor, key: Tensor, value: Tensor, masks: Masks, tile: int | None = None) -> tuple[Tensor, Tensor]:
    """The same for heads that are rotated already, and without gates; products are of the dtype of the query."""
    call, dtype = masks.options, wide(query.dtype)
    mask = None if call.attn_mask is None or call.attn_mask.dtype is torch.bool else call.attn_mask
    table, sinks = (None if x is None else x.to(dtype) for x in (call.relative_bias, call.sinks))
    size = TILE * ROWS // max(1, min(ROWS, query.shape[2])) if tile is None else tile
    plan = Plan.of(replace(masks, options=replace(call, relative_bias=table)), query, size)
    if call.dropout_p:
        plan = replace(plan, dropout=Dropout(call.dropout_p, drawn_seed(), (*query.shape[:-1], key.shape[-2])))
    answer: tuple[Tensor, Tensor] = TiledAttention.apply(plan, query, key, value, mask, table, sinks)  # type: ignore[no-untyped-call]
    return answer


def normalised(rows: Tensor, gain: Tensor, epsilon: float | None = None) -> Tensor:
    """(B, H, L, d) by the root of their mean square, over each head, or over all where the gain is as long."""
    heads, width = rows.shape[1], rows.shape[-1]
    wide_rows, given = rows.to(wide(rows.dtype)), EPSILON if epsilon is None else epsilon
    if gain.numel() == width:
        return (F.rms_norm(wide_rows, (width,), None, given) * gain).to(rows.dtype)
    tokens = wide_rows.transpose(1, 2).flatten(2)
    normed = F.rms_norm(tokens, (heads * width,), None, given) * gain
    answer: Tensor = normed.unflatten(-1, (heads, width)).transpose(1, 2).to(rows.dtype)
    return answer
