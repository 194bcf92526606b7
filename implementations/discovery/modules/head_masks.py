"""Masks of heads: factors of the weights of each head, which are gates of what it answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.probe import Floats, near
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.modules.forwards import ModuleCall

OPTION = "head_gates"
GATED = PLAIN.extended(head_gates=True)
WORDS = {"head", "heads", "mask", "layer"}
"""Words that the name of such a mask consists of."""
PUBLISHED = ("head_mask", "layer_head_mask")
"""Names that promise it: factors of the weights, of which 0 silences a head, and 1 leaves it as it is."""


def with_head_mask(call: ModuleCall, check: ClaimCheck) -> tuple[ModuleCall, ClaimCheck]:
    """With the mask of heads among what it takes, where it multiplies their weights, whatever the factors are.

    One of a published name is judged where ones change nothing, and other factors something.
    """
    names = [name for name in call.options.other_masks if {"mask"} < {*name.lower().split("_")} <= WORDS]
    name = names[0] if len(names) == 1 and OPTION not in call.options else ""
    for axes in (True, False) if name else ():
        each = _with(call, name, axes)
        claimed = replace(check, function=each).claiming({Feature.HEAD_GATES})
        if _multiplies(claimed, call, name in PUBLISHED):
            return each, claimed.stating(f"its {name!r} is judged as factors of the weights of each head")
    return call, check


def _with(call: ModuleCall, name: str, axes: bool) -> ModuleCall:
    options = call.options
    others = tuple(each for each in options.other_masks if each != name)
    similar = {each: known for each, known in options.misspelled.items() if each != name}
    spelled = {**options.spelled, OPTION: name}
    return replace(
        call, options=replace(options, spelled=spelled, other_masks=others, misspelled=similar), gates_axes=axes
    )


def _multiplies(check: ClaimCheck, without: ModuleCall, promised: bool) -> bool:
    """Whether factors of 1 change nothing, others do, and their mean gives the mean of what each of them gives.

    What is `promised` to be so need not be seen to be so in the last respect.
    """
    fitted = fit(GATED, check.claims)
    if isinstance(fitted, Unsupported):
        return False
    problem = build(fitted, check.dtype).forward_only()
    one = np.linspace(0.5, 1.5, problem.num_heads)
    usual, *gated = (_answer(check, problem, gates) for gates in (one**0, one, 1.0 - one**2, (1.0 + one - one**2) / 2))
    plain = _answer(replace(check, function=without), problem, one)
    if plain is None or usual is None or not near(usual, plain):
        return False
    first, second, both = gated
    if first is None or second is None or both is None or near(first, plain):
        return False
    return promised or near(both, (first + second) / 2)


def _answer(check: ClaimCheck, problem: Problem, gates: Floats) -> Floats | None:
    given = problem.with_arrays({OPTION: gates.astype(problem.query.dtype)})
    result = safe_call(lambda: check.adapt(check.function)(given.fresh(), check.device)).value
    return None if result is None else np.asarray(result.output, np.float64)
