"""Online softmax over tiles of keys, and its way back: plain functions of tensors, in memory linear in the lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.inhouse.seeded_dropout import Dropout
from attention_conformance.implementations.builtin.inhouse.tile_masks import INFINITY, Masks, Tile, cut

TILE, ROWS = 512, 512
"""So many keys and queries at a time going forward: more of them save changes of the maximum, and calls."""
BACK = 64
"""So many keys at most going back, where all queries and heads are taken at once."""
SCORES = 2**19
"""So many scores at a time stay in the second cache of a processor while they are worked on."""
HIGHEST, LARGEST = 48.0, 1e12
"""Where scores and values are no larger, exponentials and their sums fit float32 without taking a maximum off."""


class Operands(NamedTuple):
    """What gradients go to: query (B, H, Lq, d_k), key (B, Hk, Lk, d_k), value (B, Hk, Lk, d_v), and some `Options`."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    relative_bias: Tensor | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True)
class Plan:
    """Everything else that determines the result, and the size of the tiles."""

    masks: Masks
    scale: float
    softcap: float | None = None
    zero: bool = False
    dropout: Dropout | None = None
    size: int = TILE

    @classmethod
    def of(cls, masks: Masks, query: Tensor, size: int = TILE) -> Plan:
        """The plan of a call without dropout."""
        call = masks.options
        scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        return cls(masks, scale, call.softcap, call.add_zero_attn, None, size)


@dataclass(frozen=True)
class Block:
    """The scores of a tile, and what they were made of.

    Attributes:
        visible: see `Masks.visible`.
        key, value: (B, H, keys, d), shared by the heads of a group.
        slope: of the softcap, shaped like the scores.
    """

    visible: Tensor | None
    key: Tensor
    value: Tensor
    scores: Tensor
    slope: Tensor | None


def block(plan: Plan, given: Operands, tile: Tile) -> Block:
    """The tile's scores, minus infinity where a query may not see a key."""
    heads = given.query.shape[1]
    key, value = (shared(x[:, :, tile.keys], heads) for x in (given.key, given.value))
    scores, slope = given.query[:, :, tile.rows] @ key.mT * plan.scale, None
    if plan.softcap is not None:
        tanh = torch.tanh(scores / plan.softcap)
        scores, slope = plan.softcap * tanh, 1.0 - tanh.square()
    added, visible = plan.masks.added(tile, scores.dtype), plan.masks.visible(tile)
    scores = scores if added is None else scores + added
    scores = scores if visible is None else scores.masked_fill(~visible, -INFINITY)
    return Block(visible, key, value, scores, slope)


class State(NamedTuple):
    """Of all queries, written to as keys come in: maximum and sum (B, H, Lq, 1), what is mixed (B, H, Lq, d_v)."""

    top: Tensor
    whole: Tensor
    mixed: Tensor


def attend(plan: Plan, given: Operands) -> tuple[Tensor, Tensor]:
    """The output (B, H, Lq, d_v) and the log-sum-exp (B, H, Lq), in the precision in which the query is worked on."""
    steady = _steady(plan, given)
    # Large scores in a half type would not be those that the way back makes again.
    query, key, value = (x if steady else x.to(wide(x.dtype)) for x in given[:3])
    top, whole = _start(plan, given)
    state = State(torch.zeros_like(top) if steady else top, whole, top.new_zeros(*query.shape[:-1], value.shape[-1]))
    for tile in plan.masks.tiles(plan.size, ROWS):
        visible, added = plan.masks.visible(tile), plan.masks.added(tile, top.dtype)
        visible = None if visible is None or visible.all() else visible
        factors = None if plan.dropout is None else _factors(plan.dropout, top, tile)
        for samples, heads, keyed in _blocks(query, key, tile):
            masks = tuple(None if x is None else _share(x, samples, heads) for x in (visible, added, factors))
            part = State(*(x[samples, heads, tile.rows] for x in state))
            rows, keys = query[samples, heads, tile.rows], (samples, keyed, tile.keys)
            _extend(plan, part, (rows, key[keys], value[keys]), masks, steady)
    top, whole, mixed = state
    return mixed.div_(torch.where(whole == 0, 1.0, whole)), (or_zero(top) + whole.log())[..., 0]


