"""Functions whose keys and values have no axis of heads: multi-query attention, (B, H, Lq, d) with (B, Lk, d)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.spec.cases import Case

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


def with_key_heads(kv_heads: int, fit: Fit, case: Case) -> Case | Unsupported:
    """The fit of what always has so many heads of key and value."""
    return fit(case.sized(num_kv_heads=kv_heads if case.sizes.num_heads > kv_heads else 0))
