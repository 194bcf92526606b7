"""Processes that a candidate has left: on Linux a mark in their environment shows them, or their session."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "WORKER_MARK"
"""The environment variable whose value every process inherits from the worker that it stems from."""
PROCESSES = Path("/proc")
ROUNDS = 5
"""How often is looked again, as a process may start another one before it ends."""


@dataclass(frozen=True)
class Leftover:
    """A process that is running, and the command that started it."""

    number: int
    command: str


def end_leftovers(mark: str, session: int) -> list[Leftover]:
    """Ends the processes with a mark or of a session, and returns them; elsewhere than on Linux there are none."""
    ended: dict[int, Leftover] = {}
    for _ in range(ROUNDS):
        running = list(_running(mark, session))
        for each in running:
            ended[each.number] = each
            with contextlib.suppress(OSError):
                os.kill(each.number, signal.SIGKILL)
        if not running:
            break
        time.sleep(0.02)
    return list(ended.values())


def _running(mark: str, session: int) -> Iterator[Leftover]:
    for folder in PROCESSES.glob("[0-9]*"):
        # A process may end while it is looked at, or be another user's.
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, of_session = _state(folder)
            marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if state not in "ZX" and (marked or of_session == session) and int(folder.name) != os.getpid():
                yield Leftover(int(folder.name), _command(folder))


def _state(folder: Path) -> tuple[str, int]:
    """The state of a process, and its session; the name before them is in parentheses, and may hold any character."""
    fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[3])


def _command(folder: Path) -> str:
    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return " ".join(words).strip() or (folder / "comm").read_text(errors="replace").strip()