def _steady(plan: Plan, given: Operands) -> bool:
    """Whether it is known beforehand that scores are small enough to do without their maximum."""
    query, key, value = given[:3]
    if not query.is_cpu or not min(query.numel(), value.numel(), key.numel()):
        return False
    if query.shape[2] < query.shape[3] and query.dtype is wide(query.dtype):
        return False  # to look at everything would take longer, but not longer than to widen it
    call = plan.masks.options
    biased = call.attn_mask is not None and call.attn_mask.dtype is not torch.bool
    if biased or any(x is not None for x in (given.sinks, call.alibi_slopes, call.relative_bias)):
        return False
    # No product of two vectors is larger than that of their lengths; NaN compares as False.
    longest = [torch.linalg.vector_norm(x, dim=-1).max().item() for x in (query, key)]
    low, high = (x.item() for x in value.aminmax())
    return bool(longest[0] * longest[1] * abs(plan.scale) <= HIGHEST and low >= -LARGEST and high <= LARGEST)


def _extend(
    plan: Plan, state: State, given: tuple[Tensor, Tensor, Tensor], masks: tuple[Tensor | None, ...], steady: bool
) -> None:
    """Takes in the keys of a tile for some samples and heads."""
    (query, key, value), (visible, added, factors), (top, whole, mixed) = given, masks, state
    scores = _scores(plan, query, key)
    if steady:
        weights = scores.exp_() if visible is None else scores.exp_().masked_fill_(~visible, 0.0)
    else:
        scores = scores.to(top.dtype) if added is None else scores + added
        scores = scores if visible is None else scores.masked_fill_(~visible, -INFINITY)
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        base = or_zero(higher)
        rescale = (top - base).exp_()
        whole.mul_(rescale)
        mixed.mul_(rescale)
        top.copy_(higher)
        weights = scores.sub_(base).exp_()
    whole.add_(weights.sum(-1, keepdim=True, dtype=top.dtype))
    mixed.add_(_mixed(weights if factors is None else weights * factors, value, visible))


def _scores(plan: Plan, query: Tensor, key: Tensor) -> Tensor:
    """(B, H, rows, keys); the queries that share a key head are rows of one product."""
    *outer, width = query.shape
    count, rows = key.shape[0] * key.shape[1], query.shape[1] // max(1, key.shape[1]) * query.shape[2]
    # Products of what lies apart would copy it column by column.
    q, k = query.reshape(count, rows, width).contiguous(), key.reshape(count, key.shape[2], width).contiguous()
    # In bfloat16 torch leaves the product unwritten where alpha is 0.
    scores = (q.new_empty if plan.scale else q.new_zeros)(count, rows, key.shape[2])
    torch.baddbmm(scores, q, k.mT, beta=0, alpha=plan.scale, out=scores)
    scores = scores.view(*outer, key.shape[2])
    return scores if plan.softcap is None else plan.softcap * torch.tanh(scores.to(wide(q.dtype)) / plan.softcap)


