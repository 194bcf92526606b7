"""Masking: the masks of a case, and which keys each query may see under all of them."""

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from attention_conformance.spec.cases import BY_LENGTH, Case, MaskKind, Padding, Pattern

Booleans: TypeAlias = NDArray[np.bool_]
Mask = TypeVar("Mask", np.bool_, np.float64)

ZEROS = (Pattern.ALL, Pattern.PREFIX, Pattern.TRIANGLE, Pattern.RULES, Pattern.MIDDLE, Pattern.NEARLY_TRIANGLE)
"""Patterns that a float mask leaves as it is: what is not masked gets nothing added."""
VISIBLE = 0.6
"""The fraction of keys that a random mask leaves."""


def attention_mask(case: Case, rng: np.random.Generator) -> NDArray[np.bool_ | np.float64] | None:
    """The attention mask in the shape the case names: True = may attend, or floats to be added."""
    if case.mask is MaskKind.NONE:
        return None
    shape = _shape(case)
    keep = _pattern(case, shape, rng)
    if case.mask is MaskKind.BOOL:
        return _squeezed(case, keep)
    added = np.zeros(shape) if case.pattern in ZEROS else rng.standard_normal(shape)
    if case.pattern is Pattern.MIDDLE:
        added[~keep] = rng.standard_normal(int((~keep).sum()))
    added += case.mask_offset
    if case.mask is MaskKind.INFINITE:
        added[~np.broadcast_to(keep, shape)] = -np.inf
    return _squeezed(case, added)


def _squeezed(case: Case, mask: NDArray[Mask]) -> NDArray[Mask]:
    axes = len(case.mask_shape.value.split(","))
    return mask.reshape(mask.shape[-axes:])


def _shape(case: Case) -> tuple[int, int, int, int]:
    s = case.sizes
    full = {"B": s.batch, "H": s.num_heads, "Lq": s.query_length, "Lk": s.key_length, "1": 1}
    axes = case.mask_shape.value.split(",")
    b, h, q, k = (full[axis] for axis in ["1"] * (4 - len(axes)) + axes)
    return b, h, q, k


