"""A watched file is judged again when it is saved, and what failed before comes first."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attention_conformance.tests.cli import watch as watching
from attention_conformance.tests.harness.run.plan.failing_first import FailingFirst
from attention_conformance.tests.report.verdict import Status


@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, if another test has imported it
def test_a_save_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file, log = tmp_path / "a.py", tmp_path / "log"
    file.write_text("first")
    log.touch()
    texts = iter(["second"])

    def saved_meanwhile(seconds: float) -> None:
        if "watching" not in capsys.readouterr().out:
            return  # the run is under way
        text = next(texts, "")
        if not text:
            raise KeyboardInterrupt
        file.write_text(text)
        os.utime(file, ns=(1, 1))

    def run() -> int:
        with log.open("a") as held:
            held.write(f"{file.read_text()}\n")
        return 3

    monkeypatch.setattr(time, "sleep", saved_meanwhile)
    assert watching.watch([file], run) == 3
    assert log.read_text().split() == ["first", "second"]


def test_only_files_are_watched(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    assert watching.files_of([f"{tmp_path / 'a.py'}:attention"]) == [tmp_path / "a.py"]
    with pytest.raises(ValueError, match=r"torch\.nn\.functional is none: give FILE\.py:NAME"):
        watching.files_of(["torch.nn.functional:scaled_dot_product_attention"])


@dataclass
class Item:
    planned: Any


def test_what_failed_comes_first_the_next_time(tmp_path: Path) -> None:
    verdicts = [
        SimpleNamespace(clause="masks.bool", status=Status.FAIL),
        SimpleNamespace(clause="b", status=Status.PASS),
    ]
    state: Any = SimpleNamespace(recorder=SimpleNamespace(verdicts=verdicts))
    plugin = FailingFirst(state, tmp_path / "failed")
    items: list[Any] = [Item(SimpleNamespace(clause=SimpleNamespace(id=name))) for name in ("a", "masks.bool", "b")]
    for order in (["a", "masks.bool", "b"], ["masks.bool", "a", "b"]):
        list(plugin.pytest_collection_modifyitems(items))
        assert [item.planned.clause.id for item in items] == order
        plugin.pytest_sessionfinish()
