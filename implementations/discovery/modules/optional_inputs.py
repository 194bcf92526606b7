"""Optional inputs of layers, such as positions or scores of the layer before: a call leaves all inputs as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import drawn
from attention_conformance.implementations.adapters.tensors import tensors, to_array
from attention_conformance.implementations.adapters.torch_module import built, in_mode
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.left_out import never_given
from attention_conformance.implementations.discovery.modules.neutrals import POSITION_WORDS, is_input
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.problem import Problem

OF_SCORES = {"prev", "previous", "residual", "scores", "bias"}
"""Words in the names of scores."""


@dataclass(frozen=True, eq=False)
class Untouched:
    """A module that is given numbers for a parameter that is None by default.

    Attributes:
        build: makes the module for a problem's sizes.
        call: how it is called without them.
        name: the parameter.
        of_heads: whether scores are those of each head, so that nothing has to be broadcast.
    """

    build: Callable[[Problem], nn.Module]
    call: ModuleCall
    name: str
    of_heads: bool = False

    def __call__(self, problem: Problem, device: str) -> Result:
        """All that it is given, (1, n, 1); its `others` are the same after the call."""
        before, after = self.inputs(problem, device)
        return Result(before, others={"after the call": Result(after)})

    def inputs(self, problem: Problem, device: str) -> tuple[Any, Any]:
        """What it is given, before the call and after it."""
        given = tensors(problem.fresh(), device)
        heads = problem.num_heads if self.of_heads else 1
        own = {self.name: self._like(given["query"], given.get("key", given["query"]), heads)}
        every = {**given, **own}
        before = _in_one(every)
        with torch.no_grad():
            module = drawn(in_mode(built(self.build, problem, device), False))
            replace(self.call, always={**self.call.always, **own})(module, given, problem)
        return before, _in_one(every)

    def _like(self, query: torch.Tensor, key: torch.Tensor, heads: int) -> torch.Tensor:
        """Numbers for it: scores, or one vector for each query, or key where there are as many."""
        generator, of_scores = torch.Generator().manual_seed(1), words_of(self.name) & OF_SCORES
        shape = (query.shape[0], heads, query.shape[1], key.shape[1]) if of_scores else query.shape
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64).to(query)
        return numbers.transpose(0, 1).contiguous() if self.call.length_first and len(shape) == 3 else numbers


def _is_size(name: str) -> bool:
    """Whether it is a number of tokens."""
    return bool(words_of(name) & {"window", "windows"})


def _in_one(arrays: dict[str, Any]) -> Any:
    parts = [to_array(each).astype("float64").ravel() for each in arrays.values() if each.is_floating_point()]
    return torch.cat([torch.from_numpy(part) for part in parts])[None, :, None].numpy()


def untouched(
    build: Callable[[Problem], nn.Module], call: ModuleCall, kind: object, problem: Problem | None, device: str
) -> Iterator[tuple[str, Untouched]]:
    """The module that is given each of these parameters, where it answers; by a text on it."""
    if problem is None:
        return
    masks = [name for name in call.options.spelled.values() if words_of(name) & OF_SCORES]  # with parts held elsewhere
    for name in dict.fromkeys((*never_given(kind, call), *masks)):
        run = Untouched(build, call, name)
        runs = {f"what it is given, with {name!r}": run}
        if words_of(name) & OF_SCORES:
            runs[f"what it is given, with {name!r} of each head"] = replace(run, of_heads=True)
        known = words_of(name) & (POSITION_WORDS | OF_SCORES | {"embed"}) or (is_input(name) and not _is_size(name))
        for how, each in runs.items() if known else ():
            if not safe_call(partial(each.inputs, problem, device)).error:
                yield how, each
