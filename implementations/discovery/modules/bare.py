"""What stands around attention in a module, and is taken out before it is judged: norms, and biases in part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, TypeAlias

import torch
from torch import nn

from attention_conformance.implementations.adapters.torch_module import in_mode
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.parameters import filled, find_places, names_of, patterns
from attention_conformance.implementations.discovery.modules.query_key_norms import role_of
from attention_conformance.implementations.discovery.signatures import REMEDY
from attention_conformance.implementations.discovery.targets.loading import TargetError

Inputs: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def around(module: nn.Module) -> tuple[str, ...]:
    """The paths of norms, of what adds positions, and of biases of query, key and value where some have none."""
    norms = tuple(_norms(module))
    return (*norms, *_some_biases(module, any(map(role_of, norms))))


NORMS = ("layernorm", "rmsnorm", "groupnorm", "instancenorm", "batchnorm")
"""In the names of classes that normalise."""
POSITIONS = ("positionalencoding", "positionalembedding", "posencoding", "positionembedding", "positionencoding")
"""In the names of classes that add positions to their input, or give relative ones; unless they rotate."""


class Silent(nn.Module):
    """A module that gives zeros where another one gives the positions of its input."""

    def __init__(self, positions: nn.Module) -> None:
        super().__init__()
        self.positions = (positions,)  # no child: its parameters are none of the whole

    def forward(self, *given: Any, **named: Any) -> Any:
        """Zeros like its answer; of a tuple that begins with the input, that is left as it was given."""
        answer = self.positions[0](*given, **named)
        if not isinstance(answer, tuple):
            return torch.zeros_like(answer)
        kept = given[:1] if given and answer[0].shape == given[0].shape else (torch.zeros_like(answer[0]),)
        return (*kept, *map(torch.zeros_like, answer[1:]))


class Passed(nn.Module):
    """A module that gives back what it was given first, whatever else it takes: a norm may take a condition, too."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(self, *given: Any, **named: Any) -> Any:
        """The first of what it is given."""
        return next(iter((*given, *named.values())))


@contextmanager
def one_group() -> Iterator[None]:
    """Group norms are built with one group, which any width allows: they are left out afterwards."""
    built = nn.GroupNorm.__init__

    def init(self: nn.GroupNorm, num_groups: int, num_channels: int, *given: Any, **named: Any) -> None:
        built(self, 1, num_channels, *given, **named)

    nn.GroupNorm.__init__ = init  # type: ignore[method-assign]  # for as long as a candidate is built
    try:
        yield
    finally:
        nn.GroupNorm.__init__ = built  # type: ignore[method-assign]


def _norms(module: nn.Module) -> Iterator[str]:
    inside: tuple[str, ...] = ()
    for path, part in module.named_modules():
        words = type(part).__name__.lower()
        if path.startswith(inside):
            continue
        added = any(each in words for each in POSITIONS) and not any(each in words for each in ("rot", "rope"))
        if path and (added or any(norm in words for norm in NORMS) or _of_query_or_key(path, part)):
            inside = (*inside, f"{path}.")
            yield path


def _of_query_or_key(path: str, part: nn.Module) -> bool:
    """Whether it is named as a norm of queries or keys, and holds no matrix."""
    computes = type(part) is not nn.Module  # as what only holds the arrays of another module
    return computes and bool(role_of(path)) and all(parameter.ndim < 2 for parameter in part.parameters())


def _some_biases(module: nn.Module, normed: bool) -> Iterator[str]:
    """Those of query, key and value where some have none; that of the key alone may be missing, if it has no norm."""
    names = {name: path for path, place in find_places(module).items() for name in names_of(place)}
    held = {name: names[name] for name in ("b_q", "b_k", "b_v") if name in names}
    if len(held) in (1, 2) and (normed or {*held} != {"b_q", "b_v"}):
        yield from dict.fromkeys(held.values())


def tap_of(
    module: nn.Module, layer: str, answer: Callable[[nn.Module, Inputs], torch.Tensor], width: int, tokens: int
) -> str:
    """The layer whose output is that of the attention, if the module adds its input to that; else nothing.

    It is the given one, or where that is never called, as in nn.MultiheadAttention, the one that it belongs to. Its
    parameters become 0.

    Raises:
        TargetError: no layer has an output without what is added.
    """
    x = torch.linspace(-1.0, 1.0, 3 * tokens * width).view(3, tokens, width)
    with torch.no_grad():
        for parameter in in_mode(module, False).parameters():
            parameter.zero_()
        output = safe_call(lambda: answer(module, (x, x, x))).value
    if not isinstance(output, torch.Tensor) or output.shape != x.shape or not torch.equal(output, x):
        return ""
    parts = layer.split(".") if layer else []
    paths = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    found = next((path for path in paths if _is_called(module, path, lambda: answer(module, (x, x, x)))), "")
    if not found:
        raise TargetError(f"it adds its input, and none of its layers gives the rest alone: {REMEDY}")
    return found


def _is_called(module: nn.Module, path: str, call: Callable[[], Any]) -> bool:
    called: list[bool] = []
    handle = module.get_submodule(path).register_forward_hook(lambda *_: called.append(True))
    try:
        call()
    finally:
        handle.remove()
    return bool(called)


def tapped(module: nn.Module, layer: str, call: Callable[[], Any]) -> Any:
    """The answer to a call, with the output of a layer in place of the module's."""
    kept: list[torch.Tensor] = []
    own = get_ident()  # another thread may call the same layer meanwhile

    def keep(_: nn.Module, given: object, output: Any) -> None:
        if get_ident() == own:
            kept.append((output[0] if isinstance(output, tuple) else output).clone())

    handle = module.get_submodule(layer).register_forward_hook(keep)
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
        part = getattr(parent, name)
        if isinstance(part, nn.Module):
            relative = "rel" in type(part).__name__.lower() and not any(True for _ in part.parameters())
            setattr(parent, name, Silent(part) if relative else Passed())
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


@dataclass(eq=False)
class Globals:
    """Variables of the file of a class, and the values that they have while it is built, or called.

    Attributes:
        space: the variables.
        values: theirs.
        before: what they were outside of each call that is under way, the last one's last.
    """

    space: dict[str, Any]
    values: Mapping[str, object]
    before: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, kind: Any, values: Mapping[str, object]) -> Globals:
        """Those of the file of a class."""
        return cls(getattr(kind.__init__, "__globals__", {}), values)

    def __enter__(self) -> None:
        self.before.append({name: self.space[name] for name in self.values if name in self.space})
        self.space.update(self.values)

    def __exit__(self, *_: object) -> None:
        for name in self.values:
            self.space.pop(name, None)
        self.space.update(self.before.pop())

    def around(self, module: nn.Module) -> nn.Module:
        """The module, in each call of which they have these values."""
        if self.values:
            module.register_forward_pre_hook(lambda *_: self.__enter__())
            module.register_forward_hook(lambda *_: self.__exit__(), always_call=True)
        return module
