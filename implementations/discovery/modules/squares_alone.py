"""Squares alone: modules that answer where there are as many tokens as channels, and raise everywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.adapters.torch_module import in_mode
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.attempts import attempts
from attention_conformance.implementations.discovery.modules.constructor_names import Size
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall, forward_calls
from attention_conformance.implementations.discovery.modules.module_runs import module_run
from attention_conformance.implementations.discovery.modules.parameters import named_parameters
from attention_conformance.implementations.discovery.modules.plans import features_of
from attention_conformance.implementations.discovery.modules.spatial import SPATIAL
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature, Scope

LOOKS = ((12, 3), (24, 3))
"""Widths at which it has to be so, and numbers of heads."""
OTHERS = (5, 8, 16, 18, 32, 36, 48, 60)
"""Numbers of tokens that are no width; each usual block divides one of them."""
MOST_MAKES = 4
"""Ways to build it that are looked at."""
PROJECTIONS = {"w_q", "w_k", "w_v"}
NOTE = "it answers only where there are as many tokens as channels, as where a key is not transposed"


def square_alone(name: str, kind: object) -> Implementation | None:
    """The class with the claims that its parameters state, every case of which raises; None where it is none of these.

    It takes no number of tokens, and answers in no other layout: channels first would look alike.
    """
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return None
    with torch.random.fork_rng(devices=[]):
        make = next(_makes(kind), None)
        call = safe_call(lambda: next(forward_calls(kind, Polarity.MASKED_OUT))).value
        if (
            make is None
            or call is None
            or call.tables
            or not all(_is_square(replace(make, look=x), call) for x in LOOKS)
        ):
            return None
        features = features_of(make, call) - {Feature.ALTERNATIVES}
    return Implementation(name, Claims(Scope.MODULE, features), module_run(make, call), f"a module class; {NOTE}")


def _makes(kind: type[nn.Module]) -> Iterator[Constructor]:
    """The ways to build it in which nothing is guessed and all its parameters are known."""
    for make in islice(_attempts(kind), MOST_MAKES):
        module = safe_call(partial(built, make)).value
        if module is None or make.guessed or {*make.sizes.values()} & {Size.LENGTH, Size.TOKENS}:
            continue
        names = named_parameters(module)
        if {*names} >= PROJECTIONS and len(names) == len([*module.parameters()]):
            yield make


def _is_square(make: Constructor, call: ModuleCall) -> bool:
    """Whether it answers as many tokens as channels, and no other number of them in any layout."""
    module, width = in_mode(built(make), False), make.width
    others: list[dict[str, Any]] = [
        {"length_first": True},
        {"each_sample": True},
        *({"spatial": axes} for axes in SPATIAL),
    ]
    square = safe_call(partial(_answer, call, module, make, width)).value
    if square is None or square.shape != (2, width, width):
        return False
    usual = [safe_call(partial(_answer, call, module, make, tokens)) for tokens in OTHERS]
    if any(each.refused for each in usual):  # a statement of its own is a limit, and no slip
        return False
    calls = (partial(_answer, replace(call, **o), module, make, n) for n, o in product(OTHERS, others))
    return all(each.error for each in usual) and all(safe_call(each).error for each in calls)


def _answer(call: ModuleCall, module: nn.Module, make: Constructor, tokens: int) -> torch.Tensor:
    with torch.no_grad():
        return call.plain(module, [torch.randn(2, tokens, make.width)] * 3, make.heads)


def _attempts(kind: type[nn.Module]) -> Iterator[Constructor]:
    with suppress(TargetError):
        yield from attempts(kind)
