"""Options in a clone: a path that pytest would take for the place of the tests is refused with the form that works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.selftest.sessions import ROOT


@pytest.mark.parametrize("joined", [False, True])
def test_a_report_folder_that_exists(tmp_path: Path, joined: bool) -> None:
    option = [f"--report={tmp_path}"] if joined else ["--report", str(tmp_path)]
    chosen = ("--implementation", "torch.sdpa.math", "--clause", "causal.square", "--dtype", "float64")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *option, *chosen]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (ExitStatus.CONFORMS if joined else ExitStatus.UNUSABLE), done.stdout + done.stderr
    assert (tmp_path / "report.json").exists() is joined
    assert ("join them, --report=PATH" in done.stderr) is not joined
