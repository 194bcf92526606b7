"""Pattern: the options of cases in words, and what the failures of a candidate have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attention_conformance.spec.cases import Case, MaskKind, Padding, Sizes
from attention_conformance.spec.features import NOTHING
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
            wrong_indices = ({*map(int, np.nonzero(mask)[axis])} for mask in extended)
            pairs = zip(extended, wrong_indices, strict=True)
            if len(extended) > 1 and all(holds(i, mask.shape[axis]) for mask, indices in pairs for i in indices):
                yield rule.format(PLURAL[name] if "after" in rule else name)
                break


def _wrong(each: Observation) -> NDArray[np.bool_] | None:
    if each.got is None or each.got.output.shape != each.expected["output"].value.shape:
        return None
    ratios = error_ratios(each.got.output.astype(np.float64), each.expected["output"])
    return np.asarray(~(ratios <= 1.0))


def options(case: Case) -> frozenset[str]:
    """Such as {"mask=bool", "Lq = Lk", "softcap"}."""
    plain = Case(module=case.module)
    named = (f.name for f in fields(plain) if f.name not in ("sizes", "seed", "module", "extension"))
    own = {f"{n}={getattr(case, n)}" for n in named if getattr(case, n) != getattr(plain, n)}
    extensions = (f.name for f in fields(NOTHING) if getattr(case.extension, f.name) != getattr(NOTHING, f.name))
    return frozenset(own | set(extensions) | set(_extents(case.sizes)) | set(_kinds(case)))


def _extents(s: Sizes) -> Iterator[str]:
    """What is out of the ordinary about sizes, as properties rather than numbers."""
    facts = {
        "no keys": s.key_length == 0,
        "no samples or no queries": 0 in (s.batch, s.query_length),
        "one query": s.query_length == 1,
        "one key": s.key_length == 1,
        "Lq = Lk": s.query_length == s.key_length,
        "Lq > Lk": s.query_length > s.key_length,
        "B = H": s.batch == s.num_heads > 1,
        "more than 64 keys": s.key_length > 64,
        "more than 64 queries": s.query_length > 64,
        "one head": s.num_heads == 1,
        "grouped heads": s.kv_heads != s.num_heads,
        "odd head width": s.d_k % 2 == 1,
        "d_v > d_k": s.d_v > s.d_k,
        "wide heads": max(s.d_k, s.d_v) > 64,
        "many samples and heads": s.batch * s.num_heads > 32,
    }
    return (name for name, holds in facts.items() if holds)


def _kinds(case: Case) -> Iterator[str]:
    form = case.module
    facts = {
        "a mask": case.mask is not MaskKind.NONE,
        "padding": case.padding is not Padding.NONE,
        "inputs of different widths": form is not None and len({form.query_dim, form.key_dim, form.value_dim}) > 1,
    }
    return (name for name, holds in facts.items() if holds)


def without(case: Case, option: str) -> Case | None:
    """The case without the option, otherwise as similar as possible; None where there is no such case."""
    name, _, value = option.partition("=")
    if value and hasattr(case, name):
        return replace(case, **{name: getattr(Case(), name)})
    if hasattr(NOTHING, option):
        return case.extended(**{option: getattr(NOTHING, option)})
    if option in ("a mask", "padding"):
        return replace(case, mask=MaskKind.NONE) if option == "a mask" else replace(case, padding=Padding.NONE)
    s = case.sizes
    changes: dict[str, dict[str, int]] = {
        "one query": {"query_length": 5},
        "one key": {"key_length": 7},
        "Lq = Lk": {"key_length": s.key_length + 2},
        "Lq > Lk": {"query_length": max(1, s.key_length - 1)},
        "B = H": {"batch": s.batch + 1},
        "more than 64 keys": {"key_length": 33},
        "more than 64 queries": {"query_length": 33},
        "many samples and heads": {"batch": 2, "num_heads": 2},
        "one head": {"num_heads": 2},
        "grouped heads": {"num_kv_heads": 0},
        "odd head width": {"d_k": s.d_k + 1},
        "d_v > d_k": {"d_v": s.d_k},
        "wide heads": {"d_k": 8, "d_v": 8},
    }
    return case.sized(**changes[option]) if option in changes else None
