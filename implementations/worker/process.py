"""The process of a worker, and what its keeper reports of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from attention_conformance.implementations.worker import keeper
from attention_conformance.implementations.worker.leftovers import MARK
from attention_conformance.implementations.worker.limits import LOOK

Ended = tuple[int, int]
"""Exit status, negative for a signal, and peak of resident bytes."""

COMPUTED = 2
"""Linux gives the clock of a process the number `~PID << 3 | COMPUTED`: the time of its threads and system calls."""


DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""


class KeeperError(OSError):
    """The keeper of a process has ended, and the process with it."""


@dataclass
class Reports:
    """Those of a keeper, line by line; `keeper` is the process that may have to be continued for that."""

    channel: socket.socket
    keeper: int

    def line(self, seconds: float) -> Any:
        """The next one; None where there is none in so many seconds.

        Raises:
            KeeperError: there will be none.
        """
        end, ready = time.monotonic() + seconds, select.poll()
        ready.register(self.channel, select.POLLIN)
        while not ready.poll(1000 * max(0.0, min(end - time.monotonic(), LOOK))):
            if time.monotonic() >= end:
                return None
            with contextlib.suppress(OSError):
                os.kill(self.keeper, signal.SIGCONT)  # a candidate may have suspended it
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self._bytes())
        raise KeeperError(0, "its parent was ended")

    def _bytes(self) -> bytes:
        line = b""
        while not line.endswith(b"\n") and (piece := self.channel.recv(1)):
            line += piece
        return line


@dataclass
class Process:
    """A process that may have ended.

    Attributes:
        number: its process id, and that of its session.
        reports: of its keeper: how it has ended.
        result: how it has ended, once it has; where its keeper was ended, it was killed by that.
        orphaned: how it has ended, if it has because its keeper did.
    """

    number: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    reports: Reports
    result: Ended | None = None
    orphaned: str = ""

    def ended(self, seconds: float = 0.0) -> Ended | None:
        """How it has ended, waited for so long; None: it is running."""
        if self.result is None:
            try:
                if (line := self.reports.line(seconds)) is None:
                    return None
                code, peak, *sent = line
                self.result, self.orphaned = (code, peak), self._orphaned(*sent) if sent else ""
            except KeeperError:
                self.result, self.orphaned = (-signal.SIGKILL, 0), self._orphaned(signal.SIGKILL)
            self.reports.channel.close()
        return self.result

    def _orphaned(self, number: int, sender: int | None = None) -> str:
        """How it has ended with its keeper, by a signal to that; nobody hears who has sent one that it cannot catch."""
        name = signal.Signals(number).name
        if sender == self.number:
            return f"sent {name} to the parent of its own process, and ended with it"
        by = "the candidate or the system" if sender is None else f"process {sender}"
        return f"ended with its parent, to which {by} sent {name}"

    def computed(self) -> float:
        """Seconds for which it has computed; 0 where unknown."""
        with contextlib.suppress(OSError):
            return time.clock_gettime(~self.number << 3 | COMPUTED)
        return 0.0

    def stop(self) -> None:
        """Suspends it."""
        self._send(signal.SIGSTOP)

    def kill(self) -> None:
        """Ends it, and waits until it has ended."""
        self._send(signal.SIGKILL)
        self.ended(float("inf"))

    def _send(self, number: signal.Signals) -> None:
        """Sends it a signal, unless it has ended, which may not be reported yet."""
        if self.ended() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.number, number)


def how_ended(code: int) -> str:
    """How a process ended, by its exit status, which is negative for a signal."""
    if code >= 0:
        why = " (an error of input or output, such as a closed stream)" if code == os.EX_IOERR else ""
        return f"ended its process with exit status {code}{why}"
    if -code in {each.value for each in signal.Signals}:
        return f"died of {signal.Signals(-code).name} ({signal.strsignal(-code)})"
    return f"died of signal {-code}"


def too_many(losses: Sequence[str], most: int) -> str:
    """Why a process that was lost so often is not started again; empty if it is."""
    if len(losses) < most:
        return ""
    return f"its process was lost {len(losses)} times, last because it {losses[-1]}"


def kept(reports: Reports, streams: tuple[IO[bytes], IO[bytes], IO[bytes]]) -> Process:
    """The process whose keeper begins to report of it.

    Raises:
        KeeperError: it has ended before it did so.
        OSError: the process could not be started.
    """
    if isinstance(first := reports.line(float("inf")), str):
        raise OSError(0, first)
    reports.keeper, number = first
    return Process(number, *streams, reports)


def started(command: Sequence[str], environment: Mapping[str, str], mark: str) -> Process:
    """The process of a command, in a session of its own, with the mark that its keeper does not have.

    Raises:
        OSError: it cannot be started.
    """
    own, other = socket.socketpair()
    pipe, python = subprocess.PIPE, (sys.executable, "-I", "-S")
    with other:
        child = subprocess.Popen(
            [*python, keeper.__file__, str(other.fileno()), f"{MARK}={mark}", *command],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            pass_fds=[other.fileno()],
            start_new_session=True,
            bufsize=0,
            env=environment,
        )
    child.returncode = 0  # it ends with this process, and is not waited for
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    streams = child.stdin, child.stdout, child.stderr
    with contextlib.ExitStack() as unused:
        for each in (own, *streams):
            unused.enter_context(each)
        process = kept(Reports(own, child.pid), streams)
        unused.pop_all()
    return process
