"""Kernels: ways to softmax(scale * Q K^T + mask) V for whole heads, and which of them suits which shapes."""

from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.inhouse.tile_masks import INFINITY

MOST_KEYS = 256
"""Up to so many keys the weights of a training step are worth their memory; measured in docs/inhouse-speed.md."""


class Kernel(StrEnum):
    """A way; they differ in speed and memory alone."""

    SDPA = "sdpa"
    """torch's scaled_dot_product_attention, with the kernel that it chooses."""
    COMPOSED = "composed"
    """Two batched products around a softmax, which keep the weights for the way back."""


def chosen(query: Tensor, key: Tensor) -> Kernel:
    """The fastest by shape, dtype and device: what is measured on the way plays no part.

    On a processor the way back of torch's kernel is several times slower in bfloat16 than products are, as long as
    the weights are few.
    """
    recorded = torch.is_grad_enabled() and query.requires_grad
    slow_back = recorded and query.dtype is torch.bfloat16 and query.is_cpu
    return Kernel.COMPOSED if slow_back and 0 < key.shape[2] <= MOST_KEYS else Kernel.SDPA


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    kernel: Kernel | None,
) -> Tensor:
    """(B, H, Lq, d), (B, Hk, Lk, d), (B, Hk, Lk, d) -> (B, H, Lq, d).

    Args:
        query: of heads that share a key head in neighbouring groups.
        key: of Hk heads, which divides H.
        value: as key.
        mask: broadcasts to (B, H, Lq, Lk); True = may attend, or added numbers; every query may attend to some key.
        dropout: the probability with which a weight is dropped.
        causal: query i sees keys up to i.
        scale: None is 1 / sqrt(d).
        kernel: None is the one that is chosen.
    """
    if (kernel or chosen(query, key)) is Kernel.COMPOSED:
        return _composed(query, key, value, mask, dropout, causal, scale)
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal=causal, scale=scale, enable_gqa=grouped
    )


def _composed(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> Tensor:
    batch, heads, length, width = query.shape
    keyed, keys, rows = batch * key.shape[1], key.shape[2], heads // key.shape[1] * length
    # The queries of a group are rows of one product, so that keys and values are not repeated.
    q, k, v = (query.reshape(keyed, rows, width), *(x.reshape(keyed, keys, width) for x in (key, value)))
    factor = width**-0.5 if scale is None else scale
    # In bfloat16 torch leaves the product unwritten where alpha is 0.
    products = torch.baddbmm(q.new_empty(()), q, k.mT, beta=0, alpha=factor) if factor else torch.bmm(q, k.mT) * 0.0
    scores = products.view(batch, heads, length, keys)
    # To add is several times faster than to fill, there and back, and most masks are smaller than the scores.
    if causal:
        scores.add_(_added(torch.ones(length, keys, dtype=torch.bool, device=q.device).tril(), scores.dtype))
    if mask is not None:
        scores.add_(_added(mask, scores.dtype))
    weights = torch.dropout(scores.softmax(-1), dropout, train=dropout > 0.0)
    return torch.bmm(weights.view(keyed, rows, keys), v).view(batch, heads, length, width)


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -INFINITY)
