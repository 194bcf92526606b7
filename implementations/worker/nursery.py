"""The nursery: a process that has imported what every worker needs, and forks one for each start, within milliseconds.

It runs on Linux only, and never any code of a candidate. Between it and each worker is a keeper.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from attention_conformance.implementations.worker.elsewhere import module_command
from attention_conformance.implementations.worker.keeper import keep
from attention_conformance.implementations.worker.leftovers import MARK
from attention_conformance.implementations.worker.process import Process, Reports, kept

MODULE = "attention_conformance.implementations.worker.nursery"
LONGEST = 2**17
"""Bytes of a message; each is one datagram."""
NOT_READ = (MARK, "KMP_DUPLICATE_LIB_OK")
"""Variables that no import reads; threadpoolctl sets the second one in the judge, when the first worker has started."""
ENVIRONMENT = slice(47, 49)
"""Where /proc/self/stat, after the name, has the first address of the environment and the one behind it."""


@dataclass
class Nursery:
    """The side of the judge.

    Attributes:
        number: its process id.
    """

    channel: socket.socket
    number: int

    def fork(self, environment: Mapping[str, str]) -> Process:
        """A new worker with this environment, in the current folder.

        Raises:
            OSError: the nursery has ended.
            FileNotFoundError: the current folder was removed.
        """
        given = {"environment": dict(environment), "folder": os.getcwd()}
        own, other = socket.socketpair()
        (stdin, to_worker), (from_worker, stdout), (errors, stderr) = (os.pipe() for _ in range(3))
        streams = os.fdopen(to_worker, "wb", 0), os.fdopen(from_worker, "rb", 0), os.fdopen(errors, "rb", 0)
        with contextlib.ExitStack() as unused:
            for each in (own, *streams):
                unused.enter_context(each)
            with other:
                theirs = [stdin, stdout, stderr, other.fileno()]
                try:
                    socket.send_fds(self.channel, [json.dumps(given).encode()], theirs)
                finally:
                    for end in theirs[:-1]:
                        os.close(end)
            process = kept(Reports(own, self.number), streams)
            unused.pop_all()
        return process


def environment() -> dict[str, str]:
    """What a worker gets of the environment of this process: that a test runs is none of the candidate's business."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}


def warm_up() -> None:
    """Starts the nursery, which takes seconds, so that it has its imports when the first worker is needed."""
    if sys.platform == "linux":
        _own_nursery(environment())


def forked(given: Mapping[str, str]) -> Process | None:
    """A worker with this environment, forked by the nursery, which is started if need be; None where there is none."""
    if sys.platform != "linux":
        return None
    for _ in range(2):
        try:
            return _own_nursery(given).fork(given)
        except FileNotFoundError:
            return None
        except OSError:  # also of a keeper
            _nursery.cache_clear()  # a candidate may have killed it
    return None


def _own_nursery(given: Mapping[str, str]) -> Nursery:
    read_by_imports = {name: value for name, value in given.items() if name not in NOT_READ}
    return _nursery(tuple(sorted(read_by_imports.items())))


@cache
def _nursery(environment: tuple[tuple[str, str], ...]) -> Nursery:
    """The nursery of a process, and of its copies, for an environment."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other:
        command = [*module_command(MODULE), str(other.fileno())]
        nothing, placeholder = subprocess.DEVNULL, {MARK: uuid4().hex}
        process = subprocess.Popen(
            command,
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            pass_fds=[other.fileno()],
            start_new_session=True,
            env={**dict(environment), **placeholder},
        )
    process.returncode = 0  # it ends with this process, and is not waited for
    atexit.register(own.close)
    return Nursery(own, process.pid)


def main(channel: socket.socket) -> None:
    """Forks keepers until the judge has ended. Each of them forks a worker, which leaves this function and goes on."""
    serve = _with_imports()
    while True:
        text, files, _, _ = socket.recv_fds(channel, LONGEST, 4)
        if not text:
            os._exit(0)
        if os.fork() == 0:
            channel.close()
            _fork_worker(files)
            _begin(json.loads(text), files)
            serve.main()
            return
        for each in files:
            os.close(each)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # the keepers of earlier workers
                pass


def _fork_worker(files: list[int]) -> None:
    """Forks a worker, in which this returns, from the keeper that this process becomes."""
    judge = socket.socket(fileno=files.pop())
    if number := os.fork():
        for each in files:
            os.close(each)
        keep(judge, number)
    judge.close()


def _with_imports() -> ModuleType:
    """The worker's module, with all that it imports once it has a candidate."""
    gc.disable()  # nothing that imports bring is ever free, and each collection would look through it
    from attention_conformance.implementations.worker import serve

    if serve.torch:
        from attention_conformance.implementations.discovery.modules import modules  # noqa: F401
    gc.enable()
    gc.collect()
    gc.freeze()  # otherwise a collection in each worker would copy the pages of all that was imported
    return serve


def _begin(request: Mapping[str, Any], files: list[int]) -> None:
    """Makes the forked process one that has been started anew: session, streams, folder, environment, numbers."""
    os.setsid()
    for number, each in enumerate(files):
        os.dup2(each, number)
        os.close(each)
    os.chdir(request["folder"])
    _show_mark(os.environ[MARK], request["environment"][MARK])
    os.environ.clear()
    os.environ.update(request["environment"])
    import numpy as np

    np.random.seed()  # as Python's own generator does after a fork


def _show_mark(placeholder: str, mark: str) -> None:
    """Writes the mark where the system shows the environment: processes that only fork inherit that text."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = map(int, fields[ENVIRONMENT])
    ctypes.memmove(start + ctypes.string_at(start, end - start).index(placeholder.encode()), mark.encode(), len(mark))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
