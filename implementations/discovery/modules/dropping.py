"""Rates of dropout that a module was built with, set to another one: in evaluation mode that changes nothing."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import OPTION_CASES, PLAIN, ClaimCheck, near_outputs
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.spec.features import Feature

DROPPING = {Feature.DROPOUT, Feature.EVALUATION}
RATE = 0.5
"""The other rate: in training it would change almost any answer."""
SEEDS = {"seed", "dropout_seed", "rng_seed", "random_seed", "random_state", "rng", "generator"}
"""Parameters of a constructor that dropout may follow."""
OWN_DRAWS = "not judged: dropout follows it, and no generator that a call could seed"


def with_dropout(module: nn.Module) -> bool:
    """Sets the rates of its layers of dropout, and the numbers that are rates by their names, where these are 0.

    Returns:
        Whether there are any.
    """
    found = False
    for each in module.modules():
        own = ["p"] if isinstance(each, nn.Dropout) else [name for name in vars(each) if "drop" in name.lower()]
        for name in own:
            if (type(rate := getattr(each, name)) is float or name == "p") and rate == 0:
                setattr(each, name, RATE)
                found = True
    return found


def without_own_draws(check: ClaimCheck, kind: Callable[..., object]) -> tuple[ClaimCheck, dict[str, str]]:
    """The check without dropout that follows a number with which a class is built, and no generator; a finding.

    Such draws are a function of the state of a module, and nothing but that can be seeded.
    """
    own = [name for name in getattr(safe_call(lambda: signature_of(kind)).value, "parameters", ()) if name in SEEDS]
    if not own or Feature.DROPOUT not in check.claims:
        return check, {}
    case = OPTION_CASES[Feature.DROPOUT]
    one, other = (check.run(case.extended(dropout_seed=seed)) for seed in (1, 2))
    if not near_outputs(one, other, check.dtype) or near_outputs(one, check.run(PLAIN), check.dtype):
        return check, {}
    return check.without(DROPPING), {own[0]: OWN_DRAWS}
