"""Watched calls: what makes each call into a candidate, where someone counts and times them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

Answer = TypeVar("Answer")


class StoppedError(BaseException):
    """No more calls are made; it passes by what guards them, up to who watches. The message states why."""


class Watch(Protocol):
    """Who watches calls."""

    def made(self, call: Callable[[], Answer]) -> Answer:
        """What a call returns or raises; a call may make others.

        Raises:
            StoppedError: it was the last one.
        """
        ...

    def aside(self) -> None:
        """See `aside`."""
        ...


_watches: list[Watch] = []


@contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
    """Within it, every call is made by `watch`."""
    _watches.append(watch)
    try:
        yield
    finally:
        _watches.remove(watch)


def aside(call: Callable[[], Answer]) -> Callable[[], Answer]:
    """A call that is none into a candidate: it reads an answer, and is not counted."""

    def read() -> Answer:
        for watch in _watches:
            watch.aside()
        return call()

    return read


def made(call: Callable[[], Answer]) -> Answer:
    """What a call returns or raises, made by who watches it, if anyone does."""
    return _watches[-1].made(call) if _watches else call()
