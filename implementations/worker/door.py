"""The door: starts a worker, sends it requests, and notices when it dies or does not answer."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any
from uuid import uuid4

from attention_conformance.implementations.api.contract import PathError
from attention_conformance.implementations.api.safe_call import CandidateError, LostError
from attention_conformance.implementations.discovery.loading import TargetError
from attention_conformance.implementations.worker.elsewhere import worker_command
from attention_conformance.implementations.worker.leftovers import MARK, Leftover, descendants, end_leftovers
from attention_conformance.implementations.worker.limits import (
    AHEAD,
    CALL,
    DEATHS,
    ENDED,
    ENDING,
    KEPT,
    LINES,
    LONGEST,
    PIECE,
    SHOWN,
    SLOWEST,
    STARTING,
)
from attention_conformance.implementations.worker.nursery import environment, forked
from attention_conformance.implementations.worker.process import Process, started
from attention_conformance.implementations.worker.resources import NO_ALLOCATION, was_full
from attention_conformance.implementations.worker.wire import LENGTH, Message, WireError, decode, encode, length_of


class OrphanedError(LostError):
    """The candidate's process has ended with its parent, as all others do: it is unknown which of them is to blame."""


@dataclass
class Door:
    """A worker process, and the requests to it.

    Attributes:
        hello: what is sent first after each start: the target, the conventions, the device.
        command: what speaks the protocol over its standard input and output.
        deadline: seconds for a small call.
        deaths: why each process of the worker was lost.
        memory: bytes that the candidate may allocate, as the worker has limited itself; None: it has not.
        number: of the last request.
        unanswered: the numbers of the requests whose answers were not read yet.
        early: answers that were read and not yet called for.
        left: the processes that each process of the worker has left running.
        mark: what all processes that stem from the worker have in their environment.
    """

    hello: Mapping[str, Any]
    command: Sequence[str]
    deadline: float = CALL
    deaths: list[str] = field(default_factory=list)
    left: list[Leftover] = field(default_factory=list)
    number: int = 0
    unanswered: list[int] = field(default_factory=list)
    early: dict[int, Message] = field(default_factory=dict)
    process: Process | None = None
    output: Output | None = None
    memory: int | None = None
    mark: str = field(default_factory=lambda: uuid4().hex)

    @property
    def exhausted(self) -> str:
        """Why nothing more is sent: empty while the worker runs, or may be started again."""
        if len(self.deaths) < DEATHS:
            return ""
        return f"its process was lost {len(self.deaths)} times, last because it {self.deaths[-1]}"

    def start(self) -> Message:
        """Starts the worker and says hello.

        Raises:
            TargetError: the candidate cannot be used, or there is no such program.
            LostError: it has died, or has not answered in time.
        """
        self.end()
        self.memory = self.hello.get("memory")
        self.process = self._started()
        os.set_blocking(self.process.stdin.fileno(), False)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.output = Output(self.process.stderr)
        try:
            answer = self._request(Message({**self.hello, "request": "hello"}), max(STARTING, self.deadline))
            limit = answer.fields.get("memory")
            self.memory = limit if isinstance(limit, int) else self.memory
            return answer
        except (CandidateError, TargetError):
            self.end()
            raise

    def _started(self) -> Process:
        given = {**environment(), MARK: self.mark}
        if self.command == worker_command() and (process := forked(given)) is not None:
            return process
        try:
            return started(self.command, given)
        except OSError as error:
            raise TargetError(f"{self.command[0]!r} cannot be started ({error.strerror})") from None

    def request(self, message: Message, work: float = 0.0) -> Message:
        """The answer to a request, by a worker that is started again if it was lost.

        Args:
            message: has the field `request`.
            work: multiply-adds of the call, for which a slow candidate gets more time.

        Raises:
            CandidateError: the candidate raised, or returned something unusable.
            LostError: it died, or did not answer in time; or it has done so too often.
            PathError: it left the code path that it stands for.
        """
        if self.exhausted:
            raise LostError(self.exhausted)
        try:
            return self._restarted(message, work)
        except OrphanedError:
            self.deaths.pop()
            return self._restarted(message, work)

    def _restarted(self, message: Message, work: float) -> Message:
        if self.process is None:
            try:
                self.start()
            except TargetError as error:
                raise self._lost(f"could not be started again: {error}") from error
        return self._request(message, self.deadline + work / SLOWEST)

    def begin(self, message: Message, work: float = 0.0) -> Callable[[], Message]:
        """Sends a request ahead, and returns what waits for the answer; see `request`.

        A request that is large is only sent then: the worker may be writing a large answer, which has to be read first.
        """
        seconds, process = self.deadline + work / SLOWEST, self.process
        data = self._numbered(message)
        if process is None or self.exhausted or len(data) > AHEAD:
            return lambda: self.request(message, work)
        number = self.number
        try:
            self._write(data, time.monotonic() + seconds)
        except (OSError, TimeoutError):
            # Its process is lost: the request before this one will find out, or this one as it is sent again.
            return lambda: self.request(message, work)
        self.unanswered.append(number)

        def answer() -> Message:
            if self.process is not process:  # it was lost before it came to this request
                return self.request(message, work)
            try:
                return self._answer(number, seconds)
            except OrphanedError:
                self.deaths.pop()
                return self.request(message, work)

        return answer

    def _request(self, message: Message, seconds: float) -> Message:
        data = self._numbered(message)
        with self._losses(seconds):
            self._write(data, time.monotonic() + seconds)
        self.unanswered.append(self.number)
        return self._answer(self.number, seconds)

    def _numbered(self, message: Message) -> bytes:
        self.number += 1
        return encode(Message({**message.fields, "number": self.number}, message.arrays))

    def _write(self, data: bytes, end: float) -> None:
        assert self.process is not None
        view = memoryview(data)
        while view:
            _wait(self.process.stdin, select.POLLOUT, end)
            view = view[os.write(self.process.stdin.fileno(), view[:PIECE]) :]

    def _answer(self, number: int, seconds: float) -> Message:
        """The answer with a number. Those before it belong to requests that were sent ahead."""
        end = time.monotonic() + seconds
        while number in self.unanswered:
            with self._losses(seconds):
                received = decode(self._bytes(length_of(self._bytes(LENGTH, end)), end))
            stated, expected = received.fields.get("number"), self.unanswered.pop(0)
            if stated != expected:
                raise self._lost(f"answered with number {stated!r} to the request with number {expected}")
            self.early[expected] = received
        answer = self.early.pop(number)
        if answer.fields.get("out_of_memory"):
            # It may hold what it has left behind for ever: what comes later gets a new process.
            raise self._lost(shortened(answer.fields.get("error", "")), out_of_memory=True)
        return checked(answer)

    @contextlib.contextmanager
    def _losses(self, seconds: float) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise self._lost(f"gave no answer within {seconds:.2g} s", late=True) from None
        except (EOFError, OSError):
            raise self._died() from None
        except WireError as error:
            raise self._lost(f"sent what is no answer: {error}") from None

    def _bytes(self, count: int, end: float) -> bytes:
        assert self.process is not None
        pieces, missing = [], count
        while missing:
            _wait(self.process.stdout, select.POLLIN, end)
            pieces.append(os.read(self.process.stdout.fileno(), missing))
            if not pieces[-1]:
                raise EOFError
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def _lost(self, how: str, late: bool = False, out_of_memory: bool = False) -> LostError:
        last = "" if self.output is None else self.output.last_lines()
        self.end()
        if out_of_memory and self.memory is not None:
            how = f"{how}; it may take {self.memory / 2**30:.3g} GiB (--memory)"
        self.deaths.append(how)
        return LostError(f"{how}; its last output: {last}" if last else how, late, out_of_memory)

    def _died(self) -> LostError:
        assert self.process is not None
        assert self.output is not None
        if (ended := self.process.ended(ENDED)) is None:
            return self._lost("closed its connection")
        code, peak = ended
        how = how_ended(code)
        killed = code in (-signal.SIGKILL, -signal.SIGABRT)
        full = was_full(peak, self.process.inherited, self.memory)
        refused = any(words in self.output.last_lines() for words in NO_ALLOCATION)
        orphaned = self.process.orphaned
        lost = self._lost(how, out_of_memory=killed and (full or refused))
        return OrphanedError(str(lost)) if orphaned else lost

    def close(self) -> str:
        """Lets the worker end by itself, and states how it ended if that was not well; then see `end`."""
        if self.process is None:
            return ""
        known = descendants(self.process.number)
        self.process.stdin.close()
        how = how_ended(ended[0]) if (ended := self.process.ended(ENDING)) and ended[0] else ""
        self.end(known)
        return how

    def end(self, known: frozenset[tuple[int, int]] = frozenset()) -> None:
        """Ends the worker, and the processes that stem from it, or are known to."""
        if self.process is None:
            return
        self.process.stop()  # so that it starts no more of them, and stays their parent
        self.left += end_leftovers(self.mark, self.process.number, known)
        self.process.kill()
        with contextlib.suppress(OSError):
            os.killpg(self.process.number, signal.SIGKILL)
        self.process.stdin.close()
        self.process.stdout.close()
        self.process = self.output = None
        self.unanswered.clear()
        self.early.clear()


