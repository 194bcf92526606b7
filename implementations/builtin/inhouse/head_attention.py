"""Routes through attention for heads that are rotated already: torch's kernel, and the equation written out."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.inhouse.kernels import Kernel, attended
from attention_conformance.implementations.builtin.inhouse.online import Operands, Plan, block, product, shared, wide
from attention_conformance.implementations.builtin.inhouse.tile_masks import INFINITY, Masks


def expressible(masks: Masks) -> bool:
    """Whether scaled_dot_product_attention supports the options: it has no softcap, no sinks, no documents."""
    return masks.options.softcap is None and masks.options.sinks is None and masks.documents is None


def fused(query: Tensor, key: Tensor, value: Tensor, masks: Masks, kernel: Kernel | None = None) -> Tensor:
    """(B, H, Lq, d), (B, Hk, Lk, d), (B, Hk, Lk, d) -> (B, H, Lq, d) by one kernel for all queries and keys."""
    call = masks.options
    if _merely_causal(masks):
        key, value = key[:, :, : masks.queries], value[:, :, : masks.queries]  # no query sees the others
        return attended(query, key, value, None, call.dropout_p, True, call.scale, kernel)
    visible, added = _joined(masks, query.dtype)
    key, value = contained(key, value, visible)
    mask, empty = _one_mask(visible, added)
    heads = attended(query, key, value, mask, call.dropout_p, False, call.scale, kernel)
    return heads if empty is None else heads.masked_fill(empty, 0.0)


def explicit(query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
    """The same with the weights (B, H, Lq, Lk) before dropout; half types are worked on in float32."""
    dtype, visible = query.dtype, _joined(masks, query.dtype)[0]
    q, k, v = (x.to(wide(dtype)) for x in (query, *contained(key, value, visible)))
    plan, given = Plan.of(masks, q), Operands(q, k, v)
    scores = torch.cat([block(plan, given, tile).scores for tile in (masks.whole, *masks.beyond)], -1)
    weights = softmax(scores, masks.options.sinks)
    dropped = torch.dropout(weights, masks.options.dropout_p, train=True) if masks.options.dropout_p else weights
    # Documents share no keys, but a sequence: what is NaN for one of them is hidden from another.
    heads = product(dropped, shared(v, q.shape[1]), None if masks.documents is None else visible)
    return heads.to(dtype), weights.to(dtype)


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Over the keys and the sink, which gets no weight of its own; zeros for a row that sees nothing."""
    if sinks is not None:
        column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    # A softmax over no key at all would send NaN back: what is put to zero afterwards has a gradient of 0.
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def contained(key: Tensor, value: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keys and values (B, Hk, Lk, d) with zeros where no query may look: a weight of 0 times NaN is NaN."""
    if visible is None:
        return key, value
    looked = visible.any(-2) if visible.shape[-2] > 1 else visible[..., 0, :]
    if looked.shape[1] not in (1, key.shape[1]):
        looked = looked.unflatten(1, (key.shape[1], -1)).any(2)
    hidden = ~looked
    if _harmless(key, value, hidden):
        return key, value
    return key.masked_fill(hidden[..., None], 0.0), value.masked_fill(hidden[..., None], 0.0)


def _harmless(key: Tensor, value: Tensor, hidden: Tensor) -> bool:
    """Whether it is known that what is hidden from all queries is finite: to read it costs less than a copy of all."""
    if not readable(key, hidden):
        return False
    places = hidden.flatten().nonzero()[:, 0]
    if not len(places) or hidden.shape[1] > 1 or len(hidden) != len(key):
        return not len(places)
    rows = (x.detach().transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, places) for x in (key, value))
    return all(math.isfinite(x.sum().item()) for x in rows)


def readable(*tensors: Tensor) -> bool:
    """Whether numbers may decide what is done: not in a graph, not in vmap, not where one had to wait for them."""
    if torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    return not any(not x.is_cpu or torch._C._functorch.is_functorch_wrapped_tensor(x) for x in tensors)


def _merely_causal(masks: Masks) -> bool:
    """Whether torch's own flag is enough; its kernel on the CPU takes positive scales only."""
    call = masks.options
    masked = (call.attn_mask, call.key_padding_mask, call.valid_lens, call.query_lens)
    others = (*masked, call.alibi_slopes, call.relative_bias)
    placed = bool(call.query_start) or call.query_starts is not None or masks.documents is not None
    plain = call.window_size[0] < 0 and not placed and not masks.extra_kv and masks.queries > 0
    return call.is_causal and plain and all(x is None for x in others) and (call.scale is None or call.scale > 0.0)


def _joined(masks: Masks, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """What is visible and what is added, (B or 1, H or 1, Lq, Lk), with the columns of the extra keys."""
    visible, added = masks.visible(masks.whole), masks.added(masks.whole, dtype)
    if masks.extra_kv:
        visible = None if visible is None else _followed(visible, masks, True)
        added = None if added is None else _followed(added, masks, 0.0)
    return visible, added


def _followed(mask: Tensor, masks: Masks, value: float) -> Tensor:
    """The mask with columns for the extra keys; one column for all keys is not one for those."""
    return F.pad(mask.expand(*mask.shape[:-1], masks.keys), (0, masks.extra_kv), value=value)


def _one_mask(visible: Tensor | None, added: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Both as one mask, and the rows (B or 1, H or 1, Lq, 1) that see nothing, in which nothing is masked."""
    if visible is None:
        return added, None
    empty_rows = ~visible.any(-1, keepdim=True)
    empty = None if readable(empty_rows) and not empty_rows.any() else empty_rows
    if added is None:
        return visible if empty is None else visible | empty, empty
    added = added.masked_fill(~visible, -INFINITY)
    return added if empty is None else added.masked_fill(empty, 0.0), empty
