"""Masks of weights that are kept, as dropout draws them: what two complementary ones keep adds up to the answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import CallOutcome
from attention_conformance.implementations.discovery.claim_checks import (
    OPTION_CASES,
    PLAIN,
    ClaimCheck,
    near_outputs,
    output_of,
)
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.implementations.discovery.signatures import required, signature_of
from attention_conformance.spec.features import NOTHING, Feature
from attention_conformance.spec.inputs import build

OF_DROPOUT = {"keep", "kept", "drop", "dropped", "dropout"}
"""Words in the names of such masks, and of rates."""
OF_RATES = {"p", "rate", "prob"}
RATE = 0.5
WAY = "as the sum of what two complementary masks of dropout keep"


@dataclass(frozen=True)
class Halves:
    """A function that is called twice, each time with a mask that keeps half of the weights.

    Attributes:
        function: it.
        mask: its parameter for the mask, (B, H, Lq, Lk).
        rate: its parameter for the rate of dropout; empty for none.
        factor: by which the sum of both outputs is too large.
        alone: whether the first half is all that is taken, as it comes.
    """

    function: Callable[..., Any]
    mask: str
    rate: str
    factor: float
    alone: bool = False

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The sum, and whatever else the first call returns."""
        kept = np.indices((*query.shape[:3], key.shape[2])).sum(0) % 2 == 0
        masks: list[Any] = [kept] if self.alone else [kept, ~kept]
        if hasattr(query, "new_tensor"):
            masks = [query.new_tensor(each).bool() for each in masks]
        given = {**options, **({self.rate: RATE} if self.rate else {})}
        answers = [self.function(query, key, value, **{**given, self.mask: each}) for each in masks]
        parts = [each if isinstance(each, tuple | list) else (each,) for each in answers]
        output = parts[0][0] if self.alone else (parts[0][0] + parts[1][0]) / self.factor
        return (output, *parts[0][1:]) if len(parts[0]) > 1 else output


def _optional(function: Callable[..., Any]) -> dict[str, set[str]]:
    """The words in the names of what it need not be given after its inputs."""
    own = [*signature_of(function).parameters.values()][3:]
    return {p.name: {*p.name.lower().split("_")} for p in own if not required(p)}


def masks_of_dropout(function: Callable[..., Any]) -> list[str]:
    """Its parameters that take such masks, by their names."""
    return [name for name, words in _optional(function).items() if words & OF_DROPOUT and "mask" in words]


def judged_masks(check: ClaimCheck, function: Callable[..., Any]) -> list[str]:
    """The same, where what they keep is judged."""
    return masks_of_dropout(function) if in_halves(check, function) else []


def _ignores(check: ClaimCheck, halves: ClaimCheck, usual: CallOutcome[Any]) -> bool:
    """Whether half of the weights give what all of them give, as where a mode has no use for masks."""
    call = halves.function
    assert isinstance(call, RenamedCall)
    assert isinstance(call.function, Halves)
    one = replace(check, function=replace(call, function=replace(call.function, alone=True)))
    return near_outputs(one.run(PLAIN), usual, check.dtype)


def without_rate_of_masks(check: ClaimCheck, function: Callable[..., Any]) -> ClaimCheck:
    """The check without dropout of its own, where its rate draws nothing, and divides what a mask of dropout keeps.

    Which weights are dropped is then the caller's choice.
    """
    ways = in_halves(check, function) if Feature.DROPOUT in check.claims else {}
    if not ways:
        return check
    fitted = fit(OPTION_CASES[Feature.DROPOUT], check.claims)
    if isinstance(fitted, Unsupported):
        return check
    problem = build(fitted, check.dtype).forward_only()
    answers = [check.answer(each) for each in (problem, replace(problem, extension=NOTHING, extras={}))]
    if any(each.error for each in answers):
        return check
    rated, plain = map(output_of, answers)
    if not any(near(rated * factor, plain, check.dtype) for factor in (1.0, 1.0 - fitted.extension.dropout)):
        return check
    kept = check.without({Feature.DROPOUT, Feature.EVALUATION})
    return kept.stating(f"its rate of dropout is that of the weights that its {masks_of_dropout(function)[0]!r} keeps")


def in_halves(check: ClaimCheck, function: Callable[..., Any]) -> dict[str, RenamedCall]:
    """The function as such a sum, where it takes a mask of this kind and a mask changes its answer.

    What is kept is divided by 1 - rate, or left as it is where that is seen to give the answer.
    """
    call, optional = check.function, _optional(function)
    masks = masks_of_dropout(function) if isinstance(call, RenamedCall) else []
    rates = [n for n, words in optional.items() if words & OF_DROPOUT and (words & OF_RATES or len(words) == 1)]
    if len(masks) != 1 or len(rates) > 1:
        return {}
    usual, rate = check.run(PLAIN), next(iter(rates), "")
    several = [Halves(function, masks[0], rate, 1 / (1 - RATE if each else 1)) for each in (bool(rate), False)]
    assert isinstance(call, RenamedCall)
    found = [replace(check, function=replace(call, function=each)) for each in several]
    answered = [each for each in found if not each.run(PLAIN).error]
    if usual.error or not answered or _ignores(check, answered[0], usual):
        return {}
    right = next((each for each in answered if near_outputs(each.run(PLAIN), usual, check.dtype)), answered[0])
    assert isinstance(right.function, RenamedCall)
    return {WAY: right.function}
