"""Gradients of the parameters of whole modules: each is the slope of the output along a step of its parameter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import ROUNDINGS, SEED, AsBuilt, in_new_mode
from attention_conformance.implementations.adapters.results import output_of
from attention_conformance.implementations.adapters.tensors import slopes, tensors
from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.problem import Array, Problem

STEPS = (2.0**-12, 2.0**-8, 2.0**-6, 2.0**-2)
"""Steps of parameters of about 1: in what is smooth, the slopes are alike in all of them, also in float32 inside.

There 2**-8, the cube root of a rounding, leaves the least error: roundings fall with the step, curvature by its square.
"""
SMOOTH = ROUNDINGS**0.125
"""The part of a slope by which it may differ between steps: where it does by more, as in what rounds its parameters to
few values and hands their gradients on, a gradient is meant to be no slope. Next to no gradient at all the small steps
are enough: no bend makes a slope of nothing."""


@dataclass(frozen=True, eq=False)
class ParameterSlopes:
    """How the output of a module rises where one of its parameters moves, in all layers of one form at once."""

    run: AsBuilt

    def __call__(self, problem: Problem, device: str) -> Result:
        """The slopes, (1, parameters, 1); in each of its `others` one of them is what the gradient states.

        Raises:
            ValueError: the output has no gradient.
        """
        module = self.run.module(problem, device)
        groups, cotangent = _of_one_form(module), self._cotangent(module, problem, device)
        found = self._gradients(module, [each for group in groups.values() for each in group], cotangent, problem)
        risen, stated = [], []
        for group in groups.values():
            gradients = [found[id(each)] for each in group]
            along = [_along(each) for each in gradients]
            stated.append(sum(float((g * step).sum()) for g, step in zip(gradients, along, strict=True)))
            rises = [self._rise(module, group, along, cotangent, problem, size) for size in STEPS]
            smooth = _is_smooth(rises) or (stated[-1] == 0.0 and _is_smooth(rises[:2]))
            judged = smooth and not self._keeps(module, group, along, problem, device)
            risen.append(min(rises, key=lambda each: abs(each - stated[-1])) if judged else stated[-1])
        texts = (f"by the gradient of {path}" for path in groups)
        others = [[*risen[:n], one, *risen[n + 1 :]] for n, one in enumerate(stated)]
        return Result(_column(risen), others={how: Result(_column(x)) for how, x in zip(texts, others, strict=True)})

    def _cotangent(self, module: nn.Module, problem: Problem, device: str) -> torch.Tensor:
        """Drawn in the shape of an output; whatever a module keeps after its first call is kept then."""
        output = torch.from_numpy(self.run.answer(module, problem, device))
        draw = torch.Generator().manual_seed(SEED)
        return torch.randn(output.shape, generator=draw, dtype=output.dtype).to(device)

    def _gradients(
        self, module: nn.Module, parameters: Sequence[nn.Parameter], cotangent: torch.Tensor, problem: Problem
    ) -> dict[int, torch.Tensor]:
        with torch.enable_grad():
            output = output_of(self.run.call(module, tensors(problem, str(cotangent.device)), problem))
        if not output.requires_grad:
            raise ValueError("the output has no gradient")
        found = zip(parameters, slopes(output, parameters, cotangent), strict=True)
        return {id(each): torch.zeros_like(each) if gradient is None else gradient for each, gradient in found}

    def _rise(
        self,
        module: nn.Module,
        group: Sequence[nn.Parameter],
        along: Sequence[torch.Tensor],
        cotangent: torch.Tensor,
        problem: Problem,
        size: float,
    ) -> float:
        """How much the sum of output times cotangent rises along a direction, a step of this size to either side."""
        sums = []
        for step in (size, -size):
            with _moved(group, along, step):
                output = torch.from_numpy(self.run.answer(module, problem, str(cotangent.device)))
            sums.append(float((output * cotangent.cpu()).sum()))
        return (sums[0] - sums[1]) / (2.0 * size)

    def _keeps(
        self,
        module: nn.Module,
        group: Sequence[nn.Parameter],
        along: Sequence[torch.Tensor],
        problem: Problem,
        device: str,
    ) -> bool:
        """Whether the module keeps what it has computed from these parameters as its mode changed."""
        with _moved(group, along, STEPS[-1]):
            kept = self.run.answer(module, problem, device)
            computed = self.run.answer(in_new_mode(module), problem, device)
        in_new_mode(module)
        return not np.array_equal(kept, computed)


@contextmanager
def _moved(group: Sequence[nn.Parameter], along: Sequence[torch.Tensor], size: float) -> Iterator[None]:
    """With the parameters of a group a step farther along a direction."""
    before = [each.detach().clone() for each in group]
    with torch.no_grad():
        for parameter, step in zip(group, along, strict=True):
            parameter.add_(size * step)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, start in zip(group, before, strict=True):
                parameter.copy_(start)


def _is_smooth(rises: Sequence[float]) -> bool:
    return bool(max(rises) - min(rises) <= SMOOTH * max(map(abs, rises)))


def _of_one_form(module: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The parameters that are trained, by their path without the numbers of layers."""
    found: dict[str, list[nn.Parameter]] = {}
    for path, parameter in module.named_parameters():
        if parameter.requires_grad:
            found.setdefault(re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path), []).append(parameter)
    return found


def _along(gradient: torch.Tensor) -> torch.Tensor:
    """A direction of length 1 along which a gradient shows, and in part any other one."""
    drawn = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(SEED), dtype=gradient.dtype)
    both = [each / length for each in (gradient.cpu(), drawn) if (length := float(each.norm())) > 0.0]
    return torch.stack(both).mean(0).to(gradient.device)


def _column(numbers: Sequence[float]) -> Array:
    return np.array(numbers, np.float64)[None, :, None]
