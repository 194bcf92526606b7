"""Extra arrays: what the extension of a case needs in addition to query, key, value and masks."""

import numpy as np

from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.spec.features import CASE_OPTIONS, Packing
from attention_conformance.spec.problem import Array


def extra_arrays(case: Case) -> dict[str, Array]:
    """`Problem.extras` of a case: logits, slopes, biases and gates that are no round numbers, and the documents."""
    heads, arrays = case.sizes.num_heads, _documents(case)
    rng = np.random.default_rng([case.seed, heads, 1])
    for option in CASE_OPTIONS:
        if option.draw is not None:
            # Unused ones are drawn too, so that the numbers of one do not depend on the others.
            drawn = option.draw(rng, heads, case.extension)
            arrays |= {name: drawn for name in option.keywords if option.used(case.extension)}
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
