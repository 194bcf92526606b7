"""Functions that have to be given several sizes of their inputs: each is computed from the shapes of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import product
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.one_sample import stacked
from attention_conformance.implementations.discovery.modules.constructor_names import GROUPS, Size, size_of
from attention_conformance.implementations.discovery.probe import first_part, shape_of
from attention_conformance.implementations.discovery.signatures import positional, required, signature_of
from attention_conformance.implementations.discovery.vocabulary import HEAD_COUNTS, KNOWN_NAMES, words_of

HEADS = "num_heads"
"""The parameter that it keeps where its inputs have the widths of all heads in one axis."""


class Count(StrEnum):
    """What a parameter counts."""

    HEADS = "heads of queries"
    KEY_HEADS = "heads of keys"
    SHARING = "heads of queries for each of keys"
    WIDTH = "the width of a head"
    ALL_WIDTHS = "the width of all heads"
    TOKENS = "queries"
    SAMPLES = "samples"
    BLOCK = "keys or queries in a block"


BLOCK = 4
"""Fewer than the tokens of most cases, so that there are several blocks."""
OF_BLOCKS = {"block", "tile", "chunk", "br", "bc"}
NUMBER = {"num", "n", "number", "nb", "no", "count"}
OF_HEADS = {"head", "heads"}


def counts(name: str) -> tuple[Count, ...]:
    """What a parameter of this name may count, the likelier first; nothing where it is no size."""
    words = words_of(name)
    rest = words - NUMBER - OF_HEADS
    if name in HEAD_COUNTS or (rest <= {"q", "query", "queries"} and (words & NUMBER or words & OF_HEADS) and rest):
        return (Count.HEADS,)
    if (
        rest <= {"kv", "key", "value", "k", "v"}
        and rest
        and (words & NUMBER or words & OF_HEADS)
        and "dim" not in words
    ):
        return (Count.KEY_HEADS,)
    if words & {"rep", "repeat", "repeats"}:
        return (Count.SHARING,)
    if words & {"group", "groups"} or name in GROUPS:
        return Count.SHARING, Count.KEY_HEADS
    if words & OF_BLOCKS and not words & {"num", "number", "table", "tables", "mask"}:
        return (Count.BLOCK,)
    if name.lower() in ("batch_size", "bsz", "batch"):
        return (Count.SAMPLES,)
    if name.lower() in ("seq_len", "seqlen", "seq_length", "sequence_length", "n_tokens", "num_tokens"):
        return (Count.TOKENS,)
    return {Size.HEAD_WIDTH: (Count.WIDTH,), Size.WIDTH: (Count.ALL_WIDTHS, Count.WIDTH)}.get(size_of(name), ())  # type: ignore[arg-type]


@dataclass(frozen=True)
class GivenSizes:
    """A function that is given sizes in each call.

    Attributes:
        function: it.
        sizes: what its parameters count.
        axis: that of the heads in its inputs; None where these have heads and widths in one axis, the last.
        single: whether it takes one sample at a time.
    """

    function: Callable[..., Any]
    sizes: Mapping[str, Count]
    axis: int | None
    single: bool = False

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function).parameters.values()
        left = [p for p in own if p.name not in self.sizes]
        heads = [inspect.Parameter(HEADS, inspect.Parameter.KEYWORD_ONLY)] if self.axis is None else []
        options = [p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p for p in left[3:]]
        return inspect.Signature([*left[:3], *heads, *options])

    @property
    def about(self) -> str:
        """For a note."""
        blocks = [repr(name) for name, count in self.sizes.items() if count is Count.BLOCK]
        inputs = [repr(name) for name, count in self.sizes.items() if count is not Count.BLOCK]
        notes = [f"its {', '.join(inputs)} are those of its inputs"] if inputs else []
        return "; ".join([*notes, *(f"its {name} is {BLOCK}" for name in blocks)])

    def __call__(self, query: Any, key: Any, value: Any, *, num_heads: int = 0, **options: Any) -> Any:
        """The function's answer.

        Raises:
            ValueError: it takes one sample at a time, and is given an array for all of them.
        """
        if self.single and query.ndim > 2:
            if any(hasattr(option, "shape") for option in options.values()):
                raise ValueError("it takes one sample at a time")
            whole = zip(query, key, value, strict=True)
            return _stacked([self(*each, num_heads=num_heads, **options) for each in whole], query)
        heads = num_heads if self.axis is None else query.shape[self.axis]
        width = query.shape[-1] // max(1, num_heads) if self.axis is None else query.shape[-1]
        key_heads = key.shape[-1] // max(1, width) if self.axis is None else key.shape[self.axis]
        found = {
            Count.HEADS: heads,
            Count.KEY_HEADS: key_heads,
            Count.SHARING: heads // max(1, key_heads),
            Count.WIDTH: width,
            Count.ALL_WIDTHS: heads * width,
            Count.TOKENS: query.shape[-2 if self.axis in (None, 1) else 1],
            Count.SAMPLES: query.shape[0],
            Count.BLOCK: BLOCK,
        }
        given = {name: found[count] for name, count in self.sizes.items()}
        return self.function(query, key, value, **given, **options)


def _stacked(answers: list[Any], query: Any) -> Any:
    return stacked([*map(first_part, answers)]) if answers else query


SHARED = (((2, 6, 5, 4), (2, 3, 5, 4), 1), ((2, 5, 6, 4), (2, 5, 3, 4), 2), ((2, 5, 24), (2, 5, 12), None))
"""Shapes of queries and of keys of fewer heads, and the axis of heads."""
OTHERS: tuple[tuple[tuple[int, ...], int | None], ...] = (((2, 3, 5, 4), 1), ((2, 5, 3, 4), 2), ((2, 5, 12), None))
SINGLE = (((5, 24), (5, 12), None), ((5, 12), (5, 12), None))
"""The same of one sample alone."""


Shapes = tuple[tuple[int, ...], tuple[int, ...], int | None]


def shapes() -> Iterator[Shapes]:
    """Shapes of queries and keys, and the axis of their heads; those with fewer heads of keys first."""
    yield from SHARED
    yield from ((shape, shape, axis) for shape, axis in OTHERS)
    yield from SINGLE


def with_given_sizes(function: Callable[..., Any]) -> GivenSizes | None:
    """The function, given the sizes that it needs; None where it needs something else.

    Heads and widths alone are given elsewhere, but for a function of one sample at a time.
    """
    signature = safe_call(lambda: signature_of(function)).value
    if signature is None or len(positional(signature)) < 3:
        return None
    inputs = [p.name for p in positional(signature)[:3]]
    needed = [p.name for p in signature.parameters.values() if required(p) and p.name not in inputs]
    unknown = [name for name in needed if name not in KNOWN_NAMES]
    usual = [
        name for name in unknown if name in HEAD_COUNTS or counts(name)[:1] in ((Count.WIDTH,), (Count.ALL_WIDTHS,))
    ]
    if not unknown or not all(map(counts, unknown)):
        return None
    several = product(shapes(), (dict(zip(unknown, each, strict=True)) for each in product(*map(counts, unknown))))
    made = next((found for each in several if (found := _given(function, *each)) is not None), None)
    return None if made is None or (len(usual) == len(unknown) and not made.single) else made


def _given(function: Callable[..., Any], shapes: Shapes, sizes: Mapping[str, Count]) -> GivenSizes | None:
    """The function, given these sizes of inputs of these shapes; None where its answer has another shape."""
    of_query, of_key, axis = shapes
    made = GivenSizes(function, sizes, axis, len(of_query) == 2)
    heads = {HEADS: of_query[-1] // 4} if axis is None else {}
    for query, key in zip(of_each_kind(of_query), of_each_kind(of_key), strict=True):
        answer = safe_call(partial(made, query, key, key, **heads)).value
        if shape_of(first_part(answer)) == of_query:
            return made
    return None
