"""Renewed memories: a module that keeps what it made of a memory, and notices another one without being emptied."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from attention_conformance.implementations.adapters.torch_module import in_mode
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.plans import ModulePlan

LENGTHS = (3, 5, 7)
"""Of queries, and of two memories."""


def without_needless_emptying(plan: ModulePlan) -> ModulePlan:
    """The plan whose module is not emptied before each call, where it answers one with a longer memory as if it were.

    What notices a memory of another length states that it notices another memory.
    """
    if not plan.call.resets or plan.call.inputs == 1 or not safe_call(partial(_notices, plan)).value:
        return plan
    kept = replace(plan.call, resets="")
    return replace(plan, call=kept, check=replace(plan.check, function=kept))


def _notices(plan: ModulePlan) -> bool:
    width, heads = plan.make.width, plan.make.heads
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = in_mode(plan.make(width, heads), False)
        query, first, second = (torch.randn(2, length, width) for length in LENGTHS)
        kept = replace(plan.call, resets="")
        kept.plain(module, (query, first, first), heads)
        after, anew = (each.plain(module, (query, second, second), heads) for each in (kept, plan.call))
    return after.shape == anew.shape and torch.allclose(after, anew)
