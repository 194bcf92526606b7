"""The defect catalogue: wrong on purpose, each with one mistake that the suite has to find and to name."""

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
    "dropout_state",
    "returned_weights",
    "window",
    "softcap",
    "encodings",
    "positions",
    "sinks",
    "zero_keys",
    "extra_kv",
    "cache",
    "packed",
    "head_gates",
    "qk_norm",
    "rotary_tables",
    "bucketed_bias",
    "modules",
    "transforms",
    "conventions",
    "merge",
    "paged",
    "quantised",
    "latent",
    "published",
    "rare",
)
"""In the order of the specification's chapters; last, the mistakes of the write-ups that it encodes, and rare ones."""


@cache
def catalogue() -> tuple[Defect, ...]:
    """All of them, in the order of the modules. The first call imports those: a right implementation needs none."""
    names = [importlib.import_module(f"{__name__}.{module}").__name__ for module in MODULES]
    return tuple(defect for name in names for defect in REGISTRY[name])
