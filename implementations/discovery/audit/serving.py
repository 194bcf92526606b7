"""Serving: the probes in a process of their own, so that a target that crashes or hangs costs one answer."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from attention_conformance.implementations.discovery.audit.findings import LOST, Finding
from attention_conformance.implementations.discovery.loading import TargetError, load_target, told

STARTING = 60.0
"""Seconds for a new process to import what it needs, beside those for an answer."""


class LostError(Exception):
    """The process has died or has not answered in time; the message says which."""


@dataclass
class Child:
    """A process that answers requests about one target; to be used as a context.

    Attributes:
        seconds: so long is waited for an answer.
    """

    target: str
    device: str
    seconds: float
    wary: str = ""
    """Why masks and parameters of unknown names are left alone while it is found out how the target is called."""
    process: BaseProcess | None = None
    connection: Connection[Any, Any] | None = field(default=None, repr=False)
    loading: bool = True

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def opened(self) -> list[Finding]:
        """Loads the target in a fresh process and finds how it is called, with more care where it does not bear that.

        Raises:
            TargetError: it cannot be used.
            LostError: it has ended the process or has not answered in time.
        """
        try:
            return self._opened()
        except LostError as error:
            if self.wary or self.loading:
                raise
            self.wary = str(error)
        return self._opened()

    def _opened(self) -> list[Finding]:
        self.end()
        self.loading = True
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.target, self.device, self.wary))
        self.process.start()
        theirs.close()
        for step, more in (("importing it", STARTING), ("calling it", 0.0)):
            try:
                answer = self._answer(self.seconds + more)
            except LostError as error:
                raise LostError(f"{step} {error}") from error
            if isinstance(answer, str):
                raise TargetError(answer)
            self.loading = False
        found: list[Finding] = answer
        return found

    def ask(self, request: str, found: Sequence[Finding], folder: str = "") -> Any:
        """The answer to a probe by name, or the text of the adapter.

        Raises:
            LostError: the process has died or has not answered in time; it has to be opened anew.
        """
        assert self.connection is not None
        with contextlib.suppress(OSError):  # that it is gone shows as the answer is read
            self.connection.send((request, list(found), folder))
        return self._answer(self.seconds)

    def _answer(self, seconds: float) -> Any:
        assert self.connection is not None
        if not self.connection.poll(seconds):
            self.end()
            raise LostError(f"gave no answer in {seconds:g} s")
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            raise LostError(self._death()) from None

    def _death(self) -> str:
        assert self.process is not None
        self.process.join(5.0)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"killed the process (signal {-code})"
        return f"ended the process (exit status {code})"

    def end(self) -> None:
        """Ends the process, and those that it has started."""
        if self.process is None or self.connection is None:
            return
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)  # it leads a group of its own
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.process = self.connection = None


def serve(connection: Connection[Any, Any], target: str, device: str, wary: str) -> None:
    """Answers requests until the other end is closed. What the target prints is not heard."""
    with contextlib.suppress(OSError, AttributeError):
        os.setsid()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    from attention_conformance.implementations.discovery.audit.auditing import opened
    from attention_conformance.implementations.discovery.audit.convention import find_convention
    from attention_conformance.implementations.discovery.audit.questions import asked, heeding
    from attention_conformance.implementations.discovery.audit.sides import functions
    from attention_conformance.implementations.discovery.audit.writing import adapter_text

    try:
        loaded = load_target(target)
        connection.send([])
        convention = find_convention(loaded, device, wary)
        subject, found = opened(convention, device)
    except TargetError as error:
        connection.send(str(error))
        return
    except Exception as error:
        connection.send(f"its answers could not be read: {told(error)}")
        return
    connection.send([*found, *functions(convention.functions)] if subject else found[-1].evidence)
    while subject is not None:
        try:
            request, before, folder = connection.recv()
        except EOFError:
            return
        if folder:
            connection.send(adapter_text(target, convention, before, Path(folder)))
        elif request:
            connection.send(asked(subject, before, request))
        else:
            connection.send(heeding(before, convention.named, convention.tied))


def lost(probe: str, error: LostError) -> Finding:
    """What is told of a probe that no answer came to."""
    return Finding(probe, LOST, str(error))
