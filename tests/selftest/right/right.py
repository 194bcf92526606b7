"""Right implementations in unusual styles: other orders of summation, other bases, other places for the roundings."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import EXTRA_FEATURES, OP_FEATURES, Steps
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.selftest.reference.styles import (
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
BOTH = ("weights", "log_sum_exp")


def op(
    name: str,
    function: Callable[..., Any],
    features: Set[Feature] = frozenset(),
    *,
    extras: tuple[str, ...] = (),
    conventions: Conventions = Conventions(),
) -> Implementation:
    """An op that claims these features in addition to those of the core and of its extras."""
    claimed = OP_FEATURES | features | {EXTRA_FEATURES[extra] for extra in extras}
    return Implementation(name, Claims(Scope.OP, claimed, conventions), torch_op(function, extras=extras))


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


RIGHT: tuple[Implementation, ...] = (
    *(op(name, steps.answer, extras=BOTH) for name, steps in STEPS.items()),
    *(op(name, function) for name, function in FUNCTIONS.items()),
)
ADVICE = {
    **{name: OVERFLOWS for name, steps in STEPS.items() if not steps.wide},
    "divided-last": OVERFLOWS,
    "products-one-by-one": ("speed.memory-growth",),
}
"""The advice (SHOULD) that some of them cannot follow; products that are kept one by one are more than the scores."""
