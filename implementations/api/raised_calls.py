"""Raised calls: what raises while the interface of a candidate is read, so that the same can be called once more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

MOST = 32
"""Calls that are made once more, at most: a part of the first calls that takes no time to speak of."""


@dataclass
class RaisedCalls:
    """The calls that raised.

    Attributes:
        first, last: of those that raised the same exception, by its line.
        exits: exceptions that end a process, by their lines.
    """

    first: dict[str, Callable[[], object]] = field(default_factory=dict)
    last: dict[str, Callable[[], object]] = field(default_factory=dict)
    exits: list[str] = field(default_factory=list)

    def note(self, line: str, call: Callable[[], object]) -> None:
        """Keeps a call that raised; it makes its own inputs, and can be made at any time."""
        if line in self.first:
            self.last[line] = call
        else:
            self.first[line] = call

    def note_exit(self, line: str) -> None:
        """Keeps an exception that ends a process."""
        if line not in self.exits:
            self.exits.append(line)

    @property
    def chosen(self) -> list[tuple[str, Callable[[], object]]]:
        """The calls that are made once more: some of all kinds, if there are too many."""
        noted = [*self.first.items(), *self.last.items()]
        return noted[:: -(-len(noted) // MOST) or 1]


CURRENT: ContextVar[RaisedCalls | None] = ContextVar("raised calls", default=None)


@contextmanager
def noted() -> Iterator[RaisedCalls]:
    """What raises within it."""
    token = CURRENT.set(calls := RaisedCalls())
    try:
        yield calls
    finally:
        CURRENT.reset(token)
