"""Rates of dropout that functions with weights are passed in each call, as those that a module is built with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

from attention_conformance.implementations.discovery.functions.dropout_forms import MODES
from attention_conformance.implementations.discovery.functions.generators import generator_in
from attention_conformance.implementations.discovery.signatures import required

RATE = "dropout"
"""The parameter of a constructor that takes it."""


@dataclass(frozen=True)
class PassedRate:
    """A function's parameter for the rate, and the flag of its mode; the latter empty for none."""

    rate: str
    mode: str

    @property
    def names(self) -> set[str]:
        """Those of its parameters."""
        return {self.rate, self.mode} - {""}

    def given(self, rate: float, training: bool) -> Mapping[str, object]:
        """What it is given in a mode: without a flag, callers pass no rate in evaluation."""
        if not self.mode:
            return {self.rate: rate if training else 0.0}
        return {self.rate: rate, self.mode: training is MODES[self.mode]}


def passed_rate(signature: inspect.Signature) -> PassedRate | None:
    """The one rate among the parameters of a function that draws by the global generators, if there is one."""
    every = [*signature.parameters.values()]
    rates = [p for p in every if _is_rate(p)]
    modes = [p.name for p in every if p.name in MODES]
    if len(rates) != 1 or len(modes) > 1 or generator_in(every):
        return None
    return PassedRate(rates[0].name, next(iter(modes), ""))


def _is_rate(parameter: inspect.Parameter) -> bool:
    """Whether it may be one by its name and its default, and no mask, flag or layer."""
    named = "drop" in parameter.name.lower() and not parameter.name.endswith(("mask", "layer"))
    return named and (required(parameter) or type(parameter.default) in (int, float))
