"""Functions of one sample in axes of their own: they are called for each sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attention_conformance.implementations.discovery.functions.one_sample import of_each_sample
from attention_conformance.implementations.discovery.signatures import signature_of


@dataclass(frozen=True)
class EachSample:
    """A function of one sample, given an axis of samples before the axes that it takes.

    Attributes:
        function: it.
    """

    function: Callable[..., Any]

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answers.

        Raises:
            ValueError: there is no sample.
        """
        return of_each_sample(self.function, (query, key, value), options)
