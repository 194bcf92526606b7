"""Mistakes of chapter 15: right answers that take more memory than they need."""

from collections import deque
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.inhouse.tiled import tiled_attention
from attention_conformance.implementations.builtin.stepwise.steps import Steps, factor
from attention_conformance.implementations.defects.breaking import COST, breaks
from attention_conformance.spec.features import Feature

LINEAR = frozenset({Feature.LINEAR_MEMORY})
TILE = 128
_STORED: deque[Tensor] = deque(maxlen=64)
breaks_speed = partial(breaks, severity=COST, dtype="float32")
breaks_linear = partial(breaks_speed, claims=LINEAR)


@breaks_linear(
    "speed.linear-memory",
    "speed.linear-memory-gradients",
    holds=("speed.memory-growth", "speed.memory-returned", "scores.dot-product"),
)
def all_scores_at_once(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options)


@breaks_linear("speed.linear-memory", "speed.linear-memory-gradients", holds=("speed.memory-growth", "causal.square"))
def causal_flag_spelled_out(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if options.get("is_causal") and "attn_mask" not in options:
        options["attn_mask"] = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        options["is_causal"] = False
    return tiled_attention(query, key, value, **options)[0]


@breaks_linear("speed.linear-memory-gradients", holds=("speed.linear-memory", "gradients.query"))
def tiles_recorded_for_the_backward_pass(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, scale: float | None = None, **masks: Any
) -> Tensor:
    if masks or query.shape[-2] != key.shape[-2] or not query.numel():
        return Steps()(query, key, value, is_causal=is_causal, scale=scale, **masks)
    rows = torch.arange(query.shape[-2], device=query.device)[:, None]
    most = query.new_full((*query.shape[:-1], 1), float("-inf"))
    total, mixed = torch.zeros_like(most), torch.zeros_like(most)
    for start in range(0, key.shape[-2], TILE):
        tile = slice(start, start + TILE)
        scores = query @ key[..., tile, :].mT * factor(query, scale)
        if is_causal:
            scores = scores.masked_fill(rows < rows[tile, 0], float("-inf"))
        larger = torch.maximum(most, scores.detach().amax(-1, keepdim=True))
        weights, before = (scores - larger).exp(), (most - larger).exp()
        total = total * before + weights.sum(-1, keepdim=True)
        mixed, most = mixed * before + weights @ value[..., tile, :], larger
    return mixed / total


@breaks_speed("speed.memory-growth", step="score", holds=("scores.dot-product", "speed.memory-returned"))
def products_before_their_sum(query: Tensor, key: Tensor, by: float) -> Tensor:
    return (query[..., :, None, :] * key[..., None, :, :]).sum(-1) * by


@breaks_speed("speed.memory-growth", holds=("heads.independent", "speed.memory-returned"))
def inputs_copied_for_every_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    heads = torch.arange(query.shape[1])
    copies = [x.repeat(len(heads), 1, 1, 1, 1) for x in (query, key, value)]
    return Steps()(*(x[heads, :, heads].transpose(0, 1) for x in copies), **options)


@breaks_speed("speed.memory-growth", step="score", holds=("relations.batch", "speed.memory-returned"))
def scores_between_samples(query: Tensor, key: Tensor, by: float) -> Tensor:
    scores = torch.einsum("bhqd,chkd->bchqk", query, key) * by
    return scores.diagonal(dim1=0, dim2=1).movedim(-1, 0)


@breaks_speed("speed.memory-returned", step="mix", holds=("speed.memory-growth", "effects.stateless"))
def weights_kept_for_later(weights: Tensor, value: Tensor) -> Tensor:
    _STORED.append(weights.detach())
    return weights @ value
