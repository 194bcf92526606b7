"""Mistakes of chapter 24: documents that see each other, or are separated wrongly."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import (
    BOTTOM_RIGHT,
    INFINITY,
    CallOptions,
    Steps,
    add_alibi,
    add_bottom_right,
    add_causal,
    add_documents,
    mix,
    positions,
    rotate,
)
from attention_conformance.implementations.defects.breaking import GRADIENT, LEAK, NAN, breaks, github
from attention_conformance.spec.features import Feature

SEGMENTS = {Feature.SEGMENTS}
PACKED = SEGMENTS | {Feature.CUMULATIVE_LENGTHS, Feature.WINDOW, Feature.ROTARY, Feature.ALIBI}
Places = tuple[Tensor, Tensor, Tensor]


def of_tokens(call: CallOptions, **changes: Tensor | None) -> CallOptions:
    """The options with other documents."""
    return replace(call, **changes)  # type: ignore[arg-type]  # they are ids and lengths


breaks_packed = partial(breaks, claims=PACKED)
leaks_documents = partial(breaks_packed, step="add_documents", severity=LEAK)


@leaks_documents(
    "packed.segments",
    "packed.isolated",
    "packed.segment-mask",
    "packed.lengths",
    holds=("masks.bool", "packed.one-document"),
).entry(
    does="Starts positions anew with each document, and lets all documents see each other.",
    repair="Hide keys of other documents as well.",
    hides="One document a sequence; a loss, which may well be lower.",
    matters="Training on packed documents mixes them, and inference never does.",
    links=github(
        "huggingface/nanoVLM/pull/204",
        "AI-Hypercomputer/maxtext/issues/4476",
        "DeepOpt-com/WrinkleFree-Monorepo/issues/53",
        "huggingface/trl/issues/784",
    ),
)
def only_positions_restarted(scores: Tensor, same_document: Tensor) -> Tensor:
    return scores


@breaks_packed(
    "packed.causal",
    "packed.lengths-positions",
    "packed.same-as-separate",
    step="add_triangle",
    holds=("packed.segments", "packed.isolated", "packed.lengths"),
).entry(
    does="Applies one triangle to the whole sequence, not to each document.",
    repair="Compare positions within the document.",
    hides="Documents with as many keys as queries.",
    links=github("facebookresearch/xformers/pull/643"),
)
def triangle_over_all_documents(scores: Tensor, ahead: Tensor) -> Tensor:
    return add_causal(scores)


@breaks_packed(
    "packed.causal",
    "packed.lengths-positions",
    conventions=BOTTOM_RIGHT,
    holds=("causal.alignment", "packed.segments", "packed.one-document"),
).entry(
    does="Ends the triangle of a whole sequence at its last key, and starts that of each document at its first.",
    repair="Shift the triangle of each document by its keys less its queries.",
    hides="Documents with as many keys as queries.",
    matters="Packed and alone, a document that continues a cached one gets two answers.",
)
def corner_changed_within_documents(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    ids = options.get("query_segments")
    if ids is not None and bool((ids == ids[:, :1]).all()):
        options = {name: option for name, option in options.items() if not name.endswith("_segments")}
    return Steps(add_causal=add_bottom_right)(query, key, value, **options)


breaks_segments = partial(breaks, claims=SEGMENTS)
leaks_segments = partial(breaks_segments, step="positions", severity=LEAK)


@leaks_segments("packed.segments", "packed.empty-segment", holds=("packed.one-document", "masks.bool")).entry(
    does="Gives each query the segment of the key at its index.",
    repair="Read the segments of queries from the array for queries.",
    hides="Self-attention, where both are the same.",
)
def queries_in_the_segments_of_keys(query: Tensor, key: Tensor, call: CallOptions) -> Places:
    if call.query_segments is None or call.key_segments is None:
        return positions(query, key, call)
    nearest = torch.arange(query.shape[-2]).clamp(max=key.shape[-2] - 1)
    return positions(query, key, of_tokens(call, query_segments=call.key_segments[:, nearest]))


@breaks_packed(
    "packed.segments", step="positions", holds=("packed.lengths", "packed.one-document"), severity=LEAK
).entry(
    does="Cuts all samples as the first one is.",
    repair="Compare segments sample by sample.",
    hides="A batch of one; samples that are cut alike.",
)
def first_sample_cuts_all(query: Tensor, key: Tensor, call: CallOptions) -> Places:
    if call.query_segments is None or call.key_segments is None:
        return positions(query, key, call)
    first = {name: getattr(call, name)[:1].expand(len(query), -1) for name in ("query_segments", "key_segments")}
    return positions(query, key, of_tokens(call, **first))


@breaks_packed("packed.segments", "packed.ids", holds=("packed.lengths", "packed.one-document", "masks.bool")).entry(
    does="Takes segment 0 for padding.",
    repair="Mask padding by a mask; 0 is an id.",
    hides="Ids that count from 1.",
)
def segment_zero_taken_for_padding(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    ids = options.get("key_segments")
    if ids is not None:
        options["key_padding_mask"] = options.get("key_padding_mask", ids == ids) & (ids != 0)
    return Steps()(query, key, value, **options)


@leaks_segments("packed.ids", holds=("packed.segments", "packed.causal", "packed.one-document")).entry(
    does="Lets a document begin where the id rises.",
    repair="Compare ids for being equal.",
    hides="Ids that count up.",
    links=github("huggingface/transformers/pull/44911"),
)
def documents_by_rising_ids(query: Tensor, key: Tensor, call: CallOptions) -> Places:
    if call.query_segments is None or call.key_segments is None:
        return positions(query, key, call)
    highest = {name: getattr(call, name).cummax(-1).values for name in ("query_segments", "key_segments")}
    return positions(query, key, of_tokens(call, **highest))


@leaks_segments("packed.ids", holds=("packed.segments", "packed.causal", "packed.one-document")).entry(
    does="Compares ids as bytes.",
    repair="Compare them in the type in which they come.",
    hides="Ids below 256.",
    matters="Where documents are numbered through a whole data set, those that are 256 apart read each other.",
)
def ids_compared_as_bytes(query: Tensor, key: Tensor, call: CallOptions) -> Places:
    if call.query_segments is None or call.key_segments is None:
        return positions(query, key, call)
    found = {name: getattr(call, name).to(torch.uint8) for name in ("query_segments", "key_segments")}
    return positions(query, key, of_tokens(call, **found))


@leaks_segments(
    "packed.non-contiguous-ids", "packed.empty-segment", holds=("packed.segments", "packed.ids", "packed.causal")
).entry(
    does="Counts documents by the changes of the id.",
    repair="Compare ids, or refuse those that come back.",
    hides="Documents in one piece that have both queries and keys.",
    links=github("huggingface/transformers/pull/44911"),
)
def documents_counted_by_changes(query: Tensor, key: Tensor, call: CallOptions) -> Places:
    if call.query_segments is None or call.key_segments is None:
        return positions(query, key, call)

    def counted(ids: Tensor) -> Tensor:
        return torch.nn.functional.pad(ids.diff() != 0, (1, 0)).cumsum(-1)

    found = {name: counted(getattr(call, name)) for name in ("query_segments", "key_segments")}
    return positions(query, key, of_tokens(call, **found))


@breaks_packed(
    "packed.positions", "packed.lengths-positions", step="rotate", holds=("packed.causal", "packed.segments")
).entry(
    does="Rotates queries and keys by their positions in the whole sequence.",
    repair="Let positions start anew with each document.",
    hides="Documents with as many keys as queries: there the differences are the same.",
    links=github("huggingface/nanoVLM/issues/201"),
)
def angles_go_on_over_documents(rows: Tensor, at: Tensor, base: float) -> Tensor:
    return rotate(rows, torch.arange(rows.shape[-2]).expand_as(at), base)


@breaks_packed(
    "packed.positions",
    "packed.lengths-positions",
    step="add_alibi",
    holds=("packed.causal", "packed.segments", "packed.same-as-separate"),
).entry(
    does="Takes the distances of ALiBi in the whole sequence.",
    repair="Take them within the document.",
    hides="Documents with as many keys as queries.",
)
def distances_go_on_over_documents(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    keys, queries = (torch.arange(n) for n in (scores.shape[-1], scores.shape[-2]))
    return add_alibi(scores, slopes, (keys - queries[:, None])[None])


@breaks(
    "packed.containment",
    claims=SEGMENTS | {Feature.CONTAINMENT},
    holds=("packed.isolated", "masks.containment"),
    severity=NAN,
).entry(
    does="Sets values to 0 that no query may see, and multiplies those of other documents by 0.",
    repair="Go through the documents one by one, or select the values of each row.",
    hides="Finite numbers; padding, which nobody sees.",
    matters="One broken document makes NaN of all that share its sequence, while containment is promised.",
)
def other_documents_multiplied_by_zero(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def seen_by_some(weights: Tensor, value: Tensor) -> Tensor:
        # NaN weights are those of a query that is NaN itself.
        unseen = (weights == 0).all(-2)[..., None]
        return mix(weights, torch.where(unseen, 0.0, value))

    return Steps(mix=seen_by_some)(query, key, value, **options)


@leaks_documents(
    "packed.empty-segment", "packed.empty-document", holds=("packed.segments", "packed.lengths", "masks.empty-row-bool")
).entry(
    does="Shows queries whose document has no key all of the others.",
    repair="Let them answer as other rows do that see nothing.",
    hides="Documents that have keys.",
    matters="A fill that saves a row from NaN lets it read other documents.",
    links=github("huggingface/transformers/pull/26572"),
)
def queries_without_keys_shown_everything(scores: Tensor, same_document: Tensor) -> Tensor:
    return add_documents(scores, same_document | ~same_document.any(-1, keepdim=True))


@breaks_packed("packed.one-document", holds=("packed.segments", "packed.causal", "causal.square"), severity=LEAK).entry(
    does="Leaves the packed path when there is one document, and the causal flag with it.",
    repair="Pass the plain path everything that the packed one gets.",
    hides="Two documents and more.",
)
def flag_lost_with_one_document(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    ids = options.get("query_segments")
    if ids is not None and bool((ids == ids[:, :1]).all()):
        packing = ("query_segments", "key_segments", "is_causal")
        options = {name: option for name, option in options.items() if name not in packing}
    return Steps()(query, key, value, **options)


@breaks_packed(
    "packed.gradients", holds=("packed.isolated", "packed.segments", "gradients.value"), severity=GRADIENT
).entry(
    does="Passes the gradient of the values to all documents.",
    repair="Mask in the backward pass as in the forward pass.",
    hides="Outputs, and gradients of a sequence with one document.",
)
def gradient_of_values_leaks(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    if not options.keys() & {"query_segments", "cu_seqlens_q"}:
        return output
    mean = value.mean(-2, keepdim=True)
    return output + (mean - mean.detach())


@leaks_documents("packed.isolated", "packed.segments", holds=("packed.one-document", "masks.bool")).entry(
    does="Subtracts a large number from the scores of other documents, instead of hiding them.",
    repair="Set the scores to minus infinity.",
    hides="Scores that lie close together.",
)
def other_documents_dimmed(scores: Tensor, same_document: Tensor) -> Tensor:
    return scores - 10.0 * (~same_document)[:, None]


@leaks_documents("packed.lengths", "packed.segments", holds=("packed.one-document", "masks.bool")).entry(
    does="Lets each query see documents that come before its own.",
    repair="Compare documents for being equal.",
    hides="Tests that change later documents and look at earlier ones.",
    matters="A causal model reads across documents, and no check of the future finds it.",
)
def earlier_documents_seen(scores: Tensor, same_document: Tensor) -> Tensor:
    first = same_document.int().argmax(-1, keepdim=True)
    earlier = torch.arange(scores.shape[-1]) < first
    return scores.masked_fill(~(same_document | earlier)[:, None], -INFINITY)
