"""Routes through attention for heads that are turned already: torch's kernel, and the equation written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from implementations.inhouse.masking import INFINITY, Masks
from implementations.inhouse.online import Operands, Plan, block, product, shared
from implementations.inhouse.tiled import wide


def expressible(masks: Masks) -> bool:
    """Whether scaled_dot_product_attention has all that is asked for: it knows no softcap, no sinks, no documents."""
    return masks.options.softcap is None and masks.options.sinks is None and masks.documents is None


def fused(query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
    """(B, H, Lq, d), (B, Hk, Lk, d), (B, Hk, Lk, d) -> (B, H, Lq, d) by the kernel of torch."""
    asked, grouped = masks.options, query.shape[1] != key.shape[1]
    if _merely_causal(masks):
        key, value = key[:, :, : masks.queries], value[:, :, : masks.queries]  # no query sees the others
        return F.scaled_dot_product_attention(
            query, key, value, None, asked.dropout_p, is_causal=True, scale=asked.scale, enable_gqa=grouped
        )
    seen, added = _joined(masks, query.dtype)
    key, value = contained(key, seen), contained(value, seen)
    mask, empty = _one_mask(seen, added)
    heads = F.scaled_dot_product_attention(
        query, key, value, mask, asked.dropout_p, scale=asked.scale, enable_gqa=grouped
    )
    return heads if empty is None else heads.masked_fill(empty, 0.0)


def explicit(query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
    """The same with the weights (B, H, Lq, Lk) before dropout; half types are worked on in float32."""
    dtype, seen = query.dtype, _joined(masks, query.dtype)[0]
    q, k, v = (x.to(wide(dtype)) for x in (query, contained(key, seen), contained(value, seen)))
    plan, given = Plan.of(masks, q), Operands(q, k, v)
    scores = torch.cat([block(plan, given, tile).scores for tile in (masks.whole, *masks.beyond)], -1)
    weights = softmax(scores, masks.options.sinks)
    dropped = torch.dropout(weights, masks.options.dropout_p, train=True) if masks.options.dropout_p else weights
    # Documents share no keys, but a sequence: what is NaN for one of them is hidden from another.
    heads = product(dropped, shared(v, q.shape[1]), None if masks.documents is None else seen)
    return heads.to(dtype), weights.to(dtype)


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Over the keys and the sink, which gets no weight of its own; zeros for a row that sees nothing."""
    if sinks is not None:
        column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    # A softmax over no key at all would send NaN back: what is put to zero afterwards has a gradient of 0.
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def contained(rows: Tensor, seen: Tensor | None) -> Tensor:
    """Keys or values (B, Hk, Lk, d) with zeros where no query may look: a weight of 0 times NaN is NaN."""
    if seen is None:
        return rows
    looked = seen.any(-2)
    if looked.shape[1] not in (1, rows.shape[1]):
        looked = looked.unflatten(1, (rows.shape[1], -1)).any(2)
    return rows.masked_fill(~looked[..., None], 0.0)


def _merely_causal(masks: Masks) -> bool:
    """Whether torch's own flag says it all; its kernel on the CPU takes positive scales only."""
    asked = masks.options
    others = (asked.attn_mask, asked.key_padding_mask, asked.alibi_slopes, asked.relative_bias, masks.documents)
    plain = asked.window_size[0] < 0 and not asked.query_start and not masks.further and masks.queries > 0
    return asked.is_causal and plain and all(x is None for x in others) and (asked.scale is None or asked.scale > 0.0)


def _joined(masks: Masks, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """What is seen and what is added, (B or 1, H or 1, Lq, Lk), with the columns of the further keys."""
    seen, added = masks.seen(masks.whole), masks.added(masks.whole, dtype)
    if masks.further:
        seen = None if seen is None else F.pad(seen, (0, masks.further), value=True)
        added = None if added is None else F.pad(added, (0, masks.further))
    return seen, added


def _one_mask(seen: Tensor | None, added: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Both as one mask, and the rows (B or 1, H or 1, Lq, 1) that see nothing, in which nothing is masked."""
    if seen is None:
        return added, None
    empty = ~seen.any(-1, keepdim=True)
    seen = seen | empty
    return seen if added is None else added.masked_fill(~seen, -INFINITY), empty
