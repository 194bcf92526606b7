"""First calls: a worker makes them to find out how its candidate is called, and the judge hears of each.

So one that hangs is found after the deadline of a call, by its number and its inputs, and many slow ones are no hang.
"""

from __future__ import annotations

import os
import sys
from _thread import LockType, allocate_lock, get_ident, start_new_thread  # which no candidate changes by a hook
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, process_time
from types import FrameType
from typing import Any, TypeVar

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.out_of_memory import is_out_of_memory
from attention_conformance.implementations.api.safe_call import error_line, shown_place
from attention_conformance.implementations.api.watched_calls import StoppedError, watched_by
from attention_conformance.implementations.discovery.probe import first_part
from attention_conformance.implementations.discovery.signatures import REMEDY
from attention_conformance.implementations.worker.interruption import of_candidate
from attention_conformance.implementations.worker.limits import LONGEST, STARTING
from attention_conformance.implementations.worker.output import shortened
from attention_conformance.implementations.worker.wire import Message, encode

Answer = TypeVar("Answer")
WHICH = "the first calls, by which its interface is read"
ALIKE = 30.0
"""Seconds of calls that all raise the same, after which no other way to call it is tried."""
COMPUTING = 0.3
"""The share of a processor that a process has at least while others alone make it late."""
FULL = 8
"""Calls without memory, none of which is answered, after which no more are made."""
OFTEN = 8
"""Looks at a call within its deadline; in the middle of it, the judge is told which call it is."""
INPUTS = 8
"""Inputs of a call that are named."""


