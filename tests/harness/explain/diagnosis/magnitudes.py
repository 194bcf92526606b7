"""Magnitudes: which part is wrong, in which numbers, and how large the inputs are where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.discovery.vocabulary import INPUTS
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, Scores, Values
from attention_conformance.spec.conventions import Conventions
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, Prober
from attention_conformance.tests.harness.judge.comparison import error_ratios

CLEARLY = 2.0
"""So many times larger are numbers of the failing cases, at least, than those of all passing ones."""
FEW = 3
"""A limit is seen between so many passing cases, at least, and the failing ones."""


def parts(failing: Sequence[Observation]) -> Iterator[str]:
    """Such as "in the gradient of key": what is wrong where the output is right; and what is right before it."""
    wrong = list(dict.fromkeys(part for each in failing for part in each.parts if each.errors[part] > 1.0))
    if wrong and "output" not in wrong:
        yield f"in the {parts_in_words(wrong)}"
    elif all(_right_weights(each) for each in failing):
        yield "in what follows the weights"
    if all(each.got is not None and _not_finite(each) for each in failing):
        yield "by NaN or infinity"


def parts_in_words(parts: Sequence[str]) -> str:
    """Such as "gradient of key", "gradients of query and key", "log sum exp"."""
    gradients = [part.removeprefix("gradients.") for part in parts if part.startswith("gradients.")]
    gradients.sort(key=lambda name: INPUTS.index(name) if name in INPUTS else len(INPUTS))
    names = " and ".join(filter(None, [", ".join(gradients[:-1]), *gradients[-1:]]))
    of = [f"gradient{'s' if len(gradients) > 1 else ''} of {names}"] if gradients else []
    return " and the ".join([*(p.replace("_", " ") for p in parts if not p.startswith("gradients.")), *of])


def _right_weights(each: Observation) -> bool:
    got = None if each.got is None else each.got.weights
    expected = each.expected["weights"]
    same = got is not None and got.shape == expected.value.shape
    return same and got is not None and bool((error_ratios(got.astype(np.float64), expected) <= 1.0).all())


def _not_finite(each: Observation) -> bool:
    """Whether every wrong element of the output is NaN or infinite, and there is one."""
    expected = each.expected["output"]
    if each.got is None or each.got.output.shape != expected.value.shape:
        return False
    got = each.got.output.astype(np.float64)
    wrong = ~(error_ratios(got, expected) <= 1.0)
    return bool(wrong.any()) and not np.isfinite(got[wrong]).any()


def sizes(
    failing: Sequence[Observation], passing: Sequence[Observation], prober: Prober, claimed: Conventions
) -> Iterator[str]:
    """Such as "with scores beyond 88": what all failing cases exceed clearly, and no passing one."""
    if len(passing) < FEW:
        return
    bounds = [(_largest(each, claimed), fails) for all_, fails in ((failing, True), (passing, False)) for each in all_]
    for number, (name, ordinary) in enumerate(ORDINARY.items()):
        least = min(sizes[number] for sizes, fails in bounds if fails)
        most = max(sizes[number] for sizes, fails in bounds if not fails)
        if least > CLEARLY * most and prober.fails(replace(failing[0].case, **ordinary)) is False:  # type: ignore[arg-type]
            yield f"with {name} beyond {most:.2g}"


ORDINARY: dict[str, dict[str, object]] = {
    "scores": {"scores": Scores.NORMAL, "score_std": Case().score_std, "scale": None},
    "values": {"values": Values.NORMAL, "value_scale": 1.0},
}


def _largest(each: Observation, claimed: Conventions) -> tuple[float, float]:
    """The sizes of the largest score and value."""
    trace = solve(each.problem.forward_only(), claimed).trace
    return tuple(float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in (trace.capped, trace.value))  # type: ignore[return-value]
