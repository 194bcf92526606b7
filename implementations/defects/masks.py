"""Mistakes of chapters 7 and 8: masks, empty rows, the causal flag."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from implementations.contract import Claims, Implementation, Result
from implementations.defects.record import OP, REGISTRY, Defect, breaks
from implementations.defects.steps import INFINITY, Steps, add_causal, add_mask, score, softmax
from implementations.ops import torch_op
from spec.features import Feature, Scope
from spec.problems import Problem


def _is_bool(mask: Tensor) -> bool:
    return mask.dtype is torch.bool


@breaks("masks.bool", "masks.neutral", step="add_mask", holds=("masks.float", "masks.float-infinity"))
def mask_inverted(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, ~mask if _is_bool(mask) else mask)


@breaks("masks.broadcast", "relations.batch", step="add_mask", holds=("masks.segments",))
def mask_of_the_first_sample(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask[:1] if mask.ndim == 4 else mask)


@breaks("masks.segments", "masks.broadcast", step="add_mask", holds=("masks.bool",))
def flat_mask_taken_for_causal(scores: Tensor, mask: Tensor) -> Tensor:
    return add_causal(scores) if mask.ndim == 2 else add_mask(scores, mask)


@breaks("masks.float", "scores.bias-after-scale", step="add_mask", holds=("masks.bool",))
def float_mask_read_as_truth(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask.bool())


@breaks("masks.float-infinity", step="add_mask", holds=("masks.float", "masks.bool"))
def float_mask_clamped(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask if _is_bool(mask) else mask.clamp(min=-12.0))


@breaks("masks.no-influence", "masks.fill-value", step="add_mask", holds=("masks.bool", "masks.segments"))
def large_number_subtracted(scores: Tensor, mask: Tensor) -> Tensor:
    return scores - 1e9 * ~mask if _is_bool(mask) else add_mask(scores, mask)


@breaks("masks.fill-value", step="add_mask", holds=("masks.bool", "masks.no-influence"))
def billion_filled_in(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -1e9) if _is_bool(mask) else add_mask(scores, mask)


@breaks("masks.fill-value", dtype="float16", step="add_mask", holds=("masks.bool", "masks.no-influence"))
def ten_thousand_filled_in(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -1e4) if _is_bool(mask) else add_mask(scores, mask)


@breaks(
    "masks.zero-weight", "gradients.masked", "relations.padding-extension", step="add_mask", holds=("masks.neutral",)
)
def small_fill(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -20.0) if _is_bool(mask) else add_mask(scores, mask)


@breaks("masks.key-padding", step="add_padding", raises=True, holds=("masks.bool",))
def padding_along_the_heads(scores: Tensor, padding: Tensor) -> Tensor:
    return scores.masked_fill(~padding[:, None], -INFINITY)


@breaks("masks.rank", holds=("masks.broadcast",))
def heads_taken_for_samples(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 3:
        options["attn_mask"] = mask[:1, None]
    return Steps()(query, key, value, **options)


@breaks("masks.padding-fill-value", step="add_padding", holds=("masks.key-padding", "masks.fill-value"))
def padding_filled_with_a_number(scores: Tensor, padding: Tensor) -> Tensor:
    real = padding[:, None, None, :]
    return torch.where(real, scores, torch.where(real.any(-1, keepdim=True), -1e4, -INFINITY))


@breaks("masks.intersect", holds=("masks.bool", "masks.key-padding"))
def padding_instead_of_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "key_padding_mask" in options:
        options.pop("attn_mask", None)
    return Steps()(query, key, value, **options)


@breaks(
    "masks.empty-row-bool", "masks.empty-row-float", "masks.empty-row-padding", "gradients.empty-row", step="softmax"
)
def empty_row_is_nan(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -1)


@breaks("masks.empty-row-padding", "masks.empty-row-bool", step="softmax", holds=("masks.bool", "masks.key-padding"))
def empty_row_is_uniform(scores: Tensor) -> Tensor:
    return torch.softmax(scores.clamp(min=torch.finfo(scores.dtype).min), -1)


@breaks("masks.containment", step="mix", claims={Feature.CONTAINMENT}, holds=("masks.no-influence",))
def zero_times_nan(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value


@breaks("causal.square", step="add_causal")
def own_position_hidden(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores).triu().bool(), -INFINITY)


@breaks("causal.square", "causal.no-future", step="add_causal")
def next_position_seen(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores).triu(2).bool(), -INFINITY)


@breaks("causal.alignment", "causal.empty-rows", step="add_causal", holds=("causal.square", "causal.with-padding"))
def triangle_from_the_other_corner(scores: Tensor) -> Tensor:
    later = 1 + scores.shape[-1] - scores.shape[-2]
    return scores.masked_fill(torch.ones_like(scores).triu(later).bool(), -INFINITY)


@breaks("causal.any-scale", holds=("causal.square", "scores.scale-explicit"))
def future_masked_before_scale(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, is_causal: bool = False, **masks: Any
) -> Tensor:
    def scores(query: Tensor, key: Tensor, by: float) -> Tensor:
        return (add_causal(score(query, key, 1.0)) if is_causal else score(query, key, 1.0)) * by

    return Steps(score=scores)(query, key, value, scale=scale, **masks)


@breaks("causal.any-scores", step="add_causal", holds=("causal.square", "masks.fill-value"))
def future_filled_with_a_number(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -1e4)


@breaks("causal.padded-start", holds=("causal.with-padding", "masks.key-padding"))
def padding_taken_for_lengths(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    padding = options.get("key_padding_mask")
    if padding is not None and "is_causal" in options:
        options["key_padding_mask"] = torch.arange(key.shape[-2]) < padding.sum(-1, keepdim=True)
    return Steps()(query, key, value, **options)


@breaks("causal.with-mask", "shapes.combinations", holds=("causal.square", "causal.with-padding"))
def flag_dropped_beside_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "attn_mask" in options:
        options.pop("is_causal", None)
    return Steps()(query, key, value, **options)


@breaks("causal.with-padding", holds=("causal.square", "causal.with-mask"))
def padding_dropped_beside_flag(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "is_causal" in options:
        options.pop("key_padding_mask", None)
    return Steps()(query, key, value, **options)


@breaks("relations.causal-prefix", "causal.no-future", holds=("scores.dot-product",))
def future_cut_after_softmax(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, **options: Any
) -> Tensor:
    steps = Steps(softmax=lambda scores: softmax(scores).tril()) if is_causal else Steps()
    return steps(query, key, value, **options)


def _lengths_tiled(problem: Problem, device: str) -> Result:
    """Item b * H + h of the joined axis gets the length of sample (b * H + h) % B."""
    lengths = problem.valid_lens
    if lengths is not None:
        batch, heads = problem.query.shape[:2]
        of_items = torch.tensor(lengths).repeat(heads, *(1,) * (lengths.ndim - 1)).unflatten(0, (batch, heads))
        counts = of_items.reshape(batch, heads, -1, 1)
        problem = problem.with_arrays({"attn_mask": (torch.arange(problem.key.shape[-2]) < counts).numpy()})
    return torch_op(_without_lengths)(problem, device)


def _without_lengths(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options)


REGISTRY.append(
    Defect(
        Implementation(
            "lengths-tiled", Claims(Scope.OP, (OP | {Feature.VALID_LENS}) - {Feature.GRADIENTS}), _lengths_tiled
        ),
        ("masks.valid-lens",),
        holds=("masks.bool",),
    )
)
