"""For functions of JAX arrays with the length before the heads, and with boolean masks and biases apart."""

from collections.abc import Callable
from typing import Any

import jax

from attention_conformance import PLAIN_FEATURES, Case, Claims, Conventions, Feature, Scope
from attention_conformance.implementations.api.contract import Fit, any_case
from attention_conformance.implementations.packages._handed_over import length_first

STATIC = ("is_causal", "scale", "enable_gqa")
DTYPES = ("float32", "bfloat16")
"""Two of the four: every shape is compiled, for each dtype."""


def compiled(function: Callable[..., Any]) -> Any:
    """(B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v), as one program for each shape."""
    return jax.jit(length_first(function), static_argnames=STATIC)


def claims(*added: Feature, fit: Fit = any_case) -> Claims:
    """Of functions that fill masked scores with a finite number, so that a row without keys is a mean."""
    features = PLAIN_FEATURES - {Feature.SCALE, Feature.CAUSAL, Feature.VALUE_WIDTH} | {Feature.GRADIENTS}
    conventions = Conventions().claiming({"empty-row": "uniform", "empty-row-float": "nan"})
    return Claims(Scope.OP, features.union(added), conventions, DTYPES, fit)


def one_width(case: Case) -> Case:
    """d_v is d_k."""
    return case.sized(d_v=case.sizes.d_k)
