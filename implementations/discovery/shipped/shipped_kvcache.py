"""The function of FlashAttention for caches: whole, in pages, in rows, with new keys, and behind a pad."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.paging import OPTIONS as OPTIONS_OF_PAGES
from attention_conformance.implementations.adapters.paging import in_pages, in_rows
from attention_conformance.implementations.adapters.quantising import OPTIONS as OPTIONS_OF_CODES
from attention_conformance.implementations.adapters.quantising import as_codes, scales_of_heads
from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.shipped.shipped import (
    Call,
    Shipped,
    called_tokens_first,
    first,
    joined,
    tokens_first,
)
from attention_conformance.implementations.discovery.signatures import required
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import RotaryTables
from attention_conformance.spec.masks import real_keys

DOCUMENTS = {"cu_seqlens_q": "cu_seqlens_q", "cu_seqlens_k": "cu_seqlens_k"}
"""The names of options that say where documents end."""
NEW = "k"
"""The parameter for new keys."""
PAGE = 4
"""Tokens of a page, where each call has to have pages."""
ROOM = 8
"""Positions that a cache begins with where it grows; they are doubled when they are full."""


def keywords_of(shipped: Shipped, options: dict[str, Any]) -> dict[str, Any]:
    """With slopes in float32 at least, as they are documented."""
    given = shipped.keywords({name: option for name, option in options.items() if name not in DOCUMENTS})
    slopes = given.get("alibi_slopes")
    if slopes is not None and slopes.dtype is not torch.float64:
        given["alibi_slopes"] = slopes.float()
    return given


def cached(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(B, Lq, H, d), and a cache (B, Lk, H, d), or pages of one (pages, page_size, H, d), with lengths of samples.

    A cache may hold codes, with a scale for each key head of each sample. Rotations are those of new keys.
    """
    if "rotary_cos" in options or NEW in shipped.needs:
        return with_new_keys(shipped, query, key, value, options)
    return _cached(shipped, query, key, value, options)


def needed_of_cache(shipped: Shipped) -> frozenset[str]:
    """What each call has to have: new keys without a default, and the lengths and pages with which it first answers."""
    new = frozenset({NEW, "rotary_cos"} & _required(shipped))
    placed = ("valid_lens", "block_table")
    attempts = [new | {*placed[:count]} for count in range(len(placed) + 1)]
    possible = [each for each in attempts if each - {NEW} <= shipped.own.keys()]
    return next((each for each in possible if _answers(replace(shipped, needs=each))), new)


def _answers(shipped: Shipped) -> bool:
    """Whether a small call gives an output of the right shape."""
    query, key = (torch.ones(2, 2, length, 64) for length in (2, PAGE + 2))
    for dtype in (torch.float32, torch.bfloat16):
        given = query.to(dtype), key.to(dtype), key.to(dtype)
        answer = safe_call(partial(cached, shipped, *given, {})).value
        if getattr(first(answer)[0], "shape", ()) == query.shape:
            return True
    return False


