"""Extra arrays: what the extension of a case needs in addition to query, key, value and masks."""

from collections.abc import Mapping

import numpy as np

from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.cases import Case, Padding, Sizes
from attention_conformance.spec.codes import scales
from attention_conformance.spec.features import Packing, PositionIds, QkNorm, RotaryTables
from attention_conformance.spec.gates_and_splits import KeySplits, OutputGates
from attention_conformance.spec.latent import up_projections
from attention_conformance.spec.masks import real_keys
from attention_conformance.spec.problem import Array

FAR = (2003, 4099)
"""Positions that no half type holds: bfloat16 ends at 256, float16 at 2048."""


def extra_arrays(case: Case) -> dict[str, Array]:
    """`Problem.extras` of a case: logits, slopes, biases and gates that are no round numbers, and whole numbers."""
    heads, arrays = case.sizes.num_heads, _documents(case) | _position_ids(case) | _starts(case) | _splits(case)
    arrays |= _gains(case) | _gate_logits(case) | _pages(case) | _rows(case) | scales(case) | up_projections(case)
    arrays |= _tables(case, arrays) | _query_lens(case)
    rng = np.random.default_rng([case.seed, heads, 1])
    for option in CASE_OPTIONS:
        if option.draw is not None:
            # Unused ones are drawn too, so that the numbers of one do not depend on the others.
            drawn = option.draw(rng, heads, case.extension)
            arrays |= {name: drawn for name in option.keywords if option.used(case.extension)}
    if case.extension.alibi_samples:
        slopes = np.random.default_rng([case.seed, heads, 7]).uniform(0.1, 0.9, (case.sizes.batch, heads))
        arrays["alibi_slopes"] = slopes
    return arrays


def extra_parameters(case: Case) -> dict[str, Array]:
    """`bias_k` and `bias_v` where the case has them."""
    if not case.extension.bias_kv:
        return {}
    s, rng = case.sizes, np.random.default_rng([case.seed, case.sizes.num_heads, 2])
    widths = {"bias_k": s.kv_heads * s.d_k, "bias_v": s.kv_heads * s.d_v}
    return {name: rng.standard_normal(width) for name, width in widths.items()}


def _documents(case: Case) -> dict[str, Array]:
    packing, s = case.extension.packing, case.sizes
    if packing is Packing.NONE:
        return {}
    emptied = packing in (Packing.EMPTY_SEGMENT, Packing.EMPTY_DOCUMENT)
    apart = emptied or s.query_length != s.key_length
    parts = [
        (_parts(s, s.query_length, sample, emptied=False), _parts(s, s.key_length, sample + apart, emptied))
        for sample in range(s.batch)
    ]
    if case.extension.has_lengths:
        queries, keys = parts[0] if parts else ([], [])
        if packing is Packing.IDLE_DOCUMENTS and parts:
            queries, keys = [0, *queries[:1], 0, sum(queries[1:]), 0], [0, *keys, *[0] * (4 - len(keys))]
        return {"query_lengths": np.array(queries, np.int64), "key_lengths": np.array(keys, np.int64)}
    return {
        "query_segments": _ids([queries for queries, _ in parts], s.query_length),
        "key_segments": _ids([keys for _, keys in parts], s.key_length),
    }


