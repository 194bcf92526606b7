"""Sizes of blocks with defaults: smaller ones are given where usual lengths are refused, or as another way to call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.probe import first_part, shape_of
from attention_conformance.implementations.discovery.signatures import signature_of

OF_BLOCKS = {"block", "tile", "chunk", "bucket"}
OF_QUERIES, OF_KEYS = {"q", "query", "queries"}, {"k", "key", "keys", "kv"}
ROWS, COLUMNS = OF_QUERIES | {"m"}, OF_KEYS | {"n"}
"""The same, with the letters that kernels have for the rows and the columns of scores."""
SIZES = {"size", "len", "length", *OF_BLOCKS}
MOST = 4
"""Tokens of a block."""
LOOKED_AT = (((2, 5, 6, 4), 2), ((2, 6, 5, 4), 1), ((10, 6, 4), 1), ((6, 4), 0))
"""Shapes of inputs, and the axis of tokens."""
WAYS = (((3, 3), (1, 1)), ((4, 3), (4, 2), (2, 1)), ((3, 4), (2, 4), (1, 2)))
"""Numbers of tokens in a block of queries and in one of keys: as many, more, and fewer; the last are taken elsewhere,
too, where a block has to divide lengths or other blocks."""
UNLIKE = (PLAIN, PLAIN.sized(query_length=9, key_length=9), PLAIN.sized(query_length=5, key_length=18))
NUMBER = {"num", "n", "number", "count"}
OF_SPLITS = {"split", "splits"}
"""Words in the names of how many parts of the keys are answered apart and merged."""
SPLITS = (3, 2)
OF_PATTERNS = re.compile(r"local|sparse|window|dilat|stride|pattern|block_?mask|nearby", re.IGNORECASE)
"""What the text of a function has whose blocks may state which keys are seen."""


def block_names(function: Callable[..., Any]) -> dict[str, set[str]]:
    """Its parameters that are sizes of blocks by their names and defaults, each with its words."""
    signature = safe_call(lambda: signature_of(function)).value
    every = [] if signature is None else list(signature.parameters.values())[3:]
    named = {p.name: {*p.name.lower().split("_")} for p in every if type(p.default) is int and p.default > 0}
    return {n: w for n, w in named.items() if w & OF_BLOCKS and w <= SIZES | ROWS | COLUMNS}


@dataclass(frozen=True)
class InBlocks:
    """A function that is given sizes of blocks which divide the lengths of its inputs.

    Attributes:
        function: it.
        names: its parameters for these sizes.
        axis: that of the tokens in its inputs.
    """

    function: Callable[..., Any]
    names: Collection[str]
    axis: int

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function)
        return own.replace(parameters=[p for p in own.parameters.values() if p.name not in self.names])

    @property
    def about(self) -> str:
        """For a note."""
        return f"given blocks of at most {MOST} tokens in {', '.join(map(repr, self.names))}"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        tokens = gcd(query.shape[self.axis], key.shape[self.axis])
        size = next((size for size in range(MOST, 1, -1) if tokens % size == 0), 1)
        return self.function(query, key, value, **options, **dict.fromkeys(self.names, size))


def with_block_sizes(function: Callable[..., Any]) -> InBlocks | None:
    """The function with smaller blocks than its defaults, where it does not answer with these; else None."""
    names = block_names(function)
    for shape, axis in LOOKED_AT if names else ():
        for x in of_each_kind(shape):
            made = InBlocks(function, names, axis)
            if not _answers(function, x) and _answers(made, x):
                return None if any(_answers(function, y) for y in _others()) else made
    return None


def _others() -> Iterator[Any]:
    yield from (x for shape, _ in LOOKED_AT for x in of_each_kind(shape))


def _answers(function: Callable[..., Any], x: Any) -> bool:
    """Whether its answer has the shape of its inputs."""
    return shape_of(first_part(safe_call(partial(function, x, x, x)).value)) == tuple(x.shape)


def in_small_blocks(check: ClaimCheck) -> dict[str, RenamedCall]:
    """The call in smaller blocks than usual, by a text for it, where queries and keys have sizes that are no pattern.

    Their numbers divide no length where others are taken as well.
    """
    call = check.function
    if not isinstance(call, RenamedCall) or OF_PATTERNS.search(code_of(as_written(call.function))):
        return {}
    names = block_names(call.function)
    apart = [name for name, words in names.items() if bool(words & ROWS) is not bool(words & COLUMNS)]
    both = {bool(names[name] & ROWS) for name in apart} == {True, False}
    found = {}
    for ways in WAYS if both else ():
        of_each = ({n: keys if names[n] & COLUMNS else queries for n in apart} for queries, keys in ways)
        several = ((each, call.giving(each)) for each in of_each)
        taken = next((each for each in several if not _refuses(check, each[1])), None)
        if taken is not None:
            found[f"with {', '.join(f'{n}={size}' for n, size in taken[0].items())}"] = taken[1]
    return found


def _refuses(check: ClaimCheck, call: RenamedCall) -> bool:
    return any(replace(check, function=call).run(case).error for case in UNLIKE)


def in_splits(check: ClaimCheck, function: Callable[..., Any]) -> dict[str, RenamedCall]:
    """The call with its keys in several parts, by a text for it, where a number states how many these are."""
    call, signature = check.function, safe_call(lambda: signature_of(function)).value
    every = [] if signature is None else list(signature.parameters.values())[3:]
    counts = {p.name for p in every if p.default is None or (type(p.default) is int and p.default < 2)}
    names = [
        n for n in counts if (words := {*n.lower().split("_")}) & OF_SPLITS and words <= OF_SPLITS | NUMBER | OF_KEYS
    ]
    if len(names) != 1 or not isinstance(call, RenamedCall) or names[0] in call.options.spelled.values():
        return {}
    if OF_PATTERNS.search(code_of(as_written(function))):
        return {}
    for number in SPLITS:
        if not _refuses(check, other := call.giving({names[0]: number})):
            return {f"with {names[0]}={number}": other}
    return {}
