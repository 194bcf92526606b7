"""Answers of a worker that no reader expects are failures of its candidate: a worker can be another program."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import CandidateError, LostError, answer, guarded
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.worker.door import Door
from attention_conformance.implementations.worker.remote import Remote, end_process, fitting, isolated_candidate
from attention_conformance.implementations.worker.wire import Message
from attention_conformance.spec.cases import Case
from attention_conformance.spec.inputs import build

PROBLEM = build(Case(), "float32").forward_only()
OUTPUT = {"output": np.zeros(1, np.float32)}


@dataclass
class FixedDoor:
    """Answers every request by one message."""

    answer: Message

    def request(self, message: Message, work: float = 0.0) -> Message:
        return self.answer


def observed(answer: Message, read: Callable[[Remote], object]) -> None:
    with pytest.raises(CandidateError, match=r"^its answer cannot be used: "):
        read(Remote(cast(Door, FixedDoor(answer)), {}))


@pytest.mark.parametrize(
    "answer",
    [
        Message({}),
        Message({"disturbed": 1}, OUTPUT),
        Message({"others": 1}, OUTPUT),
        Message({"others": {"other": 1}}, OUTPUT),
        Message({}, {**OUTPUT, "changed.query": np.zeros((1, 2), np.float32)}),
    ],
)
def test_a_result(answer: Message) -> None:
    observed(answer, lambda remote: remote(PROBLEM.fresh(), "cpu"))


@pytest.mark.parametrize("fields", [{}, {"bytes": "many"}, {"changed": 1}, {"overwritten": False, "shared": 1}])
def test_an_observation(fields: dict[str, Any]) -> None:
    answer = Message(fields, OUTPUT)
    observed(answer, lambda remote: remote.peak(PROBLEM, "cpu", 0))
    observed(answer, lambda remote: remote.changed_state(PROBLEM, "cpu", 0))
    observed(answer, lambda remote: remote.overwritten(PROBLEM, [], "cpu"))
    observed(answer, lambda remote: remote.recorded_call(PROBLEM, "cpu"))
    observed(answer, lambda remote: remote.program_fails(""))


@pytest.mark.parametrize("fields", [{}, {"case": 1}, {"case": "no JSON"}, {"case": '{"sizes": 1}'}])
def test_a_fit(fields: dict[str, Any]) -> None:
    observed(Message(fields), lambda remote: fitting(remote.door)(Case()))


def test_a_candidate_that_is_gone_when_it_is_started_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def attention(query, key, value):\n    return query @ key.mT @ value\n")
    implementation = isolated_candidate(f"{file}:attention", {})
    end_process(implementation)
    file.unlink()
    with pytest.raises(LostError, match=r"^could not be started again: .*there is no file"):
        implementation.run(PROBLEM, "cpu")


def test_an_exception_in_no_line_of_the_candidate_accuses_nobody(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    package = "attention_conformance.implementations.discovery"
    file.write_text(f"from {package} import candidates\ncandidates.wrapped = None\ndef own(q, k, v): ...\n")
    with pytest.raises(TargetError, match=r"the suite could not read it: TypeError: .*\(candidates.py, line \d+\)"):
        isolated_candidate(f"{file}:own", {})


def test_an_error_in_a_current_folder_that_is_gone_has_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raising: dict[str, Callable[[], None]] = {}
    exec(compile("def attention():\n    raise ValueError('mine')\n", str(tmp_path / "mine.py"), "exec"), raising)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(CandidateError, match=r"^raised ValueError: mine$") as found:
        guarded(raising["attention"])
    assert found.value.place == f"{tmp_path / 'mine.py'}:2"


def test_a_nan_of_memory_that_was_never_written_is_compared_like_any_other() -> None:
    signalling = np.array([[0x7F800001, 0]], np.uint32).view(np.float32)
    result = Result(signalling, gradients={"query": signalling}, others={"again": Result(signalling)})
    got = answer(lambda *_: result, PROBLEM, "cpu")
    with np.errstate(invalid="raise"):
        for each in (got.output, got.gradients["query"], got.others["again"].output):
            assert np.isnan(each.astype(np.float64)).tolist() == [[True, False]]
