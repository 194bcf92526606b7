"""Watching: runs again whenever a file is saved, in a process that has imported everything already."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

IMPORTED = ("torch", "pytest", "attention_conformance.tests.harness.run.plugin")
"""What takes longest to import; a run is a copy of the process that has it."""
PAUSE = 0.1
"""Seconds between two looks at the files."""


def files_of(targets: Sequence[str]) -> list[Path]:
    """The files of targets FILE.py:NAME.

    Raises:
        ValueError: a target that is no file, or no way to copy a process.
    """
    files = [Path(target.rpartition(":")[0] or target) for target in targets]
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        raise ValueError(f"--watch watches files, and {', '.join(missing) or 'no target'} is none: give FILE.py:NAME")
    if not hasattr(os, "fork"):
        raise ValueError("--watch needs a system that can copy a process, such as Linux or macOS")
    return files


def watch(files: Sequence[Path], run: Callable[[], int]) -> int:
    """Runs now and after each save, until it is interrupted; the last exit status.

    A run is ended when a file is saved meanwhile.
    """
    for name in IMPORTED:
        import_module(name)
    status = 0
    try:
        while True:
            saved = _saved(files)
            status = _run(files, saved, run)
            if _saved(files) == saved:
                print("watching: runs again when the file is saved; Ctrl+C ends", flush=True)
            while _saved(files) == saved:
                time.sleep(PAUSE)
    except KeyboardInterrupt:
        return status


def _run(files: Sequence[Path], saved: list[int], run: Callable[[], int]) -> int:
    """The exit status of a run in a copy of this process."""
    if not (child := os.fork()):
        status = 1
        try:
            status = run()
        finally:
            os._exit(status)
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if _saved(files) != saved:
            os.kill(child, signal.SIGINT)
            ended = os.waitpid(child, 0)
            break
        time.sleep(PAUSE)
    return os.waitstatus_to_exitcode(ended[1])


def _saved(files: Sequence[Path]) -> list[int]:
    """When each was saved; 0 while an editor replaces it."""
    return [file.stat().st_mtime_ns if file.exists() else 0 for file in files]
