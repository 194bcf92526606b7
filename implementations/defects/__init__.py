"""The defect catalogue: implementations with one mistake each, which the suite has to find and to name."""

from __future__ import annotations

import importlib

from implementations.defects.record import REGISTRY, Defect, Severity

__all__ = ["DEFECTS", "Defect", "Severity"]

for _chapter in ("scores", "modules", "masks", "shapes_and_numerics", "gradients", "effects"):
    importlib.import_module(f"implementations.defects.{_chapter}")

DEFECTS: tuple[Defect, ...] = tuple(REGISTRY)
"""In the order of the specification's chapters."""
