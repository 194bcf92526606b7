"""A candidate that spans processes: each answers every request with the others, and that of rank 0 speaks for all.

`python -m attention_conformance.implementations.worker.ranks --processes 2 TARGET` speaks the protocol, and so does
`torchrun ... -m attention_conformance.implementations.worker.ranks TARGET`. The target is loaded in each process,
within a process group of torch.distributed (gloo).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from attention_conformance.implementations.api.global_state import compute_on_one_thread
from attention_conformance.implementations.worker.elsewhere import module_command
from attention_conformance.implementations.worker.own_builtins import OwnBuiltins
from attention_conformance.implementations.worker.process import how_ended
from attention_conformance.implementations.worker.resources import end_first
from attention_conformance.implementations.worker.serve import (
    Worker,
    die_with_parent,
    import_from_here,
    own_streams,
    served,
)
from attention_conformance.implementations.worker.wire import LENGTH, Message, decode, encode

MODULE = "attention_conformance.implementations.worker.ranks"
IN_STEP = ("fit", "construct", "seed", "overwritten")
"""The requests that are answered in addition to those of each worker.

In each of them, every process makes the same calls in the same order.
"""
LINE = 300
"""Bytes that are kept of what another process raised."""
NOTICED = 2.0
"""Seconds that a process waits before it ends because another one has, so that it is not taken for the first."""
FOREVER = timedelta(days=7)
"""A process waits for the next request of the judge, which waits for no answer longer than its deadline."""


class Ranks:
    """The processes of a group, which receive the same requests.

    Attributes:
        group: theirs alone: the candidate has another one, the default group.
    """

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.group = dist.new_group(backend="gloo", timeout=FOREVER)

    def shared(self, data: bytes) -> bytes:
        """What rank 0 has; empty: the end."""
        with self._complete():
            return self._shared(data)

    def _shared(self, data: bytes) -> bytes:
        size = torch.tensor([len(data)])
        dist.broadcast(size, 0, self.group)
        count = int(size)
        if not count:
            return b""
        held = torch.frombuffer(bytearray(data or bytes(count)), dtype=torch.uint8)
        dist.broadcast(held, 0, self.group)
        return held.numpy().tobytes()

    def lines(self, own: str) -> list[str]:
        """A line of each process."""
        held = torch.frombuffer(bytearray(own.encode()[:LINE].ljust(LINE, b"\0")), dtype=torch.uint8)
        gathered = [torch.empty_like(held) for _ in range(self.count)]
        with self._complete():
            dist.all_gather(gathered, held, self.group)
        return [each.numpy().tobytes().rstrip(b"\0").decode(errors="replace") for each in gathered]

    @staticmethod
    @contextmanager
    def _complete() -> Iterator[None]:
        """Ends this process where another one of the group has ended, which the launcher has to see first."""
        try:
            yield
        except RuntimeError:
            time.sleep(NOTICED)
            os._exit(1)


class RankedWorker:
    """A worker whose requests come from the judge in rank 0, and from there in all others.

    Attributes:
        target: stands for that of the hello, which a command has none of.
    """

    def __init__(self, target: str) -> None:
        self.target, self.ranks, self.worker, self.own = target, Ranks(), Worker(), OwnBuiltins()

    def lead(self, request: Message) -> Message:
        """The answer of rank 0, after all others have answered too."""
        self.ranks.shared(encode(request))
        return self._together(request)

    def follow(self) -> None:
        """Answers what rank 0 receives, until its input ends."""
        while data := self.ranks.shared(b""):
            self._together(decode(data[LENGTH:]))

    def _together(self, request: Message) -> Message:
        kind_of_request = request.fields["request"]
        if kind_of_request == "hello" and self.target:
            request = Message({**request.fields, "target": self.target}, request.arrays)
        answer = self.own.answered(self.worker.answer, request)
        refused = str(answer.fields.get("error") or answer.fields.get("unusable") or "")
        if refused and self.ranks.rank:
            os.write(2, f"process {self.ranks.rank} of {self.ranks.count}: {refused}\n".encode())
        others = [(rank, line) for rank, line in enumerate(self.ranks.lines(refused)) if line]
        if others and not refused:
            rank, line = others[0]
            kind = "unusable" if kind_of_request == "hello" else "error"
            return Message({kind: f"process {rank} of {self.ranks.count} {line}", "exception": ""})
        if kind_of_request == "hello" and not refused:
            kept = [each for each in answer.fields["requests"] if each in IN_STEP]
            return Message({**answer.fields, "requests": kept}, answer.arrays)
        return answer


def launched(processes: int, target: str) -> int:
    """Runs this module in so many processes, and returns the exit status. What ended one of them is the last output."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    command = module_command(MODULE)
    options = ["--standalone", f"--nproc-per-node={processes}", "--no-python", *command, *([target] if target else [])]
    try:
        run(parse_args(options))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(f"process {rank} of {processes} {how_ended(failure.exitcode)}", file=sys.stderr)
        return 1
    return 0


def served_together(target: str) -> None:
    """Answers requests with the other processes until there are no more."""
    streams = own_streams()
    import_from_here()
    compute_on_one_thread()
    die_with_parent()
    end_first()
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # no host name has to be known
    dist.init_process_group("gloo")
    worker = RankedWorker(target)
    if worker.ranks.rank:
        worker.follow()
    else:
        served(streams, worker.lead)
        worker.ranks.shared(b"")
    dist.destroy_process_group()


def main() -> int:
    """The launcher, or one of the processes that it, or torchrun, has started."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument(
        "target", nargs="?", default="", help="FILE.py:NAME or package.module:NAME; else the hello has it"
    )
    parser.add_argument("--processes", type=int, metavar="N", help="start so many; without it torchrun has")
    given = parser.parse_args()
    if given.processes:
        return launched(given.processes, given.target)
    served_together(given.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
