"""The auditor's command line and its process: crashes, silence and noise cost one answer each."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from attention_conformance.implementations.api.global_state import THREADS
from attention_conformance.tests.cli.audit_command import audit

SOURCE = """
import os, signal, sys, time
import torch
import torch.nn.functional as F


def deadly(query, key, value, attn_mask=None, window_size=None):
    print("noise")
    sys.stderr.write("noise")
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        os.kill(os.getpid(), signal.SIGSEGV)
    if window_size is not None:
        time.sleep(1000)
    return F.scaled_dot_product_attention(query, key, value, attn_mask)


def alone(query, key, value):
    assert torch.get_num_threads() == 1
    return F.scaled_dot_product_attention(query, key, value)


def kills(query, key, value):
    os._exit(5)
"""


@pytest.fixture
def target_file(tmp_path: Path) -> str:
    (tmp_path / "target.py").write_text(SOURCE)
    return str(tmp_path / "target.py")


def printed(captured: pytest.CaptureFixture[str]) -> str:
    return " ".join(captured.readouterr().out.split())


def test_that_a_crash_and_silence_cost_one_answer_each(target_file: str, capfd: pytest.CaptureFixture[str]) -> None:
    file = Path(target_file).parent / "adapter.py"
    assert audit(f"{target_file}:deadly", file, seconds=4.0) == 0
    out = printed(capfd)
    assert "bool-mask no answer killed the process (signal 11)" in out
    assert "window no answer gave no answer in 4 s" in out
    assert "mask polarity undetermined as masks and other parameters were probed" in out
    assert "float-mask added" in out
    assert "empty-sizes offered" in out
    assert "noise" not in out
    text = file.read_text()
    assert ast.parse(text)
    assert "Feature.FLOAT_MASK" in text
    assert "Feature.BOOL_MASK" not in text, "what was not observed is not claimed"


def test_that_a_target_computes_on_one_thread(target_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    assert audit(f"{target_file}:alone") == 0


@pytest.mark.parametrize(
    ("name", "context"),
    [("kills", "calling it ended the process (exit status 5)"), ("missing", "has no name 'missing'")],
)
def test_that_a_target_that_cannot_be_used_is_reported_in_one_line(
    target_file: str, name: str, context: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert audit(f"{target_file}:{name}") == 4
    captured = capfd.readouterr()
    assert context in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("target", "write", "context"),
    [
        ("nocolon", None, "has no colon"),
        ("a:b", "adapter.txt", "ends in .py"),
        ("a:b", "nowhere/at/all/adapter.py", "there is no folder"),
        ("a:b", __file__, "--force to overwrite"),
    ],
)
def test_that_nothing_is_probed_where_an_option_cannot_be_used(
    target: str, write: str | None, context: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(target, None if write is None else Path(write)) == 4
    assert context in capsys.readouterr().err
