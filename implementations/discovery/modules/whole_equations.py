"""Whole equations: modules of a known layer that is more than attention, judged by what the whole of it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.discovery.modules.part_equations import PartEquations
from attention_conformance.spec.problem import Problem


class Form(Protocol):
    """What such a module computes."""

    def output(self, module: nn.Module, problem: Problem) -> torch.Tensor:
        """(B, L, E), float64."""


@dataclass(frozen=True, eq=False)
class WholeEquation:
    """A module of such a form, judged by its numbers."""

    whole: PartEquations
    form: Form

    def __call__(self, problem: Problem, device: str) -> Result:
        """What the equation gives; its `others` are the output."""
        return self.whole.compared(self.form.output, "by its equation", problem, device)