def _wait(stream: IO[bytes], event: int, end: float) -> None:
    """Waits until a stream is ready.

    Raises:
        TimeoutError: it is not in time.
    """
    ready = select.poll()
    ready.register(stream.fileno(), event)
    if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError


def how_ended(code: int) -> str:
    """How a process ended, by its exit status, which is negative for a signal."""
    if code >= 0:
        return f"ended its process with exit status {code}"
    if -code in {each.value for each in signal.Signals}:
        return f"died of {signal.Signals(-code).name} ({signal.strsignal(-code)})"
    return f"died of signal {-code}"


def checked(answer: Message) -> Message:
    """An answer that is none of the errors.

    Raises:
        CandidateError, PathError, TargetError: what the worker reports.
    """
    fields = answer.fields
    if "unusable" in fields:
        raise TargetError(shortened(fields["unusable"]))
    if "left_path" in fields:
        raise PathError(shortened(fields["left_path"]))
    if "error" in fields:
        raise CandidateError(shortened(fields["error"]), shortened(fields.get("exception", "")))
    return answer


def shortened(text: object) -> str:
    """A text of the candidate on one line, without control characters, and not too long."""
    plain = "".join(c if c.isprintable() else " " for c in str(text)[: 2 * LONGEST])
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}... ({len(str(text))} characters)"


class Output:
    """What the candidate prints, read by a thread so that it never waits for a reader."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.kept = b""
        self.total = 0
        self._taken = 0
        self._stream = stream
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with self._stream:
            while piece := os.read(self._stream.fileno(), PIECE):
                self.total += len(piece)
                self.kept = (self.kept + piece)[-KEPT:]

    def taken(self) -> str:
        """What was printed since the last time, without control characters; of much, the end."""
        new, self._taken = self.total - self._taken, self.total
        kept = self.kept[-min(new, SHOWN) :] if new else b""
        text = "".join(c if c.isprintable() or c == "\n" else " " for c in kept.decode(errors="replace"))
        return text if new <= SHOWN else f"({new - SHOWN} bytes before this are not shown)\n{text}"

    def last_lines(self) -> str:
        """The last lines, as one."""
        self._thread.join(0.2)
        lines = [line for line in self.kept[-4096:].decode(errors="replace").splitlines() if line.strip()]
        return shortened(" / ".join(line.strip() for line in lines[-LINES:]))
