"""Right implementations in unusual styles: other orders of summation, other bases, other places for the roundings."""

from collections.abc import Callable, Mapping, Set
from typing import Any

from torch import nn

from attention_conformance.implementations.adapters.torch_module import torch_module
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.layer import FREE_WIDTHS, LAYER_PLACES
from attention_conformance.implementations.builtin.stepwise.steps import EXTRA_FEATURES, OP_FEATURES, Steps
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.selftest.reference import styles

OVERFLOWS = ("numerics.half-range", "numerics.score-precision")
"""The advice that a style cannot follow which stores the products in a half type."""
BOTH = ("weights", "log_sum_exp")


def op(
    name: str,
    function: Callable[..., Any],
    features: Set[Feature] = frozenset(),
    *,
    without: Set[Feature] = frozenset(),
    extras: tuple[str, ...] = (),
    conventions: Conventions = Conventions(),
    **fields: Any,
) -> Implementation:
    """An op that claims these features in addition to those of the core and of its extras."""
    claimed = (OP_FEATURES | features | {EXTRA_FEATURES[extra] for extra in extras}) - without
    return Implementation(name, Claims(Scope.OP, claimed, conventions), torch_op(function, extras=extras), **fields)


def module(
    name: str,
    kind: type[nn.Module],
    call: Callable[..., Any],
    features: Set[Feature],
    *,
    places: Mapping[str, str] = LAYER_PLACES,
    extras: tuple[str, ...] = (),
    **fields: Any,
) -> Implementation:
    """A module of any widths that claims these features and those of its extras."""
    claimed = FREE_WIDTHS | features | {EXTRA_FEATURES[extra] for extra in extras}
    run = torch_module(kind, call, places, extras=extras)
    return Implementation(name, Claims(Scope.MODULE, claimed), run, **fields)


STEPS = {
    "plain": Steps(),
    "eager": styles.TEXTBOOK,
    "eager.log-softmax": Steps(wide=False, softmax=styles.exp_of_log_softmax),
    "eager.base-2": Steps(wide=False, softmax=styles.powers_of_two),
    "eager.scale-on-both-sides": Steps(wide=False, score=styles.scale_on_both_sides),
    "products-one-by-one": Steps(score=styles.products_one_by_one),
    "values-from-the-last": Steps(mix=styles.values_from_the_last),
    "einsum": Steps(mix=styles.einsum_mix),
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "weights-rounded": styles.weights_rounded,
    "head-by-head": styles.head_by_head,
    "padded-to-eight": styles.padded_to_eight,
    "online-1": styles.online(1),
    "online-7": styles.online(7),
    "online-64": styles.online(64),
    "divided-last": styles.DIVIDED_LAST,
}


RIGHT: tuple[Implementation, ...] = (
    *(op(name, steps.answer, extras=BOTH) for name, steps in STEPS.items()),
    *(op(name, function) for name, function in FUNCTIONS.items()),
    *(op(f"merged-{parts}", styles.merged(parts), extras=BOTH) for parts in (2, 5)),
)
SHIFTED = (op("keys-shifted", styles.keys_shifted),)
"""Its errors differ from the others' in the gradient of the keys, which it spreads evenly over all of them."""
ADVICE = {
    **{name: OVERFLOWS for name, steps in STEPS.items() if not steps.wide},
    "divided-last": OVERFLOWS,
    "products-one-by-one": ("speed.memory-growth",),
}
"""The advice (SHOULD) that some of them cannot follow; products that are kept one by one are more than the scores."""
