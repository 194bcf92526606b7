"""scaled_dot_product_attention over torch's nested tensors, in which documents of all lengths lie one after another."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.adapters.paging import lengths_of_samples
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.spec.features import Feature, Scope

NESTED = "torch.sdpa.nested"
FEATURES = frozenset(
    {
        Feature.CORE,
        Feature.HEADS,
        Feature.VALUE_WIDTH,
        Feature.CROSS,
        Feature.KEY_VALUE,
        Feature.SCALE,
        Feature.GRADIENTS,
        Feature.VALID_LENS,
        Feature.CUMULATIVE_LENGTHS,
    }
)
"""Without the causal flag, which torch's CPU kernels refuse for nested tensors."""


def nested_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    valid_lens: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Each document, or each sample where there are none, is an item of its own; of samples the real keys alone.

    Args:
        query: (B, H, Lq, d_k).
        key: (B, H, Lk, d_k).
        value: (B, H, Lk, d_v).
        cu_seqlens_q: ends of the documents of queries, those of each sample.
        cu_seqlens_k: ends of the documents of keys.
        valid_lens: (B,), the keys that each sample has.
        options: `scale`.
    """
    (batch, _, queries, _), keys = query.shape, key.shape[2]
    rows = in_items(query, _lengths(cu_seqlens_q, batch, queries))
    lengths = _lengths(cu_seqlens_k, batch, keys)
    real = torch.arange(keys) < (torch.full((batch,), keys) if valid_lens is None else valid_lens)[:, None]
    of_key = lengths if valid_lens is None else valid_lens
    items = F.scaled_dot_product_attention(rows, in_items(key, of_key, real), in_items(value, of_key, real), **options)
    answer: Tensor = items.transpose(1, 2).values().unflatten(0, (batch, queries)).transpose(1, 2)
    return answer


def in_items(x: Tensor, lengths: Tensor, real: Tensor | None = None) -> Tensor:
    """(B, H, L, d) as a nested tensor (items, H, lengths, d), of the real tokens."""
    tokens = x.transpose(1, 2)
    rows = tokens.flatten(0, 1) if real is None else tokens[real]
    ends = F.pad(lengths.long().cumsum(0), (1, 0))
    made: Tensor = torch.nested.nested_tensor_from_jagged(rows.contiguous(), ends).transpose(1, 2)
    return made


def _lengths(ends: Tensor | None, batch: int, length: int) -> Tensor:
    """Of the documents of all samples, one after another."""
    return (torch.tensor([length]) if ends is None else ends.diff()).repeat(batch)


def no_nested() -> str:
    """Why it cannot run here; empty if it can. A call would show more, and imports a compiler."""
    return "" if hasattr(torch.nested, "nested_tensor_from_jagged") else "this torch has no jagged nested tensors"


def of_nested() -> Implementation:
    """Its implementation."""
    return Implementation(
        NESTED,
        Claims(Scope.OP, FEATURES, fit=lengths_of_samples),
        torch_op(nested_attention),
        "scaled_dot_product_attention over nested tensors, an item for each document",
    )
