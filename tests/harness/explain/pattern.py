"""Pattern: what the failures of a candidate have in common, in words, where no known mistake explains them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attention_conformance.spec.cases import Case
from attention_conformance.tests.harness.explain.traits import options, without
from attention_conformance.tests.harness.judge.comparison import error_ratios

if TYPE_CHECKING:
    from attention_conformance.tests.harness.explain.diagnosis import Observation

AXES = ("sample", "head", "query", "component")
PLURAL = {"sample": "samples", "head": "heads", "query": "queries", "component": "components"}


def pattern(
    failing: Sequence[Observation],
    observed: Sequence[Observation],
    dtypes: Sequence[str],
    fails: Callable[[Case], bool],
) -> str:
    """Such as "it fails only with mask=bool, and only in heads after the first".

    Args:
        failing: observed failures.
        observed: these, and cases that pass.
        dtypes: the only ones in which anything fails; empty if it fails in all.
        fails: whether the candidate fails another case.
    """
    limits = [*([f"in {', '.join(dtypes)}"] if dtypes else []), *_of_options(failing, fails), *_of_elements(failing)]
    if limits:
        return f"it fails only {', and only '.join(limits)}"
    everything = len(failing) == len(observed)
    return "every case that was compared fails" if everything else "no pattern was found in the failures"


def _of_options(failing: Sequence[Observation], fails: Callable[[Case], bool]) -> Iterator[str]:
    """Options that all failing cases have, and without which one of them passes."""
    if not failing:
        return
    shared = frozenset.intersection(*(options(each.case) for each in failing))
    case = failing[0].case
    changed = {option: without(case, option) for option in sorted(shared)}
    necessary = [option for option, other in changed.items() if other is not None and not fails(other)]
    exact = {option.partition("=")[0] for option in necessary if "=" in option}
    yield from (f"with {option}" for option in necessary if option.removeprefix("a ") not in exact)


def _of_elements(failing: Sequence[Observation]) -> Iterator[str]:
    """Positions in the output that include every wrong element."""
    wrong = [_wrong(each) for each in failing]
    masks = [mask for mask in wrong if mask is not None and mask.ndim == len(AXES) and mask.any()]
    rules: dict[str, Callable[[int, int], bool]] = {
        "in the first {}": lambda index, extent: index == 0,
        "in {} after the first": lambda index, extent: index > 0,
        "in the last {}": lambda index, extent: index == extent - 1,
    }
    for axis, name in enumerate(AXES):
        extended = [mask for mask in masks if mask.shape[axis] > 1]
        for rule, holds in rules.items():
            if len(extended) > 1 and all(_all(mask, axis, holds) for mask in extended):
                yield rule.format(PLURAL[name] if "after" in rule else name)
                break


def _wrong(each: Observation) -> NDArray[np.bool_] | None:
    if each.got is None or each.got.output.shape != each.expected["output"].value.shape:
        return None
    ratios = error_ratios(each.got.output.astype(np.float64), each.expected["output"])
    return np.asarray(~(ratios <= 1.0))


def _all(mask: NDArray[np.bool_], axis: int, holds: Callable[[int, int], bool]) -> bool:
    return all(holds(int(index), mask.shape[axis]) for index in np.unique(np.nonzero(mask)[axis]))
