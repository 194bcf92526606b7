"""Skeleton adapters: constructor, parameters and shapes filled in, and what could not be found out as a TODO."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

from torch import nn

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.auditor.adapter_text import imports_of, one_line, target_lines
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.modules.attempts import attempts
from attention_conformance.implementations.discovery.modules.constructor_names import (
    GROUPS,
    Size,
    setting_size,
    settings_parameter,
    size_of,
)
from attention_conformance.implementations.discovery.modules.constructors import HEADS, WIDTH, Constructor, built
from attention_conformance.implementations.discovery.modules.held_arrays import METHODS
from attention_conformance.implementations.discovery.modules.parameters import names_of, place_of
from attention_conformance.implementations.discovery.modules.slots import roles_of, slots
from attention_conformance.implementations.discovery.signatures import (
    ADAPTER,
    REMEDY,
    is_variadic,
    positional,
    required,
    role,
    signature_of,
)
from attention_conformance.implementations.discovery.targets.loading import Target, TargetError
from attention_conformance.implementations.discovery.vocabulary import INPUTS

OPEN = "..."
"""What is written where a value is to be filled in."""
SIZES = {
    Size.WIDTH: "width",
    Size.HEADS: "heads",
    Size.HEAD_WIDTH: "width // heads",
    Size.LENGTH: "2048",
    Size.SAMPLES: "64",
    Size.RATE: "0.0",
    Size.BIAS: "True",
    Size.FLAG: "False",
    Size.BASE: "10000.0",
    Size.NOTHING: "None",
}
IMPORTS = (
    "from pathlib import Path",
    "from types import SimpleNamespace",
    "from typing import Any",
    "from torch import Tensor, nn",
    "from attention_conformance.implementations.discovery.targets.loading import load_target",
    "from attention_conformance import Claims, Feature, Implementation, Packed, Problem, Scope, torch_module, torch_op",
)
GIVEN = tuple(f'given["{each}"]' for each in INPUTS)
TODO = f"  # TODO: what is {OPEN}, or missing"
OF_PLACES = 'TODO: what its parameters hold, such as "q_proj.weight": "w_q", "q_proj.bias": "b_q".'
EACH = {"w_o": "OUTPUT_PROJECTION", "b_o": "OUTPUT_BIAS", "b_q": "BIAS"}
"""What a module claims that has such a parameter."""


@dataclass(frozen=True)
class Refusal:
    """Why a target could not be read, and the adapter that is left to be completed; empty where there is none."""

    reason: str
    skeleton: str = ""


class SkeletonError(TargetError):
    """A target that could not be read, with the adapter that is left to be completed."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.skeleton = refusal.skeleton


def skeleton(target: str, loaded: object, reason: str, folder: Path) -> str:
    """The text of an adapter that has one question open; nothing for what cannot be called."""
    if not callable(loaded):
        return ""
    name, question = (
        one_line(Target.parse(target).parts[-1]),
        one_line(reason.removesuffix(f", {ADAPTER}").removesuffix(f": {REMEDY}")),
    )
    if isinstance(loaded, type) and issubclass(loaded, nn.Module):
        body = "\n".join(_of_module(name, loaded))
    else:
        body = "\n".join(_of_function(name, loaded))
    own = "\n".join(target_lines(target, folder))
    head = f'"""A skeleton of an adapter for {name}: complete what is open.\n\nTODO: {question}.\n"""'
    return "\n".join([head, "", *imports_of(IMPORTS, own + body), "", own, "", "", body, ""])


def _of_function(name: str, loaded: object) -> Iterator[str]:
    """A function, or a class that is no module: called with (B, H, L, d)."""
    made, called = "", "target"
    method = next((m for m in METHODS if inspect.isfunction(inspect.getattr_static(loaded, m, None))), "")
    if isinstance(loaded, type):
        made, called = f"target({_arguments(inspect.signature(loaded), _expression)})", f"made.{method or 'forward'}"
    signature = signature_of(getattr(loaded, method) if made and method else loaded)  # type: ignore[arg-type]
    own = list(signature.parameters.values())[1 if made and method else 0 :]
    yield "def attention(query: Tensor, key: Tensor, value: Tensor) -> Any:"
    yield '    """Query (B, H, Lq, d), key and value (B, H, Lk, d) to the output (B, H, Lq, d)."""'
    if made:
        yield "    width, heads = query.shape[-1] * query.shape[1], query.shape[1]"
        yield f"    made = {made}"
    yield f"    return {called}({_call_of(own, INPUTS)}){TODO}"
    yield from _adapter(name, "OP", ["CORE", "HEADS", "CROSS", "KEY_VALUE", "GRADIENTS"], "torch_op(attention)")


def _of_module(name: str, kind: type[nn.Module]) -> Iterator[str]:
    """A module class: built for the width of a problem, filled with its weights, and called with (B, L, E)."""
    arguments = _constructed(kind, _first(kind))
    module = _instance(kind, arguments)
    places = [] if module is None else list(_places(module))
    unnamed = module is None or not all(names for _, names in places)
    own = list(inspect.signature(kind.forward).parameters.values())[1:]
    called = _call_of(own, GIVEN)
    known = OPEN not in arguments and not unnamed
    yield "def build(problem: Problem) -> nn.Module:"
    yield '    """Built for the width of its input and a number of heads."""'
    yield "    width, heads = problem.query.shape[-1], problem.num_heads"
    yield f"    return target({arguments}){TODO if OPEN in arguments or module is None else ''}"
    yield from ["", "", "PLACES = {", *(f"    {line}" for line, _ in places), "}"]
    what = f"What its parameters hold; shapes for a width of {WIDTH} and {HEADS} heads."
    yield f'"""{what if module else OF_PLACES}"""'
    yield from ["", "", "def call(module: nn.Module, given: dict[str, Tensor], problem: Problem) -> Any:"]
    yield '    """Query (B, Lq, E), key and value (B, Lk, E) to the output (B, Lq, E)."""'
    yield f"    return module({called}){TODO if known or OPEN in called else ''}"
    held = {each for _, names in places for each in names}
    features = ["CORE", "PROJECTIONS", "HEADS", *(feature for each, feature in EACH.items() if each in held)]
    features += ["CROSS"] * (GIVEN[1] in called or GIVEN[2] in called) + ["KEY_VALUE"] * (GIVEN[2] in called)
    yield from _adapter(name, "MODULE", [*features, "GRADIENTS"], "torch_module(build, call, PLACES)")


