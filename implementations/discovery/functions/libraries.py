"""Which libraries' arrays a function may take: JAX compiles a program for each shape that is tried."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FunctionType, ModuleType

from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.targets.absent import AbsentModule

OWN = __name__.partition(".")[0]
"""The package of what looks at the calls of a function."""


def kinds_for(function: object, kinds: Iterable[str]) -> list[str]:
    """Those of the kinds of arrays that a function may take."""
    without = () if may_be_of_jax(function) else ("jax",)
    return [kind for kind in kinds if kind not in without]


def may_be_of_jax(function: object) -> bool:
    """Whether JAX is imported, and a function may be of it.

    It is not of it where its file and its code name nothing but torch, NumPy, Python's own modules, what is not
    installed and that file.
    """
    if "jax" not in sys.modules:
        return False
    written = as_written(function)
    while written is not None:
        if not isinstance(written, FunctionType) or not _names_no_jax(written):
            return True
        written = getattr(written, "__wrapped__", None)
    return False


def _names_no_jax(written: FunctionType) -> bool:
    """Whether all that its file and its code name is known to be none of JAX."""
    within = {name for name in written.__code__.co_names if name in sys.modules}
    named = within | {_package(each) for each in written.__globals__.values() if not isinstance(each, AbsentModule)}
    return named <= {"", "torch", "numpy", OWN, _package(written), *sys.stdlib_module_names}


def _package(named: object) -> str:
    """The package of a module, or of what has a module."""
    name = named.__name__ if isinstance(named, ModuleType) else getattr(named, "__module__", None)
    return str(name or "").partition(".")[0]
