"""The process of a worker, whoever is its parent: this process, or the nursery that has forked it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from attention_conformance.implementations.worker.resources import own_peak

Ended = tuple[int, int]
"""Exit status, negative for a signal, and peak of resident bytes."""
PAUSE = 0.002
"""Seconds between two looks at a process that is about to end."""


class ParentError(Exception):
    """The parent of a process has ended, and the process with it."""


@dataclass
class Process:
    """A process that may have ended.

    Attributes:
        number: its process id, and that of its session.
        poll: how it has ended; None while it runs; may raise `ParentError`. Not called again once it has answered.
        orphaned: whether it has ended because its parent did.
        inherited: resident bytes that it had at its start, which the peak therefore is at least.
    """

    number: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    poll: Callable[[], Ended | None]
    inherited: int = 0
    result: Ended | None = None
    orphaned: bool = False

    def ended(self, seconds: float = 0.0) -> Ended | None:
        """How it has ended, waited for so long; None: it is running."""
        end = time.monotonic() + seconds
        while self.result is None:
            try:
                self.result = self.poll()
            except ParentError:
                self.result, self.orphaned = (-signal.SIGKILL, 0), True
            if self.result is None and time.monotonic() >= end:
                return None
            if self.result is None:
                time.sleep(PAUSE)
        return self.result

    def stop(self) -> None:
        """Suspends it."""
        if self.ended() is None:
            os.kill(self.number, signal.SIGSTOP)

    def kill(self) -> None:
        """Ends it, and waits until it has ended."""
        if self.ended() is None:
            os.kill(self.number, signal.SIGKILL)
            self.ended(float("inf"))


def ended_child(number: int) -> Ended | None:
    """How a child of this process has ended; None while it runs. It can be called once after the end."""
    ended, status, usage = os.wait4(number, os.WNOHANG)
    return (os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024) if ended else None


def how_ended(code: int) -> str:
    """How a process ended, by its exit status, which is negative for a signal."""
    if code >= 0:
        return f"ended its process with exit status {code}"
    if -code in {each.value for each in signal.Signals}:
        return f"died of {signal.Signals(-code).name} ({signal.strsignal(-code)})"
    return f"died of signal {-code}"


def started(command: Sequence[str], environment: Mapping[str, str]) -> Process:
    """The process of a command, in a session of its own.

    Raises:
        OSError: it cannot be started.
    """
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, bufsize=0, env=environment
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None

    def poll() -> Ended | None:
        if (ended := ended_child(child.pid)) is not None:
            child.returncode = ended[0]
        return ended

    return Process(child.pid, child.stdin, child.stdout, child.stderr, poll, own_peak())
