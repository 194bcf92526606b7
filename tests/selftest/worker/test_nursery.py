"""The nursery: workers that are forked are like those that are started, and outlive neither it nor the judge."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attention_conformance.implementations.worker.leftovers import MARK
from attention_conformance.implementations.worker.nursery import forked
from attention_conformance.implementations.worker.process import Process
from attention_conformance.implementations.worker.remote import Remote, end_process, isolated_candidate
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
MARKS = "0123456789abcdef" * 2, "fedcba9876543210" * 2
JUDGE = """
import sys
from attention_conformance.tests.cli.main import main

try:
    main(["check", "torch.nn.functional:scaled_dot_product_attention", "--clause", "scores.dot-product"])
finally:
    sys.exit(9 if "torch" in sys.modules else 7)
"""


def worker(mark: str, **environment: str) -> Process:
    given = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    process = forked({**given, MARK: mark, **environment})
    assert process is not None
    return process


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.chdir(tmp_path)
    process = worker(MARKS[0], HOME="/nowhere")
    yield process
    process.kill()
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def parent_of(process: Process) -> int:
    return int(Path(f"/proc/{process.number}/stat").read_text().rpartition(")")[2].split()[1])


def test_it_has_the_folder_and_the_environment_of_the_judge(process: Process, tmp_path: Path) -> None:
    place, end = Path(f"/proc/{process.number}"), time.monotonic() + 30.0
    while MARKS[0].encode() not in (place / "environ").read_bytes() and time.monotonic() < end:
        time.sleep(0.01)
    assert f"{MARK}={MARKS[0]}".encode() in (place / "environ").read_bytes().split(b"\0")
    assert (place / "cwd").resolve() == tmp_path.resolve()
    assert os.getsid(process.number) == process.number


def test_its_end_is_reported_with_the_signal(process: Process) -> None:
    assert process.ended() is None
    os.kill(process.number, signal.SIGTERM)
    ended = process.ended(30.0)
    assert ended is not None
    assert ended[0] == -signal.SIGTERM
    assert ended[1] > 2**20


def test_a_closed_input_ends_it_with_status_0(process: Process) -> None:
    process.stdin.close()
    ended = process.ended(30.0)
    assert ended is not None
    assert ended[0] == 0


def test_a_nursery_that_was_killed_is_replaced(process: Process) -> None:
    first = parent_of(process)
    os.kill(first, signal.SIGKILL)
    assert process.ended(30.0) == (-signal.SIGKILL, 0)
    other = worker(MARKS[1], HOME="/nowhere")
    assert parent_of(other) != first
    other.kill()
    for stream in (other.stdin, other.stdout, other.stderr):
        stream.close()


def test_the_judge_of_a_candidate_does_not_import_torch(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", JUDGE], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "scaled_dot_product_attention conforms: 1 of 1 clause holds" in done.stdout
    assert done.returncode == 7


def test_who_loses_its_parent_is_not_accused(tmp_path: Path) -> None:
    file = tmp_path / "right.py"
    file.write_text("from torch.nn.functional import scaled_dot_product_attention as attention\n")
    right = isolated_candidate(f"{file}:attention", {})
    assert isinstance(right.run, Remote)
    assert right.run.door.process is not None
    os.kill(parent_of(right.run.door.process), signal.SIGKILL)
    (verdict,) = run(right, ("shapes.coincident",), ("float32",))
    end_process(right)
    assert verdict.status is Status.PASS
    assert not right.run.door.deaths
