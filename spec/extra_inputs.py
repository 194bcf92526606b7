"""Extra arrays: what the extension of a case needs in addition to query, key, value and masks."""

from __future__ import annotations

import numpy as np

from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.spec.features import Packing
from attention_conformance.spec.problem import Array

BY_LENGTHS = (Packing.LENGTHS, Packing.EMPTY_DOCUMENT)


def extra_arrays(case: Case) -> dict[str, Array]:
    """`Problem.extras` of a case: logits, slopes, biases and gates that are no round numbers, and the documents."""
    extension, heads = case.extension, case.sizes.num_heads
    wanted = {
        "sinks": extension.sinks,
        "alibi_slopes": extension.alibi,
        "relative_bias": extension.relative_bias > 0,
        "head_gates": extension.head_gates,
    }
    if not any(wanted.values()):
        return _documents(case)
    rng = np.random.default_rng([case.seed, heads, 1])
    drawn: dict[str, Array] = {
        "sinks": 1.5 * rng.standard_normal(heads),
        "alibi_slopes": rng.uniform(0.1, 0.9, heads),
        "relative_bias": rng.standard_normal((heads, 2 * extension.relative_bias + 1)),
        "head_gates": rng.uniform(0.4, 1.6, heads) * np.where(np.arange(heads) % 3 == 1, -1.0, 1.0),
    }
    return {name: array for name, array in drawn.items() if wanted[name]} | _documents(case)


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
    if packing in BY_LENGTHS:
        queries, keys = parts[0] if parts else ([], [])
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
