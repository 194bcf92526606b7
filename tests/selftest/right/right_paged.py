"""Right ways to read pages: gathered with all their room and masked, and a slot for each token."""

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.paging import PagedCall, lengths_of_samples
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.inhouse.paged import ALIGNED, FEATURES, PAGED
from attention_conformance.spec.features import Feature, Scope


def all_at_once(query: Tensor, *pages: Any, is_causal: bool = False, scale: Any = None, **named: Any) -> Tensor:
    """All samples in one product: what stands behind the last key is masked, and its values are replaced."""
    keys, values, table, lengths = pages
    table = named["cache_batch_idx"][:, None] if named else table
    key, value = (pool[table.long()].flatten(1, 2).to(torch.float64) for pool in (keys, values))
    places = torch.arange(key.shape[1])
    held = places < lengths[:, None]
    value = torch.where(held[:, :, None, None], value, 0.0)
    key, value = (x.repeat_interleave(query.shape[2] // x.shape[2], 2).transpose(1, 2) for x in (key, value))
    at = lengths[:, None] - query.shape[1] + torch.arange(query.shape[1])
    seen = held[:, None] & (places <= at[:, :, None]) if is_causal else held[:, None].expand(-1, query.shape[1], -1)
    by = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query.transpose(1, 2).double() @ key.mT * by).masked_fill(~seen[:, None], -torch.inf)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return (weights @ value).transpose(1, 2).to(query.dtype)


def token_by_token(
    query: Tensor, *pages: Any, is_causal: bool = False, scale: float | None = None, **named: Any
) -> Tensor:
    """Each key is looked up on its own, in slots: page times page size, and the place in the page."""
    keys, values, table, lengths = pages
    table = named["cache_batch_idx"][:, None] if named else table
    size, group = keys.shape[1], query.shape[2] // max(1, keys.shape[2])
    flat, rows = (pool.flatten(0, 1) for pool in (keys, values)), []
    key_slots, value_slots = flat
    for sample, length in enumerate(lengths.tolist()):
        places = torch.arange(length)
        slots = table[sample, places // size].long() * size + places % size
        key, value = (x[slots].repeat_interleave(group, 1) for x in (key_slots, value_slots))
        scores = torch.einsum("qhd,khd->hqk", query[sample], key) * (
            query.shape[-1] ** -0.5 if scale is None else scale
        )
        at = length - query.shape[1] + torch.arange(query.shape[1])[:, None]
        scores = scores.masked_fill(places > at, -torch.inf) if is_causal else scores
        rows.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1).nan_to_num(0.0), value))
    return torch.stack(rows)


def _made(name: str, function: Any) -> Implementation:
    features = FEATURES - {Feature.WINDOW, Feature.SOFTCAP}
    claims = Claims(Scope.OP, features, ALIGNED, fit=lengths_of_samples)
    return Implementation(name, claims, torch_op(PagedCall(function)))


RIGHT = (*PAGED, _made("paged.all-at-once", all_at_once), _made("paged.token-by-token", token_by_token))
