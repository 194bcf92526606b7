"""Whole samples: modules whose answer has other axes than tokens and channels, judged sample by sample."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import AsBuilt
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.global_state import torch_seeded
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import ClaimCheck
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.implementations.discovery.modules.whole_modules import plain_problem, usual_run
from attention_conformance.implementations.discovery.probe import parts_of
from attention_conformance.spec.problem import Problem

SEEDS = (1, 2)


@dataclass(frozen=True)
class AnyAxes:
    """A call whose answer has the axis of samples first, and any others: pooled tokens, or pairs of them.

    All of its numbers are laid in (B, L, E), several in one place where there are more.
    """

    call: ModuleCall

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> torch.Tensor:
        """The numbers of each sample, as of so many tokens."""
        x = given["query"]
        output: Any = parts_of(self.call(module, given, problem))[0]
        if output.shape[:1] != x.shape[:1] or not output.is_floating_point():
            raise ValueError("its answer has another number of samples")
        return laid_in_tokens(output, x)


def laid_in_tokens(output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The numbers of each sample of an answer (B, ...), as those of so many tokens."""
    numbers, room = output.flatten(1), x[0].numel()
    lacking = -numbers.shape[1] % room
    laid = torch.cat([numbers, numbers.new_zeros(len(x), lacking)], 1)
    summed: torch.Tensor = laid.unflatten(1, (-1, room)).sum(1)
    return summed.reshape(x.shape)


def of_samples(make: Constructor, module: nn.Module, call: ModuleCall, check: ClaimCheck) -> AsBuilt | None:
    """The run of a class of which only the axis of samples is known; None where it answers at random, or raises."""
    run = usual_run(make, module, call, sized=True)
    run = AsBuilt(partial(built_for, make, True), AnyAxes(call), prefixes=False, trained=run.trained)
    problem = plain_problem(check)
    if problem is None:
        return None
    answers = []
    for seed in SEEDS:
        with torch_seeded(seed):
            answers.append(safe_call(partial(run, problem.fresh(), check.device)).value)
    one, other = answers
    if not isinstance(one, Result) or not isinstance(other, Result):
        return None
    kept = all(_same(other.others[how], each) for how, each in one.others.items())
    return run if kept and _same(one.others["after other calls"], one) else None


def _same(one: Result, other: Result) -> bool:
    return bool(np.isfinite(one.output).all()) and np.array_equal(one.output, other.output)
