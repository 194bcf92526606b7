"""Processes that a candidate has left: on Linux a mark in their environment shows them, their session or parents."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MARK = "WORKER_MARK"
"""The environment variable whose value every process inherits from the worker that it stems from."""
OWN = "attention_conformance.implementations.worker."
"""What is in the command line by which a worker's process is started, and which a fork of it has, too."""
RANK = f"{OWN}ranks"
"""What is in that of each process of a candidate that spans several, which leads a session of its own."""
FORK = "a fork of its own process"
PROCESSES = Path("/proc")
ROUNDS = 5
"""How often is looked again, as a process may start another one before it ends."""


@dataclass(frozen=True)
class Leftover:
    """A process that is running, and the command that started it. `own`: the candidate spans it."""

    number: int
    command: str
    own: bool = False


@dataclass(frozen=True)
class _Process:
    number: int
    state: str
    parent: int
    session: int
    started: int
    """In ticks of the system's clock: another process of the same number has started at another one."""


def descendants(worker: int) -> frozenset[tuple[int, int]]:
    """The processes that stem from a worker which is running, by number and start; elsewhere than on Linux none."""
    return _family({each.number: each for each in _processes()}, worker)


def end_leftovers(mark: str, worker: int, known: frozenset[tuple[int, int]] = frozenset()) -> list[Leftover]:
    """Ends the processes that stem from a worker, and returns them; elsewhere than on Linux there are none.

    The processes that a candidate spans are its own: they are ended too, and not returned.
    They have its mark, are of its session, stem from it by their parents while it lives, or are `known` descendants.
    """
    ended: dict[int, Leftover] = {}
    for _ in range(ROUNDS):
        running = list(_running(mark, worker, known))
        for each in running:
            if not each.own:
                ended[each.number] = each
            with contextlib.suppress(OSError):
                os.kill(each.number, signal.SIGKILL)
        if not running:
            break
        time.sleep(0.02)
    return list(ended.values())


def _running(mark: str, worker: int, known: frozenset[tuple[int, int]]) -> Iterator[Leftover]:
    processes = {each.number: each for each in _processes()}
    known |= _family(processes, worker)
    for each in processes.values():
        # A process may end while it is looked at, or be another user's.
        with contextlib.suppress(OSError):
            folder = PROCESSES / str(each.number)
            marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            theirs = marked or each.session == worker or (each.number, each.started) in known
            if theirs and each.state not in "ZX" and each.number not in (worker, os.getpid()):
                own = each.session == each.number and RANK in (folder / "cmdline").read_text(errors="replace")
                yield Leftover(each.number, _command(folder), own)


def _family(processes: Mapping[int, _Process], worker: int) -> frozenset[tuple[int, int]]:
    family = {worker}
    while new := {each.number for each in processes.values() if each.parent in family} - family:
        family |= new
    return frozenset((number, processes[number].started) for number in family - {worker})


def _processes() -> Iterator[_Process]:
    """All; in what is read of one, its name is in parentheses, and may hold any text."""
    for folder in PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield _Process(int(folder.name), fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def _command(folder: Path) -> str:
    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    if any(OWN in word for word in words):  # a module, or the program by which another interpreter imports it
        return FORK
    return " ".join(words).strip() or (folder / "comm").read_text(errors="replace").strip()
