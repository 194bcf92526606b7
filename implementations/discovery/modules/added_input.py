"""The input that a layer adds to what its attention gives: itself, and not its norm, in what is stated to be pre-norm.

(Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture", figure 1.)
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import drawn
from attention_conformance.implementations.adapters.mha_interface import inputs_of
from attention_conformance.implementations.adapters.results import output_of
from attention_conformance.implementations.adapters.tensors import tensors, to_array
from attention_conformance.implementations.adapters.torch_module import built, in_mode
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.spec.problem import Problem

PRE_NORM = re.compile(r"(?<!not )pre[-_ ]?(?:ln|layer[-_ ]?norm|norm)(?!al)", re.IGNORECASE)
"""A name of such layers."""
FORMULA = re.compile(r"(?:=|returns?)\s*`*(\w+) \+ [^=\n]*\b\w*(?:ln|norm)\w*\(\1\b", re.IGNORECASE)
"""Their equation: "y = x + MHA(LN(x))"."""
OTHERWISE = re.compile(
    r"\bresidual (?:is|of|from|=) (?:(?!before\b|not\b)\w+\W+){0,3}?\w*norm"
    r"|\bnorm\w*(?:\W+\w+){0,4}?\W+(?:is|as) the residual|post_?(?:layer_?)?norm"
    r"|\b(\w+) ?= ?\w*(?:ln|norm)\w*\([^)]*\).*\b\1 \+",
    re.IGNORECASE,
)
"""Words and equations for a norm that is added: "h = LN(x); y = h + MHA(h)"."""
NEAR = 1e-4
"""Some layers compute a norm in float32 always."""


@dataclass(frozen=True, eq=False)
class AddedInput:
    """A layer whose output is its input and what its attention gives.

    Attributes:
        make: the class with all its parts.
        call: one that gives what its attention gives alone.
    """

    make: Constructor
    call: ModuleCall

    def __call__(self, problem: Problem, device: str) -> Result:
        """The sum; its `others` are the output of the layer."""
        _, x, alone, whole = self.seen(problem, device)
        return Result(to_array(x + alone), others={"the input added to what attention gives": Result(to_array(whole))})

    def seen(self, problem: Problem, device: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
        """An instance, its input, what its attention gives, and its output."""
        module = drawn(in_mode(built(partial(built_for, self.make, True), problem, device), False))
        given = tensors(problem, device)
        with torch.no_grad():
            calls = (self.call, replace(self.call, tap=""))
            alone, whole = (output_of(call(module, given, problem)) for call in calls)
        return module, inputs_of(given)[0], alone, whole


def added_input(make: Constructor, call: ModuleCall, problem: Problem, device: str) -> dict[str, AddedInput]:
    """The layer by a text on it; nothing where it adds none, adds something else, or states nothing of it."""
    if not call.tap or call.spatial or not states_pre_norm(make.kind):
        return {}
    run = AddedInput(replace(make, left_out=(), held={}, norms=None), call)
    if (seen := safe_call(lambda: run.seen(problem, device)).value) is None:
        return {}
    module, x, alone, whole = seen
    norms = (part for part in module.modules() if "norm" in type(part).__name__.lower())
    known = (x, *(safe_call(partial(norm, x)).value for norm in norms))
    return {"as a whole": run} if any(each is not None and _near(alone, whole - each) for each in known) else {}


def states_pre_norm(kind: object) -> bool:
    """Whether its name or documentation states that its input is added, and not the norm of that."""
    text = f"{getattr(kind, '__name__', '')}\n{inspect.getdoc(kind) or ''}"
    return bool(PRE_NORM.search(text) or FORMULA.search(text)) and not OTHERWISE.search(text)


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, NEAR, NEAR)
