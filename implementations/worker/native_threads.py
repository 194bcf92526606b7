"""Threads that Python's `threading` does not know, where they go on computing: pools that wait for work are usual."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from time import sleep

TASKS = Path("/proc/self/task")
"""A folder for each thread of this process, on Linux."""
PAUSE, SETTLED = 0.005, 0.3
"""Seconds between two looks, and those after which a pool has stopped to wait for more work by looping."""


def computing() -> list[str]:
    """The names of such threads; elsewhere than on Linux there are none."""
    if not _at_work(PAUSE):
        return []
    sleep(SETTLED)
    return [_name(task) for task in sorted(_at_work(SETTLED))]


def _at_work(seconds: float) -> set[str]:
    """The threads that compute within the next seconds, or would if a busy machine let them."""
    before = _times()
    sleep(seconds)
    after = _times()
    return {task for task in before.keys() & after.keys() if after[task] != before[task] or _is_runnable(task)}


def _is_runnable(task: str) -> bool:
    with contextlib.suppress(OSError):
        return (TASKS / task / "stat").read_text(errors="replace").rpartition(")")[2].split()[:1] == ["R"]
    return False


def _times() -> dict[str, str]:
    """How long each thread has computed, by number, without those that Python knows of."""
    known = {str(each.native_id) for each in threading.enumerate()} | {str(os.getpid())}
    times: dict[str, str] = {}
    for folder in TASKS.glob("[0-9]*"):
        if folder.name not in known:
            with contextlib.suppress(OSError):
                times[folder.name] = (folder / "schedstat").read_text().partition(" ")[0]
    return times


def _name(task: str) -> str:
    with contextlib.suppress(OSError):
        return f"{(TASKS / task / 'comm').read_text(errors='replace').strip()}, none of threading"
    return "none of threading"
