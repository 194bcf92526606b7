"""One head of values as wide as the inputs, with narrower queries and keys, as images have it: by its equation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import Call, Run
from attention_conformance.implementations.adapters.tensors import to_array
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.part_equations import PartEquations, gives
from attention_conformance.implementations.discovery.modules.slots import roles_of, slots
from attention_conformance.implementations.discovery.modules.template import (
    Projected,
    Slip,
    Variant,
    output_of_variant,
)
from attention_conformance.implementations.discovery.modules.whole_equations import WholeEquation
from attention_conformance.spec.problem import Problem

NON_LOCAL = {"theta": "q", "phi": "k", "g": "v", "w": "o"}
"""The letters of non-local networks."""
SLIPS = (Slip.OVER_QUERIES, Slip.TRANSPOSED, Slip.TWICE, Slip.SCALED_LATE, Slip.KEYS_SUMMED)
"""Mistakes that one head can have, and that leave each token to depend on all."""


@dataclass(frozen=True)
class Form:
    """What such a module computes.

    Attributes:
        layers: the paths of its layers, by role.
        gain: the path of the one number that multiplies the output; empty for none.
        variant: of attention.
        residual: whether its input is added.
    """

    layers: Mapping[str, str]
    gain: str
    variant: Variant
    residual: bool

    def output(self, module: nn.Module, problem: Problem) -> torch.Tensor:
        """(B, L, E), float64."""
        x = torch.from_numpy(problem.query.astype("float64"))
        own = {path: torch.from_numpy(to_array(each)).double() for path, each in module.named_parameters()}
        q, k, v = (self._projected(own, role, x)[:, None] for role in "qkv")
        heads = output_of_variant(Projected(q, k, v, None, None), self.variant)
        output = self._projected(own, "o", heads) if "o" in self.layers else heads
        output = output * own[self.gain].squeeze() if self.gain else output
        return output + x if self.residual else output

    def _projected(self, own: Mapping[str, torch.Tensor], role: str, x: torch.Tensor) -> torch.Tensor:
        weight = own[f"{self.layers[role]}.weight"].flatten(1)
        return nn.functional.linear(x, weight, own.get(f"{self.layers[role]}.bias"))


def narrow_scores(make: Constructor, call: Call, problem: Problem, device: str) -> Mapping[str, Run]:
    """The run that judges it, by a text for messages, if it answers as such a form does, or as one with a mistake."""
    whole = PartEquations(make, call, Variant(), {}, alone=True)
    if (seen := whole.shown(problem, device)) is None:
        return {}
    module, shown = seen
    for slip, form in product((Slip.NONE, *SLIPS), _forms(module, problem)):
        slipped = replace(form, variant=replace(form.variant, slip=slip))
        if gives(slipped.output, module, problem, shown):
            return {f"with the numbers of {', '.join(form.layers.values())}": WholeEquation(whole, form)}
    return {}


def _forms(module: nn.Module, problem: Problem) -> Iterator[Form]:
    layers = _layers(module, problem)
    own = dict(module.named_parameters())
    others = [path for path in own if path.rpartition(".")[0] not in layers.values()]
    known = {"q", "k", "v"} <= layers.keys() and all(own[path].numel() == 1 for path in others) and len(others) < 2
    if not known or any(own[f"{path}.weight"][0, 0].numel() > 1 for path in layers.values()):
        return
    rows = {role: len(own[f"{path}.weight"]) for role, path in layers.items()}
    if rows["q"] != rows["k"] or (rows["q"] == problem.query.shape[-1] and not others):
        return  # of an ordinary form, which is known elsewhere
    for scale, residual in product((0.0, -0.5), (True, False)):
        yield Form(layers, next(iter(others), ""), Variant(scale=scale), residual)


def _layers(module: nn.Module, problem: Problem) -> dict[str, str]:
    """The paths of its layers, by role, as far as their names state one each."""
    found: dict[str, str] = {}
    names = {path.rpartition(".")[2].lower(): path for path, _ in module.named_modules()}
    if {"theta", "phi", "g"} <= names.keys():
        return {role: names[name] for name, role in NON_LOCAL.items() if name in names}
    for slot in slots(module, problem.query.shape[-1], 2):
        roles, path = roles_of(slot), slot.pattern.removesuffix(".weight")
        if len(roles) == 1 and not slot.is_bias and path != slot.pattern:
            found[roles] = path
    return found
