"""What a process of the tests of the ring does: a module of its own, so that a new process can import it."""

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attention_conformance.implementations.builtin.inhouse.ring import ring_attention
from attention_conformance.implementations.builtin.inhouse.ring_entries import RING
from attention_conformance.spec.cases import Case
from attention_conformance.tests.harness.judge.judge import Judge


def rows() -> list[Tensor]:
    """Query, key and value (2, 2, 6, 4)."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 2, 6, 4, generator=generator, dtype=torch.float64) for _ in range(3)]


def work(request: str) -> Any:
    """Computes a part of attention, or fails in one of several ways."""
    if request == "lengths":  # the ring is not given the lengths of the slices: 1 token here, 5 there
        here = slice(0, 1) if dist.get_rank() == 0 else slice(1, 6)
        return [x.numpy() for x in ring_attention(*(x[:, :, here] for x in rows()), is_causal=True)]
    if request == "group":
        return RING.run(Judge(RING, "float64").problem(Case(causal=True)), "cpu").output
    if request == "alone":
        return [x.numpy() for x in ring_attention(*rows())]
    if request == "meet":
        dist.barrier()
    elif request == "fail":
        raise ArithmeticError("no answer to that")
    elif request == "end":
        os._exit(3)
    elif request == "sleep":
        time.sleep(600)
    return request
