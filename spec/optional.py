"""Packages that the suite needs, and that a worker in another environment may do without."""

from importlib import import_module
from typing import Any


def optional(name: str) -> Any:
    """The package; None where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None
