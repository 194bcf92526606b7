"""The door: starts a worker, sends it requests, and notices when it dies or does not answer."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from attention_conformance.implementations.api.out_of_memory import NO_ALLOCATION
from attention_conformance.implementations.api.safe_call import CandidateError, LostError
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.worker.elsewhere import worker_command
from attention_conformance.implementations.worker.first_calls import Heard, heard, late
from attention_conformance.implementations.worker.forms import checked
from attention_conformance.implementations.worker.leftovers import MARK, Leftover, descendants, end_leftovers
from attention_conformance.implementations.worker.limits import (
    AHEAD,
    CALL,
    DEATHS,
    ENDED,
    ENDING,
    FAULTS,
    HELD_UP,
    LOOK,
    PIECE,
    SLOWEST,
    STARTING,
)
from attention_conformance.implementations.worker.nursery import environment, forked
from attention_conformance.implementations.worker.output import Output, shortened
from attention_conformance.implementations.worker.process import Process, how_ended, started, too_many
from attention_conformance.implementations.worker.resources import memory_limit, shared_memory, was_full
from attention_conformance.implementations.worker.wire import LENGTH, Message, WireError, decode, encode, length_of


@dataclass
class Door:
    """A worker process, and the requests to it.

    Attributes:
        hello: what is sent first after each start: the target, the conventions, the device.
        command: what speaks the protocol over its standard input and output.
        deadline: seconds for a small call.
        deaths: why each process of the worker was lost.
        faults: the same, of those that have lost their accelerator and nothing else.
        late_start: it had too little time or memory as it started, which takes minutes: it is not started again.
        unstarted: the same, once a request has failed because of it.
        shared: a file with a line for each loss, where several judges of one run have a worker each.
        memory: bytes that the candidate may allocate, as the worker has limited itself; None: it has not.
        number: of the last request.
        unanswered: the requests whose answers were not read yet, in their order, with the seconds that each has.
        early: answers that were read and not yet called for; for the request with which the process was lost, why.
        ahead: bytes of the requests that were sent since nothing was unanswered.
        received: what the worker has sent, and was not read as an answer yet.
        left: the processes that each process of the worker has left running.
        threads: the names of threads that processes of the worker have left running as they were closed.
        never_ended: whether one of its processes went on for `ENDING` once it got no more requests.
        allowed: for how many seconds its process may have computed by the end of what is waited for.
        used: those for which it had, as this was looked at last.
        heard: what its process has said last of the first calls, before it has answered the hello.
        looked: when its shared memory was looked at last, which the system does not limit.
        mark: what all processes that stem from the worker have in their environment.
    """

    hello: Mapping[str, Any]
    command: Sequence[str]
    deadline: float = CALL
    deaths: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    late_start: LostError | None = None
    unstarted: str = ""
    shared: Path | None = None
    left: list[Leftover] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    never_ended: bool = False
    number: int = 0
    unanswered: dict[int, float] = field(default_factory=dict)
    early: dict[int, Message | LostError] = field(default_factory=dict)
    ahead: int = 0
    received: bytearray = field(default_factory=bytearray)
    process: Process | None = None
    output: Output | None = None
    memory: int | None = None
    allowed: float = 0.0
    used: float = 0.0
    looked: float = 0.0
    heard: Heard | None = None
    mark: str = field(default_factory=lambda: uuid4().hex)

    @property
    def exhausted(self) -> str:
        """Why nothing more is sent: empty while the worker runs, or may be started again."""
        return self.unstarted or too_many(self.deaths, DEATHS) or too_many(self.faults, FAULTS)

    @property
    def given_up(self) -> str:
        """Why no more clauses are begun: the same, with the losses of all judges of the run."""
        lost = [] if self.shared is None else self.shared.read_text(encoding="utf-8").splitlines()
        return self.exhausted or too_many(lost, DEATHS)

    def start(self) -> Message:
        """Starts the worker and says hello.

        Raises:
            TargetError: the candidate cannot be used, or there is no such program.
            LostError: it has died, or has not answered in time.
        """
        self.end()
        given = self.hello.get("memory")
        self.memory = memory_limit(given) if self.hello.get("target") else given
        self.process = self._started()
        os.set_blocking(self.process.stdin.fileno(), False)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.output = Output(self.process.stderr)
        try:
            answer = self._request(Message({**self.hello, "request": "hello"}), max(STARTING, self.deadline))
            limit = answer.fields.get("memory")
            self.memory = limit if isinstance(limit, int) else self.memory
            return answer
        except (CandidateError, TargetError) as error:
            if isinstance(error, LostError) and (error.late or error.out_of_memory):
                self.late_start = error
            self.end()
            raise

    def _started(self) -> Process:
        given = environment()
        if self.command == worker_command() and (process := forked({**given, MARK: self.mark})) is not None:
            return process
        try:
            return started(self.command, given, self.mark)
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
        self._read_all()
        if self.exhausted:
            raise LostError(self.exhausted)
        if self.late_start is not None:
            self.unstarted = f"as it started, its process {self.deaths[-1]}"
            raise self.late_start
        if self.process is None:
            try:
                self.start()
            except LostError:
                raise
            except (TargetError, CandidateError) as error:
                raise self._lost(f"could not be started again: {error}") from error
        return self._request(message, self.deadline + work / SLOWEST)

    def begin(self, message: Message, work: float = 0.0) -> Callable[[], Message]:
        """Sends a request ahead, and returns what waits for the answer; see `request`.

        Requests are answered in the order in which they begin. Of those that are not answered yet, no more is sent than
        a pipe holds: the worker may be writing a large answer, which has to be read first.
        """
        seconds, data = self.deadline + work / SLOWEST, self._numbered(message)
        number = self.number
        if self.ahead + len(data) > AHEAD:
            self._read_all()
        if self.process is None or self.exhausted:
            return lambda: self.request(message, work)
        try:
            self._write(data, time.monotonic() + seconds)
        except (OSError, TimeoutError, EOFError):
            # Its process is lost: the request before this one will find out, or this one as it is sent again.
            return lambda: self.request(message, work)
        self.unanswered[number] = seconds
        self.ahead += len(data)

        def answer() -> Message:
            while number in self.unanswered:
                self._read_next()
            if number not in self.early:  # the process was lost before it came to this request
                return self.request(message, work)
            return self._taken(number)

        return answer

    def _request(self, message: Message, seconds: float) -> Message:
        data = self._numbered(message)
        with self._losses(seconds):
            self._write(data, time.monotonic() + seconds)
        self.unanswered[self.number] = seconds
        self._read_next()
        return self._taken(self.number)

    def _numbered(self, message: Message) -> bytes:
        self.number += 1
        return encode(Message({**message.fields, "number": self.number}, message.arrays))

    def _write(self, data: bytes, end: float) -> None:
        assert self.process is not None
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.process.stdin.fileno(), view[:PIECE]) :]
            except BlockingIOError:
                self._wait(self.process.stdin, select.POLLOUT, end)

    def _read_all(self) -> None:
        while self.unanswered:
            self._read_next()

    def _read_next(self) -> None:
        """Reads the answer to the first request that has none, or finds out that its process is lost."""
        number, seconds = next(iter(self.unanswered.items()))
        try:
            answer: Message | LostError = self._next_answer(number, seconds)
        except LostError as error:
            answer = error
        self.early[number] = answer
        self.unanswered.pop(number, None)
        if not self.unanswered:
            self.ahead = 0

    def _next_answer(self, number: int, seconds: float) -> Message:
        end, latest = (time.monotonic() + most for most in (seconds, 2 * seconds + self.deadline))
        with self._losses(seconds):
            while (made := heard(answer := decode(self._bytes(length_of(self._bytes(LENGTH, end)), end)))) is not None:
                self.heard = made
                if not made.call:
                    end = min(latest, self._until(self.deadline if made.inside else seconds))
        if (stated := answer.fields.get("number")) != number:
            raise self._lost(f"answered with number {stated!r} to the request with number {number}")
        if answer.fields.get("out_of_memory"):
            # It may hold what it has left behind for ever: what comes later gets a new process.
            raise self._lost(shortened(answer.fields.get("error", "")), out_of_memory=True)
        if answer.fields.get("accelerator_lost"):
            why = f"{shortened(answer.fields.get('error', ''))}; its process has lost the accelerator by that"
            raise self._lost(why, fault=True)
        return answer

    def _until(self, seconds: float) -> float:
        """When the process has had so many seconds from now on; it may compute for as long."""
        assert self.process is not None
        self.allowed = self.process.computed() + seconds
        return time.monotonic() + seconds

    def _taken(self, number: int) -> Message:
        answer = self.early.pop(number)
        if isinstance(answer, LostError):
            raise answer
        return checked(answer)

    @contextlib.contextmanager
    def _losses(self, seconds: float) -> Iterator[None]:
        self.allowed, self.used, self.heard = 0.0, 0.0, None
        if self.process is not None:
            self.allowed = self.process.computed() + seconds
        try:
            yield
        except TimeoutError:
            raise self._lost(late(self.heard, seconds, self.deadline), late=True) from None
        except (EOFError, OSError):
            raise self._died() from None
        except WireError as error:
            raise self._lost(f"sent what is no answer: {error}") from None
        except MemoryError:
            raise self._lost("took too much shared memory", out_of_memory=True) from None

    def _bytes(self, count: int, end: float) -> bytes:
        """The next bytes of the worker's answers; those after them are kept for the next call."""
        while len(self.received) < count:
            self.received += self._read(end)
        taken = bytes(memoryview(self.received)[:count])
        del self.received[:count]
        return taken

    def _read(self, end: float) -> bytes:
        assert self.process is not None
        stream = self.process.stdout
        if time.monotonic() - self.looked > LOOK:
            self._look_at_memory()
        try:
            piece = os.read(stream.fileno(), PIECE)
        except BlockingIOError:
            self._wait(stream, select.POLLIN, end)
            piece = os.read(stream.fileno(), PIECE)
        if not piece:
            raise EOFError
        return piece

    def _wait(self, stream: IO[bytes], event: int, end: float) -> None:
        """Waits until a stream is ready.

        Raises:
            TimeoutError: it is not in time.
            EOFError: the process has ended, and one that stems from it holds the stream.
            MemoryError: it has taken too much.
        """
        assert self.process is not None
        ready = select.poll()
        ready.register(stream.fileno(), event)
        while not ready.poll(1000 * max(0.0, min(end - time.monotonic(), LOOK))):
            if self.process.ended() is not None and not ready.poll(0):
                raise EOFError
            self._look_at_memory()
            if time.monotonic() >= end:
                if not self._is_held_up():
                    raise TimeoutError
                end += LOOK

    def _is_held_up(self) -> bool:
        """Whether others take its time: it computes, and has not done so for as long as it may."""
        assert self.process is not None
        before, self.used = self.used, self.process.computed()
        return self.used - before >= HELD_UP * LOOK and self.used < self.allowed

    def _look_at_memory(self) -> None:
        assert self.process is not None
        self.looked = time.monotonic()
        if self.memory is not None and shared_memory(self.process.number) > self.memory:
            raise MemoryError

    def _lost(self, how: str, late: bool = False, out_of_memory: bool = False, fault: bool = False) -> LostError:
        last = "" if self.output is None else self.output.last_lines()
        self.end()
        if out_of_memory and self.memory is not None:
            how = f"{how}; it may take {self.memory / 2**30:.3g} GiB (--memory)"
        message = f"{how}; its last output: {last}" if last else how
        (self.faults if fault else self.deaths).append(how)
        if self.shared is not None and not fault:
            with self.shared.open("a", encoding="utf-8") as losses:
                losses.write(f"{shortened(how)}\n")
        return LostError(message, late, out_of_memory, fault)

    def _died(self) -> LostError:
        assert self.process is not None
        assert self.output is not None
        if (ended := self.process.ended(ENDED)) is None:
            return self._lost("closed its connection")
        if self.process.orphaned:
            return self._lost(self.process.orphaned)
        code, peak = ended
        how = how_ended(code)
        killed = code in (-signal.SIGKILL, -signal.SIGABRT)
        full = was_full(peak, self.memory)
        refused = any(words in self.output.last_lines() for words in NO_ALLOCATION)
        return self._lost(how, out_of_memory=killed and (full or refused))

    def close(self) -> int:
        """Lets the worker end by itself, and returns its exit status; 0 if it does not end soon; then see `end`."""
        self._read_all()
        if self.process is None:
            return 0
        known = descendants(self.process.number)
        self.process.stdin.close()
        ended = self.process.ended(ENDING)
        self.never_ended |= ended is None
        code = 0 if ended is None else ended[0]
        self.end(known)
        return code

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
        self.received.clear()

    def leave_to_parent(self) -> None:
        """In a copy of the process that has started the worker: the next request starts another one."""
        if self.process is not None:
            for each in (self.process.stdin, self.process.stdout, self.process.stderr, self.process.reports.channel):
                each.close()
        self.process, self.output, self.mark = None, None, uuid4().hex
        self.unanswered.clear()
        self.received.clear()
