"""Functions whose keys lie in a way of their own: (B, Lk, d), without heads, or transposed, (B, H, d, Lk)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.spec.cases import Case
from attention_conformance.spec.inputs import build

Fit = Callable[[Case], Case | Unsupported]


@dataclass(frozen=True)
class OneKeyHead:
    """A function that is given the only head of key and value without its axis."""

    function: Callable[..., Any]
    about: str = "its key and value have no axis of heads: there is one for all heads of the query"

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    def __call__(self, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
        """The function's answer.

        Raises:
            ValueError: there are more heads of keys.
        """
        if key.shape[1] != 1 or value.shape[1] != 1:
            raise ValueError("there is one head of keys and values, and no axis of heads")
        return self.function(query, key[:, 0], value[:, 0], *others, **options)


@dataclass(frozen=True)
class TransposedKeys:
    """A function that is given its keys as (B, H, d, Lk), as their product with queries needs them."""

    function: Callable[..., Any]
    about: str = "its keys are (B, H, d, Lk)"

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    def __call__(self, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
        """The function's answer."""
        return self.function(query, key.swapaxes(-1, -2), value, *others, **options)


def answers_uneven(made: Implementation, device: str) -> bool:
    """Whether it answers where no two lengths and widths are equal; as it does if its claims have no such case."""
    fitted = fit(Case(), made.claims)
    dtype = next(iter(made.claims.dtypes), "")
    if isinstance(fitted, Unsupported) or not dtype or fitted.sizes.key_length == fitted.sizes.d_k:
        return True
    problem = build(fitted, dtype).forward_only()
    return not safe_call(partial(made.run, problem.fresh(), device)).error


def with_key_heads(kv_heads: int, own: Fit, case: Case) -> Case | Unsupported:
    """The fit of what always has so many heads of key and value."""
    return own(case.sized(num_kv_heads=kv_heads if case.sizes.num_heads > kv_heads else 0))
