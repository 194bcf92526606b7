"""A group of processes that compute together: started at the first call, reused, and waited for with a time limit."""

import atexit
import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

SPAWN = multiprocessing.get_context("spawn")
ANSWERED, FAILED = "answered", "failed"
Running: TypeAlias = tuple[Any, Connection]
"""A process, and the way to it."""


class LostProcessError(RuntimeError):
    """A process ended, or did not answer in time."""


class Processes:
    """A group of processes with torch.distributed between them; see `together`.

    Attributes:
        count: of the processes.
        answer: what each of them does with a request; a function that can be imported.
        timeout: so many seconds a start, or an answer, may take.
    """

    def __init__(self, count: int, answer: Callable[[Any], Any], timeout: float = 60.0) -> None:
        self.count, self.answer, self.timeout = count, answer, timeout
        self.running: list[Running] = []
        atexit.register(self.stop)

    def together(self, requests: Sequence[Any]) -> list[Any]:
        """Hands each process its request, and waits for all answers.

        Raises:
            LostProcessError: a process ended, failed or kept silent; the others are ended too, and the next call starts
                anew.
        """
        try:
            if not self.running:
                self._start()
            # A process that has stopped reading must not keep this one from watching the clock.
            threading.Thread(target=_send, args=(self.running, requests), daemon=True).start()
            return self._answers()
        except BaseException:
            self.stop()  # what is still to come would be taken for the answer to the next request
            raise

    def stop(self) -> None:
        """Ends all processes."""
        running, self.running = self.running, []
        for process, _ in running:
            process.kill()
        for process, connection in running:
            process.join()
            connection.close()

    def _start(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(self.count):
                ours, theirs = SPAWN.Pipe()
                named = (rank, self.count, Path(folder, "meeting").as_uri(), self.timeout, theirs, self.answer)
                process = SPAWN.Process(target=serve, args=named, daemon=True)
                process.start()
                theirs.close()
                self.running.append((process, ours))
            self._answers()

    def _answers(self) -> list[Any]:
        """One message of each process, in their order."""
        until, answers = time.monotonic() + self.timeout, dict[int, Any]()
        while missing := [rank for rank in range(self.count) if rank not in answers]:
            awaited: dict[Any, int] = {self.running[rank][0].sentinel: rank for rank in missing}
            awaited |= {self.running[rank][1]: rank for rank in missing}
            ready = wait(list(awaited), max(0.0, until - time.monotonic()))
            if not ready:
                raise LostProcessError(f"processes {missing} of {self.count} gave no answer in {self.timeout:g} s")
            # What a process sent before it ended counts, too.
            for rank in {awaited[each] for each in ready}:
                answers[rank] = self._received(rank)
        return [answers[rank] for rank in range(self.count)]

    def _received(self, rank: int) -> Any:
        process, connection = self.running[rank]
        try:
            kind, context = connection.recv()
        except (EOFError, OSError):
            process.join(1.0)
            kind, context = FAILED, ""
        if kind == FAILED:
            ended = [f"ended with exit code {p.exitcode}" if p.exitcode is not None else "" for p, _ in self.running]
            # A process that fails because another one is missing is not reported.
            named = [f"process {r} of {self.count} {how}" for r, how in enumerate(ended) if how]
            raise LostProcessError(", ".join(named or [f"process {rank} of {self.count} {context}"]))
        return context


def _send(running: Sequence[Running], requests: Sequence[Any]) -> None:
    # The waiting caller detects that the process has ended. A connection that is closed meanwhile, because
    # another process has failed, has None for its handle, which is a TypeError.
    with contextlib.suppress(OSError, TypeError):
        for (_, connection), request in zip(running, requests, strict=True):
            connection.send(request)


def serve(
    rank: int, count: int, meeting: str, timeout: float, connection: Connection, answer: Callable[[Any], Any]
) -> None:
    """What a process does until its connection ends: it answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides what an interrupt means
    torch.set_num_threads(1)
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # no host name has to be known
    with contextlib.suppress(EOFError, OSError):
        message: tuple[str, Any] = ANSWERED, None
        try:
            dist.init_process_group("gloo", meeting, timedelta(seconds=timeout), count, rank)
            while True:
                connection.send(message)
                message = ANSWERED, answer(connection.recv())
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:
            connection.send((FAILED, f"raised {type(error).__name__}: {error}"))
