"""Attention over pages: gathered in torch, and page by page in NumPy."""

from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.numpy_op import numpy_op
from attention_conformance.implementations.adapters.paging import PagedCall, lengths_of_samples
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.paged_steps import NO_WINDOW, PagedSteps
from attention_conformance.spec.conventions import Alignment, Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array

OF_SCORES = frozenset({Feature.CAUSAL, Feature.SCALE, Feature.WINDOW, Feature.SOFTCAP})
FEATURES = OF_SCORES | {
    Feature.CORE,
    Feature.HEADS,
    Feature.VALUE_WIDTH,
    Feature.CROSS,
    Feature.KEY_VALUE,
    Feature.GROUPED,
    Feature.VALID_LENS,
    Feature.PAGED,
    Feature.CACHE_ROWS,
}
"""What a function of pages offers: nothing of it has gradients."""
ALIGNED = Conventions(causal_alignment=Alignment.BOTTOM_RIGHT_REAL)


def paged_attention(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    block_table: Array | None,
    context_lens: Array,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = NO_WINDOW,
    softcap: float | None = None,
    cache_batch_idx: Array | None = None,
) -> Array:
    """The same as `PagedSteps`, with a running softmax: no page is copied.

    Args:
        query: (B, Lq, H, d_k).
        key_cache: (pages, page_size, Hk, d_k).
        value_cache: (pages, page_size, Hk, d_v).
        block_table: (B, pages of a sample); None: each sample has one.
        context_lens: (B,).
        is_causal: no query sees a later key; the last query stands at the last key.
        scale: multiplies the scores; None is 1 / sqrt(d_k).
        window_size: so far a query sees to the left and to the right; -1 is no limit.
        softcap: bounds the scores.
        cache_batch_idx: (B,), the page of each sample where there is no table.
    """
    if block_table is None:
        block_table = (np.arange(len(query)) if cache_batch_idx is None else cache_batch_idx)[:, None]
    batch, queries, heads, width = query.shape
    size, keyed, wide = value_cache.shape[1:]
    group, number = heads // keyed, np.dtype(np.float64 if query.dtype == np.float64 else np.float32).type
    output = np.zeros((batch, queries, heads, wide), number)
    by = number(width**-0.5 if scale is None else scale)
    for sample, length in enumerate(int(count) for count in context_lens):
        # (Hk, heads of its group, Lq, d): one product for each key head.
        rows = query[sample].astype(number).reshape(queries, keyed, group, width).transpose(1, 2, 0, 3) * by
        top = np.full((*rows.shape[:-1], 1), -np.inf, number)
        whole, mixed = np.zeros_like(top), np.zeros((*rows.shape[:-1], wide), number)
        for start, page in zip(range(0, length, size), block_table[sample], strict=False):
            count = min(size, length - start)
            key, value = (
                pool[page, :count].astype(number).swapaxes(0, 1)[:, None] for pool in (key_cache, value_cache)
            )
            scores = rows @ key.swapaxes(-1, -2)
            scores = scores if softcap is None else number(softcap) * np.tanh(scores / number(softcap))
            ahead = start + np.arange(count) - (length - queries + np.arange(queries))[:, None]
            scores = np.where(_seen(ahead, is_causal, window_size), scores, -number(np.inf))
            higher = np.maximum(top, scores.max(-1, keepdims=True))
            base = np.where(np.isinf(higher), number(0), higher)
            shares, kept, top = np.exp(scores - base), np.exp(top - base), higher
            whole, mixed = whole * kept + shares.sum(-1, keepdims=True), mixed * kept + shares @ value
        answered = mixed / np.where(whole == 0, number(1), whole)
        output[sample] = answered.transpose(2, 0, 1, 3).reshape(queries, heads, wide)
    return output.astype(query.dtype)


def _seen(ahead: Array, is_causal: bool, window: tuple[int, int]) -> Any:
    limits = (0 if is_causal else np.inf, np.inf if window[1] < 0 else window[1])
    return (ahead <= min(limits)) & (ahead >= (-np.inf if window[0] < 0 else -window[0]))


IN_TORCH = Implementation(
    "inhouse.paged",
    Claims(Scope.OP, FEATURES, ALIGNED, fit=lengths_of_samples),
    torch_op(PagedCall(PagedSteps())),
    "keys and values in pages, gathered for each sample, in torch",
)
IN_NUMPY = Implementation(
    "inhouse.paged.numpy",
    Claims(Scope.OP, FEATURES, ALIGNED, fit=lengths_of_samples),
    numpy_op(PagedCall(paged_attention)),
    "the same page by page with a running softmax, in NumPy",
)
PAGED = (IN_TORCH, IN_NUMPY)
"""In-house attention over pages, plain enough for an example."""
