"""Hostile and broken candidates: each gets a verdict with a reason, and no other implementation notices anything."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.worker import door
from attention_conformance.implementations.worker.limits import DEATHS, KEPT, LONGEST
from attention_conformance.implementations.worker.process import Process
from attention_conformance.implementations.worker.remote import Remote, isolated_candidate, printed_by
from attention_conformance.implementations.worker.wire import Message
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import FailureKind, Status, Verdict
from attention_conformance.tests.selftest.worker.detection_calls import detection_calls

START = """
import ctypes, os, signal, sys, threading, time
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

calls = 0

def judged():
    global calls
    calls += 1
    return calls > DETECTION
"""
BODY = "def attention(query, key, value):\n    {}\n    return sdpa(query, key, value)\n"
DYING = {
    "exit with status 0": ("if judged(): os._exit(0)", "ended its process with exit status 0"),
    "exit with status 7": ("if judged(): os._exit(7)", "ended its process with exit status 7"),
    "exit at the first call": ("os._exit(0)", "ended its process with exit status 0"),
    "null pointer": ("if judged(): ctypes.string_at(0)", "died of SIGSEGV"),
    "abort": ("if judged(): os.abort()", "died of SIGABRT"),
    "kill": ("if judged(): os.kill(os.getpid(), signal.SIGKILL)", "died of SIGKILL"),
    "terminate": ("if judged(): os.kill(0, signal.SIGTERM)", "died of SIGTERM"),
    "another thread": (
        "if judged(): threading.Thread(target=os._exit, args=(3,)).start(); time.sleep(9)",
        "ended its process with exit status 3",
    ),
    "another program": ("if judged(): os.execv('/bin/true', ['true'])", "ended its process with exit status 0"),
    "closed streams": ("if judged(): os.closerange(0, 1000)", "such as a closed stream"),
    "writing to every stream": (
        "for n in range(3, 30) if judged() else ():\n        try: os.write(n, b'x' * 99)\n        except OSError: pass",
        "sent what is no answer",
    ),
}
LATE = {
    "a loop": "while judged(): pass",
    "a loop that ignores signals": (
        "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT)]\n    while judged(): pass"
    ),
    "a lock": "lock = threading.Lock(); lock.acquire()\n    if judged(): lock.acquire()",
    "sleep": "if judged(): time.sleep(1000)",
    "polling": "while judged(): time.sleep(0.002)",
}
RAISING = {
    "KeyboardInterrupt": ("if judged(): raise KeyboardInterrupt", "raised KeyboardInterrupt"),
    "SystemExit": ("if judged(): sys.exit(0)", "raised SystemExit: 0"),
    "GeneratorExit": ("if judged(): raise GeneratorExit", "raised GeneratorExit"),
    "MemoryError": ("if judged(): raise MemoryError('none left')", "raised MemoryError: none left"),
    "ten million characters": ("if judged(): raise ValueError('\\x1b' * 10**7)", "raised ValueError: "),
}
HARMLESS = {
    "prints much": "print('x' * 3 * 10**6); print('y', file=sys.stderr)",
    "reads its input": "sys.stdin.read()",
    "closes its output": "if calls == 0: sys.stdout.close(); os.close(1)\n    judged()",
    "changes the folder": "os.chdir('/')",
    "changes the environment": "os.environ.clear()",
    "leaves a process": "if calls == 0: os.system('sleep 300 &')\n    judged()",
    "leaves a thread": "if calls < 9: threading.Thread(target=time.sleep, args=(300,)).start()\n    judged()",
    "removes modules": "sys.modules.pop('json', None); sys.modules.pop('attention_conformance.spec.cases', None)",
}
CLAUSES = ("scores.dot-product", "scores.scale-default")


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "STARTING", 30.0)


def made(tmp_path: Path, text: str, deadline: float = 10.0) -> Implementation:
    file = tmp_path / "hostile.py"
    file.write_text(f"DETECTION = {detection_calls()}\n" + START + text)
    return isolated_candidate(f"{file}:attention", {}, deadline=deadline)


def verdicts(implementation: Implementation) -> Iterator[Verdict]:
    assert isinstance(implementation.run, Remote)
    try:
        yield from run(implementation, CLAUSES, ("float32",))
    finally:
        implementation.run.door.end()


def processes(text: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "pid,stat,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if text in line and " Z" not in line]


@pytest.mark.parametrize(("body", "words"), DYING.values(), ids=DYING)
def test_death_is_a_failure_with_its_cause(tmp_path: Path, body: str, words: str) -> None:
    first, second = verdicts(made(tmp_path, BODY.format(body)))
    assert first.failure is not None
    assert (first.status, first.failure.kind) == (Status.FAIL, FailureKind.DIED)
    assert words in first.failure.message
    assert second.status in (Status.FAIL, Status.NOT_FINISHED)


def test_what_dies_as_it_is_imported_fails(tmp_path: Path) -> None:
    first, second = verdicts(made(tmp_path, "print('goodbye', file=sys.stderr); os._exit(0)"))
    assert first.failure is not None
    assert first.failure.kind is FailureKind.DIED
    assert first.failure.message.endswith("ended its process with exit status 0; its last output: goodbye")
    assert second.status is Status.NOT_FINISHED
    assert second.reason.startswith(f"its process was lost {DEATHS} times")


def test_what_is_never_imported_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "STARTING", 0.5)
    first, second = verdicts(made(tmp_path, "time.sleep(1000)", deadline=0.5))
    assert first.failure is not None
    assert first.failure.kind is FailureKind.TIMED_OUT
    assert second.status is Status.NOT_FINISHED
    assert second.reason == "as it started, its process gave no answer within 0.5 s"


@pytest.mark.parametrize(
    ("computed", "seconds"),
    [
        pytest.param([1.5, 2.5, 3.5], 2, id="alone: until it has computed for as long as it may"),
        pytest.param([0.5, 1.0, 1.5, 2.0, 2.5, 3.0], 5, id="with others: the same"),
        pytest.param([0.5, 0.5], 1, id="until it computes no more"),
        pytest.param([0.5, 0.51], 1, id="until it only polls"),
        pytest.param([0.0], 0, id="never, where it does not compute"),
    ],
)
def test_how_long_a_process_counts_as_held_up_by_others(computed: list[float], seconds: int) -> None:
    looks = iter(computed)
    process = SimpleNamespace(computed=lambda: next(looks))
    held = door.Door({}, [], process=cast(Process, process), allowed=3.0)
    assert len(list(takewhile(bool, (held._is_held_up() for _ in computed)))) == seconds


@pytest.mark.parametrize("body", LATE.values(), ids=LATE)
def test_a_call_without_end_is_ended(tmp_path: Path, body: str) -> None:
    first, second = verdicts(made(tmp_path, BODY.format(body), deadline=1.0))
    assert first.failure is not None
    assert first.failure.kind is FailureKind.TIMED_OUT
    assert "gave no answer within 1 s" in first.failure.message
    assert second.status in (Status.FAIL, Status.NOT_FINISHED)
    assert not processes(str(tmp_path))


@pytest.mark.parametrize(("body", "words"), RAISING.values(), ids=RAISING)
def test_what_is_raised_is_the_failure(tmp_path: Path, body: str, words: str) -> None:
    first, _ = verdicts(made(tmp_path, BODY.format(body)))
    assert first.failure is not None
    assert words in first.failure.message
    assert first.failure.message.isprintable()
    assert len(first.failure.message) < 2 * LONGEST


@pytest.mark.parametrize("body", HARMLESS.values(), ids=HARMLESS)
def test_what_a_right_candidate_does_besides_harms_nobody(tmp_path: Path, body: str) -> None:
    folder, environment = Path.cwd(), dict(os.environ)
    assert all(each.status is Status.PASS for each in verdicts(made(tmp_path, BODY.format(body))))
    assert (Path.cwd(), dict(os.environ)) == (folder, environment)
    assert not processes("sleep 300")


def test_what_it_prints_is_shown_once_and_without_control_characters(tmp_path: Path) -> None:
    implementation = made(tmp_path, BODY.format("print('a\\x1b[31mb' if calls else 'x' * 5000); judged()"))
    printed_by(implementation)
    assert not printed_by(implementation)
    list(run(implementation, CLAUSES[:1], ("float32",)))
    assert isinstance(implementation.run, Remote)
    implementation.run.door.request(Message({"request": "seed", "seed": 1}))
    assert printed_by(implementation).splitlines() == ["a [31mb"] * 3
    implementation.run.door.end()


def test_output_is_kept_from_its_end(tmp_path: Path) -> None:
    implementation = made(tmp_path, BODY.format("print('x' * 10**6)"))
    assert isinstance(implementation.run, Remote)
    output = implementation.run.door.output
    assert output is not None
    assert output.total > len(output.kept)
    assert len(output.kept) == KEPT
    implementation.run.door.end()
