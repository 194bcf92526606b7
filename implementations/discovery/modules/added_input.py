"""The input that a layer adds to what its attention gives: itself, and not its norm, in what is stated to be pre-norm.

(Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture", figure 1.)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

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
NORM_OF = r"\w*(?:ln|norm)\w*\}?\("
FORMULA = re.compile(
    rf"(?:^|[=:,;(`$]|\b(?:returns?|computes?|gives?|as|is|of|with|adds))\s*[`$]*(\w+) ?\+ ?[^=+\n]*?{NORM_OF}\1\b"
    rf"|{NORM_OF}(\w+)\)[^=+\n]*\) ?\+ ?\2\b",
    re.IGNORECASE | re.MULTILINE,
)
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
Seen: TypeAlias = tuple[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]
"""An instance, its input, what its attention gives, and its output."""


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

    def seen(self, problem: Problem, device: str) -> Seen:
        """An instance, its input, what its attention gives, and its output."""
        module = drawn(in_mode(built(partial(built_for, self.make, True), problem, device), False))
        given = tensors(problem, device)
        with torch.no_grad():
            calls = (self.call, replace(self.call, tap=""))
            alone, whole = (output_of(call(module, given, problem)) for call in calls)
        return module, inputs_of(given)[0], alone, whole


def added_input(make: Constructor, call: ModuleCall, problem: Problem, device: str) -> dict[str, AddedInput]:
    """The layer by a text on it; nothing where it adds none, adds something else, or states nothing of it.

    A block is looked at with its other parts at the values at which they have no effect.
    """
    if not call.tap or call.spatial or not states_pre_norm(make.kind):
        return {}
    for held in ({}, make.held)[: 1 + bool(make.held)]:
        run = AddedInput(replace(make, left_out=(), held=held, norms=None), call)
        if (seen := safe_call(partial(run.seen, problem, device)).value) is not None and _is_known(
            run, seen, problem, device
        ):
            return {"as a whole": run}
    return {}


def _is_known(run: AddedInput, seen: Seen, problem: Problem, device: str) -> bool:
    """Whether what it adds is its input or a norm of that, which another norm may follow: a block's next one."""
    module, x, alone, whole = seen
    norms = {path: part for path, part in module.named_modules() if "norm" in type(part).__name__.lower()}
    first = norms.keys() - _stems(norms, lambda: run.call(module, tensors(problem, device), problem))
    normed = [each for path in first if (each := safe_call(partial(norms[path], x)).value) is not None]
    if any(_near(alone, whole - each) for each in (x, *normed)):
        return True
    after = (safe_call(partial(norm, each + alone)).value for norm in norms.values() for each in normed)
    return any(each is not None and _near(each, whole) for each in after)


def _stems(norms: Mapping[str, nn.Module], call: Callable[[], object]) -> set[str]:
    """The norms that another one follows at once: what they give is the input of the layer itself."""
    given, made = dict[str, Any](), dict[str, Any]()

    def keep(path: str, _: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        given[path], made[path] = next(iter(args), None), output

    handles = [norm.register_forward_hook(partial(keep, path)) for path, norm in norms.items()]
    with torch.no_grad():
        call()
    for handle in handles:
        handle.remove()
    inputs = [each for each in given.values() if isinstance(each, torch.Tensor)]
    return {path for path, output in made.items() if any(_same(output, each) for each in inputs)}


def states_pre_norm(kind: object) -> bool:
    """Whether its name or documentation states that its input is added, and not the norm of that."""
    documented = (inspect.getdoc(each) for each in (kind, getattr(kind, "forward", None)))
    text = "\n".join([getattr(kind, "__name__", ""), *(each or "" for each in documented)])
    return bool(PRE_NORM.search(text) or FORMULA.search(text)) and not OTHERWISE.search(text)


def _same(one: Any, other: torch.Tensor) -> bool:
    return isinstance(one, torch.Tensor) and torch.equal(one, other)


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, NEAR, NEAR)
