"""Online softmax over tiles of keys, and its way back: plain functions of tensors, in memory linear in the lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from implementations.inhouse.dropping import Dropout
from implementations.inhouse.masking import INFINITY, Masks, Tile, cut

TILE = 64


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
    """All else that says what the answer is, and the size of the tiles in which it is found."""

    masks: Masks
    scale: float
    softcap: float | None = None
    zero: bool = False
    dropout: Dropout | None = None
    size: int = TILE

    @classmethod
    def of(cls, masks: Masks, query: Tensor, size: int = TILE) -> Plan:
        """What the options of a call ask for, but for dropout."""
        asked = masks.options
        scale = query.shape[-1] ** -0.5 if asked.scale is None else asked.scale
        return cls(masks, scale, asked.softcap, asked.add_zero_attn, None, size)


@dataclass(frozen=True)
class Block:
    """The scores of a tile, and what they were made of.

    Attributes:
        seen: see `Masks.seen`.
        key, value: (B, H, keys, d), shared by the heads of a group.
        slope: of the softcap, shaped like the scores.
    """

    seen: Tensor | None
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
    added, seen = plan.masks.added(tile, scores.dtype), plan.masks.seen(tile)
    scores = scores if added is None else scores + added
    scores = scores if seen is None else scores.masked_fill(~seen, -INFINITY)
    return Block(seen, key, value, scores, slope)


def attend(plan: Plan, given: Operands) -> tuple[Tensor, Tensor]:
    """The output (B, H, Lq, d_v) and the log-sum-exp (B, H, Lq)."""
    query, value = given.query, given.value
    top, whole = _start(plan, given)
    mixed = query.new_zeros(*query.shape[:-1], value.shape[-1])
    for tile in plan.masks.tiles(plan.size):
        part, old = block(plan, given, tile), top[:, :, tile.rows]
        new = torch.maximum(old, part.scores.amax(-1, keepdim=True))
        weights, kept = (part.scores - or_zero(new)).exp(), (old - or_zero(new)).exp()
        whole[:, :, tile.rows] = whole[:, :, tile.rows] * kept + weights.sum(-1, keepdim=True)
        weights = weights if plan.dropout is None else weights * _factors(plan.dropout, weights, tile)
        mixed[:, :, tile.rows] = mixed[:, :, tile.rows] * kept + product(weights, part.value, part.seen)
        top[:, :, tile.rows] = new
    return mixed / torch.where(whole == 0, 1.0, whole), (or_zero(top) + whole.log())[..., 0]


def _start(plan: Plan, given: Operands) -> tuple[Tensor, Tensor]:
    """Maximum and sum (B, H, Lq, 1) before any key: those of the sinks and of the key of zeros, whose score is 0."""
    logit = given.query.new_full((given.query.shape[1],), 0.0 if plan.zero else -INFINITY)
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
    found = Operands(*(None if x is None else torch.zeros_like(x, dtype=cotangent.dtype) for x in given))  # type: ignore[arg-type]  # what is given is there
    base = or_zero(lse)[..., None]
    for tile in plan.masks.tiles(plan.size):
        part, d_output = block(plan, given, tile), cotangent[:, :, tile.rows]
        weights, d_weights = (part.scores - base[:, :, tile.rows]).exp(), d_output @ part.value.mT
        dropped = weights
        if plan.dropout is not None:
            factors = _factors(plan.dropout, weights, tile)
            dropped, d_weights = weights * factors, d_weights * factors
        d_scores = weights * (d_weights - centre[:, :, tile.rows])
        d_scores = d_scores if part.seen is None else d_scores.masked_fill(~part.seen, 0.0)
        _add_gradients(plan, given, found, tile, part, d_scores)
        _gather(found.value, tile, dropped.mT @ d_output)
    if found.sinks is not None and given.sinks is not None:
        shares = (given.sinks[:, None, None] - base).exp()
        found.sinks.sub_((shares * centre).sum((0, 2, 3)))
    return found


def _add_gradients(plan: Plan, given: Operands, found: Operands, tile: Tile, part: Block, d_scores: Tensor) -> None:
    if not tile.further:
        _add_biases(plan, found, tile, d_scores)
    d_products = (d_scores if part.slope is None else d_scores * part.slope) * plan.scale
    found.query[:, :, tile.rows] += product(d_products, part.key, part.seen)
    _gather(found.key, tile, d_products.mT @ given.query[:, :, tile.rows])


def _add_biases(plan: Plan, found: Operands, tile: Tile, d_scores: Tensor) -> None:
    """What flows to the float mask and to the table of relative biases."""
    if found.attn_mask is not None:
        into = cut(found.attn_mask, tile)
        into += d_scores.sum_to_size(into.shape)
    if found.relative_bias is not None:
        entries = plan.masks.entries(tile)
        by_entry = d_scores.sum_to_size(len(entries), *d_scores.shape[1:]).transpose(0, 1)
        found.relative_bias.index_add_(1, entries.flatten(), by_entry.flatten(1))


def _factors(dropout: Dropout, weights: Tensor, tile: Tile) -> Tensor:
    return dropout.factors(tile, weights.device, weights.dtype)


def product(weights: Tensor, rows: Tensor, seen: Tensor | None) -> Tensor:
    """(B, H, Lq, Lk), (B, H, Lk, d) -> (B, H, Lq, d), where nothing comes from what is not seen: 0 * NaN is NaN."""
    if seen is None or bool(rows.isfinite().all()):
        return weights @ rows
    return (weights[..., None] * torch.where(seen[..., None], rows[:, :, None], 0.0)).sum(-2)


def shared(rows: Tensor, heads: int) -> Tensor:
    """(B, Hk, L, d) -> (B, H, L, d): neighbouring query heads share a key head."""
    return rows if rows.shape[1] == heads else rows.repeat_interleave(heads // rows.shape[1], 1)


def _gather(sums: Tensor, tile: Tile, rows: Tensor) -> None:
    """Adds (B, H, keys, d) to the tile's part of (B, Hk, Lk, d), summed over each group."""
    if rows.shape[1] != sums.shape[1]:
        rows = rows.unflatten(1, (sums.shape[1], -1)).sum(2)
    sums[:, :, tile.keys] += rows


def or_zero(logs: Tensor) -> Tensor:
    """0 instead of infinities."""
    return torch.where(logs.isinf(), 0.0, logs)