@dataclass
class FirstCalls:
    """Counts and times them.

    Attributes:
        tell: sends the judge how many calls were answered, whether one has begun, and which it is, once that is known.
        limit: seconds, after which no more are made.
        deadline: seconds of each.
        lacking: the first exception for want of memory.
    """

    tell: Callable[[Mapping[str, Any]], None]
    limit: float = STARTING
    deadline: float = STARTING
    answered: int = 0
    raised: int = 0
    lacking: BaseException | None = None
    _full: int = 0
    _line: str | None = None
    _alike: bool = True
    _spent: float = 0.0
    _depth: int = 0
    _is_innermost: bool = False
    _began: float = 0.0
    _start: tuple[float, float] = field(default_factory=lambda: (monotonic(), process_time()))
    _thread: int = field(default_factory=get_ident)
    _going_on: LockType = field(default_factory=allocate_lock)
    _looking: LockType = field(default_factory=allocate_lock)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within it, every call is one of them."""
        self._going_on.acquire()
        self._looking.acquire()
        try:
            start_new_thread(self._look, ())
        except RuntimeError:  # too little memory for one
            self._looking.release()
        try:
            with watched_by(self):
                yield
        finally:
            self._going_on.release()
            self._looking.acquire()  # once no more is told

    def made(self, call: Callable[[], Answer]) -> Answer:
        """See `Watch`; calls that make others are none of their own."""
        if get_ident() != self._thread:
            return call()
        self._begin()
        try:
            value = call()
        except BaseException as error:
            if self._is_innermost:
                self._note(error)
            self._end()
            raise
        if self._is_innermost and _is_answer(value):
            self.answered, self._full = self.answered + 1, 0
        self._end()
        return value

    def aside(self) -> None:
        """See `Watch`."""
        self._is_innermost = False

    @property
    def lack(self) -> str:
        """How it ran out of memory; empty if it did not."""
        if self.lacking is None:
            return ""
        return f"ran out of memory in one of {WHICH}, {_before(self.answered)}: {error_line(self.lacking)}"

    def _begin(self) -> None:
        self._depth += 1
        self._is_innermost, self._began = True, monotonic()
        self._tell()

    def _end(self) -> None:
        if self._is_innermost:
            self._spent += monotonic() - self._began
        self._depth -= 1
        self._is_innermost, self._began = False, monotonic()
        if not self._depth:
            self._tell()
        if reason := self._too_long():
            raise StoppedError(reason)

    def _tell(self, call: str = "") -> None:
        self.tell({"answered": self.answered, "inside": self._depth > 0, "call": call})

    def _note(self, error: BaseException) -> None:
        self.raised += 1
        if is_out_of_memory(error):
            self.lacking, self._full = self.lacking or error, self._full + 1
        if self._alike:
            line = error_line(error)
            self._line = line if self._line is None else self._line
            self._alike = line == self._line

    def _too_long(self) -> str:
        """Why no more calls are made; empty if more are."""
        if self._full >= FULL:
            return self.lack
        if self.raised and not self.answered and self._alike and self._spent > ALIKE:
            same = f"each of {self.raised} first calls has raised the same, in {self._spent:.0f} s"
            return f"{same}: {shortened(self._line)}. If it is called in a way of its own, {REMEDY}"
        wall, computed = monotonic() - self._start[0], process_time() - self._start[1]
        if wall < self.limit or (computed > COMPUTING * wall and computed < self.limit):
            return ""
        mean = self._spent / max(1, self.answered + self.raised)
        return (
            f"{WHICH}, take longer than {self.limit:g} s, though none hangs: {self.answered} were answered, about "
            f"{mean:.2g} s each. A larger --deadline gives them as much time; or {REMEDY}"
        )

    def _look(self) -> None:
        try:
            with suppress(Exception):  # of what the candidate has changed
                self._tell_which()
        finally:
            self._looking.release()

    def _tell_which(self) -> None:
        """Tells which call it is that takes long."""
        told, pause = 0.0, max(self.deadline / OFTEN, 0.02)
        while not self._going_on.acquire(timeout=pause):
            began = self._began
            if self._is_innermost and began != told and monotonic() - began > self.deadline / 2:
                told = began
                if frame := sys._current_frames().get(self._thread):
                    self._tell(called(frame))


def first_calls(tell: Callable[[Message], None], request: Message) -> FirstCalls:
    """What watches those by which a hello is answered, for as long as the judge allows."""
    number, deadline = request.fields["number"], request.fields.get("deadline", STARTING)
    return FirstCalls(lambda said: tell(Message({**said, "number": number})), max(STARTING, deadline), deadline)


def teller(stream: int) -> Callable[[Message], None]:
    """What writes a message that is no answer yet; where the candidate has closed the stream, nothing."""
    write = os.write

    def tell(message: Message) -> None:
        with suppress(OSError):
            write(stream, encode(message))

    return tell


def _is_answer(value: object) -> bool:
    """Whether it may be what a candidate answers: the suite also looks at one with care, which gives no arrays."""
    return isinstance(value, Result) or isinstance(first_part(value), Result) or hasattr(first_part(value), "shape")


def called(frame: FrameType) -> str:
    """The call of a candidate that is the outermost one of these frames, its inputs, and the line that is running."""
    frames = []
    place: FrameType | None = frame
    while place is not None and place.f_code is not FirstCalls.made.__code__:
        frames += [place] if of_candidate(place) else []
        place = place.f_back
    if not frames:
        return ""
    code, held = frames[-1].f_code, frames[-1].f_locals
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    inputs = [text for name in names if name != "self" and (text := _given(name, held.get(name)))]
    line = shown_place(Path(frames[0].f_code.co_filename), frames[0].f_lineno)
    return f"{code.co_qualname}({', '.join(inputs[:INPUTS])}) ({line})"


def _given(name: str, value: object) -> str:
    """An input by its name and shape, or its value; empty where it says nothing."""
    with suppress(Exception):  # whatever the candidate has put there
        if isinstance(value, bool | int | float | str):
            return f"{name}={value!r:.40}"
        if shape := getattr(value, "shape", None):
            return f"{name} {tuple(shape)}"
    return ""


@dataclass(frozen=True)
class Heard:
    """What the judge has heard of them last.

    Attributes:
        answered: how many were.
        inside: whether one has begun.
        call: which one it is, where that is known.
    """

    answered: int
    inside: bool
    call: str


def late(said: Heard | None, seconds: float, deadline: float) -> str:
    """What a process did that has not answered in so many seconds, or made a first call that took the deadline."""
    about = float(f"{seconds:.2g}")
    if said is None or not said.inside:
        return f"gave no answer within {about:g} s"
    which = f": {said.call}" if said.call else ""
    return f"hung in one of {WHICH}, {_before(said.answered)}: no answer within {deadline:g} s{which}"


def _before(answered: int) -> str:
    return f"after about {answered} that it answered" if answered else "before it answered any"


def heard(message: Message) -> Heard | None:
    """What a message says of the first calls, if it is no answer."""
    if "inside" not in message.fields:
        return None
    with suppress(KeyError, TypeError, ValueError):
        given = message.fields
        return Heard(int(given["answered"]), bool(given["inside"]), shortened(given["call"], LONGEST))
    return None
