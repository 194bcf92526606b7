"""Functions that return more on request: a flag such as `return_weights=False`, which is set to see what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.shipped.shipped import RETURNING
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.features import Feature

OF_WEIGHTS = ("weights", "attn", "attn_weights", "attention", "attention_weights")
FLAGS = frozenset({"need_weights", "output_attentions", *(f"return_{name}" for name in OF_WEIGHTS), *RETURNING})
"""Parameters that are False where only the output is wanted."""
MORE = {Feature.WEIGHTS, Feature.LOG_SUM_EXP}


@dataclass(frozen=True)
class Requesting:
    """A function whose flags are set in every call."""

    function: Callable[..., Any]
    flags: tuple[str, ...]

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The function's whole answer."""
        return self.function(*inputs, **{**options, **dict.fromkeys(self.flags, True)})


def with_all_it_returns(
    made: Implementation,
    function: Callable[..., object],
    make: Callable[[Callable[..., object]], Implementation | None],
) -> Implementation:
    """The implementation, or the one of the function with its flags set, where these make it return more.

    As it is called without them is another path then, whose output has to be the same.
    """
    given = signature_of(function).parameters.values()
    flags = tuple(parameter.name for parameter in given if parameter.name in FLAGS and parameter.default is False)
    if not flags or MORE & made.claims.features:
        return made
    try:
        whole = make(Requesting(function, flags))
    except TargetError:
        return made
    if whole is None or not MORE & whole.claims.features or made.claims.features - whole.claims.features:
        return made
    return replace(whole, alternatives={**whole.alternatives, f"without {' and '.join(flags)}": made.run})
