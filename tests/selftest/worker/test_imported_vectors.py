"""Imported vectors: cases of others with their own answers, which right answers hold on and wrong ones do not."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest

from attention_conformance.implementations.worker.vectors import SUFFIX, VectorError, VectorSet, file_bytes
from attention_conformance.implementations.worker.wire import Message
from attention_conformance.tests.cli import main
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.vectors import imported_vectors
from attention_conformance.tests.harness.run.vectors.imported_vectors import judge_imported, write_onnx
from attention_conformance.tests.harness.run.vectors.onnx_cases import OnnxCase

ROWS = {"Q": [[1.0, 0.0]], "K": [[1.0, 0.0], [0.0, 0.0]], "V": [[2.0, 0.0], [4.0, 1.0]]}
"""The scores are s and 0, with s the scale."""


def by_hand(scale: float) -> np.ndarray:
    first = np.exp(scale) / (np.exp(scale) + 1.0)
    return np.array([[[[4.0 - 2.0 * first, 1.0 - first]]]], np.float32)


def case(name: str, answer: np.ndarray, **attributes: float) -> OnnxCase:
    given = {each: np.array([[rows]], np.float32) for each, rows in ROWS.items()}
    return OnnxCase(name, "Attention", attributes, given, {"Y": answer})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three cases, one of which has a wrong answer, and one an attribute that nobody knows."""

    def cases(_: str) -> Iterator[OnnxCase]:
        yield case("right", by_hand(0.5), scale=0.5)
        yield case("wrong", by_hand(0.6), scale=0.5)
        yield case("other", by_hand(0.5), scale=0.5, unknown=1.0)

    monkeypatch.setattr(imported_vectors, "onnx_cases", cases)
    monkeypatch.setattr(imported_vectors, "version", lambda _: "1")
    assert write_onnx(tmp_path / "onnx") == 1
    return tmp_path / "onnx"


def answered(folder: Path, message: Message) -> Path:
    folder.mkdir()
    (folder / f"right{SUFFIX}").write_bytes(file_bytes(message))
    return folder


def test_only_cases_with_right_answers_are_imported_and_answers_are_compared_with_them(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = VectorSet.of(folder)
    assert vectors.names == {"right"}
    right = answered(tmp_path / "a", Message({}, {"output": by_hand(0.5)}))
    assert main.main(["vectors", "judge", str(folder), str(right)]) == ExitStatus.CONFORMS
    assert capsys.readouterr().out == "node cases of ONNX Attention, onnx 1: of 1 1 hold\n"
    wrong = answered(tmp_path / "b", Message({}, {"output": by_hand(0.505)}))
    status, (counts, line) = judge_imported(vectors, folder, wrong)
    assert (status, counts.endswith("of 1 1 fail"), line.startswith("FAIL  right: output of ")) == (1, True, True)
    refused = answered(tmp_path / "c", Message({"error": "no scale", "exception": ""}))
    assert judge_imported(vectors, folder, refused)[0] == ExitStatus.NOTHING_CHECKED
    (tmp_path / "d").mkdir()
    status, (counts,) = judge_imported(vectors, folder, tmp_path / "d")
    assert (status, counts.endswith("of 1 1 have no answer")) == (ExitStatus.INTERRUPTED, True)
    (tmp_path / "d" / f"right{SUFFIX}").write_bytes(b"x" * 20)
    assert "it is no answer" in judge_imported(vectors, folder, tmp_path / "d")[1][1]


def test_what_has_no_cases_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(VectorError, match="is not empty"):
        write_onnx(folder)
    with pytest.raises(VectorError, match="has no cases in float16"):
        write_onnx(tmp_path / "half", ("float16",))


def test_onnx_is_named_where_it_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(imported_vectors, "version", absent)
    assert main.main(["vectors", "import", str(tmp_path / "onnx")]) == ExitStatus.UNUSABLE
    assert capsys.readouterr().err == "vectors: onnx is not installed: pip install onnx\n"
