"""Sizes in a file: its variables that a class or a function reads as the width, the number of heads or the like."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterator
from dis import get_instructions
from types import CodeType
from typing import Any

from torch import nn

from attention_conformance.implementations.discovery.modules.constructor_names import Size, size_of


def sizes_in_file(target: type[nn.Module] | Callable[..., Any]) -> dict[str, Size]:
    """The variables of its file that its code, or that of another class or function there, names as sizes.

    Those that the file sets only as it is run as a program are not set yet.
    """
    space = variables_of(target)
    names = {name for function in _functions(target) for name in _names(function.__code__)}
    for each in [space[name] for name in names if name in space]:
        of_file = getattr(each, "__module__", None) == target.__module__
        if of_file and ((isinstance(each, type) and issubclass(each, nn.Module)) or inspect.isfunction(each)):
            names |= {name for f in _functions(each) for name in _names(f.__code__)}
    numbers = [name for name in sorted(names) if type(space.get(name, 0)) in (int, float)]
    found = {name: size for name in numbers if (size := size_of(name)) and not hasattr(builtins, name)}
    return found if Size.WIDTH in found.values() else {}


def variables_of(target: Any) -> dict[str, Any]:
    """The variables of the file of a class or a function."""
    found: dict[str, Any] = getattr(
        getattr(target, "__init__", None) if isinstance(target, type) else target, "__globals__", {}
    )
    return found


def _functions(target: Any) -> list[Any]:
    own = vars(target).values() if isinstance(target, type) else [target]
    return [each for each in own if inspect.isfunction(each)]


def _names(code: CodeType) -> Iterator[str]:
    """The variables of its file that code reads, inner functions included."""
    yield from (each.argval for each in get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
