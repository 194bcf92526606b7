"""Mistakes of chapter 24: cumulative lengths read wrongly."""

from functools import partial

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import CallOptions, Positions, positions
from attention_conformance.implementations.defects.breaking import LEAK, breaks
from attention_conformance.implementations.defects.packed import PACKED, placed

LENGTHS = ("cu_seqlens_q", "cu_seqlens_k")
breaks_packed = partial(breaks, claims=PACKED)
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


@breaks_lengths("packed.lengths", holds=("packed.segments", "packed.empty-segment"))
def keys_cut_at_the_longest_queries(query: Tensor, key: Tensor, call: CallOptions) -> Positions:
    of_query, of_key, same_document = positions(query, key, call)
    if call.cu_seqlens_q is None or call.cu_seqlens_k is None:
        return of_query, of_key, same_document
    longest = int(call.cu_seqlens_q.diff().max())
    return of_query, of_key, same_document & (of_key < longest)[:, None, :]
