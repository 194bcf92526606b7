"""Wrong implementations: what the suite must find, clause by clause."""

from __future__ import annotations

import importlib

from tests.selftest.wrong.record import REGISTRY, Wrong

__all__ = ["WRONG", "Wrong"]

for _chapter in ("scores", "modules", "masks", "shapes", "gradients", "effects"):
    importlib.import_module(f"tests.selftest.wrong.{_chapter}")

WRONG: tuple[Wrong, ...] = tuple(REGISTRY)
