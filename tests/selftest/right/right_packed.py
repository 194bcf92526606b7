"""Right implementations of packed documents in unusual styles: one after another, by one mask, by moved positions."""

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.step_options import CallOptions
from attention_conformance.implementations.builtin.stepwise.steps import (
    BOTTOM_RIGHT,
    Steps,
    add_bottom_right,
    documents,
    positions,
)
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.right.right import op

DOCUMENTS = {Feature.SEGMENTS, Feature.CUMULATIVE_LENGTHS}
PACKED = DOCUMENTS | {Feature.WINDOW, Feature.ROTARY, Feature.ALIBI, Feature.GROUPED}
OF_DOCUMENTS = ("query_segments", "key_segments", "cu_seqlens_q", "cu_seqlens_k")
SAME = {"window_size", "rotary_base", "alibi_slopes", "is_causal", "scale", "enable_gqa"}
"""Options that mean the same for one document as for all."""


def _documents(query: Tensor, key: Tensor, call: CallOptions) -> tuple[Tensor, Tensor]:
    """(B, Lq) and (B, Lk): the document of each token."""
    of_query = documents(call.query_segments, call.cu_seqlens_q, len(query), query.shape[-2])
    return of_query, documents(call.key_segments, call.cu_seqlens_k, len(key), key.shape[-2])


def one_by_one(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Each document of each sample in a call of its own."""
    packing = {name: options.pop(name) for name in OF_DOCUMENTS if name in options}
    if not packing or set(options) - SAME:
        return Steps()(query, key, value, **packing, **options)
    of_query, of_key = _documents(query, key, CallOptions(**packing))
    output = query.new_zeros(*query.shape[:-1], value.shape[-1])
    for sample in range(len(query)):
        for document in of_query[sample].unique():
            queries, keys = of_query[sample] == document, of_key[sample] == document
            rows = (query[sample, :, queries], key[sample, :, keys], value[sample, :, keys])
            output[sample, :, queries] = Steps()(*(x[None] for x in rows), **options)[0]
    return output


def one_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Ids become a boolean mask (B, 1, Lq, Lk), joined with the one that is given."""
    packing = {name: options.pop(name) for name in OF_DOCUMENTS if name in options}
    if not packing or options.keys() & {"is_causal", "window_size", "rotary_base", "alibi_slopes"}:
        return Steps()(query, key, value, **packing, **options)
    same_document, mask = positions(query, key, CallOptions(**packing))[2][:, None], options.pop("attn_mask", None)
    if mask is not None:
        same_document = (
            same_document & mask if mask.dtype is torch.bool else torch.where(same_document, mask, -torch.inf)
        )
    return Steps()(query, key, value, attn_mask=same_document, **options)


def far_apart(query: Tensor, key: Tensor, call: CallOptions) -> tuple[Tensor, Tensor, Tensor]:
    """Documents that stand a hundred positions apart, so that all differences within one stay."""
    of_query, of_key, same_document = positions(query, key, call)
    if not call.packed:
        return of_query, of_key, same_document
    first, second = _documents(query, key, call)
    return of_query + 100 * first, of_key + 100 * second, same_document


def ended_together(query: Tensor, key: Tensor, call: CallOptions) -> tuple[Tensor, Tensor, Tensor]:
    """The last query of each document stands at its last key."""
    of_query, of_key, same_document = positions(query, key, call)
    if call.positioned and not call.packed:
        return of_query, of_key, same_document
    of = _documents(query, key, call)[0]
    queries = (of[:, :, None] == of[:, None, :]).sum(-1)
    return of_query + same_document.sum(-1) - queries, of_key, same_document


ENDED_TOGETHER = Steps(positions=ended_together, add_causal=add_bottom_right)
RIGHT = (
    op("steps", Steps(), PACKED),
    op("one-by-one", one_by_one, PACKED),
    op("one-mask", one_mask, PACKED),
    op("far-apart", Steps(positions=far_apart), PACKED),
    op("ended-together", ENDED_TOGETHER, PACKED, conventions=BOTTOM_RIGHT),
)