def _pattern(case: Case, shape: tuple[int, int, int, int], rng: np.random.Generator) -> Booleans:
    queries, keys = np.arange(shape[2])[:, None], np.arange(shape[3])
    second = slice(min(1, max(0, shape[2] - 1)), min(2, shape[2]))  # the only row, if there is one alone
    match case.pattern:
        case Pattern.ALL:
            return np.ones(shape, bool)
        case Pattern.SINGLE_KEY:
            limit = np.minimum(queries[:, 0], shape[3] - 1) if case.causal else shape[3] - 1
            chosen = rng.integers(0, np.broadcast_to(limit, shape[:3]) + 1)
            return np.asarray(keys == chosen[..., None])
        case Pattern.SEGMENTS:
            segments = queries * 2 // max(shape[2], 1) == keys * 2 // max(shape[3], 1)
            return np.broadcast_to(segments | (shape[3] == 1), shape).copy()
        case Pattern.LAST_KEY:
            return np.broadcast_to(keys == shape[3] - 1, shape).copy()
        case Pattern.FIRST_TILE:
            return np.broadcast_to(keys >= shape[3] // 2, shape).copy()
        case Pattern.PREFIX:
            slices = np.arange(shape[0])[:, None] + np.arange(shape[1])
            lengths = np.maximum(1, shape[3] - 1 - 2 * (slices % 3))
            return np.broadcast_to(keys < lengths[..., None, None], shape).copy()
        case Pattern.TRIANGLE:
            return np.broadcast_to(keys <= queries, shape).copy()
        case Pattern.RULES:
            slices = np.arange(shape[0])[:, None] + np.arange(shape[1])
            return np.asarray(np.array(_rules(shape[2], shape[3]))[(slices + case.seed) % 4])
        case Pattern.MIDDLE:
            keep = np.ones(shape, bool)
            _of_middle(keep)[..., 1:-1] = keys[1:-1] == shape[2] // 2
            return keep
        case Pattern.NEARLY_TRIANGLE:
            keep = np.broadcast_to(keys <= queries, shape).copy()
            _of_middle(keep)[..., :1] = min(shape[2:]) < 2
            return keep
        case Pattern.EMPTY_ROW:
            keep = _random(case, shape, rng)
            keep[..., second, :] = False
            return keep
        case Pattern.EMPTY_IN_ONE:
            keep = _random(case, shape, rng)
            keep[-1:, -1:, second] = False
            return keep
        case Pattern.RANDOM:
            return _random(case, shape, rng)


def _of_middle(mask: Booleans) -> Booleans:
    """The row of its middle sample, head and query, of extent 1 along each; none where there are no rows."""
    return mask[tuple(slice(extent // 2, extent // 2 + 1) for extent in mask.shape[:3])]


def _rules(query_length: int, key_length: int) -> list[Booleans]:
    """(Lq, Lk) each: a prefix that all see or blocks, and earlier keys; chunks; a tree of drafts behind a context.

    The parent of draft n is draft (n - 1) // 2; it sees its ancestors, itself and the context.
    """
    queries, keys = np.arange(query_length)[:, None], np.arange(key_length)
    earlier, last = keys <= queries, np.minimum(queries, key_length - 1)
    context = max(key_length - query_length, 0)
    tree = keys < context
    for ancestor in (2 ** np.arange(query_length.bit_length() + 1))[:, None, None]:
        tree = tree | ((queries + 1) // ancestor - 1 == keys - context) & (keys >= context)
    chunks = (keys // 3 == last // 3) & earlier
    return [earlier | (keys < 3), earlier | (keys // 3 == last // 3), chunks, tree]


def _random(case: Case, shape: tuple[int, int, int, int], rng: np.random.Generator) -> Booleans:
    """Random holes, mended so that no row is empty under the causal flag (either alignment) and the padding."""
    keep = rng.random(shape) < VISIBLE
    if 0 in shape:
        return keep
    lengths = np.asarray(_lengths(case))
    for sample in range(case.sizes.batch):
        seen = keep[sample % shape[0]]
        real = _real_keys(case, lengths)[sample]
        reach = np.tri(shape[2], shape[3], dtype=bool) if case.causal and shape[2] > 1 else np.ones(shape[3], bool)
        if case.causal and shape[2] == 1:
            reach = np.arange(shape[3]) == 0
        empty = ~(seen & real & reach).any(-1)
        seen[empty, int(np.argmax(real)) if shape[3] > 1 else 0] = True
    return keep


def padding_mask(case: Case, rng: np.random.Generator) -> Booleans | None:
    """(B, Lk), True = may attend, or None where the case has none or gives it as lengths."""
    if case.padding is Padding.NONE or case.padding in BY_LENGTH:
        return None
    return real_keys(case)


def real_keys(case: Case) -> Booleans:
    """(B, Lk), True = no padding."""
    return _real_keys(case, np.asarray(_lengths(case)))


def valid_lengths(case: Case, rng: np.random.Generator) -> NDArray[np.int64] | None:
    """(B,) or (B, Lq) counts of leading real keys, or None."""
    s = case.sizes
    if case.padding is Padding.LENGTHS:
        return np.asarray(_lengths(case))
    if case.padding in (Padding.EMPTY_LENGTHS, Padding.MIDDLE_LENGTHS):
        return np.asarray(real_keys(case).sum(-1), np.int64)
    if case.padding is Padding.QUERY_LENGTHS:
        return rng.integers(1, s.key_length + 1, (s.batch, s.query_length))
    return None


def _lengths(case: Case) -> list[int]:
    """Different for neighbouring samples, none of them 0, not all full where Lk allows it."""
    s = case.sizes
    return [max(1, s.key_length - 2 - 3 * (sample % 3)) if s.key_length else 0 for sample in range(s.batch)]


def _real_keys(case: Case, lengths: NDArray[np.int64]) -> Booleans:
    s, keys = case.sizes, np.arange(case.sizes.key_length)
    match case.padding:
        case Padding.NONE | Padding.QUERY_LENGTHS:
            return np.ones((s.batch, s.key_length), bool)
        case Padding.LEFT:
            return keys >= s.key_length - lengths[:, None]
        case Padding.FIRST_TILE:
            return keys >= s.key_length - (1 + lengths[:, None]) // 2
        case Padding.HOLES:
            return (keys + np.arange(s.batch)[:, None]) % 3 != 1 if s.key_length > 2 else keys >= 0 * lengths[:, None]
        case Padding.EMPTY_SAMPLE | Padding.EMPTY_LENGTHS:
            real = keys < lengths[:, None]
            real[-1:] = False
            return real
        case Padding.MIDDLE:
            inner, middle = (keys > 0) & (keys < s.key_length - 1), np.arange(s.batch)[:, None] == s.batch // 2
            return np.asarray(~(middle & inner & (keys % 3 == 1)))
        case Padding.MIDDLE_LENGTHS:
            return np.asarray((keys < lengths[:, None]) | (np.arange(s.batch)[:, None] != s.batch // 2))
        case Padding.RIGHT | Padding.LENGTHS:
            return keys < lengths[:, None]


def visible(
    case: Case, mask: NDArray[Any] | None, padding: Booleans | None, lengths: NDArray[np.int64] | None
) -> Booleans:
    """(B, H, Lq, Lk): which keys each query may see under mask and padding; the causal flag is left out."""
    s = case.sizes
    seen = np.ones((s.batch, s.num_heads, s.query_length, s.key_length), bool)
    if mask is not None:
        seen &= mask.astype(bool) if mask.dtype.kind == "b" else mask > -np.inf
    if padding is not None:
        seen &= padding[:, None, None, :]
    if lengths is not None:
        counts = lengths if lengths.ndim == 2 else lengths[:, None]
        seen &= np.arange(s.key_length) < counts[:, None, :, None]
    return seen
