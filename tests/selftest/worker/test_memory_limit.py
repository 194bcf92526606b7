"""The limit of a candidate's memory: what goes beyond it fails by a name of its own, and costs nobody else anything."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from attention_conformance.implementations.worker.remote import Remote, isolated_candidate
from attention_conformance.implementations.worker.resources import LEAST, free_memory, size_of, was_full
from attention_conformance.tests.harness.run.options import OPTIONS
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import FailureKind, Status
from attention_conformance.tests.selftest.worker.detection_calls import detection_calls

LIMIT = 2**30
TEXT = """
import ctypes, mmap, os, signal, time
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

calls, kept = 0, []

def attention(query, key, value):
    global calls
    calls += 1
    if calls > DETECTION:
        {}
    return sdpa(query, key, value)
"""
GREEDY = {
    "an array": "np.ones(2**28)",
    "a tensor": "torch.ones(2**31)",
    "a list": "kept.extend([None] * 2**28)",
    "shared memory": "kept.append(mmap.mmap(-1, 9 * 2**27)); [*map(kept[0].write, [bytes(2**27)] * 9)]; time.sleep(9)",
    "a leak of each call": "kept.append(np.ones(2**25))",
}
OTHERS = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", FailureKind.DIED),
    "raises": ("raise RuntimeError('no')", FailureKind.RAISED),
}


def failure_of(tmp_path: Path, body: str) -> tuple[FailureKind, str]:
    file = tmp_path / "greedy.py"
    file.write_text(f"DETECTION = {detection_calls()}\n" + TEXT.format(body))
    implementation = isolated_candidate(f"{file}:attention", {}, deadline=30.0, memory=LIMIT)
    assert isinstance(implementation.run, Remote)
    try:
        (verdict,) = run(implementation, ("shapes.coincident",), ("float32",))
    finally:
        implementation.run.door.end()
    assert verdict.status is Status.FAIL
    assert verdict.failure is not None
    return verdict.failure.kind, verdict.failure.message


@pytest.mark.parametrize("body", GREEDY.values(), ids=GREEDY)
def test_too_much_memory_is_a_failure_of_its_own(tmp_path: Path, body: str) -> None:
    kind, message = failure_of(tmp_path, body)
    assert kind is FailureKind.OUT_OF_MEMORY, message
    assert "it may take 1 GiB (--memory)" in message


@pytest.mark.parametrize(("body", "kind"), OTHERS.values(), ids=OTHERS)
def test_other_ends_are_none_for_want_of_memory(tmp_path: Path, body: str, kind: FailureKind) -> None:
    assert failure_of(tmp_path, body)[0] is kind


def test_a_kill_is_none_for_want_of_memory_because_the_judge_is_large(tmp_path: Path) -> None:
    held = np.ones(LIMIT // 8)
    assert failure_of(tmp_path, OTHERS["killed"][0])[0] is FailureKind.DIED
    assert held.nbytes == LIMIT


@pytest.mark.parametrize(
    ("peak", "limit", "full"), [(90, 100, True), (190, 100, True), (70, 100, False), (90, None, False)]
)
def test_a_killed_process_was_full_if_its_peak_is_near_the_limit(peak: int, limit: int | None, full: bool) -> None:
    assert was_full(peak, limit) is full


@pytest.mark.parametrize(
    ("text", "size"),
    [("8G", 2**33), ("1.5g", 3 * 2**29), ("512MiB", 2**29), (str(LEAST), LEAST), ("300 MB", 300 << 20)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "8", "-8G", "much", "8X", "255M", "8G8"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"no size of memory|less than a worker"):
        OPTIONS["--memory"]["type"](text)


def test_free_memory_is_below_that_of_the_machine() -> None:
    total = int(next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line).split()[1])
    free = free_memory()
    assert free is not None
    assert 0 < free < total * 1024
