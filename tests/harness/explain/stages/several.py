"""Several: entries that are changed in the same way, and heads as a whole."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor

from attention_conformance.tests.harness.explain.stages.changes import (
    ALONG,
    ELEMENTS,
    NUMBERS,
    POSITIONS,
    ROWS,
    OfTensor,
)


def together() -> Iterator[tuple[str, tuple[str, ...], str, Callable[[Any], Any]]]:
    """The stage before which several entries are changed in the same way, what is wrong, and the change of each."""
    for words in ("normalised to length 1", "rounded to bfloat16", "rounded to float16", "rounded to float32"):
        yield "product", ("query", "key"), f"query and key {words}", ELEMENTS[words]
    for back, axis in enumerate(reversed(ROWS[:3]), 2):
        for words, along in ALONG.items():
            if "gradient" not in words:
                change: OfTensor = partial(along, axis=-back)
                yield "repetition of the key heads", ("key", "value"), f"key and value {words.format(axis)}", change
    for words in ("ignored where they are 0", "one too large", "one too small", "doubled", "halved"):
        of = NUMBERS[words.replace("they are", "it is")]
        yield "window", ("window_left", "window_right"), f"both limits of the window {words}", of
    for words, change in HEADS.items():
        yield "rotation of the query", ("query", "key", "value"), f"heads {words}", change
        yield "merge of the heads", ("heads",), f"heads {words} when merged", change
    for entries, noun in PLACED.items():
        for words, of in POSITIONS.items():
            yield "rotation of the query", entries, f"{noun} {words}", of


def _interleaved(x: Tensor) -> Tensor:
    """Heads that take columns in turn, (B, H, L, d)."""
    batch, num_heads, length, width = x.shape
    return x.transpose(1, 2).reshape(batch, length, width, num_heads).permute(0, 3, 1, 2)


def _dealt(x: Tensor) -> Tensor:
    """The inverse of `_interleaved`."""
    batch, num_heads, length, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(batch, length, num_heads, width).transpose(1, 2)


HEADS: dict[str, OfTensor] = {
    "not moved before the tokens": lambda x: x.transpose(1, 2).reshape(x.shape),
    "and tokens read in another order": lambda x: x.reshape(x.transpose(1, 2).shape).transpose(1, 2),
    "taken from columns in turn": _interleaved,
    "put into columns in turn": _dealt,
    "in reverse order": lambda x: x.flip(1),
    "exchanged with samples": lambda x: x.transpose(0, 1).reshape(x.shape),
}
PLACED = {
    ("query_places", "key_places"): "positions of queries and keys",
    ("query_documents", "key_documents"): "documents of queries and keys",
    (*("query_documents", "key_documents"), *("query_places", "key_places")): "positions and documents",
}
