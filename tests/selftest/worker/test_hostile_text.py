"""Names, types and messages of candidates: no control character of theirs is printed or recorded, and none is long."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.report.log import FILE
from attention_conformance.tests.selftest.sessions import Sessions

TEXT = """
from dataclasses import replace
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS

MATH = next(i for i in TORCH_OPS if i.name == "torch.sdpa.math")
HOSTILE = "\\x1b[31m\\ud800\\n\\r\\x07\\u202e" + "x" * 300
Odd = type("Odd\\x1b]0;title\\x07" + "y" * 300, (Exception,), {})

def run(problem, device):
    raise Odd("\\x1b[2J\\ud800" + "z" * 10**6)

attention = replace(MATH, name=HOSTILE, run=run)
"""
LONGEST = 1_300
"""Of a text in a record, the case left out."""


def texts(data: Any) -> Iterator[str]:
    """Every text within plain values."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        yield from (text for each in data.items() for text in texts(list(each)))
    elif isinstance(data, list):
        yield from (text for each in data for text in texts(each))


@pytest.mark.parametrize("options", [(), ("--in-process",)], ids=["isolated", "in-process"])
def test_no_control_character_is_printed_or_recorded(
    sessions: Sessions, tmp_path: Path, options: tuple[str, ...]
) -> None:
    file, folder = tmp_path / "hostile.py", tmp_path / "report"
    file.write_text(TEXT)
    chosen = ("--clause", "scores.dot-product", "--dtype", "float64", "--report", str(folder))
    result = sessions.apart("--candidate", f"{file}:attention", *chosen, *options)
    assert result.returncode == ExitStatus.FAILS, result.stdout + result.stderr
    records = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    report = json.loads((folder / "report.json").read_text())
    for text in [*texts(records), *texts(report)]:
        assert not set(text) & set("\x1b\r\x07\u202e\ud800"), text
        assert len(text) < LONGEST
    for name in ("junit.xml", "report.md", "report.html"):
        assert not set((folder / name).read_text()) & set("\x1b\x07\u202e"), name
    assert not set(result.stdout) & set("\x1b\x07\u202e")
    (entry,) = report["implementations"]
    assert len(entry["name"]) <= 100
    assert entry["isolated"] is not bool(options)
    where = "in the judge's process: nothing was isolated"
    for shown in (result.stdout, (folder / "report.md").read_text()):
        assert (where in shown) is bool(options)
    page = (folder / "report.html").read_text()
    assert (where.replace("'", "&#39;") in page) is bool(options)
    assert ("in a process of its own" in page) is not bool(options)
