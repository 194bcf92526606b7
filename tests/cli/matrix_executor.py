"""Where the packages of the matrix are judged: by threads of this process, or by the workers of a Dask cluster."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

INSTALL = "pip install 'attention-conformance[cluster]'"
_PARENT_DEATH = 1
"""What prctl calls the signal that a process gets when its parent ends."""
_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None


class SchedulerError(ValueError):
    """No cluster can be used; the message is one line."""


@contextmanager
def executor(jobs: int, scheduler: str) -> Iterator[Executor]:
    """What judges packages, until the end of the block.

    Args:
        jobs: how many at once, in this process.
        scheduler: the address of a Dask scheduler, such as tcp://HOST:8786, which gives the package of a worker that is
            lost to another one; its workers have this suite and the folder of reports. Empty: this process.

    Raises:
        SchedulerError: Dask is not installed, or no scheduler answers.
    """
    if not scheduler:
        with ThreadPoolExecutor(jobs) as threads:
            yield threads
        return
    with _client(scheduler) as client, client.get_executor(pure=False) as workers:
        yield workers


def _client(scheduler: str) -> Any:
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise SchedulerError(f"--scheduler needs Dask: {INSTALL}") from None
    try:
        return distributed.Client(scheduler)
    except (OSError, ValueError) as error:
        raise SchedulerError(f"no scheduler answers at {scheduler}: {error}") from None


def end_with_parent() -> None:
    """In a process that was just forked: it ends with its parent, so that its report is not written to by two."""
    if _LIBRARY is not None:
        _LIBRARY.prctl(_PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
