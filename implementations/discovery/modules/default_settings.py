"""Default settings: the class of an object of settings, and what such an object has by default."""

from __future__ import annotations

import inspect
import sys
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any, get_type_hints

from attention_conformance.implementations.api.safe_call import safe_call

OF_SETTINGS = {"config", "cfg", "conf", "args", "configuration", "params", "hparams", "settings", "opt", "options"}
"""Words in the names of objects of settings."""


def class_of_settings(kind: Any, name: str) -> Any:
    """What its constructor names as the class of its settings, or has an object of by default."""
    usual = type(_given(kind, name))
    hints = safe_call(lambda: get_type_hints(_reads(kind))).value or {}
    return hints.get(name, usual if is_dataclass(usual) else None)


def _reads(kind: Any) -> Any:
    own = getattr(kind, "original", kind)  # of a mirror
    return getattr(own, "__init__", None) if isinstance(own, type) else own


def _given(kind: Any, name: str) -> object:
    """What its constructor takes by default."""
    return safe_call(lambda: inspect.signature(_reads(kind)).parameters[name].default).value


def usual_settings(kind: Any, name: str, hint: object) -> object:
    """The settings by default: the constructor's own object, of the class that it names, or of one of its module.

    Of that with its first name, such as `GPT2Config` for `GPT2Attention`, or of the only one, or what the only function
    for them returns. None where there is no such class or function, or it needs arguments.
    """
    given = _given(kind, name)
    if hasattr(given, "__dict__") and not isinstance(given, type):
        return given
    module = sys.modules.get(str(getattr(kind, "__module__", "")))
    own = vars(module) if module else {}
    names = sorted((n for n in own if n.endswith("Config") and _begins(kind, n)), key=len)
    alone = [each for name, each in own.items() if name.endswith("Config") and _is_of(each, module)]
    found = [hint, *(own[name] for name in reversed(names)), *(alone if len(alone) == 1 else [])]
    kinds = [each for each in found if isinstance(each, type)]
    makers = [each for name, each in own.items() if OF_SETTINGS & {*name.lower().split("_")} and _makes(each, module)]
    every = [*kinds, *(makers if len(makers) == 1 else [])]
    return next((made.value for each in every if not (made := safe_call(each)).error), None)


def _makes(function: object, module: ModuleType | None) -> bool:
    """Whether it is a function of the module."""
    return inspect.isfunction(function) and module is not None and function.__module__ == module.__name__


def _is_of(kind: object, module: ModuleType | None) -> bool:
    return isinstance(kind, type) and module is not None and kind.__module__ == module.__name__


def _begins(kind: Any, name: str) -> bool:
    stem = name.removesuffix("Config")
    return bool(stem) and str(getattr(kind, "__name__", "")).startswith(stem)
