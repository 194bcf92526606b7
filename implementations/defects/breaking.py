"""Decorators that put a mistake into the catalogue: of the operator, a layer, a cache or a function."""

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, Unpack

from torch import nn

from attention_conformance.implementations.adapters.cached import cached
from attention_conformance.implementations.adapters.mha_interface import MHA_FEATURES
from attention_conformance.implementations.adapters.modes import module_modes, op_modes
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import torch_module
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import FUNCTIONS, Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.cache_steps import CACHE_FEATURES, CacheSteps
from attention_conformance.implementations.builtin.stepwise.layer import (
    FREE_WIDTHS,
    LAYER_PLACES,
    Construct,
    Layer,
    call_layer,
)
from attention_conformance.implementations.builtin.stepwise.steps import EXTRA_FEATURES, OP_FEATURES, Steps
from attention_conformance.implementations.defects.defect import REGISTRY, Defect, Severity
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem

Mistake = TypeVar("Mistake", bound=Callable[..., Any])
NONE: frozenset[Feature] = frozenset()
LEAK, NAN, CRASH, GRADIENT = Severity.LEAK, Severity.NAN, Severity.CRASH, Severity.GRADIENT
PRECISION, STATE, COST = Severity.PRECISION, Severity.STATE, Severity.COST


class Facts(TypedDict, total=False):
    """Fields of `Defect` that all decorators take; a file gives those that its defects share once, by `partial`."""

    holds: tuple[str, ...]
    severity: Severity
    dtype: str
    raises: bool
    follows: str


@dataclass(frozen=True)
class Breach:
    """A decorator: broken clauses, and how an implementation is made of the mistake that breaks them."""

    clauses: tuple[str, ...]
    made_of: Callable[[str, Any], Implementation]
    facts: Facts
    step: str = ""

    def __call__(self, mistake: Mistake) -> Mistake:
        name = re.sub("(?<!^)(?=[A-Z])", "-", mistake.__name__).lower().replace("_", "-")
        replaced = {self.step: mistake} if self.step else {}
        defect = Defect(self.made_of(name, mistake), self.clauses, **self.facts, replaced=replaced)
        REGISTRY.setdefault(mistake.__module__, []).append(defect)
        return mistake


def in_steps(replaced: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Attention with these steps replaced; it answers output, weights and log-sum-exp."""
    return Steps(**replaced).answer  # type: ignore[arg-type]  # each step has a type of its own


def omitting(name: str, options: dict[str, Any], *given: str) -> dict[str, Any]:
    """The options without that of this name, where one of `given` is among them."""
    return {other: option for other, option in options.items() if other != name or not options.keys() & {*given}}


def breaks(
    *clauses: str,
    step: str = "",
    claims: Set[Feature] = NONE,
    without: Set[Feature] = NONE,
    extras: tuple[str, ...] = (),
    conventions: Conventions = Conventions(),
    modes: tuple[Feature, ...] = (),
    **facts: Unpack[Facts],
) -> Breach:
    """A mistake of the operator.

    Args:
        clauses: see `Defect`.
        step: the step of `Steps` that it replaces; without one, it is a whole scaled_dot_product_attention.
        claims: features beyond `OP_FEATURES` and those of the extras.
        without: features of `OP_FEATURES` that it does not claim.
        extras: what a whole one returns after the output.
        conventions: what it claims where the field disagrees.
        modes: those in which a whole one can be run.
        facts: other fields of `Defect`.
    """

    def made_of(name: str, mistake: Callable[..., Any]) -> Implementation:
        whole = in_steps({step: mistake}) if step else mistake
        returned = ("weights", "log_sum_exp") if step else extras
        features = (OP_FEATURES | claims | {EXTRA_FEATURES[extra] for extra in returned} | {*modes}) - without
        return Implementation(
            name,
            Claims(Scope.OP, features, conventions),
            torch_op(whole, extras=returned),
            modes=op_modes(whole, *modes, extras=returned) if modes else {},
        )

    return Breach(clauses, made_of, facts, step)


def breaks_layer(
    *clauses: str,
    step: str = "",
    free: bool = True,
    features: Set[Feature] = MHA_FEATURES,
    extras: tuple[str, ...] = (),
    construct: Construct | None = None,
    call: Callable[[nn.Module, Tensors, Problem], Any] = call_layer,
    places: Mapping[str, str] = LAYER_PLACES,
    modes: tuple[Feature, ...] = (),
    **facts: Unpack[Facts],
) -> Breach:
    """A mistake of a `Layer`.

    Args:
        clauses: see `Defect`.
        step: the method of `Layer` that it replaces; without one, it is a whole layer.
        free: all widths may differ.
        features: what it claims beyond that and the extras.
        extras: what it returns after the output.
        construct: see `Implementation`.
        call: see `torch_module`.
        places: see `torch_module`.
        modes: those in which it can be run.
        facts: other fields of `Defect`.
    """

    def made_of(name: str, mistake: Any) -> Implementation:
        kind = type(name, (Layer,), {step: mistake}) if step else mistake
        widths = FREE_WIDTHS if free else NONE
        claimed = frozenset(features).union(widths, (EXTRA_FEATURES[extra] for extra in extras), modes)
        return Implementation(
            name,
            Claims(Scope.MODULE, claimed),
            torch_module(kind, call, places, extras=extras),
            construct=construct,
            modes=module_modes(kind, call, places, *modes, extras=extras) if modes else {},
        )

    return Breach(clauses, made_of, facts)


def breaks_cache(
    *clauses: str, step: str = "", of_steps: str = "", claims: Set[Feature] = NONE, **facts: Unpack[Facts]
) -> Breach:
    """A mistake of a cache.

    Args:
        clauses: see `Defect`.
        step: the step of `CacheSteps` that it replaces; without any, it is a whole `start` of `cached`.
        of_steps: the step of the `Steps` within, instead.
        claims: features beyond `CACHE_FEATURES`.
        facts: other fields of `Defect`.
    """

    def made_of(name: str, mistake: Callable[..., Any]) -> Implementation:
        replaced: dict[str, Any] = {step: mistake} if step else {}
        inner: dict[str, Any] = {of_steps: mistake} if of_steps else {}
        opened = CacheSteps(steps=Steps(**inner), **replaced).open if replaced or inner else mistake
        return Implementation(name, Claims(Scope.OP, CACHE_FEATURES | claims), cached(opened))

    return Breach(clauses, made_of, facts)


def breaks_function(
    offered: str, *clauses: str, conventions: Conventions = Conventions(), **facts: Unpack[Facts]
) -> Breach:
    """A mistake of a plain function that an implementation offers with right attention.

    Args:
        offered: what it stands for, a name of `FUNCTIONS`.
        clauses: see `Defect`.
        conventions: what is claimed where the field disagrees.
        facts: other fields of `Defect`.
    """

    def made_of(name: str, mistake: Callable[..., Any]) -> Implementation:
        claims = Claims(Scope.OP, OP_FEATURES | {FUNCTIONS[offered]}, conventions)
        return Implementation(name, claims, torch_op(Steps()), functions={offered: mistake})

    return Breach(clauses, made_of, facts)


def breaks_built(*clauses: str, **facts: Unpack[Facts]) -> Breach:
    """A mistake that is given as a function from its name to the whole `Implementation`."""
    return Breach(clauses, lambda name, build: build(name), facts)


def breaks_run(*clauses: str, claims: Claims, **facts: Unpack[Facts]) -> Breach:
    """A mistake of a whole `run`, with all that its implementation claims."""
    return Breach(clauses, lambda name, run: Implementation(name, claims, run), facts)
