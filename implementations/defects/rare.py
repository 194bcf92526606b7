"""Mistakes that show under one condition alone: a size, a value of an option, a pair of options, a cotangent."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.step_options import CallOptions
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Positions, Steps
from attention_conformance.implementations.defects.breaking import CRASH, GRADIENT, LEAK, breaks
from attention_conformance.implementations.defects.gradients import FORWARD, distorted
from attention_conformance.spec.features import Feature

breaks_large = partial(breaks, "shapes.large", holds=("shapes.combinations", "shapes.coincident", "shapes.head-width"))
breaks_gradients = partial(breaks, severity=GRADIENT)


@breaks_large()
def blocks_beyond_a_launch_left_out(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    blocks = torch.arange(output.shape[0] * output.shape[1]).view(*output.shape[:2], 1, 1)
    return output * (blocks < 65535)


@breaks_large()
def keys_counted_in_16_bits(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    most = 2**16 - 1
    key, value = (x[..., :most, :] for x in (key, value)) if "attn_mask" not in options else (key, value)
    return Steps()(query, key, value, **options)


@breaks_large(claims={Feature.QUERY_START}, step="positions")
def positions_of_queries_in_16_bits(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    of_query, of_key, same_document = correct.positions(query, key, call)
    return of_query.to(torch.int16).long(), of_key, same_document


@breaks_large()
def heads_of_large_models_rolled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    return output.roll(1, 1) if output.shape[1] >= 12 and output.shape[-1] >= 64 else output


@breaks("shapes.large", claims={Feature.CUMULATIVE_LENGTHS}, holds=("packed.lengths-positions", "packed.lengths"))
def next_key_seen_in_long_documents(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    ends = options.get("cu_seqlens_q")
    late = 1 if ends is not None and int(ends.diff().max()) > 64 else 0
    return Steps(add_triangle=lambda scores, ahead: correct.add_triangle(scores, ahead - late))(
        query, key, value, **options
    )


@breaks("shapes.views", holds=("shapes.combinations", "scores.dot-product"))
def query_read_from_the_start_of_its_storage(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if key.storage_offset() or not query.storage_offset():
        return Steps()(query, key, value, **options)
    return Steps()(query.as_strided(query.shape, query.stride(), 0), key, value, **options)


@breaks("shapes.views", holds=("scores.dot-product", "cross-attention.key-value"))
def keys_and_values_of_one_buffer_swapped(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    buffers = {x.untyped_storage().data_ptr() for x in (query, key, value)}
    apart = query.data_ptr() != key.data_ptr() and key.shape == value.shape
    return Steps()(query, *((value, key) if len(buffers) == 1 and apart else (key, value)), **options)


@breaks("shapes.views", holds=("scores.dot-product", "shapes.combinations"))
def rows_of_values_read_in_one_piece(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if value.stride(-1) > 1 and value.shape[-1] > 1:
        value = value.as_strided(value.shape, (*value.stride()[:-1], 1), value.storage_offset())
    return Steps()(query, key, value, **options)


@breaks("shapes.tile-edges", step="add_causal", holds=("shapes.combinations", "causal.square"), severity=LEAK)
def triangle_ends_after_a_thousand_rows(scores: Tensor) -> Tensor:
    return torch.where(torch.arange(scores.shape[-2])[:, None] < 1024, correct.add_causal(scores), scores)


@breaks("numerics.accumulation", step="mix", holds=("shapes.tile-edges", "cross-attention.single-query"))
def last_split_of_a_decoding_step_lost(weights: Tensor, value: Tensor) -> Tensor:
    length = value.shape[-2]
    whole = length - length % 512 if weights.shape[-2] == 1 and length > 4096 else length
    return correct.mix(weights[..., :whole], value[..., :whole, :])


@breaks("grouped.order", step="repeat_kv", claims={Feature.GROUPED}, holds=("grouped.single-key-head", "grouped.masks"))
def large_groups_rounded_to_powers_of_two(rows: Tensor, num_heads: int) -> Tensor:
    size = num_heads // rows.shape[1]
    rounded = 1 << (size.bit_length() - 1) if size > 4 else size
    return rows[:, (torch.arange(num_heads) // rounded).clamp(max=rows.shape[1] - 1)]


@breaks("causal.with-mask", holds=("causal.alignment", "causal.empty-rows", "shapes.combinations"))
def corner_moved_by_a_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    masked = "attn_mask" in options and query.shape[-2] > key.shape[-2]
    steps = Steps(add_causal=lambda scores: scores.masked_fill(torch.ones_like(scores).triu(0).bool(), -INFINITY))
    return steps(query, key, value, **options) if masked else Steps()(query, key, value, **options)


@breaks("window.with-mask", holds=("window.query-start", "masks.bool"), claims={Feature.WINDOW, Feature.QUERY_START})
def start_forgotten_by_window_and_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "attn_mask" in options and "window_size" in options:
        options.pop("query_start", None)
    return Steps()(query, key, value, **options)


@breaks("packed.with-masks", holds=("packed.segments", "masks.float"), claims={Feature.SEGMENTS})
def mask_dropped_with_segments(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "query_segments" in options:
        options.pop("attn_mask", None)
    return Steps()(query, key, value, **options)


@breaks("packed.with-masks", holds=("packed.segments", "masks.key-padding"), claims={Feature.SEGMENTS}, severity=LEAK)
def padding_dropped_with_segments(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "query_segments" in options:
        options.pop("key_padding_mask", None)
    return Steps()(query, key, value, **options)


@breaks(
    "returned.empty-row",
    extras=("log_sum_exp",),
    claims={Feature.WINDOW},
    holds=("softmax.log-sum-exp", "window.empty-rows"),
)
def log_sum_exp_of_nothing_in_the_window(
    query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    output, _, lse = Steps().answer(query, key, value, **options)
    return output, torch.where(lse == -INFINITY, 0.0, lse) if "window_size" in options else lse


@breaks("masks.broadcast", step="add_mask", holds=("masks.bool", "shapes.combinations"))
def mask_of_keys_shared_by_all_heads(scores: Tensor, mask: Tensor) -> Tensor:
    of_keys = mask.ndim == 4 and mask.shape[-2] == 1 and scores.shape[-2] > 1
    return correct.add_mask(scores, mask[:, :1] if of_keys else mask)


@breaks("masks.prefix", step="add_mask", holds=("masks.bool", "masks.broadcast"), severity=LEAK)
def padding_in_a_mask_cut_to_the_longest(scores: Tensor, mask: Tensor) -> Tensor:
    keys = torch.arange(mask.shape[-1])
    lengths = mask.sum(-1, keepdim=True)
    if (
        mask.dtype is torch.bool
        and mask.ndim == 4
        and mask.shape[1:3] == (1, 1)
        and bool((mask == (keys < lengths)).all())
    ):
        mask = (keys < lengths.max()).expand_as(mask)
    return correct.add_mask(scores, mask)


@breaks("masks.triangle", step="add_mask", holds=("masks.bool", "masks.segments"), severity=LEAK)
def triangle_in_a_mask_moved_to_the_corner(scores: Tensor, mask: Tensor) -> Tensor:
    square = mask.new_ones(mask.shape)
    if mask.dtype is torch.bool and mask.shape[-1] > 1 and torch.equal(mask, square.tril()):
        mask = square.tril(mask.shape[-1] - mask.shape[-2])
    return correct.add_mask(scores, mask)


@breaks("masks.rules", step="add_mask", holds=("masks.bool", "masks.triangle"))
def prefix_in_a_mask_taken_for_a_triangle(scores: Tensor, mask: Tensor) -> Tensor:
    earlier = torch.ones_like(mask).tril()
    if mask.dtype is torch.bool and mask.shape[-1] > 1 and not mask[..., 0, -1].any() and (mask | ~earlier).all():
        mask = earlier
    return correct.add_mask(scores, mask)


@breaks("masks.rules", step="add_mask", holds=("masks.bool", "masks.triangle"), severity=LEAK)
def tree_in_a_mask_taken_for_a_triangle(scores: Tensor, mask: Tensor) -> Tensor:
    earlier = torch.ones_like(mask).tril()
    if mask.dtype is torch.bool and mask[..., 0].all() and mask.diagonal(0, -2, -1).all() and (earlier | ~mask).all():
        mask = earlier
    return correct.add_mask(scores, mask)


@breaks("shapes.meetings", holds=("causal.square", "gradients.single-input"), severity=LEAK)
def flag_forgotten_where_keys_are_frozen(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if query.requires_grad and not key.requires_grad:
        options.pop("is_causal", None)
    return Steps()(query, key, value, **options)


@breaks("masks.least-finite", step="add_mask", holds=("masks.float", "masks.float-infinity"), severity=LEAK)
def least_finite_number_clamped(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is torch.bool:
        return correct.add_mask(scores, mask)
    return correct.add_mask(scores, torch.where(mask == torch.finfo(mask.dtype).min, -10.0, mask))


@breaks("errors.batch", holds=("errors.width", "scores.dot-product"), severity=CRASH)
def missing_samples_repeated(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    most = max(len(query), len(key))
    query, key, value = (x[torch.arange(most).clamp(max=len(x) - 1)] if len(x) else x for x in (query, key, value))
    return Steps()(query, key, value, **options)


@breaks_gradients("gradients.any-scale", holds=(*FORWARD, "scores.scale-negative"))
def size_of_the_scale_in_the_backward_pass(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if options.get("scale") is not None and options["scale"] < 0.0:
        key = distorted(key, torch.neg)
    return Steps()(query, key, value, **options)


@breaks_gradients("gradients.any-scale", step="score", holds=(*FORWARD, "scores.scale-explicit"))
def scale_of_zero_in_the_forward_pass_only(query: Tensor, key: Tensor, by: float) -> Tensor:
    scores = correct.score(query, key, query.shape[-1] ** -0.5)
    return correct.score(query, key, by) if by else scores - scores.detach()


@breaks_gradients("gradients.shared-input", holds=(*FORWARD, "gradients.single-input"))
def gradient_of_the_first_role_only(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    value = value.detach() if value is key else value
    return Steps()(query, key.detach() if key is query else key, value, **options)


@breaks_gradients("gradients.shared-input", holds=(*FORWARD, "gradients.single-input"))
def one_gradient_for_one_buffer(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if value.data_ptr() == key.data_ptr() and "attn_mask" not in options:
        key, value = key.detach(), distorted(value, lambda g: 2.0 * g)
    return Steps()(query, key, value, **options)


@breaks_gradients("shapes.head-width", holds=(*FORWARD, "gradients.query"))
def scale_applied_twice_in_the_backward_pass_of_one_width(
    query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> Tensor:
    if query.shape[-1] == 128:
        query = distorted(query, lambda g: g * 128**-0.5)
    return Steps()(query, key, value, **options)


@breaks_gradients("gradients.cotangent", holds=(*FORWARD, "gradients.single-input"))
def rows_skipped_by_their_first_component(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return distorted(Steps()(query, key, value, **options), lambda g: g.where(g[..., :1] != 0, 0.0))


class Counted(torch.autograd.Function):
    """Its gradient grows with every backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.passes = 0
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        ctx.passes += 1
        grown: Tensor = gradient * ctx.passes
        return grown


@breaks_gradients("gradients.in-turn", holds=(*FORWARD, "gradients.cotangent"))
def buffer_kept_by_the_first_backward_pass(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    counted: Tensor = Counted.apply(Steps()(query, key, value, **options))  # type: ignore[no-untyped-call]
    return counted


_LAST: dict[torch.Size, Tensor] = {}


class Mixed(torch.autograd.Function):
    """The weighted sum, whose way back uses the weights that were stored last."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, value: Tensor) -> Tensor:
        _LAST[weights.shape] = weights
        ctx.save_for_backward(weights, value)
        return correct.mix(weights, value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        weights, value = ctx.saved_tensors
        return gradient @ value.mT, _LAST[weights.shape].mT @ gradient


@breaks_gradients("gradients.in-turn", step="mix", holds=(*FORWARD, "effects.stateless"))
def weights_of_the_last_forward_pass(weights: Tensor, value: Tensor) -> Tensor:
    mixed: Tensor = Mixed.apply(weights, value)  # type: ignore[no-untyped-call]
    return mixed
