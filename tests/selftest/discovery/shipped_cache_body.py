"""FlashAttention's function of a cache, with a body of our own: one sample at a time, right or wrong."""

from typing import Any

import torch
from torch import Tensor

from attention_conformance.tests.selftest.discovery.shipped_bodies import Function, Sequence, of_sample


def cached(sequence: Sequence) -> Function:
    """The function, with the mistake of the sequence, or one of its own: new, row, table-start, pad."""

    def flash_attn_with_kvcache(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        rotary_cos: Tensor | None = None,
        rotary_sin: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
        cache_batch_idx: Tensor | None = None,
        cache_leftpad: Tensor | None = None,
        block_table: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        alibi_slopes: Tensor | None = None,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
    ) -> Any:
        options: dict[str, Any] = {"causal": causal, "scale": softmax_scale, "window": window_size, "softcap": softcap}
        assert k_cache.shape[:3] == v_cache.shape[:3]
        answers = []
        for b, query in enumerate(q.detach()):
            lengths = [k_cache.shape[1]] * len(q) if cache_seqlens is None else cache_seqlens.tolist()
            row = torch.tensor([b]) if cache_batch_idx is None else cache_batch_idx[b : b + 1]
            row = row if block_table is None else block_table[b]
            held, start = lengths[b], lengths[0 if sequence.wrong == "table-start" else b]
            if k is not None and v is not None:
                new = k[b]
                if rotary_cos is not None and rotary_sin is not None:
                    assert causal
                    assert not rotary_interleaved
                    query, new = (rotated(x, rotary_cos, rotary_sin, start) for x in (query, new))
                at = torch.tensor([b]) if sequence.wrong == "row" and block_table is None else row
                _write(k_cache, at, lengths[0] if sequence.wrong == "new" else held, new)
                _write(v_cache, at, lengths[0] if sequence.wrong == "new" else held, v[b])
                held += k.shape[1]
            held -= int(sequence.wrong == "cache" and held > 3)
            pad = 0 if cache_leftpad is None or sequence.wrong == "pad" else int(cache_leftpad[b])
            rows = (cache.detach()[row.long()].flatten(0, 1)[pad:held] for cache in (k_cache, v_cache))
            answers.append(sequence(query, *rows, **options, slopes=of_sample(alibi_slopes, b)))
        outputs, logs = zip(*answers, strict=True)
        return (torch.stack(outputs), torch.stack(logs)) if return_softmax_lse else torch.stack(outputs)

    return flash_attn_with_kvcache


def rotated(rows: Tensor, cosines: Tensor, sines: Tensor, start: int) -> Tensor:
    """(L, H, d) at the positions from `start` on, by halves of their first r components."""
    half, at = cosines.shape[-1], slice(start, start + len(rows))
    c, s = cosines[at, None], sines[at, None]
    one, other, rest = rows.tensor_split((half, 2 * half), -1)
    return torch.cat([one * c - other * s, other * c + one * s, rest], -1)


def _write(cache: Tensor, row: Tensor, held: int, new: Tensor) -> None:
    """Behind the tokens that are held, in the pages of a sample."""
    places = held + torch.arange(len(new))
    cache[row[places // cache.shape[1]].long(), places % cache.shape[1]] = new
