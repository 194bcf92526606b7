"""Mistakes of chapter 24: cumulative lengths read wrongly."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import CallOptions, positions
from attention_conformance.implementations.defects.breaking import LEAK, breaks, github
from attention_conformance.implementations.defects.packed import PACKED, Places, of_tokens

breaks_packed = partial(breaks, claims=PACKED)
breaks_lengths = partial(breaks_packed, step="positions")


@breaks_lengths("packed.lengths", holds=("packed.segments", "packed.one-document"), severity=LEAK).entry(
    does="Counts the first token of a document to the one before it.",
    repair="Document g ends before token c_(g + 1), which is the first of the next.",
    hides="One document.",
)
def ends_taken_as_inclusive(query: Tensor, key: Tensor, call: CallOptions) -> Places:
    if call.cu_seqlens_q is None or call.cu_seqlens_k is None:
        return positions(query, key, call)

    def later(ends: Tensor) -> Tensor:
        return torch.cat([ends[:1], (ends[1:-1] + 1).clamp(max=int(ends[-1])), ends[-1:]])

    ends = {"cu_seqlens_q": later(call.cu_seqlens_q), "cu_seqlens_k": later(call.cu_seqlens_k)}
    return positions(query, key, of_tokens(call, **ends))


@breaks_lengths("packed.lengths", "packed.empty-document", holds=("packed.segments", "packed.causal")).entry(
    does="Drops the last document, and leaves its rows 0.",
    repair="Cumulative lengths begin with 0 and end with the whole length: one more than there are documents.",
    hides="Tests that look at the first documents only.",
    links=github("Dao-AILab/flash-attention/issues/880"),
)
def last_document_dropped(query: Tensor, key: Tensor, call: CallOptions) -> Places:
    of_query, of_key, same_document = positions(query, key, call)
    if call.cu_seqlens_q is None:
        return of_query, of_key, same_document
    last = torch.arange(query.shape[-2]) >= call.cu_seqlens_q[-2]
    return of_query, of_key, same_document & ~last[:, None]


@breaks_lengths("packed.empty-document", holds=("packed.lengths", "packed.empty-segment"), severity=LEAK).entry(
    does="Drops documents of length 0 from the cumulative lengths.",
    repair="Keep them: the documents of queries and keys are paired by number.",
    hides="Documents that have both queries and keys.",
    links=github("NVIDIA/Megatron-LM/pull/5298"),
)
def empty_documents_dropped(query: Tensor, key: Tensor, call: CallOptions) -> Places:
    if call.cu_seqlens_q is None or call.cu_seqlens_k is None:
        return positions(query, key, call)
    ends = {"cu_seqlens_q": call.cu_seqlens_q.unique(), "cu_seqlens_k": call.cu_seqlens_k.unique()}
    return positions(query, key, of_tokens(call, **ends))


@breaks_lengths("packed.lengths", holds=("packed.segments", "packed.empty-segment")).entry(
    does="Reads no more keys of a document than the longest one has queries.",
    repair="Take the longest number of keys for keys, and that of queries for queries.",
    hides="Documents with no more keys than the longest has queries: all of self-attention.",
)
def keys_cut_at_the_longest_queries(query: Tensor, key: Tensor, call: CallOptions) -> Places:
    of_query, of_key, same_document = positions(query, key, call)
    if call.cu_seqlens_q is None or call.cu_seqlens_k is None:
        return of_query, of_key, same_document
    longest = int(call.cu_seqlens_q.diff().max())
    return of_query, of_key, same_document & (of_key < longest)[:, None, :]
