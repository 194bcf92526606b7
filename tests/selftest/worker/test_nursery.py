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

from attention_conformance.implementations.worker import door
from attention_conformance.implementations.worker.leftovers import MARK
from attention_conformance.implementations.worker.nursery import forked
from attention_conformance.implementations.worker.process import Process
from attention_conformance.implementations.worker.remote import Remote, end_process, isolated_candidate
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import FailureKind, Status
from attention_conformance.tests.selftest.worker.detection_calls import detection_calls

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
MARKS = "0123456789abcdef" * 2, "fedcba9876543210" * 2
JUDGE = """
import sys
from attention_conformance.tests.cli.main import main

try:
    main(["check", "right.py:attention", "--clause", "scores.dot-product"])
finally:
    sys.exit(9 if "torch" in sys.modules else 7)
"""

RIGHT = """
import os, signal, time
from torch.nn.functional import scaled_dot_product_attention as sdpa

calls = 0

def attention(query, key, value):
    global calls
    calls += 1
    if calls > {calls}:
        {line}
    return sdpa(query, key, value)
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


def parent_of(number: int) -> int:
    return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])


def test_it_has_the_folder_and_the_environment_of_the_judge(process: Process, tmp_path: Path) -> None:
    place, end = Path(f"/proc/{process.number}"), time.monotonic() + 30.0
    while MARKS[0].encode() not in (place / "environ").read_bytes() and time.monotonic() < end:
        time.sleep(0.01)
    assert f"{MARK}={MARKS[0]}".encode() in (place / "environ").read_bytes().split(b"\0")
    assert (place / "cwd").resolve() == tmp_path.resolve()
    assert os.getsid(process.number) == process.number
    while (place / "oom_score_adj").read_text() != "1000\n" and time.monotonic() < end:
        time.sleep(0.01)
    assert (place / "oom_score_adj").read_text() == "1000\n"


def test_its_end_is_reported_with_the_signal(process: Process) -> None:
    assert process.ended() is None
    os.kill(process.number, signal.SIGTERM)
    ended = process.ended(30.0)
    assert ended is not None
    assert ended[0] == -signal.SIGTERM
    assert ended[1] > 2**20


def test_one_that_a_candidate_suspends_goes_on(process: Process) -> None:
    os.kill(parent_of(process.number), signal.SIGSTOP)
    assert process.ended() is None
    process.kill()
    assert process.ended() is not None


def test_one_that_is_gone_before_that_is_reported_may_be_ended_again(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.reports, "line", lambda seconds: (-signal.SIGTERM, 0) if seconds else None)
    os.kill(process.number, signal.SIGKILL)
    while Path(f"/proc/{process.number}").exists():
        time.sleep(0.01)
    process.stop()
    process.kill()
    assert process.ended() == (-signal.SIGTERM, 0)


def test_a_closed_input_ends_it_with_status_0(process: Process) -> None:
    process.stdin.close()
    ended = process.ended(30.0)
    assert ended is not None
    assert ended[0] == 0


def test_a_nursery_that_was_killed_is_replaced_and_nobody_notices(process: Process) -> None:
    first = parent_of(parent_of(process.number))
    os.kill(first, signal.SIGKILL)
    other = worker(MARKS[1], HOME="/nowhere")
    assert parent_of(parent_of(other.number)) != first
    assert process.ended() is None
    other.kill()
    for stream in (other.stdin, other.stdout, other.stderr):
        stream.close()


def test_a_variable_that_the_judge_sets_after_the_first_start_costs_no_other_nursery(process: Process) -> None:
    other = worker(MARKS[1], HOME="/nowhere", KMP_DUPLICATE_LIB_OK="True")
    assert parent_of(parent_of(other.number)) == parent_of(parent_of(process.number))
    other.kill()
    for stream in (other.stdin, other.stdout, other.stderr):
        stream.close()


def test_the_judge_does_not_import_torch_and_nothing_is_written_next_to_the_candidate(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("from torch.nn.functional import scaled_dot_product_attention as sdpa\n")
    (tmp_path / "right.py").write_text("from helper import sdpa as attention\n")
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", JUDGE]
    done = subprocess.run(command, cwd=tmp_path, env=usual, capture_output=True, text=True, timeout=120)
    assert "attention conforms: 1 of 1 clause holds" in done.stdout
    assert done.returncode == 7
    assert {path.name for path in tmp_path.iterdir()} == {"helper.py", "right.py"}


def test_who_ends_its_parent_fails_and_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "DEATHS", 2)
    loaded = []
    for name, line in (("right", ""), ("ending", "os.kill(os.getppid(), signal.SIGKILL); time.sleep(9)")):
        file = tmp_path / f"{name}.py"
        file.write_text(RIGHT.format(calls=detection_calls(), line=line or "pass"))
        loaded.append(isolated_candidate(f"{file}:attention", {}))
    first, second = (run(each, ("shapes.coincident",), ("float32",))[0] for each in reversed(loaded))
    for each in loaded:
        end_process(each)
    assert first.failure is not None
    assert first.failure.kind is FailureKind.DIED
    assert first.failure.message.endswith(" ended with its parent, to which the candidate or the system sent SIGKILL")
    assert second.status is Status.PASS
    assert isinstance(loaded[0].run, Remote)
    assert not loaded[0].run.door.deaths