def _parts(sizes: Sizes, length: int, shift: int, emptied: bool) -> list[int]:
    """Lengths of three documents, or of one where there is no room; the second of three may be emptied."""
    if min(sizes.query_length, sizes.key_length) < 3:
        return [length]
    first = max(1, length // 2 - shift % 2)
    second = 0 if emptied else max(1, (length - first) // 2)
    return [first, second, length - first - second]


def _ids(parts: list[list[int]], length: int) -> Array:
    """(B, L): the number of the document that each token is part of."""
    return np.array([np.repeat(np.arange(len(p)), p) for p in parts], np.int64).reshape(len(parts), length)


def _position_ids(case: Case) -> dict[str, Array]:
    """(B, Lq) and (B, Lk): the same where there are as many queries as keys."""
    if case.extension.position_ids is PositionIds.NONE:
        return {}
    s = case.sizes
    names = {"query_positions": s.query_length, "key_positions": s.key_length}
    return {name: _rows_of_ids(case, length) for name, length in names.items()}


def _rows_of_ids(case: Case, length: int) -> Array:
    counted, samples = np.arange(length), np.arange(case.sizes.batch)[:, None]
    match case.extension.position_ids:
        case PositionIds.RESTARTING:
            return counted % (1 + (length // 2 + samples) % max(length - 1, 1))
        case PositionIds.LEFT_PADDED:
            padded = case.padding in (Padding.LEFT, Padding.FIRST_TILE)
            pads = (~real_keys(case)).sum(-1, keepdims=True) if padded else (1 + samples) % max(length, 1)
            return np.maximum(counted - pads, 0)
        case kind:
            first = FAR[0] + samples * (FAR[1] - FAR[0]) if kind is PositionIds.FAR else 3 * samples
            rng = np.random.default_rng([case.seed, length, 3])
            return first + np.cumsum(rng.integers(1, 4, (case.sizes.batch, length)), -1)


def _gains(case: Case) -> dict[str, Array]:
    """Of the norms of queries and keys: of both signs, and no round numbers."""
    s, kind = case.sizes, case.extension.qk_norm
    if kind in (QkNorm.NONE, QkNorm.BARE):
        return {}
    rng = np.random.default_rng([case.seed, s.num_heads, 4])
    heads = {"query_norm": s.num_heads, "key_norm": s.kv_heads} if kind is QkNorm.WIDTH else {}
    widths = {name: heads.get(name, 1) * s.d_k for name in ("query_norm", "key_norm")}
    return {
        name: rng.uniform(0.6, 1.8, width) * np.where(np.arange(width) % 4 == 2, -1.0, 1.0)
        for name, width in widths.items()
    }


def _gate_logits(case: Case) -> dict[str, Array]:
    """Of both signs; their sigmoids are no round numbers."""
    s, kind = case.sizes, case.extension.output_gates
    if kind is OutputGates.NONE:
        return {}
    rng = np.random.default_rng([case.seed, s.num_heads, 6])
    width = s.d_v if kind is OutputGates.CHANNEL else 1
    return {"gate_logits": 1.5 * rng.standard_normal((s.batch, s.num_heads, s.query_length, width))}


def _tables(case: Case, others: Mapping[str, Array]) -> dict[str, Array]:
    """Cosines and sines of random angles, each row and pair stretched by a factor of its own."""
    kind, s, extension = case.extension.rotary_tables, case.sizes, case.extension
    if kind is RotaryTables.NONE:
        return {}
    half = (extension.rotary_dim or s.d_k) // 2
    rows: tuple[int, ...] = (s.batch, s.query_length)
    if kind is RotaryTables.POSITIONS:
        first = max(extension.query_start or 0, int(others.get("query_starts", np.zeros(1)).max(initial=0)))
        ids = (int(others[name].max(initial=0)) for name in ("query_positions", "key_positions") if name in others)
        rows = (2 + max(s.query_length + first, s.key_length, *ids, 1),)
    rng = np.random.default_rng([case.seed, s.num_heads, 5])
    angles, sizes = rng.uniform(-np.pi, np.pi, (*rows, half)), rng.uniform(0.7, 1.3, (*rows, half))
    tables = {"rotary_cos": sizes * np.cos(angles), "rotary_sin": sizes * np.sin(angles)}
    return {name: table_of(half, kind) for name, half in tables.items()}


def table_of(half: Array, kind: RotaryTables) -> Array:
    """A table of this kind whose rows have a number for each pair in this one."""
    match kind:
        case RotaryTables.DOUBLED:
            return np.tile(half, 2)
        case RotaryTables.REPEATED:
            return np.repeat(half, 2, -1)
    return half


def _starts(case: Case) -> dict[str, Array]:
    """(B,): different ones; where samples have lengths, their last queries stand at their last keys."""
    s = case.sizes
    if not case.extension.query_starts:
        return {}
    if case.padding in (Padding.RIGHT, Padding.LENGTHS):
        starts = np.maximum(real_keys(case).sum(-1) - s.query_length, 0)
    else:
        starts = 1 + 2 * (np.arange(s.batch) % 3)
    return {"query_starts": starts.astype(np.int64)}


def _query_lens(case: Case) -> dict[str, Array]:
    """(B,): one less than there are, two less, ..., none, all."""
    s = case.sizes
    if not case.extension.query_lens:
        return {}
    less = (1 + np.arange(s.batch)) % (s.query_length + 1)
    return {"query_lens": (s.query_length - less).astype(np.int64)}


def _splits(case: Case) -> dict[str, Array]:
    """(splits,): how many keys each has, in their order."""
    kind, length = case.extension.key_splits, case.sizes.key_length
    if kind is KeySplits.NONE:
        return {}
    ends = (1, 4, length // 2 + 1, length - 1) if kind is KeySplits.MANY else (max(1, length // 3),)
    inner = sorted({end for end in ends if 0 < end < length})
    lengths = np.diff([0, *inner, length])
    if kind is KeySplits.EMPTY:
        lengths = np.insert(lengths, np.arange(len(lengths) + 1), 0)
    return {"split_lengths": lengths.astype(np.int64)}


def shared_keys(case: Case) -> int:
    """How many first keys all samples have in common: those of whole pages that every sample fills."""
    if not case.extension.shared_prefix or not case.extension.page_size:
        return 0
    shortest = int(real_keys(case).sum(-1).min(initial=case.sizes.key_length))
    return shortest // case.extension.page_size * case.extension.page_size


def _pages(case: Case) -> dict[str, Array]:
    """(B, pages): as many as all keys need, in any order; two pages or more are named nowhere."""
    size, s = case.extension.page_size, case.sizes
    if not size:
        return {}
    pages = -(-s.key_length // size)
    numbers = np.random.default_rng([case.seed, s.key_length, size]).permutation(s.batch * pages + 2)
    table = numbers[: s.batch * pages].reshape(s.batch, pages)
    table[:, : shared_keys(case) // size] = table[:1, : shared_keys(case) // size]
    return {"block_table": table.astype(np.int64)}


def _rows(case: Case) -> dict[str, Array]:
    """(B,): the row of the cache in which the keys of each sample lie, in any order; the others are no sample's."""
    more, batch = case.extension.cache_rows, case.sizes.batch
    if not more:
        return {}
    numbers = np.random.default_rng([case.seed, batch, more]).permutation(batch + more)
    return {"cache_batch_idx": numbers[:batch].astype(np.int64)}
