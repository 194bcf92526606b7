"""Functions with T5's biases of distances, whose table of buckets has a name of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.probe import first_part
from attention_conformance.implementations.discovery.signatures import positional, required, signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES
from attention_conformance.spec.optional import optional

torch = optional("torch")
KNOWN = "bucketed_bias"
DIRECTIONS = "bidirectional"
COMPANIONS = {"max_distance", DIRECTIONS}
"""Parameters of which one stands next to such a table."""
WORDS = {"bias", "biases", "table", "rel", "relative", "emb", "embedding", "embeddings"}
"""Of which one is in its name."""
COUNT_WORDS = {"buckets", "num", "n", "number", "of", "rel", "relative", "attention", "attn"}
"""Of which the name of a parameter consists that states how many buckets there are."""
ROWS, SIZE = 8, 6
"""Of a table that is tried, and heads and tokens of the call."""


@dataclass(frozen=True)
class BucketTable:
    """A function as one of `bucketed_bias`, (buckets, H).

    Attributes:
        function: it.
        own: its parameter.
        count: that of the number of rows, which is given with each table; empty for none.
        causal: whether it hides later keys where its biases are of earlier ones alone; then these are not judged.
    """

    function: Callable[..., Any]
    own: str
    count: str = ""
    causal: bool = False

    @property
    def __signature__(self) -> inspect.Signature:
        parameters = signature_of(self.function).parameters.values()
        left = [p for p in parameters if p.name != self.count and not (self.causal and p.name == DIRECTIONS)]
        return inspect.Signature([p.replace(name=KNOWN) if p.name == self.own else p for p in left])

    @property
    def about(self) -> str:
        """For a note."""
        table = f"its {self.own!r} is a table of T5's buckets{f', as many as {self.count!r}' if self.count else ''}"
        return f"{table}; {DIRECTIONS!r} not judged: where it is False, later keys are hidden" if self.causal else table

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The function's answer."""
        given = {self.own if name == KNOWN else name: each for name, each in options.items()}
        table = given.get(self.own)
        counted = {self.count: len(table)} if self.count and table is not None else {}
        return self.function(*inputs, **given, **counted)


def with_bucket_table(function: Callable[..., Any]) -> BucketTable | None:
    """The function, where one parameter next to those of T5's biases is their table; None for any other."""
    signature = signature_of(function)
    names, inputs = set(signature.parameters), [p.name for p in positional(signature)[:3]]
    free = [p for p in signature.parameters.values() if required(p) or p.default is None]
    own = [p.name for p in free if p.name not in inputs and p.name not in KNOWN_NAMES and _names_table(p.name)]
    if not names & COMPANIONS or KNOWN in names or len(own) != 1:
        return None
    made = BucketTable(function, own[0], next((name for name in sorted(names) if _counts_rows(name)), ""))
    if not _reads(made):
        return None
    return replace(made, causal=DIRECTIONS in names and _hides_later(made))


def _names_table(name: str) -> bool:
    return bool(WORDS & {*name.lower().split("_")}) and not _counts_rows(name)


def _counts_rows(name: str) -> bool:
    return "buckets" in (words := {*name.lower().split("_")}) and words <= COUNT_WORDS


def _reads(made: BucketTable) -> bool:
    """Whether rows of a table that differ change the answer: a single one may be read nowhere, by mistake."""
    query, key, value = _inputs()
    table = torch.zeros(ROWS, SIZE)
    other = table + torch.arange(ROWS)[:, None]
    rows = [_answer(made, query, key, value, **{KNOWN: each}) for each in (table, other)]
    return all(row is not None and row.shape == value.shape for row in rows) and not torch.equal(*rows)


def _hides_later(made: BucketTable) -> bool:
    """Whether the last key changes no other query's answer, where biases are of earlier keys alone.

    Whichever axis is that of the tokens: the last head changes no other head's in any case.
    """
    query, key, value = _inputs()
    options = {KNOWN: torch.zeros(ROWS, SIZE), DIRECTIONS: False}
    plain = _answer(made, query, key, value, **options)
    for axis in (1, 2):
        other = value.clone()
        other.select(axis, -1).add_(1.0)
        changed = _answer(made, query, key, other, **options)
        if plain is None or changed is None or plain.shape != value.shape or changed.shape != value.shape:
            return False
        if not torch.equal(plain.narrow(axis, 0, SIZE - 1), changed.narrow(axis, 0, SIZE - 1)):
            return False
    return True


def _inputs() -> tuple[Any, ...]:
    return tuple(torch.randn(3, 2, SIZE, SIZE, 4, generator=torch.Generator().manual_seed(5)))


def _answer(function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    return first_part(safe_call(partial(function, *inputs, **options)).value)
