"""The defect catalogue: wrong on purpose, each with one mistake that the suite has to find and to name."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from attention_conformance.implementations.defects.defect import REGISTRY, Defect, Severity

__all__ = ["MODULES", "SCORE", "Defect", "Severity", "catalogue"]

SCORE = Path(__file__).with_name("score.json")
"""How many of them the suite finds and names, written by `make mutation`."""

MODULES = (
    "scores",
    "softmax",
    "returned",
    "values",
    "heads",
    "projections",
    "cross_attention",
    "masks",
    "mask_axes",
    "empty_rows",
    "causal",
    "shapes",
    "numerics",
    "gradients",
    "effects",
    "errors",
    "speed",
    "grouped",
    "dropout",
    "dropout_returned",
    "dropout_state",
    "returned_weights",
    "window",
    "window_beside",
    "softcap",
    "encodings",
    "positions",
    "relative",
    "sinks",
    "zero_keys",
    "further_keys",
    "cache",
    "cache_positions",
    "packed",
    "packed_lengths",
    "head_gates",
    "modules",
    "transforms",
    "conventions",
    "published",
    "published_e",
)
"""In the order of the specification's chapters; last, what the write-ups that it encodes got wrong."""


@cache
def catalogue() -> tuple[Defect, ...]:
    """All of them, in the order of the modules. The first call imports those: who is right needs none of them."""
    for module in MODULES:
        importlib.import_module(f"{__name__}.{module}")
    return tuple(REGISTRY)
