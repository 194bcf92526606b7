"""Packages that are imported when they are first used, if they are installed at all: torch takes seconds."""

import importlib
import importlib.util
import sys
from typing import Any


class Package:
    """A package that may not be installed; it is false then. An attribute of it is looked up by importing it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __bool__(self) -> bool:
        try:
            return self._name in sys.modules or importlib.util.find_spec(self._name) is not None
        except ImportError:
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def optional(name: str) -> Any:
    """The package, imported when it is first used; false where it is not installed."""
    return Package(name)


def imported(name: str) -> Any:
    """The package if it has been imported in this process, and None otherwise: then it has no state."""
    return sys.modules.get(name)
