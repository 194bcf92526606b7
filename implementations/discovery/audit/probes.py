"""The names of the probes, in the order in which they are asked: the process that asks needs no more of them."""

from __future__ import annotations

OPTIONS = (
    "window",
    "softcap",
    "rotary embedding",
    "query start",
    "ALiBi",
    "relative bias",
    "sinks",
    "key of zeros",
    "learned key and value",
    "head gates",
    "segments",
    "cumulative lengths",
)
NAMES = (
    "dtypes",
    "plain answer",
    "given scale",
    "widths",
    "grouped heads",
    "boolean mask",
    "float mask",
    "key padding",
    "causal flag",
    "causal flag beside a mask",
    "empty rows",
    "returned parts",
    "dropout",
    "gradients",
    "softmax of float64",
    *OPTIONS,
    "softcap order",
    "row emptied by the causal flag",
    "containment of NaN",
    "views",
    "empty sizes",
)
