"""Places: which elements of the output are wrong in every failing case: heads, queries, components, samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from attention_conformance.reference.expected import Expected
from attention_conformance.spec.cases import Case, Scores
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, Prober
from attention_conformance.tests.harness.judge.comparison import error_ratios, part_of

AXES = {4: ("sample", "head", "query", "component"), 3: ("sample", "query", "component")}
PLURAL = {"key": "keys", "sample": "samples", "head": "heads", "query": "queries", "component": "components"}
MORE = {"batch": 3, "num_heads": 5}
LONGER = 100
SEEDS = (41, 42)
TILES = (16, 32, 64)
FAR_APART = 60.0
LIMITS, FACTORS = ("window_left", "window_right"), ("softcap", "rotary_base", "norm_epsilon")
"""Options that are numbers, of keys and others."""
MOST = 30
"""Wider windows need longer cases than are made for a question."""
ANOTHER = 1.7


def other_sizes(base: Case) -> Iterator[Case]:
    """The case with other sizes, each respect by itself."""
    s = base.sizes
    yield base.sized(d_k=s.d_k + 2, d_v=s.d_v + 2)
    yield base.sized(d_k=6, d_v=6)
    yield base.sized(query_length=s.query_length + 3, key_length=s.key_length + 3)
    yield base.sized(query_length=9, key_length=9)
    yield base.sized(batch=1)
    for tile in TILES:  # of this size, or of another one
        yield base.sized(query_length=tile + 1, key_length=tile + 1)


def other_numbers(base: Case) -> Iterator[Case]:
    """The case with other numbers in its options: twice a limit of 1 is one more, and beyond all keys none shows."""
    given = {name: getattr(base.extension, name) for name in (*LIMITS, *FACTORS)}
    limits = {name: given[name] + 2 for name in LIMITS if given[name] is not None}
    if limits and max(limits.values()) < MOST:
        length = 2 * max(limits.values()) + 3
        yield base.extended(**limits).sized(query_length=length, key_length=length)
    factors = {name: ANOTHER * given[name] for name in FACTORS if given[name] is not None}
    if factors or base.scale is not None:
        yield replace(base.extended(**factors), scale=base.scale and ANOTHER * base.scale)


def wider_scores(base: Case) -> Iterator[Case]:
    """The case with scores that lie far apart: there a number in place of hidden ones is distinguished from another."""
    yield replace(base, scores=Scores.NORMAL, score_std=FAR_APART, scale=None)


def wider(failing: Sequence[Observation], prober: Prober) -> list[Observation]:
    """The failing cases, and the smallest one with more samples, heads and queries, as far as it still fails."""
    base = min((each.case for each in failing), key=lambda case: len(str(case)))
    square = base.sizes.query_length == base.sizes.key_length
    longer = dict.fromkeys(("query_length", "key_length") if square else ("query_length",), LONGER)
    sized = [base.sized(**MORE) if not base.sizes.num_kv_heads else base.sized(batch=3), base.sized(**longer)]
    more = [prober.observe(replace(case, seed=seed)) for case in sized for seed in SEEDS]
    return [*failing, *(each for each in more if each is not None and each.failing)]


@dataclass(frozen=True)
class Place:
    """Where every wrong element of the output is.

    Attributes:
        words: such as "in heads from 2 on".
        axis: of the output.
        holds: whether an index is within, of so many.
    """

    words: str
    axis: int
    holds: Callable[[int, int], bool]

    def alone(self, each: Observation) -> Observation:
        """The observation with these elements alone."""
        shape = each.expected["output"].value.shape
        extent = shape[self.axis]
        rows = np.array([self.holds(index, extent) for index in range(extent)], dtype=bool)
        left = rows.reshape(-1, *[1] * (len(shape) - self.axis - 1))
        return each.of_rows(np.broadcast_to(left if each.rows is None else left & each.rows, shape))


def places(failing: Sequence[Observation]) -> Iterator[Place]:
    """Positions that include every wrong element, counted from 0."""
    masks = [mask for mask in map(_wrong, failing) if mask is not None and mask.ndim in AXES and mask.any()]
    if len(masks) < 2 or len({mask.ndim for mask in masks}) > 1:
        return
    for axis, name in enumerate(AXES[masks[0].ndim]):
        extended = [mask for mask in masks if mask.shape[axis] > 1]
        if len(extended) > 1 and (place := _of_axis(extended, axis, name)):
            yield place


def _of_axis(masks: Sequence[NDArray[np.bool_]], axis: int, name: str) -> Place | None:
    wrong = [sorted({*map(int, np.nonzero(mask)[axis])}) for mask in masks]
    extents = [mask.shape[axis] for mask in masks]
    first = [indices[0] for indices in wrong]
    if all(indices == [0] for indices in wrong):
        return Place(f"in the first {name}", axis, lambda index, extent: index == 0)
    if all(indices == [extent - 1] for indices, extent in zip(wrong, extents, strict=True)):
        return Place(f"in the last {name}", axis, lambda index, extent: index == extent - 1)
    if (least := min(first)) > 0 and first.count(least) > 1:
        return Place(f"in {PLURAL[name]} from {least} on (counted from 0)", axis, lambda index, extent: index >= least)
    most = max(indices[-1] for indices in wrong)
    whole = [most < extent - 1 for extent in extents]
    if sum(whole) > 1 and all(whole):
        return Place(f"in {PLURAL[name]} 0 to {most}", axis, lambda index, extent: index <= most)
    return None


def in_gradients(failing: Sequence[Observation]) -> Iterator[str]:
    """Such as "in keys from 64 on (counted from 0), which get 0", where the output is right and gradients are wrong."""
    parts = [p for p in (f"gradients.{name}" for name in TOKENS) if all(p in each.parts for each in failing)]
    wrong = {part: [each for each in failing if each.errors[part] > 1.0] for part in parts}
    if any(each.errors["output"] > 1.0 for each in failing):
        return
    for part, seen in wrong.items():
        masks = [mask for mask in (_wrong(each, part) for each in seen) if mask is not None and mask.any()]
        token = TOKENS[part.removeprefix("gradients.")]
        of = f" of the gradient of {part.removeprefix('gradients.')}" if sum(map(bool, wrong.values())) > 1 else ""
        if len(masks) > 1 and len({mask.ndim for mask in masks}) == 1 and masks[0].ndim in AXES:
            nothing = ", which get 0" if all(map(partial(_is_zero, part), seen, masks)) else ""
            for axis, name in enumerate(AXES[masks[0].ndim]):
                extended = [mask for mask in masks if mask.shape[axis] > 1]
                place = _of_axis(extended, axis, token if name == "query" else name) if len(extended) > 1 else None
                if place is not None:
                    yield f"{place.words}{of}{nothing}"


TOKENS = {"query": "query", "key": "key", "value": "key"}
"""What a token is called in the gradients of inputs."""


def _is_zero(part: str, each: Observation, wrong: NDArray[np.bool_]) -> bool:
    got = None if each.got is None else part_of(each.got, part)
    return got is not None and not got[wrong].any()


def _wrong(each: Observation, part: str = "output") -> NDArray[np.bool_] | None:
    expected, got = each.expected[part], None if each.got is None else part_of(each.got, part)
    if got is None or got.shape != expected.value.shape:
        return None
    right = Expected(each.judged(part, expected.value), expected.bound)
    return np.asarray(~(error_ratios(each.judged(part, got), right) <= 1.0))


def shared_exception(failing: Sequence[Observation]) -> str:
    """What every failing case raises, and where; empty if any raises something else, or nothing."""
    first = failing[0].exception
    return first if first and all(each.raised == failing[0].raised for each in failing) else ""
