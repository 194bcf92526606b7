"""Decorators that register a mistake: in the operator, a layer, a cache or a whole function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from typing import Any, TypeVar

from torch import nn

from attention_conformance.implementations.adapters.cached import cached
from attention_conformance.implementations.adapters.mha_interface import MHA_FEATURES
from attention_conformance.implementations.adapters.modes import module_modes, op_modes
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import torch_module
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.cache_steps import CACHE_FEATURES, CacheSteps
from attention_conformance.implementations.builtin.stepwise.layer import (
    FREE_WIDTHS,
    LAYER_PLACES,
    Construct,
    Layer,
    call_layer,
)
from attention_conformance.implementations.builtin.stepwise.steps import EXTRA_FEATURES, OP_FEATURES, Steps
from attention_conformance.implementations.defects.defect import REGISTRY, Defect
from attention_conformance.spec.features import Conventions, Feature, Scope
from attention_conformance.spec.problem import Problem

Mistake = TypeVar("Mistake", bound=Callable[..., Any])
NONE: frozenset[Feature] = frozenset()


def in_steps(replaced: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Attention with these steps replaced; it answers output, weights and log-sum-exp."""
    return Steps(**replaced).answer  # type: ignore[arg-type]  # each step has a type of its own


def breaks(
    *clauses: str,
    step: str = "",
    claims: Set[Feature] = NONE,
    without: Set[Feature] = NONE,
    extras: tuple[str, ...] = (),
    conventions: Conventions = Conventions(),
    modes: tuple[Feature, ...] = (),
    **told: Any,
) -> Callable[[Mistake], Mistake]:
    """Registers a function that makes a mistake.

    Args:
        clauses: see `Defect`.
        step: the step of `Steps` that it stands for; without one, it is a whole scaled_dot_product_attention.
        claims: features beyond those of `OP_FEATURES` and of the extras.
        without: features of `OP_FEATURES` that it does not claim.
        extras: what a whole one returns after the output.
        conventions: what it claims where the field disagrees.
        modes: those in which a whole one can be asked.
        told: the other fields of `Defect`.
    """

    def register(mistake: Mistake) -> Mistake:
        whole = in_steps({step: mistake}) if step else mistake
        returned = ("weights", "log_sum_exp") if step else extras
        features = (OP_FEATURES | claims | {EXTRA_FEATURES[extra] for extra in returned} | {*modes}) - without
        implementation = Implementation(
            mistake.__name__.replace("_", "-"),
            Claims(Scope.OP, features, conventions),
            torch_op(whole, extras=returned),
            modes=op_modes(whole, *modes, extras=returned) if modes else {},
        )
        REGISTRY.append(Defect(implementation, clauses, replaced={step: mistake} if step else {}, **told))
        return mistake

    return register


def breaks_layer(
    *clauses: str,
    free: bool = True,
    features: Set[Feature] = MHA_FEATURES,
    extras: tuple[str, ...] = (),
    construct: Construct | None = None,
    call: Callable[[nn.Module, Tensors, Problem], Any] = call_layer,
    places: Mapping[str, str] = LAYER_PLACES,
    modes: tuple[Feature, ...] = (),
    **told: Any,
) -> Callable[[type[Layer]], type[Layer]]:
    """Registers a layer that makes a mistake.

    Args:
        clauses: see `Defect`.
        free: all widths may differ.
        features: what it claims beyond that and the extras.
        extras: what it returns after the output.
        construct: see `Implementation`.
        call: see `torch_module`.
        places: see `torch_module`.
        modes: those in which it can be asked.
        told: the other fields of `Defect`.
    """

    def register(kind: type[Layer]) -> type[Layer]:
        claimed = frozenset(features).union(
            FREE_WIDTHS if free else (), (EXTRA_FEATURES[extra] for extra in extras), modes
        )
        implementation = Implementation(
            re.sub("(?<!^)(?=[A-Z])", "-", kind.__name__).lower(),
            Claims(Scope.MODULE, claimed),
            torch_module(kind, call, places, extras=extras),
            construct=construct,
            modes=module_modes(kind, call, places, *modes, extras=extras) if modes else {},
        )
        REGISTRY.append(Defect(implementation, clauses, **told))
        return kind

    return register


def breaks_cache(
    *clauses: str, step: str = "", of_steps: str = "", claims: Set[Feature] = NONE, **told: Any
) -> Callable[[Mistake], Mistake]:
    """Registers a cache that makes a mistake.

    Args:
        clauses: see `Defect`.
        step: the step of `CacheSteps` that the function stands for; without any, it is a whole `start` of `cached`.
        of_steps: the step of the `Steps` within, instead.
        claims: features beyond `CACHE_FEATURES`.
        told: the other fields of `Defect`.
    """

    def register(mistake: Mistake) -> Mistake:
        replaced: dict[str, Any] = {step: mistake} if step else {}
        inner: dict[str, Any] = {of_steps: mistake} if of_steps else {}
        opened = CacheSteps(steps=Steps(**inner), **replaced).open if replaced or inner else mistake
        name = mistake.__name__.replace("_", "-")
        made = Implementation(name, Claims(Scope.OP, CACHE_FEATURES | claims), cached(opened))
        REGISTRY.append(Defect(made, clauses, **told))
        return mistake

    return register
