"""Processes that a candidate leaves are ended and named, also those that have taken a session of their own."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from attention_conformance.implementations.worker import leftovers as leftovers_of_workers
from attention_conformance.implementations.worker.elsewhere import worker_command
from attention_conformance.implementations.worker.remote import Remote, isolated_candidate
from attention_conformance.tests.harness.run.post_run import leftovers
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.worker.detection_calls import detection_calls
from attention_conformance.tests.selftest.worker.test_hostile import processes

TEXT = """
import os, subprocess, time
from torch.nn.functional import scaled_dot_product_attention as sdpa

calls = 0

def attention(query, key, value):
    global calls
    calls += 1
    if calls == DETECTION + 1:
        {}
    return sdpa(query, key, value)
"""
LEAVING = {
    "of its session": "subprocess.Popen(['sleep', '{0}'])",
    "of a session of its own": "subprocess.Popen(['sleep', '{0}'], start_new_session=True)",
    "of a session of its own, without environment": (
        "(os.environ.clear(), subprocess.Popen(['/bin/sh', '-c', 'sleep {0} & sleep {0}']))"
    ),
    "of a session of its own, without environment, twice forked": (
        "(os.environ.clear(), os.fork() or (os.setsid(), os.fork() and os._exit(0),"
        " os.execve('/bin/sleep', ['sleep', '{0}'], {{}})))"
    ),
    "twice forked": "(os.fork() or (os.setsid(), os.fork() and os._exit(0), os.execvp('sleep', ['sleep', '{0}'])))",
}


@pytest.mark.parametrize("number", range(len(LEAVING)), ids=LEAVING)
def test_what_is_left_is_ended_and_named(tmp_path: Path, number: int) -> None:
    seconds = str(4321 + number)
    file = tmp_path / "leaving.py"
    file.write_text(f"DETECTION = {detection_calls()}\n" + TEXT.format(list(LEAVING.values())[number].format(seconds)))
    implementation = isolated_candidate(f"{file}:attention", {}, deadline=30.0)
    assert isinstance(implementation.run, Remote)
    (verdict,) = run(implementation, ("shapes.coincident",), ("float32",))
    assert verdict.status is Status.PASS
    end = time.monotonic() + 30.0
    while not processes(f"sleep {seconds}") and time.monotonic() < end:
        time.sleep(0.1)  # it may still be on its way
    (line,) = leftovers([implementation])
    assert line.startswith("attention left ")
    assert f"sleep {seconds}" in line
    assert not processes(f"sleep {seconds}")


@pytest.mark.parametrize(
    ("leaving", "line"),
    [
        (
            "threading.Thread(target=time.sleep, args=(300,), name='\\x1bmine').start()",
            "attention left 1 thread running:  mine; ended",
        ),
        (
            "import _thread; _thread.start_new_thread(lambda: [each for each in iter(int, 1) if each], ())",
            "attention left 1 thread running: ",
        ),
        (
            "atexit.register(time.sleep, 300)",
            "attention did not end by itself within 5 s of its last call; ended",
        ),
        ("atexit.register(ctypes.string_at, 0)", "attention died of SIGSEGV (Segmentation fault), after its last call"),
    ],
)
def test_threads_and_a_bad_end_are_named(tmp_path: Path, leaving: str, line: str) -> None:
    file = tmp_path / "leaving.py"
    file.write_text("import atexit, ctypes, threading\n" + f"DETECTION = {detection_calls()}\n" + TEXT.format(leaving))
    implementation = isolated_candidate(f"{file}:attention", {}, deadline=30.0)
    assert all(verdict.status is Status.PASS for verdict in run(implementation, ("shapes.coincident",), ("float32",)))
    (named,) = leftovers([implementation])
    assert named.startswith(line)


@pytest.mark.parametrize("python", ["", sys.executable])
def test_a_fork_of_a_worker_is_named_as_one(tmp_path: Path, python: str) -> None:
    (tmp_path / "cmdline").write_text("\0".join(worker_command(python)))
    assert leftovers_of_workers._command(tmp_path) == leftovers_of_workers.FORK


def test_who_leaves_nothing_is_not_named(tmp_path: Path) -> None:
    file = tmp_path / "tidy.py"
    file.write_text(f"DETECTION = {detection_calls()}\n" + TEXT.format("subprocess.run(['true'])"))
    implementation = isolated_candidate(f"{file}:attention", {}, deadline=30.0)
    assert all(verdict.status is Status.PASS for verdict in run(implementation, ("shapes.coincident",), ("float32",)))
    assert not list(leftovers([implementation]))
