"""Staged results: the answer with which the stages end, and its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from attention_conformance.implementations.adapters.tensors import slopes, to_array, zeros_for_none
from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.conventions import LogBase, LogOfNothing
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.explain.stages.staged import INFINITY, State

OF_NOTHING = {LogOfNothing.PLUS_INFINITY: INFINITY, LogOfNothing.NAN: float("nan")}
"""What other claims than minus infinity leave of a row without keys; the least finite number stays minus infinity."""


def result_of(problem: Problem, state: State) -> Result:
    """The answer with which the last stage ends, and its gradients; the graph is kept for other endings."""
    conventions, output = state["conventions"], state["output"]
    weights, log = state["weights"], state["log_sum_exp"]
    if log is not None:
        empty = log == -INFINITY
        log = log / np.log(2.0) if conventions.log_sum_exp_base is LogBase.TWO else log
        log = log.masked_fill(empty, OF_NOTHING.get(conventions.log_of_nothing, -INFINITY))
    parts = (to_array(output), to_array(weights), to_array(weights.mean(1)), None if log is None else to_array(log))
    return Result(*parts, Gradients(problem, state))


@dataclass(frozen=True, eq=False)
class Gradients(Mapping[str, Array]):
    """By name, computed when one is looked up: most wrong outputs are enough."""

    problem: Problem
    state: State

    @cached_property
    def all(self) -> dict[str, Array]:
        leaves, output, cotangent = self.state["needs"], self.state["output"], self.problem.cotangent
        if cotangent is None or not output.requires_grad:
            return {name: to_array(torch.zeros_like(leaf)) for name, leaf in leaves.items() if cotangent is not None}
        along = torch.from_numpy(cotangent.astype(np.float64))
        try:
            return zeros_for_none(leaves, slopes(output, list(leaves.values()), along, keep=True))
        except (IndexError, RuntimeError, ValueError):  # what was changed in the backward pass does not suit its shapes
            return {}

    def __getitem__(self, name: str) -> Array:
        return self.all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.state["needs"])

    def __len__(self) -> int:
        return len(self.state["needs"])
