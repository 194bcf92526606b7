"""Right implementations in unusual styles: other orders of summation, other bases, other places for the roundings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.selftest.styles import (
    DIVIDED_LAST,
    TEXTBOOK,
    einsum_mix,
    exp_of_log_softmax,
    head_by_head,
    merged,
    online,
    padded_to_eight,
    powers_of_two,
    products_one_by_one,
    scale_on_both_sides,
    values_from_the_last,
    weights_rounded,
)

OVERFLOWS = ("numerics.half-range",)
"""The advice that a style cannot follow which stores the products in a half type."""


@dataclass(frozen=True)
class Right:
    """An implementation that must pass every clause it claims, but for some advice (SHOULD)."""

    implementation: Implementation
    advice: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.implementation.name


def _of_torch(name: str, function: Callable[..., Any]) -> Implementation:
    return Implementation(name, Claims(Scope.OP, OP_FEATURES), torch_op(function))


def _of_steps(name: str, steps: Steps) -> Implementation:
    features = OP_FEATURES | {Feature.WEIGHTS, Feature.LOG_SUM_EXP}
    run = torch_op(steps.answer, extras=("weights", "log_sum_exp"))
    return Implementation(name, Claims(Scope.OP, features), run)


STEPS = {
    "plain": Steps(),
    "eager": TEXTBOOK,
    "eager.log-softmax": Steps(wide=False, softmax=exp_of_log_softmax),
    "eager.base-2": Steps(wide=False, softmax=powers_of_two),
    "eager.scale-on-both-sides": Steps(wide=False, score=scale_on_both_sides),
    "products-one-by-one": Steps(score=products_one_by_one),
    "values-from-the-last": Steps(mix=values_from_the_last),
    "einsum": Steps(mix=einsum_mix),
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "weights-rounded": weights_rounded,
    "head-by-head": head_by_head,
    "padded-to-eight": padded_to_eight,
    "online-1": online(1),
    "online-7": online(7),
    "online-64": online(64),
    "merged-2": merged(2),
    "merged-5": merged(5),
    "divided-last": DIVIDED_LAST,
}


def _advice(name: str, steps: Steps) -> tuple[str, ...]:
    """Products that are kept one by one are more than the scores."""
    return (() if steps.wide else OVERFLOWS) + (("speed.memory-growth",) if name == "products-one-by-one" else ())


RIGHT: tuple[Right, ...] = (
    *(Right(_of_steps(name, steps), _advice(name, steps)) for name, steps in STEPS.items()),
    *(Right(_of_torch(name, each), OVERFLOWS if each is DIVIDED_LAST else ()) for name, each in FUNCTIONS.items()),
)
