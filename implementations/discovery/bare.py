"""What stands around attention in a module, and is taken out before it is judged: norms, and biases in part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.parameters import filled, find_places, names_of, patterns
from attention_conformance.implementations.discovery.query_key_norms import role_of

Inputs: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def around(module: nn.Module) -> tuple[str, ...]:
    """The paths of norms, and of the biases of query, key and value where not all three have one."""
    return (*_norms(module), *_some_biases(module))


def _norms(module: nn.Module) -> Iterator[str]:
    for path, part in module.named_modules():
        words = type(part).__name__.lower()
        if path and ("layernorm" in words or "rmsnorm" in words or _of_query_or_key(path, part)):
            yield path


def _of_query_or_key(path: str, part: nn.Module) -> bool:
    """Whether it is named as a norm of queries or keys, and holds no matrix."""
    return bool(role_of(path)) and all(parameter.ndim < 2 for parameter in part.parameters())


def _some_biases(module: nn.Module) -> Iterator[str]:
    names = {name: path for path, place in find_places(module).items() for name in names_of(place)}
    held = {name: names[name] for name in ("b_q", "b_k", "b_v") if name in names}
    if len(held) in (1, 2):
        yield from dict.fromkeys(held.values())


def tap_of(module: nn.Module, layer: str, answer: Callable[[nn.Module, Inputs], torch.Tensor], width: int) -> str:
    """The layer whose output is that of the attention, if the module adds its input to that; else nothing.

    Its parameters become 0.
    """
    x = torch.linspace(-1.0, 1.0, 12 * width).view(3, 4, width)
    with torch.no_grad():
        for parameter in module.eval().parameters():
            parameter.zero_()
        output = safe_call(lambda: answer(module, (x, x, x))).value
    return layer if isinstance(output, torch.Tensor) and output.shape == x.shape and torch.equal(output, x) else ""


def tapped(module: nn.Module, layer: str, call: Callable[[], Any]) -> Any:
    """The answer to a call, with the output of a layer in place of the module's."""
    kept: list[torch.Tensor] = []
    handle = module.get_submodule(layer).register_forward_hook(lambda _, given, output: kept.append(output.clone()))
    try:
        answer = call()
    finally:
        handle.remove()
    return (kept[-1], *answer[1:]) if isinstance(answer, tuple) else kept[-1]


def bare(module: nn.Module, left_out: Iterable[str]) -> nn.Module:
    """The module with identities for norms, and without biases, at these paths."""
    for path in left_out:
        owner, _, name = path.rpartition(".")
        parent = module.get_submodule(owner)
        if isinstance(getattr(parent, name), nn.Module):
            setattr(parent, name, nn.Identity())
        else:
            parent.register_parameter(name, None)
    return module


def holding(module: nn.Module, held: Mapping[str, str]) -> nn.Module:
    """The module with buffers of a constant in place of these parameters, whose paths may have a star for a number."""
    for path, parameter in list(module.named_parameters()):
        fill = next((held[pattern] for pattern, _ in patterns(path) if pattern in held), "")
        if fill:
            owner, _, name = path.rpartition(".")
            parent = module.get_submodule(owner)
            delattr(parent, name)
            parent.register_buffer(name, filled(parameter.detach(), fill).clone())
    return module


@contextmanager
def with_globals(kind: Any, values: Mapping[str, object]) -> Iterator[None]:
    """Variables of the file of a class have these values while it is built."""
    space = getattr(kind.__init__, "__globals__", {}) if values else {}
    before = {name: space[name] for name in values if name in space}
    space.update({name: values[name] for name in before})
    try:
        yield
    finally:
        space.update(before)
