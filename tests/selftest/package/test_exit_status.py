"""Each exit status through the real command, and the table of them in the documentation."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from attention_conformance.tests.harness.run.exit_status import ExitStatus, exit_status
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.selftest.sessions import CANDIDATES, ROOT

BREAKING = """
from attention_conformance.tests.harness.run import clause_items
from attention_conformance.tests.harness.run.screen import first_failure
from attention_conformance.tests.harness.run import plugin
from attention_conformance.tests.harness.run import post_run

def crash(*arguments, **options):
    raise ZeroDivisionError("an error of the suite")
"""
PADDED = """
def padded(query, key, value, segment_mask=None, is_causal=False):
    import torch
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
"""
CHECKED = ("--clause", "causal.square", "--dtype", "float64")


@pytest.mark.parametrize(
    ("status", "name", "added", "arguments"),
    [
        (ExitStatus.CONFORMS, "right", "", CHECKED),
        (ExitStatus.FAILS, "halved", "", CHECKED),
        (ExitStatus.INTERRUPTED, "stops", "", CHECKED),
        (ExitStatus.SUITE_ERROR, "right", f"{BREAKING}clause_items.judged = crash\n", CHECKED),
        (ExitStatus.SUITE_ERROR, "halved", f"{BREAKING}post_run.record_diagnoses = crash\n", CHECKED),
        (ExitStatus.FAILS, "halved", f"{BREAKING}first_failure.diagnose = post_run.diagnose = crash\n", CHECKED),
        (ExitStatus.SUITE_ERROR, "right", f"{BREAKING}plugin.summarise = crash\n", CHECKED),
        (ExitStatus.UNUSABLE, "missing", "", CHECKED),
        (ExitStatus.UNUSABLE, "right", "", ("--clause", "no.such-clause")),
        (ExitStatus.NOTHING_CHECKED, "right", "", ("--clause", "projections.query")),
        (ExitStatus.NOTHING_CHECKED, "shy", "", CHECKED),
        (ExitStatus.IN_PART, "padded", PADDED, CHECKED),
        (ExitStatus.CONFORMS, "padded", PADDED, (*CHECKED, "--without", "segment_mask")),
    ],
)
def test_the_command_ends_with(
    tmp_path: Path, status: ExitStatus, name: str, added: str, arguments: tuple[str, ...]
) -> None:
    file = tmp_path / "candidates.py"
    file.write_text(CANDIDATES + added)
    command = [sys.executable, "-m", "attention_conformance", "check", f"{file}:{name}", "--in-process", *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == status, result.stdout + result.stderr
    if status is ExitStatus.SUITE_ERROR:
        assert "next: this is an error of the suite: report it" in result.stdout
    if status is ExitStatus.IN_PART:
        shown = " ".join(result.stdout.replace("\\\n", " ").split())
        assert f"attention_conformance check {file}:{name} --without segment_mask" in shown
        assert "# states that this is known: exit status 0, not 6" in shown
    if ".diagnose = " in added:
        assert "no diagnosis: looking for it raised ZeroDivisionError" in " ".join(result.stdout.split())


def test_the_table_of_the_documentation_is_that_of_the_code() -> None:
    text = (ROOT / "docs" / "integration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| ", text, re.MULTILINE)
    assert [int(row) for row in rows] == list(ExitStatus)


def _verdict(status: Status, checks: int) -> Verdict:
    reason = "" if status is Status.PASS else "a reason"
    return Verdict("causal.square", "MUST", "x", "float64", status, checks=checks, reason=reason)


def test_a_run_that_lacks_verdicts_does_not_conform() -> None:
    verdicts = [_verdict(Status.PASS, 1)]
    assert exit_status(0, False, verdicts, 1, False) == ExitStatus.CONFORMS
    assert exit_status(0, False, verdicts, 2, False) == ExitStatus.INTERRUPTED
    assert exit_status(0, False, verdicts, 1, True, True) == ExitStatus.FAILS
    assert exit_status(0, False, verdicts, 1, False, True) == ExitStatus.IN_PART
    assert exit_status(0, False, [_verdict(Status.NOT_CLAIMED, 0)], 1, True) == ExitStatus.NOTHING_CHECKED
    assert exit_status(1, True, verdicts, 1, False) == ExitStatus.SUITE_ERROR
