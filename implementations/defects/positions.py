"""Mistakes of chapter 21: rotary embeddings, ALiBi and relative biases."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Result
from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.step_options import CallOptions
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Positions, Steps, add_relative
from attention_conformance.implementations.defects.breaking import (
    GRADIENT,
    LEAK,
    PRECISION,
    breaks,
    breaks_run,
)
from attention_conformance.implementations.defects.gradients import distorted
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import Premises
from attention_conformance.spec.problem import Problem

ROTARY = {Feature.ROTARY, Feature.QUERY_START}
ALIBI = {Feature.ALIBI, Feature.QUERY_START}


def frequencies(count: int, base: float) -> Tensor:
    return torch.as_tensor(base ** (-torch.arange(count, dtype=torch.float64) / count))


breaks_rotary = partial(breaks, claims=ROTARY)
breaks_rotate = partial(breaks_rotary, step="rotate")


@breaks_rotate(
    "positions.rotary",
    "positions.rotary-start",
    holds=("positions.rotary-norm", "positions.rotary-shift", "scores.dot-product"),
)
def adjacent_components_rotated(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    apart = torch.cat([rows[..., ::2], rows[..., 1::2]], -1)
    return torch.stack(correct.rotate(apart, positions, base).chunk(2, -1), -1).flatten(-2)


@breaks_rotate(
    "positions.rotary", "positions.rotary-norm", "positions.rotary-shift", holds=("scores.dot-product", "causal.square")
)
def frequencies_laid_out_for_adjacent_pairs(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    angles = positions[:, None, :, None] * frequencies(rows.shape[-1] // 2, base).repeat_interleave(2)
    first, second = rows.chunk(2, -1)
    exchanged = torch.cat([-second, first], -1)
    return rows * angles.cos().to(rows.dtype) + exchanged * angles.sin().to(rows.dtype)


@breaks_rotate("positions.rotary", holds=("positions.rotary-norm", "positions.rotary-shift"))
def rotated_in_the_opposite_direction(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    return correct.rotate(rows, -positions, base)


@breaks_rotate("positions.rotary", holds=("positions.rotary-norm", "positions.rotary-shift"))
def base_taken_for_granted(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    return correct.rotate(rows, positions, 10000.0)


@breaks_rotate("positions.rotary", holds=("positions.rotary-norm", "positions.rotary-shift"))
def exponent_of_pairs_over_the_width(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    return correct.rotate(rows, positions, base**0.5)


@breaks_rotate("positions.rotary", "positions.rotary-norm", holds=("scores.dot-product", "positions.rotary-shift"))
def cosines_and_sines_stretched(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    return 1.1 * correct.rotate(rows, positions, base)


@breaks_rotary(
    "positions.rotary", "positions.rotary-norm", "positions.rotary-shift", holds=("scores.dot-product", "causal.square")
)
def keys_rotated_twice(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "rotary_base" in options:
        at = torch.arange(key.shape[-2]).expand(len(key), -1)
        key = correct.rotate(key, at, options["rotary_base"])
    return Steps()(query, key, value, **options)


@breaks_rotary(
    "positions.rotary", "positions.rotary-start", holds=("scores.dot-product", "causal.square", "values.weighted-sum")
)
def values_rotated_too(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "rotary_base" in options:
        at, even = torch.arange(value.shape[-2]).expand(len(value), -1), value.shape[-1] // 2 * 2
        value = torch.cat([correct.rotate(value[..., :even], at, options["rotary_base"]), value[..., even:]], -1)
    return Steps()(query, key, value, **options)


@breaks_rotary(
    "positions.rotary-start",
    "positions.rotary-shift",
    "positions.rotary-far",
    step="positions",
    holds=("positions.rotary", "positions.rotary-norm", "causal.square"),
)
def queries_counted_from_zero(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    of_query, of_key, same_document = correct.positions(query, key, call)
    return of_query - (call.query_start or 0), of_key, same_document


@breaks_rotary(
    "positions.rotary-start",
    "positions.rotary-far",
    step="positions",
    holds=("positions.rotary", "positions.rotary-shift", "causal.square"),
)
def queries_placed_by_the_number_of_keys(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    of_query, of_key, same_document = correct.positions(query, key, call)
    if call.query_start is None:
        return of_query, of_key, same_document
    return of_query - call.query_start + key.shape[-2] - query.shape[-2], of_key, same_document


@breaks_rotate(
    "positions.rotary-far",
    holds=("positions.rotary", "positions.rotary-start", "positions.rotary-norm"),
    severity=PRECISION,
)
def positions_in_bfloat16(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    return correct.rotate(rows, positions.bfloat16().double(), base)


@breaks_rotate("positions.rotary-far", holds=("positions.rotary-norm",), severity=PRECISION, dtype="float16")
def angles_in_float16(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    angles = positions[..., None] * frequencies(rows.shape[-1] // 2, base)
    return correct.rotate_by(rows, angles.half().double())


@breaks_run(
    "shapes.large",
    claims=Claims(Scope.OP, OP_FEATURES, premises=Premises(rotary_base=10000.0)),
    holds=("shapes.tile-edges", "scores.dot-product"),
    severity=PRECISION,
    dtype="bfloat16",
)
def positions_inside_in_bfloat16(problem: Problem, device: str) -> Result:
    return torch_op(Steps(rotate=positions_in_bfloat16))(problem, device)


@breaks_rotate(
    "positions.rotary-gradient",
    holds=("positions.rotary", "positions.rotary-start", "gradients.query"),
    severity=GRADIENT,
)
def gradient_rotated_forwards(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    forwards = partial(correct.rotate, positions=positions, base=base)
    return distorted(rows, forwards, forwards)


PARTIAL = ROTARY | {Feature.PARTIAL_ROTARY}
PARTIAL_CLAUSES = ("positions.partial-rotary", "positions.partial-rotary-start", "positions.partial-rotary-gradient")
breaks_partial = partial(breaks, claims=PARTIAL, holds=("positions.rotary", "positions.rotary-start"))
breaks_rotate_first = partial(breaks_partial, *PARTIAL_CLAUSES, step="rotate_first")
Rotate: TypeAlias = Callable[[Tensor], Tensor]


@breaks_rotate_first()
def last_components_rotated(rows: Tensor, dim: int, rotate: Rotate) -> Tensor:
    return torch.cat([rows[..., :-dim], rotate(rows[..., -dim:])], -1)


@breaks_rotate_first()
def components_dropped_that_are_not_rotated(rows: Tensor, dim: int, rotate: Rotate) -> Tensor:
    return torch.cat([rotate(rows[..., :dim]), torch.zeros_like(rows[..., dim:])], -1)


@breaks_rotate_first()
def rotary_dimension_ignored(rows: Tensor, dim: int, rotate: Rotate) -> Tensor:
    return rotate(rows) if rows.shape[-1] % 2 == 0 else torch.cat([rotate(rows[..., :-1]), rows[..., -1:]], -1)


@breaks_partial(*PARTIAL_CLAUSES)
def frequencies_counted_from_the_width_of_the_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if dim := options.get("rotary_dim"):
        options["rotary_base"] **= dim / query.shape[-1]
    return Steps()(query, key, value, **options)


@breaks_rotate_first()
def pairs_half_a_head_apart(rows: Tensor, dim: int, rotate: Rotate) -> Tensor:
    half, middle = dim // 2, max(dim // 2, rows.shape[-1] // 2)
    halves = rotate(torch.cat([rows[..., :half], rows[..., middle : middle + half]], -1))
    parts = (halves[..., :half], rows[..., half:middle], halves[..., half:], rows[..., middle + half :])
    return torch.cat(parts, -1)


@breaks_partial(*PARTIAL_CLAUSES, step="positions")
def only_keys_rotated_in_part(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    of_query, of_key, same_document = correct.positions(query, key, call)
    return of_query if call.rotary_dim is None else torch.zeros_like(of_query), of_key, same_document


@breaks_partial("positions.partial-rotary-gradient", step="rotate_first", severity=GRADIENT)
def no_gradient_of_components_that_are_not_rotated(rows: Tensor, dim: int, rotate: Rotate) -> Tensor:
    return torch.cat([rotate(rows[..., :dim]), rows[..., dim:].detach()], -1)


IDS = ROTARY | {Feature.POSITION_IDS}
IDS_CLAUSES = ("positions.position-ids", "positions.position-ids-far", "positions.position-ids-gradient")
breaks_ids = partial(breaks, claims=IDS)
breaks_rotated_at = partial(breaks_ids, step="rotated_at", holds=("positions.rotary", "positions.rotary-start"))
BothIds: TypeAlias = tuple[Tensor, Tensor]


@breaks_rotated_at(*IDS_CLAUSES, "positions.position-ids-masks")
def position_ids_ignored(of_query: Tensor, of_key: Tensor, call: CallOptions) -> BothIds:
    return of_query, of_key


@breaks_rotated_at(*IDS_CLAUSES, "positions.position-ids-masks")
def ids_of_the_first_sample_for_all(of_query: Tensor, of_key: Tensor, call: CallOptions) -> BothIds:
    query, key = correct.rotated_at(of_query, of_key, call)
    return query[:1].expand_as(query), key[:1].expand_as(key)


@breaks_rotated_at(*IDS_CLAUSES, "positions.position-ids-masks")
def keys_rotated_by_their_index(of_query: Tensor, of_key: Tensor, call: CallOptions) -> BothIds:
    return correct.rotated_at(of_query, of_key, call)[0], of_key


@breaks_rotated_at(*IDS_CLAUSES, "positions.position-ids-masks")
def ids_clamped_to_the_length(of_query: Tensor, of_key: Tensor, call: CallOptions) -> BothIds:
    query, key = correct.rotated_at(of_query, of_key, call)
    if call.query_positions is None:
        return query, key
    return query.clamp(max=query.shape[-1] - 1), key.clamp(max=key.shape[-1] - 1)


@breaks_rotated_at(*IDS_CLAUSES, "positions.position-ids-masks")
def first_id_and_then_counted(of_query: Tensor, of_key: Tensor, call: CallOptions) -> BothIds:
    query, key = correct.rotated_at(of_query, of_key, call)
    if call.query_positions is None:
        return query, key
    return query[:, :1] + torch.arange(query.shape[1]), key[:, :1] + torch.arange(key.shape[1])


@breaks_rotated_at(
    "positions.position-ids-far",
    holds=("positions.rotary", "positions.rotary-far", "positions.position-ids", "positions.position-ids-masks"),
    severity=PRECISION,
)
def ids_in_bfloat16(of_query: Tensor, of_key: Tensor, call: CallOptions) -> BothIds:
    query, key = correct.rotated_at(of_query, of_key, call)
    return (query, key) if call.query_positions is None else (query.bfloat16().long(), key.bfloat16().long())


@breaks_ids("positions.position-ids-masks", holds=("positions.position-ids", "positions.rotary"), severity=LEAK)
def causal_by_position_ids(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "query_positions" in options and options.pop("is_causal", False):
        seen = options["query_positions"][:, None, :, None] >= options["key_positions"][:, None, None, :]
        options["attn_mask"] = seen
    return Steps()(query, key, value, **options)


breaks_alibi = partial(breaks, claims=ALIBI)
breaks_add_alibi = partial(breaks_alibi, step="add_alibi")


@breaks_add_alibi(
    "positions.alibi", "positions.alibi-causal", "positions.alibi-start", holds=("scores.dot-product", "masks.float")
)
def distance_rewarded(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return correct.add_alibi(scores, -slopes, ahead)


@breaks_add_alibi("positions.alibi", holds=("positions.alibi-causal", "scores.dot-product"))
def bias_by_key_position_only(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return scores + slopes[:, None, None] * torch.arange(scores.shape[-1])


@breaks_add_alibi("positions.alibi", holds=("positions.alibi-causal", "scores.dot-product"))
def later_keys_without_penalty(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return correct.add_alibi(scores, slopes, ahead.clamp(max=0))


@breaks_add_alibi("positions.alibi-start", holds=("positions.alibi", "positions.alibi-causal"))
def no_penalty_for_a_single_query(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return scores if scores.shape[-2] == 1 else correct.add_alibi(scores, slopes, ahead)


@breaks_add_alibi("positions.alibi-start", "positions.alibi-far", holds=("positions.alibi", "positions.alibi-causal"))
def distance_from_the_number_of_the_row(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    queries, keys = (torch.arange(n) for n in scores.shape[-2:])
    return correct.add_alibi(scores, slopes, (keys - queries[:, None])[None])


@breaks_alibi(
    "positions.alibi",
    "positions.alibi-causal",
    holds=("scores.dot-product", "scores.scale-explicit", "scores.bias-after-scale"),
)
def penalty_scaled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    scale = abs(query.shape[-1] ** -0.5 if options.get("scale") is None else options["scale"])
    if "alibi_slopes" in options:
        options["alibi_slopes"] = options["alibi_slopes"] * scale
    return Steps()(query, key, value, **options)


@breaks_add_alibi("positions.alibi", holds=("positions.alibi-far", "positions.alibi-causal"))
def slopes_along_the_queries(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    along = slopes[:, None] if len(slopes) == scores.shape[-2] else slopes[:, None, None]
    return scores - along * ahead.abs()[:, None]


breaks_of_samples = partial(
    breaks,
    claims=ALIBI | {Feature.ALIBI_SAMPLES},
    step="add_alibi",
    holds=("positions.alibi", "positions.alibi-causal"),
)


@breaks_of_samples("positions.alibi-samples")
def slopes_of_the_first_sample_for_all(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return correct.add_alibi(scores, slopes if slopes.ndim == 1 else slopes[0], ahead)


@breaks_of_samples("positions.alibi-samples")
def slopes_read_head_by_head(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    """Slopes (B, H) with the strides of (H, B)."""
    return correct.add_alibi(scores, slopes if slopes.ndim == 1 else slopes.T.reshape(slopes.shape), ahead)


@breaks_add_alibi("positions.alibi-far", holds=("positions.alibi", "positions.alibi-start"), severity=PRECISION)
def distances_in_bfloat16(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return correct.add_alibi(scores, slopes, ahead.bfloat16().to(scores.dtype))


RELATIVE = {Feature.RELATIVE_BIAS, Feature.QUERY_START}
breaks_relative = partial(breaks, claims=RELATIVE)
breaks_add_relative = partial(breaks_relative, step="add_relative")
breaks_bias = partial(breaks_add_relative, "positions.relative-bias", holds=("scores.dot-product", "masks.float"))


@breaks_bias("positions.relative-start", "positions.relative-gradient")
def distance_from_key_to_query(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    return add_relative(scores, table, -ahead)


@breaks_bias("positions.relative-gradient")
def nothing_beyond_the_table(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    covered = (ahead.abs() <= table.shape[-1] // 2)[:, None]
    return torch.where(covered, add_relative(scores, table, ahead), scores)


@breaks_bias("positions.relative-gradient")
def table_read_from_its_middle(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    most = table.shape[-1] // 2
    return scores + table[:, ahead.clamp(-most, most)].transpose(0, 1)


@breaks_bias("positions.relative-start")
def one_table_for_all_heads(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    return add_relative(scores, table[:1].expand_as(table), ahead)


@breaks_add_relative("positions.relative-start", holds=("positions.relative-bias", "positions.relative-gradient"))
def table_read_by_the_number_of_the_row(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    queries, keys = (torch.arange(n) for n in scores.shape[-2:])
    return add_relative(scores, table, (keys - queries[:, None]).expand(len(scores), -1, -1))


@breaks_add_relative(
    "positions.relative-gradient", holds=("positions.relative-bias", "gradients.query"), severity=GRADIENT
)
def last_gradient_of_an_entry_only(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    most = table.shape[-1] // 2
    entries = ahead.clamp(-most, most) + most

    def overwritten(gradient: Tensor) -> Tensor:
        of_table, flat = torch.zeros_like(table), gradient.flatten(1)
        for at, entry in enumerate(entries.flatten().tolist()):
            of_table[:, entry] = flat[:, at]
        return of_table

    return scores + distorted(table, overwritten, lambda table: table[:, entries]).transpose(0, 1)
