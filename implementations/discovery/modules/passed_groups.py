"""Groups of heads that functions with weights are passed the number of, as those that a module is built with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.implementations.discovery.modules.constructor_names import GROUPS
from attention_conformance.implementations.discovery.signatures import required

GROUPED = "num_kv_heads"
"""The parameter of a constructor that takes how many heads keys and values have."""
SIZES = WIDTH, HEADS, KV_HEADS = 16, 4, 2
"""A width of inputs, heads, and fewer heads of keys and values."""
TOGETHER = {WIDTH + shared * WIDTH // HEADS * KV_HEADS for shared in (1, 2)}
"""The widths of what holds queries next to keys, without values and with these: no other projection has them."""


def passed_groups(signature: inspect.Signature) -> str:
    """The one parameter of a function that is a number of heads of keys and values; empty for none."""
    named = [p for p in signature.parameters.values() if p.name in GROUPS]
    counts = [p.name for p in named if required(p) or p.default is None or type(p.default) is int]
    return counts[0] if len(counts) == len(named) == 1 else ""


def lie_apart(weights: Mapping[str, Any]) -> bool:
    """Whether no array of these holds the weights of queries next to those of keys, at `SIZES`."""
    return not any(TOGETHER & {*np.shape(each)} for each in weights.values())
