"""Own backward passes: what a class of NumPy returns from `backward`, as gradients of its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import drawn
from attention_conformance.implementations.adapters.modes import Modes
from attention_conformance.implementations.adapters.results import output_of
from attention_conformance.implementations.adapters.tensors import tensors, to_array
from attention_conformance.implementations.adapters.torch_module import built
from attention_conformance.implementations.api.contract import Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.mirrors import Backward, Mirror
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.implementations.discovery.modules.neutrals import Neutral
from attention_conformance.implementations.discovery.signatures import is_variadic, required
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem

HIDING_NOTHING = {
    *(Neutral.NONE, Neutral.SEEN, Neutral.NOT_HIDDEN, Neutral.SEEN_SHARED, Neutral.NOT_HIDDEN_SHARED),
    *(Neutral.KEYS_SEEN, Neutral.FULL_SEEN, Neutral.OF_KEYS_SEEN, Neutral.OF_KEYS_NOT_HIDDEN),
    *(Neutral.KEPT, Neutral.KEYS_KEPT),
}
"""Masks that may be given where one has to be, and are no part of a module that is left out."""
NAMES = ("backward", "backprop", "backpropagate")
"""Methods that take the gradient of the output, and return those of the inputs."""


def backward_of(made: object) -> Backward | None:
    """The method of an object that is its backward pass; None where it has none that takes one array."""
    for name in NAMES:
        method = safe_call(partial(getattr, made, name, None)).value  # its own search may raise anything
        signature = safe_call(partial(inspect.signature, method)).value if callable(method) else None
        needed = [p for p in signature.parameters.values() if required(p) and not is_variadic(p)] if signature else []
        if len(needed) == 1 and method is not None:
            found: Backward = method
            return found
    return None


@dataclass(frozen=True, eq=False)
class OwnBackward:
    """A `run` with parameters of its own; its gradients are those that the class returns, where they are wanted.

    Attributes:
        build: makes the module for a problem's sizes.
        calls: with another sequence and without, as far as it takes any: the output is the sum of all answers.
    """

    build: Callable[[Problem], nn.Module]
    calls: tuple[ModuleCall, ...]

    def __call__(self, problem: Problem, device: str) -> Result:
        """The output, and the gradients of the inputs by their names."""
        module = drawn(built(self.build, problem, device))
        assert isinstance(module, Mirror)
        assert module.held.backward is not None
        given, outputs = tensors(problem, device), []
        gradients = {name: np.zeros(getattr(problem, name).shape) for name in self.calls[0].order}
        for call in self.calls:
            with torch.no_grad():
                outputs.append(to_array(output_of(call(module, given, problem))))
            if problem.cotangent is not None:
                answer = module.held.backward(problem.cotangent.copy())
                for name, each in _gradients(answer, problem, call.order[: call.inputs]):
                    gradients[name] += each
        needed = {name: gradients[name] for name in problem.needs if name in gradients}
        return Result(sum(outputs[1:], outputs[0]), gradients=needed)


def _gradients(answer: Any, problem: Problem, names: Sequence[str]) -> Iterator[tuple[str, Array]]:
    """Those of the inputs in an answer, by their names: the first arrays of their shapes.

    Raises:
        ValueError: there are fewer.
    """
    parts = list(answer) if isinstance(answer, tuple | list) else [answer]
    for name in names:
        like = [at for at, part in enumerate(parts) if np.shape(part) == getattr(problem, name).shape]
        if not like:
            raise ValueError(f"its backward pass returns nothing of the shape of {name}")
        yield name, np.asarray(parts.pop(like[0]), np.float64)


def own_backward(make: Constructor, call: ModuleCall, check: ClaimCheck) -> Modes:
    """The run, where the class has a backward pass that answers; it is a whole module, of which nothing is left out."""
    fitted = fit(PLAIN, check.claims)
    outside = {*call.tables.values()} - HIDING_NOTHING
    plain = not (make.left_out or make.held or call.tap or outside or call.length_first or call.spatial)
    if isinstance(fitted, Unsupported) or not plain or "float64" not in check.claims.dtypes:
        return {}
    calls = (call.alone_with_itself(), call) if call.optional else (call,)
    run, problem = OwnBackward(partial(built_for, make, False), calls), build(fitted, "float64")
    outcome = safe_call(lambda: run(problem.fresh(), check.device))
    return {} if outcome.error else {Feature.AS_BUILT: run}
