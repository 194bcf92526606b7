"""Mistakes of chapter 24: documents that see each other, are separated wrongly, or whose lengths are misread."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.step_options import CallOptions
from attention_conformance.implementations.builtin.stepwise.steps import (
    BOTTOM_RIGHT,
    INFINITY,
    Positions,
    Steps,
    positions,
)
from attention_conformance.implementations.defects.breaking import GRADIENT, LEAK, NAN, breaks
from attention_conformance.spec.features import Feature

SEGMENTS = {Feature.SEGMENTS}
PACKED = SEGMENTS | {Feature.CUMULATIVE_LENGTHS, Feature.WINDOW, Feature.ROTARY, Feature.ALIBI}


def placed(query: Tensor, key: Tensor, call: CallOptions, change: Callable[[Tensor], Tensor], *names: str) -> Positions:
    """The positions after a change of the options of these names; the ids of documents without any."""
    given = {name: getattr(call, name) for name in names or ("query_segments", "key_segments")}
    changed: dict[str, Any] = {name: change(option) for name, option in given.items() if option is not None}
    return correct.positions(query, key, replace(call, **changed))


breaks_packed = partial(breaks, claims=PACKED)
leaks_documents = partial(breaks_packed, step="add_documents", severity=LEAK)


@leaks_documents(
    "packed.segments",
    "packed.isolated",
    "packed.segment-mask",
    "packed.lengths",
    holds=("masks.bool", "packed.one-document"),
)
def only_positions_restarted(scores: Tensor, same_document: Tensor) -> Tensor:
    return scores


@breaks_packed(
    "packed.causal",
    "packed.lengths-positions",
    "packed.same-as-separate",
    step="add_triangle",
    holds=("packed.segments", "packed.isolated", "packed.lengths"),
)
def triangle_over_all_documents(scores: Tensor, ahead: Tensor) -> Tensor:
    return correct.add_causal(scores)


@breaks_packed(
    "packed.causal",
    "packed.lengths-positions",
    conventions=BOTTOM_RIGHT,
    holds=("causal.alignment", "packed.segments", "packed.one-document"),
)
def corner_changed_within_documents(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    ids = options.get("query_segments")
    if ids is not None and bool((ids == ids[:, :1]).all()):
        options = {name: option for name, option in options.items() if not name.endswith("_segments")}
    return Steps(add_causal=correct.add_bottom_right)(query, key, value, **options)


breaks_segments = partial(breaks, claims=SEGMENTS)
leaks_segments = partial(breaks_segments, step="positions", severity=LEAK)


@leaks_segments("packed.segments", "packed.empty-segment", holds=("packed.one-document", "masks.bool"))
def queries_in_the_segments_of_keys(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    if call.query_segments is None or call.key_segments is None:
        return correct.positions(query, key, call)
    nearest = torch.arange(query.shape[-2]).clamp(max=key.shape[-2] - 1)
    return correct.positions(query, key, replace(call, query_segments=call.key_segments[:, nearest]))


@breaks_packed("packed.segments", step="positions", holds=("packed.lengths", "packed.one-document"), severity=LEAK)
def first_sample_cuts_all(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    return placed(query, key, call, lambda ids: ids[:1].expand(len(query), -1))


@breaks_packed("packed.segments", "packed.ids", holds=("packed.lengths", "packed.one-document", "masks.bool"))
def segment_zero_taken_for_padding(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    ids = options.get("key_segments")
    if ids is not None:
        options["key_padding_mask"] = options.get("key_padding_mask", ids == ids) & (ids != 0)
    return Steps()(query, key, value, **options)


@leaks_segments("packed.ids", holds=("packed.segments", "packed.causal", "packed.one-document"))
def documents_by_rising_ids(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    return placed(query, key, call, lambda ids: ids.cummax(-1).values)


@leaks_segments("packed.ids", holds=("packed.segments", "packed.causal", "packed.one-document"))
def ids_compared_as_bytes(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    return placed(query, key, call, lambda ids: ids.to(torch.uint8))


@leaks_segments(
    "packed.non-contiguous-ids", "packed.empty-segment", holds=("packed.segments", "packed.ids", "packed.causal")
)
def documents_counted_by_changes(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    return placed(query, key, call, lambda ids: torch.nn.functional.pad(ids.diff() != 0, (1, 0)).cumsum(-1))


@breaks_packed(
    "packed.positions", "packed.lengths-positions", step="rotate", holds=("packed.causal", "packed.segments")
)
def angles_go_on_over_documents(rows: Tensor, at: Tensor, base: float) -> Tensor:
    return correct.rotate(rows, torch.arange(rows.shape[-2]).expand_as(at), base)


@breaks_packed(
    "packed.positions",
    "packed.lengths-positions",
    step="add_alibi",
    holds=("packed.causal", "packed.segments", "packed.same-as-separate"),
)
def distances_go_on_over_documents(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    keys, queries = (torch.arange(n) for n in (scores.shape[-1], scores.shape[-2]))
    return correct.add_alibi(scores, slopes, (keys - queries[:, None])[None])


@breaks(
    "packed.containment",
    claims=SEGMENTS | {Feature.CONTAINMENT},
    holds=("packed.isolated", "masks.containment"),
    severity=NAN,
)
def other_documents_multiplied_by_zero(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def seen_by_some(weights: Tensor, value: Tensor) -> Tensor:
        # NaN weights are those of a query that is NaN itself.
        unseen = (weights == 0).all(-2)[..., None]
        return correct.mix(weights, torch.where(unseen, 0.0, value))

    return Steps(mix=seen_by_some)(query, key, value, **options)


@leaks_documents(
    "packed.empty-segment", "packed.empty-document", holds=("packed.segments", "packed.lengths", "masks.empty-row-bool")
)
def queries_without_keys_shown_everything(scores: Tensor, same_document: Tensor) -> Tensor:
    return correct.add_documents(scores, same_document | ~same_document.any(-1, keepdim=True))


@breaks_packed("packed.one-document", holds=("packed.segments", "packed.causal", "causal.square"), severity=LEAK)
def flag_lost_with_one_document(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    ids = options.get("query_segments")
    if ids is not None and bool((ids == ids[:, :1]).all()):
        packing = ("query_segments", "key_segments", "is_causal")
        options = {name: option for name, option in options.items() if name not in packing}
    return Steps()(query, key, value, **options)


@breaks_packed("packed.gradients", holds=("packed.isolated", "packed.segments", "gradients.value"), severity=GRADIENT)
def gradient_of_values_leaks(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    if not options.keys() & {"query_segments", "cu_seqlens_q"}:
        return output
    mean = value.mean(-2, keepdim=True)
    return output + (mean - mean.detach())


@leaks_documents("packed.isolated", "packed.segments", holds=("packed.one-document", "masks.bool"))
def other_documents_dimmed(scores: Tensor, same_document: Tensor) -> Tensor:
    return scores - 10.0 * (~same_document)[:, None]


@leaks_documents("packed.lengths", "packed.segments", holds=("packed.one-document", "masks.bool"))
def earlier_documents_seen(scores: Tensor, same_document: Tensor) -> Tensor:
    first = same_document.int().argmax(-1, keepdim=True)
    earlier = torch.arange(scores.shape[-1]) < first
    return scores.masked_fill(~(same_document | earlier)[:, None], -INFINITY)


LENGTHS = ("cu_seqlens_q", "cu_seqlens_k")
breaks_lengths = partial(breaks_packed, step="positions")


@breaks_lengths("packed.lengths", holds=("packed.segments", "packed.one-document"), severity=LEAK)
def ends_taken_as_inclusive(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    def later(ends: Tensor) -> Tensor:
        return torch.cat([ends[:1], (ends[1:-1] + 1).clamp(max=int(ends[-1])), ends[-1:]])

    return placed(query, key, call, later, *LENGTHS)


@breaks_lengths("packed.lengths", "packed.empty-document", holds=("packed.segments", "packed.causal"))
def last_document_dropped(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    of_query, of_key, same_document = positions(query, key, call)
    if call.cu_seqlens_q is None:
        return of_query, of_key, same_document
    last = torch.arange(query.shape[-2]) >= call.cu_seqlens_q[-2]
    return of_query, of_key, same_document & ~last[:, None]


@breaks_lengths("packed.empty-document", holds=("packed.lengths", "packed.empty-segment"), severity=LEAK)
def empty_documents_dropped(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    return placed(query, key, call, torch.unique, *LENGTHS)


@breaks_lengths("packed.idle-documents", holds=("packed.lengths", "packed.empty-segment"))
def stopped_at_a_document_without_queries(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    of_query, of_key, same_document = positions(query, key, call)
    if call.cu_seqlens_q is None:
        return of_query, of_key, same_document
    lengths = call.cu_seqlens_q.diff()
    idle = (lengths == 0).nonzero()[:1, 0]
    end = int(lengths[: int(idle)].sum()) if len(idle) else query.shape[-2]
    return of_query, of_key, same_document & (torch.arange(query.shape[-2]) < end)[:, None]


@breaks_lengths("packed.lengths", holds=("packed.segments", "packed.empty-segment"))
def keys_cut_at_the_longest_queries(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    of_query, of_key, same_document = positions(query, key, call)
    if call.cu_seqlens_q is None or call.cu_seqlens_k is None:
        return of_query, of_key, same_document
    longest = int(call.cu_seqlens_q.diff().max())
    return of_query, of_key, same_document & (of_key < longest)[:, None, :]
