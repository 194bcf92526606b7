"""A candidate that spans processes: each answers every request with the others, and that of rank 0 speaks for all.

`torchrun --standalone --nproc-per-node 2 -m attention_conformance.implementations.worker.ranks TARGET` speaks the
protocol. The target is loaded in each process, within a process group of torch.distributed (gloo).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from attention_conformance.implementations.api.global_state import compute_on_one_thread
from attention_conformance.implementations.worker.elsewhere import module_command
from attention_conformance.implementations.worker.own_builtins import OwnBuiltins
from attention_conformance.implementations.worker.resources import end_first
from attention_conformance.implementations.worker.serve import (
    Worker,
    die_with_parent,
    import_from_here,
    own_streams,
    served,
)
from attention_conformance.implementations.worker.wire import Message, decode, encode

MODULE = "attention_conformance.implementations.worker.ranks"
IN_STEP = ("fit", "construct", "seed", "overwritten", "threads")
"""The further requests that are answered: those in which each process makes the same calls, in the same order."""
LINE = 300
"""Bytes that are kept of what another process raised."""
FOREVER = timedelta(days=7)
"""A process waits for the next request of the judge, which waits for no answer longer than its deadline."""


def torchrun(processes: int, target: str = "") -> tuple[str, ...]:
    """The command that starts a candidate in so many processes; without a target, the hello has it."""
    launcher = (*module_command("torch.distributed.run"), "--standalone", "--nproc-per-node", str(processes))
    return (*launcher, "--no-python", *module_command(MODULE), *([target] if target else []))


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
        size = torch.tensor([len(data)])
        dist.broadcast(size, 0, self.group)
        held = torch.frombuffer(bytearray(data or bytes(size.item())), dtype=torch.uint8) if size.item() else None
        if held is not None:
            dist.broadcast(held, 0, self.group)
        return b"" if held is None else held.numpy().tobytes()

    def lines(self, own: str) -> list[str]:
        """A line of each process."""
        held = torch.frombuffer(bytearray(own.encode()[:LINE].ljust(LINE, b"\0")), dtype=torch.uint8)
        gathered: Sequence[Tensor] = [torch.empty_like(held) for _ in range(self.count)]
        dist.all_gather(list(gathered), held, self.group)
        return [each.numpy().tobytes().rstrip(b"\0").decode(errors="replace") for each in gathered]


class RankedWorker:
    """A worker whose requests come from the judge in rank 0, and from there in all others.

    Attributes:
        target: stands for that of the hello, which a command has none of.
    """

    def __init__(self, target: str) -> None:
        self.target, self.ranks, self.worker, self.own = target, Ranks(), Worker(), OwnBuiltins()

    def lead(self, request: Message) -> Message:
        """The answer of rank 0, after all others have answered too."""
        try:
            self.ranks.shared(encode(request))
            return self._together(request)
        except RuntimeError:
            os.write(2, b"a process of the group has ended\n")
            os._exit(1)

    def follow(self) -> None:
        """Answers what rank 0 is asked, until its input ends."""
        while data := self.ranks.shared(b""):
            self._together(decode(data))

    def _together(self, request: Message) -> Message:
        asked = request.fields["request"]
        if asked == "hello" and self.target:
            request = Message({**request.fields, "target": self.target}, request.arrays)
        answer = self.own.answered(self.worker.answer, request)
        refused = str(answer.fields.get("error") or answer.fields.get("unusable") or "")
        if refused and self.ranks.rank:
            os.write(2, f"process {self.ranks.rank} of {self.ranks.count}: {refused}\n".encode())
        others = [(rank, line) for rank, line in enumerate(self.ranks.lines(refused)) if line]
        if others and not refused:
            rank, line = others[0]
            kind = "unusable" if asked == "hello" else "error"
            return Message({kind: f"process {rank} of {self.ranks.count} {line}", "exception": ""})
        if asked == "hello" and not refused:
            kept = [each for each in answer.fields["requests"] if each in IN_STEP]
            return Message({**answer.fields, "requests": kept}, answer.arrays)
        return answer


def main(arguments: Sequence[str]) -> None:
    """Answers requests with the other processes until there are no more."""
    streams = own_streams()
    import_from_here()
    compute_on_one_thread()
    die_with_parent()
    end_first()
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # no host name has to be known
    dist.init_process_group("gloo")
    worker = RankedWorker("".join(arguments))
    if worker.ranks.rank:
        worker.follow()
    else:
        served(streams, worker.lead)
        worker.ranks.shared(b"")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
