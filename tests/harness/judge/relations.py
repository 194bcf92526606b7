"""Relations: what a problem looks like after a change that must not matter, or must matter in a known way."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from attention_conformance.spec.cases import Case, Scores, Sharing
from attention_conformance.spec.conventions import EmptyRow
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Array, Problem

Change: TypeAlias = Callable[[Array], Array]

LITTLE = 0.05
"""The scores of keys in line, of either sign: their exponentials are no power of two, and hardly differ."""


def take_keys(problem: Problem, keys: Array) -> Problem:
    """The problem with only these keys, in this order; masks follow."""
    return _along(problem, keys, inputs=("key", "value"), mask_axis=-1, padding=True)


def take_queries(problem: Problem, queries: Array) -> Problem:
    """The problem with only these queries, in this order; masks follow."""
    taken = _along(problem, queries, inputs=("query",), mask_axis=-2, padding=False)
    if problem.valid_lens is not None and problem.valid_lens.ndim == 2:
        taken = taken.with_arrays({"valid_lens": problem.valid_lens[:, queries]})
    return taken


def take_tokens(problem: Problem, tokens: Array) -> Problem:
    """The problem with only these tokens as queries and as keys, in this order."""
    if problem.sharing is Sharing.SELF:
        masks = take_keys_of_masks(problem, tokens)
        masks |= _taken_masks(masks, tokens, -2)
        return problem.with_arrays({"query": problem.query[..., tokens, :], **masks})
    return take_queries(take_keys(problem, tokens), tokens)


def take_samples(problem: Problem, samples: Array) -> Problem:
    """The problem with only these samples."""
    arrays = {n: a[samples] for n, a in problem.arrays().items() if n in ("query", "key", "value")}
    for name in ("key_padding_mask", "valid_lens", "cotangent"):
        if (array := problem.arrays().get(name)) is not None:
            arrays[name] = array[samples]
    mask = problem.attn_mask
    if mask is not None and mask.ndim == 4 and mask.shape[0] > 1:
        arrays["attn_mask"] = mask[samples]
    return problem.with_arrays(arrays)


def take_heads(problem: Problem, heads: Array) -> Problem:
    """The op-level problem with only these heads, in this order; a key head that all share stays."""
    assert problem.scope is Scope.OP
    whole = {name: problem.arrays()[name] for name in ("query", "key", "value")}
    arrays = {name: array[:, heads] if array.shape[1] > 1 else array for name, array in whole.items()}
    mask = problem.attn_mask
    if mask is not None and mask.ndim == 4 and mask.shape[1] > 1:
        arrays["attn_mask"] = mask[:, heads]
    return replace(problem.with_arrays(arrays), num_heads=len(heads))


def taking(positions: Array, axis: int) -> Change:
    """The change that takes these positions along an axis, in this order."""
    return lambda array: np.take(array, positions, axis)


def changed(problem: Problem, **changes: Change) -> Problem:
    """The problem with arrays replaced by what the named functions make of copies of them."""
    arrays = problem.arrays()
    made = {n: change(arrays[n].copy()) for n, change in changes.items() if n in arrays}
    return problem.with_arrays({n: a.astype(arrays[n].dtype, copy=False) for n, a in made.items()})


def in_line(problem: Problem, size: float, tall: float = 1.0) -> Problem:
    """The problem with rows that differ by a sign or a factor only: no sum of its equations has terms that cancel.

    All queries and all cotangents of a head are its first; keys are in turn a little to its side and to the other, and
    values one half and five halves of the first. `size`, a power of two, multiplies values and cotangents, and `tall`
    the first key. Keys are longer across the queries, which no score feels, and the first one twice as long there as
    the others: of the gradient of a query it is as large a part as of the softmax.
    """
    query = problem.query[:, :, :1].astype(np.float64)
    numbers = np.arange(problem.key.shape[-2])[:, None]
    sides, tallest = np.where(numbers % 2, -1.0, 1.0), numbers == 0
    along = query * (LITTLE * query.shape[-1] ** 0.5 / np.square(query).sum(-1, keepdims=True))

    def keys(array: Array) -> Array:
        side, across = (_of_heads(rows, array) for rows in (along, _across(along)))
        return np.asarray(sides * (np.where(tallest, tall, 1.0) * side + np.where(tallest, tall, tall / 2) * across))

    def first(array: Array) -> Array:
        return np.broadcast_to(array[:, :, :1], array.shape).astype(np.float64)

    return changed(
        problem,
        query=first,
        key=keys,
        value=lambda array: size * (1.5 + sides) * first(array),
        cotangent=lambda array: size * first(array),
    )


def _across(rows: Array) -> Array:
    """Rows as long as these and at right angles to them; the last of an odd number of channels is 0."""
    across, pairs = np.zeros_like(rows), rows.shape[-1] // 2 * 2
    across[..., 0:pairs:2], across[..., 1:pairs:2] = -rows[..., 1:pairs:2], rows[..., 0:pairs:2]
    return across


def _of_heads(rows: Array, array: Array) -> Array:
    """The rows of the first query head of each key head."""
    return rows[:, :: rows.shape[1] // array.shape[1]]


def _along(problem: Problem, positions: Array, inputs: tuple[str, ...], mask_axis: int, padding: bool) -> Problem:
    arrays = problem.arrays()
    taken = {name: arrays[name][..., positions, :] for name in inputs if name in arrays}
    masks = take_keys_of_masks(problem, positions) if padding else _taken_masks(arrays, positions, mask_axis)
    return problem.with_arrays({**taken, **masks})


def take_keys_of_masks(problem: Problem, keys: Array) -> dict[str, Array]:
    """The masks with only these keys."""
    arrays = problem.arrays()
    masks = _taken_masks(arrays, keys, -1)
    if "key_padding_mask" in arrays:
        masks["key_padding_mask"] = arrays["key_padding_mask"][:, keys]
    return masks


def _taken_masks(arrays: Mapping[str, Array], positions: Array, axis: int) -> dict[str, Array]:
    mask = arrays.get("attn_mask")
    if mask is None:
        return {}
    return {"attn_mask": mask if mask.shape[axis] == 1 else np.take(mask, positions, axis)}


def deep(answer: EmptyRow, very_negative: Case) -> tuple[Case, ...]:
    """The very negative case, and the same in the most negative; not for those who claim the mean for an empty row.

    That claim is one of a finite stand-in for minus infinity, whose reach ends somewhere.
    """
    both = (very_negative, replace(very_negative, scores=Scores.MOST_NEGATIVE))
    return both[:1] if answer is EmptyRow.UNIFORM else both
