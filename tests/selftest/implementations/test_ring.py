"""The ring: equal to one process within the bounds, however the sequence is cut, and no wait without end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.inhouse.process_group import LostProcessError, Processes
from attention_conformance.implementations.builtin.inhouse.ring import merged
from attention_conformance.implementations.builtin.inhouse.ring_entries import RING, RING_2, RING_4
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.selftest.implementations.ring_worker import rows, work
from attention_conformance.tests.selftest.reference.agreement import op
from attention_conformance.tests.selftest.reference.test_family import assert_agrees

ROOT = Path(__file__).parents[3]
CASES = {
    "a length that is no multiple": Case(),
    "causal": Case(causal=True).sized(query_length=9, key_length=9),
    "causal, more keys than queries": Case(causal=True, scale=0.3).sized(query_length=3, key_length=10),
    "causal, over tiles": Case(causal=True).sized(batch=1, query_length=131, key_length=150),
    "groups": Case(sizes=Sizes(num_heads=6, num_kv_heads=2), causal=True),
    "a window across slices": Case().sized(query_length=9, key_length=9).extended(window_left=3, window_right=2),
    "a window and a later start": Case(causal=True).extended(window_left=2, query_start=2, alibi=True, softcap=2.0),
    "fewer tokens than processes": Case().sized(query_length=1, key_length=2),
    "no key": Case().sized(key_length=0),
    "no query": Case().sized(query_length=0),
}


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ring", [RING_2, RING_4], ids=lambda ring: ring.name)
def test_agrees(ring: Implementation, name: str, dtype: str) -> None:
    assert_agrees(ring, dtype, CASES[name])


@pytest.fixture
def processes() -> Iterator[Callable[..., Processes]]:
    """Starts so many processes, which are ended after the test."""
    groups = []

    def start(count: int, timeout: float = 60.0) -> Processes:
        groups.append(Processes(count, work, timeout))
        groups[-1].together(["hello"] * count)
        return groups[-1]

    yield start
    for each in groups:
        each.stop()


def test_lengths_that_are_not_given_are_exchanged(processes: Callable[..., Processes]) -> None:
    two = processes(2)
    expected = solve(op(*rows(), causal=True)).parts
    parts = zip(*two.together(["lengths"] * 2), strict=True)
    for name, slices in zip(("output", "log_sum_exp"), parts, strict=True):
        assert not compare(name, np.concatenate(slices, 2), expected[name], "float64").message


def test_in_a_group_each_process_has_the_whole_answer(processes: Callable[..., Processes]) -> None:
    expected = solve(Judge(RING, "float64").problem(Case(causal=True))).parts["output"]
    for answer in processes(2).together(["group"] * 2):
        assert not compare("output", answer, expected, "float64").message


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Asserts that its block takes no longer than so many seconds."""
    until = time.monotonic() + seconds
    yield
    assert time.monotonic() < until


class TestLostProcesses:
    def test_one_that_was_killed_is_reported_and_replaced(self, processes: Callable[..., Processes]) -> None:
        two = processes(2)
        os.kill(two.running[1][0].pid, signal.SIGKILL)
        with within(10.0), pytest.raises(LostProcessError, match="process 1 of 2 ended with exit code -9"):
            two.together(["meet", "meet"])
        assert not two.running
        assert two.together(["meet", "meet"]) == ["meet", "meet"]
        with within(10.0), pytest.raises(LostProcessError, match="process 0 of 2 ended with exit code 3"):
            two.together(["end", "meet"])

    def test_one_that_keeps_silent_is_given_up(self, processes: Callable[..., Processes]) -> None:
        one = processes(1)
        one.timeout = 1.0
        with within(10.0), pytest.raises(LostProcessError, match=r"processes \[0\] of 1 gave no answer in 1 s"):
            one.together(["sleep"])

    def test_one_that_does_not_even_read_is_given_up(self, processes: Callable[..., Processes]) -> None:
        one = processes(1)
        one.timeout = 1.0
        os.kill(one.running[0][0].pid, signal.SIGSTOP)
        with within(10.0), pytest.raises(LostProcessError, match="gave no answer"):
            one.together(["hello" * 2**20])

    def test_one_that_fails_is_quoted(self, processes: Callable[..., Processes]) -> None:
        one = processes(1)
        ((output, _),) = one.together(["alone"])
        assert not compare("output", output, solve(op(*rows())).parts["output"], "float64").message
        with within(10.0), pytest.raises(LostProcessError, match="process 0 of 1 raised ArithmeticError: no answer to"):
            one.together(["fail"])


def test_processes_end_with_the_one_that_started_them() -> None:
    script = (
        "from attention_conformance.implementations.builtin.inhouse.process_group import Processes\n"
        "if __name__ == '__main__':\n"
        "    one = Processes(1, str)\n"
        "    assert one.together([1]) == ['1']\n"
        "    print(one.running[0][0].pid)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_parts_that_saw_no_key_are_merged() -> None:
    none, lse = torch.zeros(1, 1, 2, 3), torch.full((1, 1, 2), -torch.inf)
    some, other = torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 2)
    for parts in ((none, lse, some, other), (some, other, none, lse)):
        output, whole = merged(*parts)
        assert torch.equal(output, some)
        assert torch.equal(whole, other)
    output, whole = merged(none, lse, none, lse)
    assert not output.any()
    assert torch.equal(whole, lse)


def test_the_ring_refuses_another_device() -> None:
    judge = Judge(RING_2, "float32")
    with pytest.raises(ValueError, match="on the CPU, not on cuda"):
        RING_2.run(judge.problem(Case()), "cuda")
