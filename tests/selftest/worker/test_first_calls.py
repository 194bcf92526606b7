"""First calls, by which it is found out how a candidate is called: one that hangs, slow ones, too little memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.api.watched_calls import StoppedError
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.worker import first_calls
from attention_conformance.implementations.worker.door import Door
from attention_conformance.implementations.worker.elsewhere import worker_command
from attention_conformance.implementations.worker.first_calls import FirstCalls
from attention_conformance.implementations.worker.remote import Remote, isolated_candidate

START = """
import ctypes, time
import torch

made = 0

def attention(query, key, value):
    global made
    made += 1
    {}
    return torch.softmax(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, -1) @ value
"""
DEADLINE = 1.5
GIB = 2**30
AT_FIRST = f"hung in one of {first_calls.WHICH}, before it answered any: no answer within 1.5 s"

Make = Callable[[str], Door]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Make]:
    """The door of a candidate that is lost as it starts, by a line of it."""
    doors = []

    def made(line: str) -> Door:
        file = tmp_path / "first.py"
        file.write_text(START.format(line))
        run = isolated_candidate(f"{file}:attention", {}, deadline=DEADLINE, memory=2 * GIB).run
        assert isinstance(run, Remote)
        doors.append(run.door)
        return run.door

    yield made
    for each in doors:
        each.end()


@pytest.mark.parametrize("line", ["time.sleep(1000)", "while True: pass"])
def test_a_call_that_hangs_is_lost_after_its_deadline_and_named(door: Make, line: str) -> None:
    (how,) = door(line).deaths
    shapes = r": attention\(query \(.*\), key \(.*\), value \(.*\)\) \(.*first\.py:10\)"
    assert re.fullmatch(re.escape(AT_FIRST) + shapes, how)


def test_a_call_that_hangs_in_c_is_found_too(door: Make) -> None:
    assert door("ctypes.PyDLL(None).pause()").deaths == [AT_FIRST]


def test_a_later_call_that_hangs_comes_after_those_that_were_answered(door: Make) -> None:
    (how,) = door("if made == 4: time.sleep(1000)").deaths  # one of the three before it is refused
    assert ", after about 2 that it answered: no answer within 1.5 s: attention(query" in how


def test_one_that_runs_out_of_memory_says_so(door: Make) -> None:
    held = "attention.held = (*getattr(attention, 'held', ()), torch.empty(2**29, dtype=torch.uint8))"
    (how,) = door(held).deaths
    assert re.match(
        rf"ran out of memory in one of {first_calls.WHICH}, after about \d that it answered: RuntimeError: ", how
    )
    assert how.endswith("; it may take 2 GiB (--memory)")


@pytest.mark.parametrize("line", ["time.sleep(0.02)", "raise ValueError(made)"])
def test_one_that_answers_or_refuses_in_time_is_not_lost(tmp_path: Path, line: str) -> None:
    file = tmp_path / "first.py"
    file.write_text(START.format(f"if made % 2: {line}" if "sleep" in line else line))
    own = Door({"target": f"{file}:attention", "conventions": {}, "device": "cpu"}, worker_command(""), DEADLINE)
    if "sleep" in line:
        assert own.start().fields["name"] == "attention"
    else:
        with pytest.raises(TargetError, match="it cannot be called with query, key and value"):
            own.start()
    assert own.deaths == []
    own.end()


def raised() -> None:
    raise ValueError("x" * 10_000)


def test_calls_that_all_raise_the_same_for_long_are_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "ALIKE", 0.0)
    with FirstCalls(lambda _: None).watched(), pytest.raises(StoppedError, match=r"each of 1 first calls .* xxx"):
        safe_call(raised)


def test_slow_calls_end_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = FirstCalls(lambda _: None, limit=0.0)
    with calls.watched(), pytest.raises(StoppedError, match=r"though none hangs: .* A larger --deadline gives"):
        safe_call(lambda: None)