def _mixed(weights: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
    """(B, H, rows, d_v); see `product`."""
    batch, keyed, keys, width = value.shape
    rows = weights.shape[1] // max(1, keyed) * weights.shape[2]
    folded = value.reshape(batch * keyed, keys, width).contiguous()
    mixed = torch.bmm(weights.to(value.dtype).view(batch * keyed, rows, keys), folded).view(*weights.shape[:3], width)
    if visible is None or bool(mixed.isfinite().all()):
        return mixed
    return product(weights, shared(value.to(weights.dtype), weights.shape[1]), visible)


def _blocks(query: Tensor, key: Tensor, tile: Tile) -> Iterator[tuple[slice, slice, slice]]:
    """Samples, query heads and their key heads, with at most `SCORES` scores together, or those of one key head."""
    (batch, heads), keyed = query.shape[:2], key.shape[1]
    group = heads // max(1, keyed)
    one = group * (tile.rows.stop - tile.rows.start) * (tile.keys.stop - tile.keys.start)
    # A device with a memory of its own takes all at once.
    fitting = max(1, SCORES // max(1, one)) if query.is_cpu else batch * keyed
    for i in range(0, batch, max(1, fitting // max(1, keyed))):
        for j in range(0, keyed, fitting):
            some = slice(j, min(j + fitting, keyed))
            yield slice(i, i + max(1, fitting // max(1, keyed))), slice(some.start * group, some.stop * group), some


def _share(mask: Tensor, samples: slice, heads: slice) -> Tensor:
    """The part of a mask (B or 1, H or 1, rows, keys) for some samples and heads."""
    return mask[samples if mask.shape[0] > 1 else slice(None), heads if mask.shape[1] > 1 else slice(None)]


def _start(plan: Plan, given: Operands) -> tuple[Tensor, Tensor]:
    """Maximum and sum (B, H, Lq, 1) before any key: those of the sinks and of the key of zeros, whose score is 0."""
    first, dtype = 0.0 if plan.zero else -INFINITY, wide(given.query.dtype)
    logit = given.query.new_full((given.query.shape[1],), first, dtype=dtype)
    logit = logit if given.sinks is None else torch.logaddexp(logit, given.sinks)
    top = logit[:, None, None].expand(*given.query.shape[:-1], 1).clone()
    return top, (top > -INFINITY).to(top.dtype)


def retrace(plan: Plan, given: Operands, lse: Tensor, cotangent: Tensor, centre: Tensor) -> Operands:
    """The gradients: dS = P (dP - centre), tile by tile, the weights P made again from the log-sum-exp.

    Args:
        plan: as in the forward pass.
        given: as in the forward pass.
        lse: (B, H, Lq) over all keys, these and others.
        cotangent: (B, H, Lq, d_v), d loss / d output.
        centre: (B, H, Lq, 1), the sum of the weights times their gradients over all keys.
    """
    gradients = Operands(*(None if x is None else torch.zeros_like(x, dtype=cotangent.dtype) for x in given))  # type: ignore[arg-type]  # what is given is there
    base = or_zero(lse)[..., None]
    for tile in plan.masks.tiles(min(plan.size, BACK)):
        part, d_output = block(plan, given, tile), cotangent[:, :, tile.rows]
        weights, d_weights = (part.scores - base[:, :, tile.rows]).exp(), d_output @ part.value.mT
        dropped = weights
        if plan.dropout is not None:
            factors = _factors(plan.dropout, weights, tile)
            dropped, d_weights = weights * factors, d_weights * factors
        d_scores = weights * (d_weights - centre[:, :, tile.rows])
        d_scores = d_scores if part.visible is None else d_scores.masked_fill(~part.visible, 0.0)
        _add_gradients(plan, given, gradients, tile, part, d_scores)
        _gather(gradients.value, tile, dropped.mT @ d_output)
    if gradients.sinks is not None and given.sinks is not None:
        shares = (given.sinks[:, None, None] - base).exp()
        gradients.sinks.sub_((shares * centre).sum((0, 2, 3)))
    return gradients


def _add_gradients(plan: Plan, given: Operands, gradients: Operands, tile: Tile, part: Block, d_scores: Tensor) -> None:
    if not tile.extra_kv:
        _add_biases(plan, gradients, tile, d_scores)
    d_products = (d_scores if part.slope is None else d_scores * part.slope) * plan.scale
    gradients.query[:, :, tile.rows] += product(d_products, part.key, part.visible)
    _gather(gradients.key, tile, d_products.mT @ given.query[:, :, tile.rows])


def _add_biases(plan: Plan, gradients: Operands, tile: Tile, d_scores: Tensor) -> None:
    """What flows to the float mask and to the table of relative biases."""
    if gradients.attn_mask is not None:
        into = cut(gradients.attn_mask, tile)
        into += d_scores.sum_to_size(into.shape)
    if gradients.relative_bias is not None:
        entries = plan.masks.entries(tile)
        by_entry = d_scores.sum_to_size(len(entries), *d_scores.shape[1:]).transpose(0, 1)
        gradients.relative_bias.index_add_(1, entries.flatten(), by_entry.flatten(1))


def _factors(dropout: Dropout, weights: Tensor, tile: Tile) -> Tensor:
    return dropout.factors(tile, weights.device, weights.dtype)


def product(weights: Tensor, rows: Tensor, visible: Tensor | None) -> Tensor:
    """(B, H, Lq, Lk), (B, H, Lk, d) -> (B, H, Lq, d), where nothing comes from what is hidden: 0 * NaN is NaN."""
    if visible is None or bool(rows.isfinite().all()):
        return weights @ rows
    return (weights[..., None] * torch.where(visible[..., None], rows[:, :, None], 0.0)).sum(-2)


def shared(rows: Tensor, heads: int) -> Tensor:
    """(B, Hk, L, d) -> (B, H, L, d): neighbouring query heads share a key head."""
    return rows if rows.shape[1] == heads else rows.repeat_interleave(heads // rows.shape[1], 1)


def _gather(sums: Tensor, tile: Tile, rows: Tensor) -> None:
    """Adds (B, H, keys, d) to the tile's part of (B, Hk, Lk, d), summed over each group."""
    if rows.shape[1] != sums.shape[1]:
        rows = rows.unflatten(1, (sums.shape[1], -1)).sum(2)
    sums[:, :, tile.keys] += rows


def wide(dtype: torch.dtype) -> torch.dtype:
    """The precision in which a dtype is worked on."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def or_zero(logs: Tensor) -> Tensor:
    """0 instead of infinities."""
    return torch.where(logs.isinf(), 0.0, logs)