def _completed(shipped: Shipped, key: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """The options, with lengths and pages of their own where every call has to have some."""
    batch, length = len(key), key.shape[2]
    found = {"valid_lens": torch.full((batch,), length, dtype=torch.int32, device=key.device)}
    pages = -(-length // PAGE)
    if "cache_batch_idx" not in options:
        found |= {"block_table": torch.arange(batch * pages, device=key.device).view(batch, pages).flip(1)}
    needed = {name: each for name, each in found.items() if name in shipped.needs and name not in options}
    return {**({"page_size": PAGE} if "block_table" in needed else {}), **needed, **options}


def _cached(
    shipped: Shipped,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: dict[str, Any],
    then: Tensor | None = None,
    **more: Any,
) -> Any:
    """The same with more arguments by its own names.

    `then`: (B,) lengths of a second call without these arguments, which reads what the first has left; its answer.
    """
    options = _completed(shipped, key, options)
    kind, placing = options.get("codes"), OPTIONS_OF_PAGES | OPTIONS_OF_CODES
    keywords = keywords_of(shipped, {name: given for name, given in options.items() if name not in placing})
    if kind is not None:
        scales = scales_of_heads(query, key, options, by_sample=True)
        keywords |= {shipped.own[f"{role}_scale"]: scale for role, scale in zip(("key", "value"), scales, strict=True)}
    elif not OPTIONS_OF_PAGES & options.keys():
        output, extras = called_tokens_first(shipped, (query, key, value), keywords)
        return joined(output, *extras[:1])
    pages = (in_rows if "cache_batch_idx" in options else in_pages)(key, value, options)
    pools, places = (pages.key, pages.value), {shipped.own.get("block_table", ""): pages.table}
    if "cache_batch_idx" in options:
        places = {"cache_batch_idx": pages.table[:, 0]}
    elif "block_table" not in options:
        pools, places = (tokens_first(key), tokens_first(value)), {}
    pools = pools if kind is None else (as_codes(pools[0], kind), as_codes(pools[1], kind))
    answer = shipped.function(tokens_first(query), *pools, cache_seqlens=pages.lengths, **places, **keywords, **more)
    if then is not None:
        lengths = then.to(pages.lengths)
        answer = shipped.function(tokens_first(query), *pools, cache_seqlens=lengths, **places, **keywords)
    output, extras = first(answer)
    return joined(output.swapaxes(1, 2), *extras[:1])


def with_new_keys(
    shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any], later: bool = False
) -> Any:
    """The last keys of each sample, as many as queries, are new ones, which the function writes behind those it has.

    What it has is given rotated; new keys are not: the function rotates them. `later`: the answer is that of the next
    call, which has no new ones, where nothing is rotated.
    """
    counts = _counts(key, options)
    new = min(query.shape[2], int(counts.min()) if len(counts) else 0)
    held, rows = counts - new, torch.arange(key.shape[2], device=key.device)
    fresh = (rows >= held[:, None]) & (rows < counts[:, None])
    more: dict[str, Any] = {}
    for name, each in {"k": key, "v": value}.items():
        places = (held[:, None] + rows[:new])[:, None, :, None].expand(-1, each.shape[1], -1, each.shape[-1])
        more[name] = tokens_first(each.gather(2, places))
    others = {name: option for name, option in options.items() if not name.startswith("rotary_")}
    if "rotary_cos" in options or "rotary_cos" in shipped.needs:
        still = key.new_ones(key.shape[2] + 1, key.shape[-1] // 2)
        usual = {"rotary_cos": still, "rotary_sin": still - 1.0}
        tables = [options.get(name, each).to(key.dtype) for name, each in usual.items()]
        key = _rotated(key, *tables)
        more |= {"rotary_cos": tables[0], "rotary_sin": tables[1]}
        more |= {"rotary_interleaved": False} if "rotary_interleaved" in shipped.names else {}
    keys, values = (torch.where(fresh[:, None, :, None], -each.flip(2), each) for each in (key, value))
    then = counts if later and new and not ("rotary_cos" in more or NEW in shipped.needs) else None
    return _cached(shipped, query, keys, values, others | {"valid_lens": held}, then, **more)


def _required(shipped: Shipped) -> set[str]:
    """Its parameters without a default."""
    signature = safe_call(lambda: inspect.signature(shipped.function)).value
    return {name for name, each in signature.parameters.items() if required(each)} if signature else set()


def new_keys_in_rows(
    shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any], later: bool = False
) -> Any:
    """New keys in rows of a cache that are named in reverse, where the problem names no pages or rows of its own."""
    if options.keys() & (OPTIONS_OF_PAGES - {"valid_lens"}):
        return with_new_keys(shipped, query, key, value, options, later)
    rows = torch.arange(len(key), device=key.device).flip(0)
    return with_new_keys(shipped, query, key, value, options | {"cache_batch_idx": rows}, later)


def behind_a_pad(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """The keys of each sample begin at another place of its cache; those in pages, or in rows, at the first."""
    if options.keys() & (OPTIONS_OF_PAGES - {"valid_lens"}):
        return cached(shipped, query, key, value, options)
    pads = 1 + torch.arange(len(key), device=key.device) % 3
    keys, values = (_shifted(each, pads) for each in (key, value))
    lengths = {"valid_lens": _counts(key, options) + pads}
    return _cached(shipped, query, keys, values, options | lengths, cache_leftpad=pads.int())


def _shifted(rows: Tensor, pads: Tensor) -> Tensor:
    """(B, H, L + 3, d): the rows of each sample behind so many others, and before more."""
    length = rows.shape[2]
    places = torch.arange(length + 3, device=rows.device) - pads[:, None]
    own = ((places >= 0) & (places < length))[:, None, :, None]
    at = places.clamp(0, max(0, length - 1))[:, None, :, None].expand(-1, rows.shape[1], -1, rows.shape[-1])
    shifted = rows.gather(2, at)
    return torch.where(own, shifted, -shifted)


def _counts(key: Tensor, options: dict[str, Any]) -> Tensor:
    """(B,): how many keys each sample has."""
    given = options.get("valid_lens")
    whole = torch.full((len(key),), key.shape[2], device=key.device)
    return whole if given is None else given.to(whole)


def _rotated(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """(B, H, L, d), its first r components by tables (positions, r / 2), component c with c + r / 2."""
    length, half = rows.shape[2], cosines.shape[-1]
    one, other, rest = rows[..., :half], rows[..., half : 2 * half], rows[..., 2 * half :]
    c, s = cosines[:length], sines[:length]
    return torch.cat([one * c - other * s, one * s + other * c, rest], -1)


WAYS: Mapping[str, tuple[frozenset[str], Call]] = {
    "with the last keys of each sample as new ones": (frozenset({"k", "v"}), with_new_keys),
    "with new keys in rows of a cache by index": (frozenset({"k", "v", "cache_batch_idx"}), new_keys_in_rows),
    "with new keys that the next call finds": (frozenset({"k", "v"}), partial(with_new_keys, later=True)),
    "with new keys by index that the next call finds": (
        frozenset({"k", "v", "cache_batch_idx"}),
        partial(new_keys_in_rows, later=True),
    ),
    "with the keys of each sample behind a pad": (frozenset({"cache_leftpad"}), behind_a_pad),
}
"""Other calls to the same answer, and the parameters that they need."""


def of_new_keys(fit: Fit, always: bool = False) -> Fit:
    """The fit where new keys are rotated, or `always` given, and the queries are those that stand there."""

    def fitted(case: Case) -> Case | Unsupported:
        taken = fit(case)
        if isinstance(taken, Unsupported) or not (always or taken.extension.rotary_tables is not RotaryTables.NONE):
            return taken
        shortest = int(real_keys(taken).sum(-1).min(initial=taken.sizes.key_length))
        if not shortest:
            return Unsupported("each query comes with a new key, and a sample has no key")
        causal = taken.causal or taken.extension.rotary_tables is not RotaryTables.NONE
        return replace(taken, causal=causal).sized(query_length=min(taken.sizes.query_length, shortest))

    return fitted


def feeding(shipped: Shipped) -> Callable[[Any], Any]:
    """What feeds a sequence through its cache: the function writes new keys and values behind those that are held."""

    def start(stream: Any) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        keywords, held = keywords_of(shipped, {n: o for n, o in stream.options.items() if n in shipped.own}), 0
        sized = replace(stream, room=stream.room or ROOM)
        stored = [sized.storage(width).swapaxes(1, 2).contiguous() for width in (stream.d_k, stream.d_v)]

        def feed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            nonlocal stored, held
            while stored[0].shape[1] < held + key.shape[-2]:
                stored = [torch.cat([rows, torch.full_like(rows, stream.unused(rows.shape[-1]))], 1) for rows in stored]
            lengths = torch.full((stream.batch,), held, dtype=torch.int32, device=query.device)
            new = {"k": tokens_first(key), "v": tokens_first(value), "cache_seqlens": lengths}
            output, _ = first(shipped.function(tokens_first(query), *stored, **new, **keywords))
            held += key.shape[-2]
            fed: Tensor = output.swapaxes(1, 2)
            return fed

        return feed

    return start
