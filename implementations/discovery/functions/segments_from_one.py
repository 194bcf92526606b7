"""Ids of segments of which 0 is padding, as documentation states it: all tokens are given ids from 1."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.documented import as_written, said_of, sentences_of
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES

OPTIONS = ("query_segments", "key_segments")
ZERO_IS_PADDING = re.compile(
    r"(?<![\w.-])(?:0|zeros?) ?(?:is|are|=|:|means?|marks?|for|stands for|denotes) ?(?:the )?pad(?:s|ding|ded)?\b"
    r"|\bpad(?:ding|ded)?(?: tokens?)? ?(?:is|are|has|have|=|:|with|by|gets?)? ?(?:the )?(?:id )?(?:0|zero)(?![\w.])",
    re.IGNORECASE,
)
OF_SEGMENTS = re.compile(
    r"\b(?:segments?|documents?)\b.*\bids?\b|\bids?\b.*\b(?:segments?|documents?)\b", re.IGNORECASE
)
"""Words of a sentence on ids that does not name their parameter."""


@dataclass(frozen=True)
class SegmentsFromOne:
    """A function that is given ids one higher.

    Attributes:
        function: it.
        names: its parameters for ids.
    """

    function: Callable[..., Any]
    names: tuple[str, ...]

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    @property
    def about(self) -> str:
        """For a note."""
        return f"its {' and '.join(map(repr, self.names))} count from 1, as 0 is padding by its documentation"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        higher = {name: options[name] + 1 for name in self.names if options.get(name) is not None}
        return self.function(query, key, value, **{**options, **higher})


def with_segments_from_one(function: Callable[..., Any]) -> SegmentsFromOne | None:
    """The function with ids from 1; None where it takes none, or documents no padding of id 0."""
    inner: Any = function
    while inner is not None:
        if isinstance(inner, SegmentsFromOne):
            return None
        inner = getattr(inner, "function", None)
    signature, written = safe_call(lambda: signature_of(function)).value, as_written(function)
    names = tuple(name for name in (signature.parameters if signature else ()) if KNOWN_NAMES.get(name) in OPTIONS)
    said = [each for name in names for each in said_of(written, name)]
    said += [each for each in sentences_of(written) if names and OF_SEGMENTS.search(each)]
    stated = any(map(ZERO_IS_PADDING.search, said))
    return SegmentsFromOne(function, names) if stated else None