def _instance(kind: type[nn.Module], arguments: str) -> nn.Module | None:
    """A module as the text builds it, with objects that do nothing for what is open."""
    space = {
        "target": kind,
        "width": WIDTH,
        "heads": HEADS,
        "SimpleNamespace": SimpleNamespace,
        "anything": MagicMock(),
    }
    made = safe_call(lambda: eval(f"target({arguments.replace(OPEN, 'anything')})", space)).value
    return made if isinstance(made, nn.Module) else None


def _adapter(name: str, scope: str, features: Sequence[str], run: str) -> Iterator[str]:
    yield from ["", "", "adapter = Implementation(", f'    "{name}",', "    Claims(", f"        Scope.{scope},"]
    yield from ["        frozenset(", "            {"]
    yield from (f"                Feature.{each}," for each in features)
    yield from ["            }", "        ),", "    ),", f"    {run},", ")"]


def _first(kind: type[nn.Module]) -> Constructor | None:
    """The first way in which it can be built."""
    makes: list[Constructor] = []
    safe_call(lambda: makes.extend(islice(attempts(kind), 24)))
    return next((make for make in makes if not safe_call(partial(built, make)).error), None)


def _constructed(kind: type[nn.Module], make: Constructor | None) -> str:
    """The arguments of its constructor, as expressions."""
    signature = inspect.signature(kind)
    if name := settings_parameter(signature):
        source = code_of(kind)
        read = dict.fromkeys(re.findall(rf"(?:^|[^.\w]){name}\.(\w+)", source))
        sizes = ", ".join(f"{each}={_setting(each)}" for each in read)
        return f"{name}=SimpleNamespace({sizes})"
    chosen = {} if make is None else make.sizes
    given = (
        {}
        if make is None or chosen
        else {p.name: n for p, n in zip(positional(signature), ("width", "heads"), strict=False)}
    )

    guessed = {p for p, size in chosen.items() if size is Size.NOTHING} | set(make.guessed if make else ())

    def expression(parameter: inspect.Parameter) -> str:
        if parameter.name in given or parameter.name in guessed:
            return given.get(parameter.name, OPEN)
        return SIZES.get(chosen.get(parameter.name), "") or _expression(parameter)  # type: ignore[arg-type]

    return _arguments(signature, expression)


def _setting(name: str) -> str:
    return "heads" if name in GROUPS else SIZES.get(setting_size(name), OPEN)  # type: ignore[arg-type]


def _expression(parameter: inspect.Parameter) -> str:
    """What a parameter of a constructor is given."""
    size = Size.HEADS if parameter.name in GROUPS else size_of(parameter.name)
    return SIZES.get(size, OPEN)  # type: ignore[arg-type]


def _arguments(signature: inspect.Signature, expression: object) -> str:
    assert callable(expression)
    shown = [p for p in signature.parameters.values() if not is_variadic(p) and (required(p) or size_of(p.name))]
    return ", ".join(f"{p.name}={expression(p)}" for p in shown if required(p) or expression(p) != OPEN)


def _call_of(parameters: Sequence[inspect.Parameter], inputs: Sequence[str]) -> str:
    """The arguments of a call: inputs by their roles, or in their order, and what else it needs."""
    needed = [p for p in parameters if required(p)]
    roles = {p.name: inputs[INPUTS.index(found)] for p in needed if (found := role(p.name))}
    rest = [p for p in needed if p.name not in roles]
    if not roles:
        roles, rest = dict(zip([p.name for p in needed], inputs, strict=False)), needed[len(inputs) :]
        if inputs is GIVEN:
            roles, rest = {p.name: inputs[0] for p in needed[:1]}, needed[1:]
    in_order = [value for name, value in roles.items()]
    named = any(p.kind is p.KEYWORD_ONLY for p in needed if p.name in roles)
    own = [f"{name}={value}" for name, value in roles.items()] if named or rest[:1] == needed[:1] else in_order
    return ", ".join([*own, *(f"{p.name}={OPEN}" for p in rest)])


def _places(module: nn.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A line for each parameter, and the names of what it holds."""
    stated = {slot.pattern: roles_of(slot) for slot in slots(module, WIDTH, HEADS)}
    for path, parameter in module.named_parameters():
        place = place_of(path)
        letter = "b" if parameter.ndim < 2 else "w"
        names = names_of(place) if place else tuple(f"{letter}_{each}" for each in stated.get(path, ""))
        text = OPEN if not names else f'"{names[0]}"' if len(names) == 1 else f"Packed({names})".replace("'", '"')
        question = "" if names else ": TODO: w_q, w_k, w_v, w_o, or a b_; held in build if it is none"
        yield f'"{path}": {text},  # {tuple(parameter.shape)}{question}', names
