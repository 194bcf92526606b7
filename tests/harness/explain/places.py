"""Places: which elements of the output are wrong in every failing case: heads, queries, components, samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attention_conformance.tests.harness.explain.observation import Observation, Prober
from attention_conformance.tests.harness.judge.comparison import error_ratios

AXES = {4: ("sample", "head", "query", "component"), 3: ("sample", "query", "component")}
PLURAL = {"sample": "samples", "head": "heads", "query": "queries", "component": "components"}
MORE = {"batch": 3, "num_heads": 5}
LONGER = 100
SEEDS = (41, 42)


def wider(failing: Sequence[Observation], prober: Prober) -> list[Observation]:
    """The failing cases, and the smallest one with more samples, heads and queries, as far as it still fails."""
    base = min((each.case for each in failing), key=lambda case: len(str(case)))
    square = base.sizes.query_length == base.sizes.key_length
    longer = dict.fromkeys(("query_length", "key_length") if square else ("query_length",), LONGER)
    sized = [base.sized(**MORE) if not base.sizes.num_kv_heads else base.sized(batch=3), base.sized(**longer)]
    more = [prober.observe(replace(case, seed=seed)) for case in sized for seed in SEEDS]
    return [*failing, *(each for each in more if each is not None and each.failing)]


def places(failing: Sequence[Observation]) -> Iterator[str]:
    """Such as "in heads from 2 on": positions that include every wrong element, counted from 0."""
    masks = [mask for mask in map(_wrong, failing) if mask is not None and mask.ndim in AXES and mask.any()]
    if len(masks) < 2 or len({mask.ndim for mask in masks}) > 1:
        return
    for axis, name in enumerate(AXES[masks[0].ndim]):
        extended = [mask for mask in masks if mask.shape[axis] > 1]
        if len(extended) > 1 and (words := _of_axis(extended, axis, name)):
            yield words


def _of_axis(masks: Sequence[NDArray[np.bool_]], axis: int, name: str) -> str:
    wrong = [sorted({*map(int, np.nonzero(mask)[axis])}) for mask in masks]
    extents = [mask.shape[axis] for mask in masks]
    first = [indices[0] for indices in wrong]
    if all(indices == [0] for indices in wrong):
        return f"in the first {name}"
    if all(indices == [extent - 1] for indices, extent in zip(wrong, extents, strict=True)):
        return f"in the last {name}"
    if min(first) > 0 and first.count(min(first)) > 1:
        return f"in {PLURAL[name]} from {min(first)} on (counted from 0)"
    most = max(indices[-1] for indices in wrong)
    whole = [most < extent - 1 for extent in extents]
    return f"in {PLURAL[name]} 0 to {most}" if sum(whole) > 1 and all(whole) else ""


def _wrong(each: Observation) -> NDArray[np.bool_] | None:
    if each.got is None or each.got.output.shape != each.expected["output"].value.shape:
        return None
    ratios = error_ratios(each.got.output.astype(np.float64), each.expected["output"])
    return np.asarray(~(ratios <= 1.0))


def shared_exception(failing: Sequence[Observation]) -> str:
    """What every failing case raises, and where; empty if any raises something else, or nothing."""
    first = failing[0].exception
    return first if first and all(each.raised == failing[0].raised for each in failing) else ""
