"""Hostile and broken candidates: each gets a verdict with a reason, and no other implementation notices anything."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.worker import door
from attention_conformance.implementations.worker.limits import DEATHS, KEPT
from attention_conformance.implementations.worker.process import Process
from attention_conformance.implementations.worker.remote import Remote, isolated_candidate, printed_by
from attention_conformance.implementations.worker.wire import Message
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import FailureKind, Status, Verdict
from attention_conformance.tests.selftest.worker.detection_calls import detection_calls

START = """
import os, sys, time
from torch.nn.functional import scaled_dot_product_attention as sdpa

calls = 0

def judged():
    global calls
    calls += 1
    return calls > DETECTION
"""
BODY = "def attention(query, key, value):\n    {}\n    return sdpa(query, key, value)\n"
DYING = {
    "in the midst": ("if judged(): os._exit(7)", "ended its process with exit status 7"),
    "at the first call": ("os._exit(0)", "ended its process with exit status 0"),
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
