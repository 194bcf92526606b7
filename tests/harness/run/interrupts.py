"""Interrupts: what ends a run from outside, or from within a candidate that is called in this process."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import NoReturn

import pytest

from attention_conformance.tests.harness.run.exit_status import ExitStatus

SIGNALS = {signal.SIGINT, signal.SIGTERM}


def end_with_report(config: pytest.Config) -> None:
    """Until the session ends, SIGTERM interrupts it as SIGINT does, so that the report is written."""
    if threading.current_thread() is not threading.main_thread():
        return
    earlier = signal.signal(signal.SIGTERM, partial(_interrupted, os.getpid()))
    config.add_cleanup(lambda: _drop(signal.signal(signal.SIGTERM, earlier or signal.SIG_DFL)))


def _drop(value: object) -> None:
    """The value of a call that is made for its effect."""


def _interrupted(judge: int, number: int, frame: FrameType | None) -> None:
    if os.getpid() == judge:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)  # a child process of a candidate, which is ended as any other
    os.kill(os.getpid(), number)


@contextmanager
def held() -> Iterator[None]:
    """Signals that come meanwhile take effect afterwards."""
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def no_silent_exit(config: pytest.Config) -> None:
    """Until the session ends, `os._exit` in this process ends it with a line, and as a run that is not complete.

    Nothing isolates a candidate here, and its own status could be 0.
    """
    leave, judge = os._exit, os.getpid()

    def ended(status: int) -> NoReturn:
        if os.getpid() != judge:
            leave(status)  # a child process of a candidate
        if capture := config.pluginmanager.get_plugin("capturemanager"):
            capture.suspend_global_capture(in_=True)
        line = f"the candidate ended this process by os._exit({status}): without --in-process that is its failure\n"
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line.encode())
        leave(ExitStatus.INTERRUPTED)

    def restore() -> None:
        os._exit = leave

    os._exit = ended
    config.add_cleanup(restore)
