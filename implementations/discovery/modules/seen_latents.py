"""What is stated of latents next to their numbers: whether they are keys, too, and which tokens a mask hides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import ROUNDINGS, AsBuilt, drawn, moved_at
from attention_conformance.implementations.adapters.modes import Modes
from attention_conformance.implementations.adapters.tensors import to_array
from attention_conformance.implementations.adapters.torch_module import built, in_mode
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.documented import documented_polarity
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.latents import Latents, latents_of
from attention_conformance.implementations.discovery.modules.left_out import never_given
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.implementations.discovery.modules.own_cache import parameters_of
from attention_conformance.implementations.discovery.probe import first_part
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Array, Problem

THEMSELVES = re.compile(
    r"\blatents?\b[^.]{0,40}\battends?\b[^.]{0,80}"
    r"\b(?:and|plus|as well as)\b(?! not| never)[^.]{0,20}\b(?:themselves|latents)\b",
    re.IGNORECASE,
)
"""How a text states that latents are keys, too."""
HIDDEN = "where its {} hides other tokens"


def states_keys(kind: object, call: ModuleCall) -> bool:
    """Whether its documentation states that its latents are keys, too, and it is called as if they were none."""
    if call.inputs != 2 or latents_of([each.name for each in parameters_of(kind)[:2]]) is None:
        return False
    every = (kind, getattr(kind, "forward", None))
    return any(THEMSELVES.search(" ".join((each.__doc__ or "").split())) for each in every)


@dataclass(frozen=True, eq=False)
class SeenLatents:
    """A whole module whose latents have to be seen by each other."""

    run: AsBuilt

    def __call__(self, problem: Problem, device: str) -> Result:
        """Whether the row of each depends on another one, (1, L, 1); its `others` is what is seen."""
        module, whole = self.run.module(problem, device), np.ones((1, problem.query.shape[1], 1))
        before = self.run.answer(module, problem, device)
        moved = [problem.with_arrays({"query": moved_at(problem.query, at)}) for at in (0, 1)]
        changed = [np.abs(self.run.answer(module, each, device) - before).max((0, 2)) for each in moved]
        found = np.where(np.arange(whole.shape[1]) > 0, *changed) > ROUNDINGS * np.abs(before).max()
        return Result(whole, others={"as documented": Result(found[None, :, None].astype(whole.dtype))})


def seen_latents(make: Constructor, call: ModuleCall) -> dict[str, SeenLatents]:
    """The run of what states that its latents are keys, too, by a text for messages."""
    run = SeenLatents(AsBuilt(partial(built_for, _whole(make), True), call))
    return {"where its latents see each other": run} if states_keys(make.kind, call) else {}


def _whole(make: Constructor) -> Constructor:
    return replace(make, left_out=(), held={}, norms=None)


@dataclass(frozen=True, eq=False)
class HiddenOthers:
    """A module with all its parts, a mask of which hides tokens next to the latents, and never these.

    Attributes:
        make: the class.
        latents: its parameters of latents, and of other tokens.
        mask: its parameter of the mask, (B, L).
        seen: what stands there for tokens that are seen.
    """

    make: Constructor
    latents: Latents
    mask: str
    seen: bool

    def __call__(self, problem: Problem, device: str) -> Result:
        """What samples have from which the hidden tokens are taken out; its `others` are with the mask."""
        module = drawn(in_mode(built(partial(built_for, _whole(self.make), True), problem, device), False))
        x = torch.from_numpy(problem.query).to(device)
        latents, others = x[:, :2], x.flip(1)
        hidden = (torch.arange(others.shape[1]) + torch.arange(len(others))[:, None]) % 3 == 0
        given = {self.mask: (~hidden if self.seen else hidden).to(device)}
        pairs = ((latents[n, None], others[n, None, ~hidden[n]]) for n in range(len(others)))
        alone = np.concatenate([self._rows(module, *pair) for pair in pairs])
        found = self._rows(module, latents, others, **given)
        return Result(alone, others={"as where they are left out": Result(found)})

    def _rows(self, module: nn.Module, *inputs: torch.Tensor, **masks: torch.Tensor) -> Array:
        with torch.no_grad():
            return to_array(first_part(module(**dict(zip(self.latents.names, inputs, strict=True)), **masks)))


def hidden_others(make: Constructor, call: ModuleCall, problem: Problem, device: str) -> Mapping[str, HiddenOthers]:
    """The masks of other tokens, by a text for messages: those whose meaning is documented, or else seen."""
    if call.latents is None:
        return {}
    found = dict[str, HiddenOthers]()
    for name in never_given(make.kind, call):
        stated = documented_polarity(make.kind, name)
        seen = (True, False) if stated is None else (stated is Polarity.MAY_ATTEND,)
        for run in (HiddenOthers(make, call.latents, name, each) for each in seen):
            result = safe_call(partial(run, problem.fresh(), device)).value
            if result is not None and (stated or _is_right(result)):
                found[HIDDEN.format(repr(name))] = run
    return found


def _is_right(result: Result) -> bool:
    (found,) = (each.output for each in result.others.values())
    near = ROUNDINGS * np.abs(result.output).max()
    return found.shape == result.output.shape and bool(np.abs(found - result.output).max() <= near)


def masks_judged(modes: Modes) -> Iterator[str]:
    """The masks that it is judged with so."""
    run = modes.get(Feature.AS_BUILT)
    otherwise = run.otherwise.values() if isinstance(run, AsBuilt) else ()
    yield from (each.mask for each in otherwise if isinstance(each, HiddenOthers))
