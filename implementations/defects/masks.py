"""Mistakes of chapter 7: what a mask means, which of its axes is which, padding, lengths, and several masks."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Result
from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import (
    INFINITY,
    OP_FEATURES,
    Steps,
    add_lengths,
    add_mask,
    add_query_lengths,
    mix,
)
from attention_conformance.implementations.defects.breaking import LEAK, NAN, breaks, breaks_run, omitting
from attention_conformance.spec.conventions import Alignment, Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem

TILE = 64
"""Keys that a tiled kernel takes at once."""


def is_bool(mask: Tensor) -> bool:
    """Whether the mask keeps or hides, and does not add."""
    return mask.dtype is torch.bool


leaks_by_mask = partial(breaks, step="add_mask", severity=LEAK)


@leaks_by_mask("masks.bool", "masks.neutral", holds=("masks.float", "masks.float-infinity"))
def mask_inverted(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, ~mask if is_bool(mask) else mask)


@leaks_by_mask("masks.bool", "masks.no-influence", holds=("masks.float", "masks.neutral"))
def bool_mask_added(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + mask if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.bool", "masks.no-influence", holds=("masks.float", "masks.neutral"))
def mask_multiplied_into_scores(scores: Tensor, mask: Tensor) -> Tensor:
    return scores * mask if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.bool", "masks.segments", holds=("masks.float", "masks.neutral"))
def masked_scores_thrown_away(scores: Tensor, mask: Tensor) -> Tensor:
    if is_bool(mask):
        scores.masked_fill(~mask, -INFINITY)
        return scores
    return add_mask(scores, mask)


@breaks("masks.bool", "masks.zero-weight", step="add_mask", holds=("masks.float", "masks.neutral"), severity=NAN)
def plus_infinity_filled_in(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, INFINITY) if is_bool(mask) else add_mask(scores, mask)


@breaks("masks.bool", "masks.segments", extras=("weights",), holds=("masks.neutral", "masks.float"))
def masked_after_softmax(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    mask = options.get("attn_mask")
    if mask is None or not is_bool(mask):
        return Steps().answer(query, key, value, **options)[:2]
    steps = Steps(mix=lambda weights, value: mix(weights * mask, value))
    output, weights, _ = steps.answer(query, key, value, **{**options, "attn_mask": None})
    return output, weights * mask


@breaks("masks.no-influence", holds=("masks.bool", "masks.segments"), severity=NAN)
def masked_and_normalised_again(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is None or not is_bool(mask):
        return Steps()(query, key, value, **options)

    def again(weights: Tensor, value: Tensor) -> Tensor:
        rest = weights * mask
        whole = rest.sum(-1, keepdim=True)
        return mix(torch.where(whole > 0, rest / whole, torch.where(mask.any(-1, keepdim=True), torch.nan, 0.0)), value)

    return Steps(mix=again)(query, key, value, **{**options, "attn_mask": None})


@leaks_by_mask("masks.float", "scores.bias-after-scale", holds=("masks.bool",))
def float_mask_read_as_truth(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask.bool())


@breaks("masks.float", "scores.bias-after-scale", step="add_mask", holds=("masks.bool", "masks.neutral"))
def float_mask_read_as_padding(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask if is_bool(mask) else mask == 0)


@breaks("masks.float", "scores.bias-after-scale", step="add_mask", holds=("masks.bool", "masks.neutral"))
def float_mask_subtracted(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask if is_bool(mask) else torch.where(mask == -INFINITY, mask, -mask))


@leaks_by_mask("masks.float-infinity", holds=("masks.float", "masks.bool"))
def float_mask_clamped(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask if is_bool(mask) else mask.clamp(min=-12.0))


@leaks_by_mask("masks.no-influence", "masks.fill-value", holds=("masks.bool", "masks.segments"))
def large_number_subtracted(scores: Tensor, mask: Tensor) -> Tensor:
    return scores - 1e9 * ~mask if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.fill-value", holds=("masks.bool", "masks.no-influence"))
def billion_filled_in(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -1e9) if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.fill-value", holds=("masks.bool", "masks.no-influence"), dtype="float16")
def ten_thousand_filled_in(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -1e4) if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.zero-weight", "gradients.masked", "relations.padding-extension", holds=("masks.neutral",))
def small_fill(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -20.0) if is_bool(mask) else add_mask(scores, mask)


@breaks("masks.containment", step="mix", claims={Feature.CONTAINMENT}, holds=("masks.no-influence",), severity=NAN)
def zero_times_nan(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value


@breaks("masks.containment", claims={Feature.CONTAINMENT}, holds=("masks.no-influence", "masks.bool"), severity=NAN)
def nan_plus_minus_infinity(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def added(scores: Tensor, mask: Tensor) -> Tensor:
        return scores + (mask.to(scores.dtype).log() if is_bool(mask) else mask)

    def selected(weights: Tensor, value: Tensor) -> Tensor:
        return mix(weights, value.where((weights != 0).any(-2)[..., None], 0.0))

    return Steps(add_mask=added, mix=selected)(query, key, value, **options)


leaks = partial(breaks, severity=LEAK)


@leaks("masks.broadcast", "relations.batch", step="add_mask", holds=("masks.segments",))
def mask_of_the_first_sample(scores: Tensor, mask: Tensor) -> Tensor:
    return correct.add_mask(scores, mask[:1] if mask.ndim == 4 else mask)


@breaks("masks.broadcast", step="add_mask", holds=("masks.segments", "masks.key-padding"))
def mask_of_the_first_head(scores: Tensor, mask: Tensor) -> Tensor:
    return correct.add_mask(scores, mask[:, :1] if mask.ndim == 4 else mask)


@leaks("masks.broadcast", step="add_mask", holds=("masks.segments", "masks.key-padding"), raises=True)
def samples_of_the_mask_on_the_head_axis(scores: Tensor, mask: Tensor) -> Tensor:
    return correct.add_mask(scores, mask.squeeze(1) if mask.ndim == 4 else mask)


@leaks("masks.broadcast", step="add_mask", holds=("masks.segments", "masks.key-padding"))
def mask_repeated_in_turn(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.ndim == 4 and mask.shape[1] == 1:
        whole = mask.expand(scores.shape[0], -1, -1, -1)
        mask = whole.repeat(scores.shape[1], 1, 1, 1).view(*scores.shape[:2], *whole.shape[2:])
    return correct.add_mask(scores, mask)


@leaks("masks.bool", "shapes.coincident", step="add_mask", holds=("masks.key-padding", "causal.square"))
def square_mask_transposed(scores: Tensor, mask: Tensor) -> Tensor:
    square = mask.ndim > 1 and mask.shape[-1] == mask.shape[-2]
    return correct.add_mask(scores, mask.mT if square else mask)


@leaks("masks.segments", "masks.broadcast", step="add_mask", holds=("masks.bool",))
def flat_mask_taken_for_causal(scores: Tensor, mask: Tensor) -> Tensor:
    return correct.add_causal(scores) if mask.ndim == 2 else correct.add_mask(scores, mask)


@leaks("masks.middle", step="add_mask", holds=("masks.bool", "masks.prefix", "masks.neutral"))
def mask_left_out_by_its_first_sample(scores: Tensor, mask: Tensor) -> Tensor:
    first = mask[0] if mask.ndim == 4 else mask
    return scores if is_bool(mask) and bool(first.all()) else correct.add_mask(scores, mask)


@leaks("masks.middle", step="add_mask", holds=("masks.bool", "masks.triangle", "masks.rules"))
def mask_taken_for_a_triangle_by_its_first_head(scores: Tensor, mask: Tensor) -> Tensor:
    first = mask[(0,) * (mask.ndim - 2)]
    triangle = first.shape == scores.shape[-2:] and bool((first == torch.ones_like(first).tril()).all())
    return correct.add_mask(scores, first if is_bool(mask) and triangle else mask)


@leaks("masks.middle", step="add_mask", holds=("masks.bool", "masks.segments", "masks.rules"))
def mask_taken_for_padding_by_two_rows(scores: Tensor, mask: Tensor) -> Tensor:
    alike = is_bool(mask) and mask.ndim > 1 and bool((mask[..., :1, :] == mask[..., -1:, :]).all())
    return correct.add_mask(scores, mask[..., :1, :] if alike else mask)


@breaks("masks.rank", holds=("masks.broadcast",))
def heads_taken_for_samples(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 3:
        options["attn_mask"] = mask[:1, None]
    return Steps()(query, key, value, **options)


@leaks("masks.key-padding", step="add_padding", holds=("masks.bool",), raises=True)
def padding_along_the_heads(scores: Tensor, padding: Tensor) -> Tensor:
    return scores.masked_fill(~padding[:, None], -INFINITY)


@leaks("masks.key-padding", step="add_padding", holds=("masks.bool", "masks.broadcast"), raises=True)
def padding_on_the_queries(scores: Tensor, padding: Tensor) -> Tensor:
    return scores.masked_fill(~padding[:, None, :, None], -INFINITY)


@breaks("masks.key-padding", step="add_padding", holds=("masks.bool", "masks.empty-row-bool"), severity=NAN)
def padding_on_queries_and_keys(scores: Tensor, padding: Tensor) -> Tensor:
    masked_scores = correct.add_padding(scores, padding)
    if scores.shape[-2] == scores.shape[-1]:
        masked_scores = masked_scores.masked_fill(~padding[:, None, :, None], -INFINITY)
    return masked_scores


@leaks("masks.key-padding", step="add_padding", holds=("masks.bool", "masks.neutral"))
def padding_inverted(scores: Tensor, padding: Tensor) -> Tensor:
    return correct.add_padding(scores, ~padding)


@breaks("masks.key-padding", step="add_padding", holds=("masks.bool", "masks.empty-row-padding"), severity=NAN)
def tile_of_padding_not_rescued(scores: Tensor, padding: Tensor) -> Tensor:
    lost = padding.any(-1) & ~padding[:, :TILE].any(-1)
    return correct.add_padding(scores, padding).masked_fill(lost[:, None, None, None], float("nan"))


@breaks("masks.key-padding", step="add_padding", holds=("masks.bool", "causal.with-padding"))
def padding_ends_the_sequence(scores: Tensor, padding: Tensor) -> Tensor:
    return correct.add_padding(scores, padding.int().cumprod(-1).bool())


@leaks("masks.key-padding", step="add_padding", holds=("masks.bool", "masks.empty-row-padding"))
def padding_left_out_by_its_first_sample(scores: Tensor, padding: Tensor) -> Tensor:
    return scores if bool(padding[:1].all()) else correct.add_padding(scores, padding)


@leaks("masks.padding-fill-value", step="add_padding", holds=("masks.key-padding", "masks.fill-value"))
def padding_filled_with_a_number(scores: Tensor, padding: Tensor) -> Tensor:
    real = padding[:, None, None, :]
    return torch.where(real, scores, torch.where(real.any(-1, keepdim=True), -1e4, -INFINITY))


@leaks("masks.padding-fill-value", step="add_padding", holds=("masks.key-padding", "masks.fill-value"))
def padding_lowered_by_a_number(scores: Tensor, padding: Tensor) -> Tensor:
    real = padding[:, None, None, :]
    return torch.where(real.any(-1, keepdim=True), scores - 1e4 * ~real, -INFINITY)


@leaks("masks.intersect", holds=("masks.bool", "masks.key-padding"))
def padding_instead_of_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("attn_mask", options, "key_padding_mask"))


@leaks("masks.intersect", holds=("masks.bool", "masks.key-padding"))
def either_mask_is_enough(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask, padding = options.get("attn_mask"), options.get("key_padding_mask")
    if mask is not None and padding is not None:
        hidden = ~mask if mask.dtype is torch.bool else mask == -INFINITY
        joint = ~hidden | padding[:, None, None, :]
        options["attn_mask"] = joint if mask.dtype is torch.bool else torch.where(joint, mask.clamp(min=-99.0), mask)
        options.pop("key_padding_mask")
    return Steps()(query, key, value, **options)


def _without_lengths(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options)


attend = torch_op(_without_lengths)
breaks_lengths = partial(
    breaks_run, claims=Claims(Scope.OP, (OP_FEATURES | {Feature.VALID_LENS}) - {Feature.GRADIENTS})
)


def masked(problem: Problem, counts: Tensor) -> Problem:
    """The problem with a mask for the leading keys that the counts, which broadcast to (B, H, Lq, 1), leave."""
    return problem.with_arrays({"attn_mask": (torch.arange(problem.key.shape[-2]) < counts).numpy()})


@breaks_lengths("masks.valid-lens", holds=("masks.bool", "masks.key-padding"), severity=LEAK)
def lengths_tiled(problem: Problem, device: str) -> Result:
    """Item b * H + h of the joined axis gets the length of sample (b * H + h) % B."""
    lengths = problem.valid_lens
    if lengths is not None:
        batch, heads = problem.query.shape[:2]
        of_items = torch.tensor(lengths).repeat(heads, *(1,) * (lengths.ndim - 1)).unflatten(0, (batch, heads))
        problem = masked(problem, of_items.reshape(batch, heads, -1, 1))
    return attend(problem.but(valid_lens=None), device)


@breaks_lengths("masks.valid-lens", "masks.no-influence", holds=("masks.bool", "masks.key-padding"), severity=LEAK)
def lengths_ignored(problem: Problem, device: str) -> Result:
    return attend(problem.but(valid_lens=None), device)


@breaks_lengths("masks.valid-lens", holds=("masks.bool", "masks.key-padding"), severity=LEAK)
def lengths_of_the_first_query(problem: Problem, device: str) -> Result:
    if problem.valid_lens is not None:
        lengths = torch.tensor(problem.valid_lens).reshape(problem.query.shape[0], -1)[:, :1]
        problem = masked(problem, lengths[:, None, None])
    return attend(problem.but(valid_lens=None), device)


@breaks_lengths("masks.valid-lens", holds=("masks.bool", "masks.empty-row-padding"), severity=LEAK)
def lengths_inclusive(problem: Problem, device: str) -> Result:
    if problem.valid_lens is not None:
        lengths = torch.tensor(problem.valid_lens).reshape(problem.query.shape[0], 1, -1, 1)
        problem = masked(problem, lengths + (lengths > 0).int())
    return attend(problem.but(valid_lens=None), device)


@breaks_lengths("masks.valid-lens", holds=("masks.bool", "masks.empty-lengths"), severity=LEAK)
def lengths_left_out_where_one_is_full(problem: Problem, device: str) -> Result:
    lengths, keys = problem.valid_lens, problem.key.shape[-2]
    left_out = lengths is not None and lengths.ndim == 1 and lengths.max(initial=0) == keys
    return attend(problem.but(valid_lens=None) if left_out else problem, device)


@breaks_lengths("masks.empty-lengths", holds=("masks.valid-lens", "masks.key-padding"), severity=LEAK)
def length_of_zero_taken_for_none(problem: Problem, device: str) -> Result:
    """As `lengths or Lk` gives it."""
    if problem.valid_lens is not None:
        lengths = torch.tensor(problem.valid_lens).reshape(problem.query.shape[0], 1, -1, 1)
        problem = masked(problem, lengths.where(lengths > 0, problem.key.shape[-2]))
    return attend(problem.but(valid_lens=None), device)


@breaks_lengths("masks.empty-lengths", holds=("masks.valid-lens", "masks.key-padding"), severity=LEAK)
def length_of_zero_raised_to_one(problem: Problem, device: str) -> Result:
    if problem.valid_lens is not None:
        lengths = torch.tensor(problem.valid_lens).reshape(problem.query.shape[0], 1, -1, 1)
        problem = masked(problem, lengths.clamp(min=1))
    return attend(problem.but(valid_lens=None), device)


breaks_query_lengths = partial(
    breaks,
    "masks.query-lens",
    claims={Feature.QUERY_LENS, Feature.VALID_LENS},
    holds=("masks.valid-lens", "masks.key-padding", "causal.square"),
)
breaks_each_length = partial(breaks_query_lengths, step="add_query_lengths")


@breaks_each_length()
def query_lengths_ignored(scores: Tensor, lengths: Tensor) -> Tensor:
    return scores


@breaks_each_length()
def query_length_of_the_first_sample_for_all(scores: Tensor, lengths: Tensor) -> Tensor:
    return add_query_lengths(scores, lengths[:1].expand_as(lengths))


@breaks_each_length()
def one_padded_query_answered(scores: Tensor, lengths: Tensor) -> Tensor:
    return add_query_lengths(scores, lengths + 1)


@breaks_each_length()
def query_lengths_taken_for_those_of_keys(scores: Tensor, lengths: Tensor) -> Tensor:
    return add_lengths(scores, lengths)


@breaks_each_length(follows="padded-queries=uniform")
def padded_queries_answered_with_a_mean(scores: Tensor, lengths: Tensor) -> Tensor:
    beyond = torch.arange(scores.shape[-2]) >= lengths[:, None]
    return scores.masked_fill(beyond[:, None, :, None], 0.0)


@breaks_query_lengths(
    conventions=Conventions(causal_alignment=Alignment.BOTTOM_RIGHT_REAL), holds=("masks.valid-lens",)
)
def corner_from_the_padded_queries(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """The last query of the array, and not the last real one, stands at the last real key."""
    if not options.get("is_causal"):
        return Steps()(query, key, value, **options)
    lengths, padding, keys = options.get("valid_lens"), options.get("key_padding_mask"), torch.arange(key.shape[-2])
    if padding is not None:
        last = torch.where(padding, keys + 1, 0).amax(-1)
    elif lengths is not None:
        last = lengths.reshape(len(query), -1).amax(-1)
    else:
        last = torch.full((len(query),), key.shape[-2])
    return Steps()(query, key, value, **options, query_starts=last - query.shape[-2])
