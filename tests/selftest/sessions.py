"""Sessions: pytest runs of the suite inside a test, on candidates of the test's own."""

import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.spec.clauses import load
from attention_conformance.tests.harness.judge.clause_tests import claimed, clause_tests
from attention_conformance.tests.harness.run import post_run
from attention_conformance.tests.report.views import html

ROOT = Path(__file__).parents[2]
SETTINGS = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "no:cacheprovider")
SUITE = (*SETTINGS, str(ROOT / "tests" / "conformance"))
CANDIDATES = """
import os, sys
from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.implementations.api.contract import ExpectedFailure, Unsupported
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS
from attention_conformance.spec.conventions import Alignment, Conventions

MATH = next(i for i in TORCH_OPS if i.name == "torch.sdpa.math")
MATH = replace(MATH, run=MATH.run.run)  # unwatched: to see its operators, torch imports its compiler
LINK = "https://example.org/issues/1"
calls = 0


def output(change):
    def run(problem, device):
        result = MATH.run(problem, device)
        return replace(result, output=change(result.output))
    return run


def raising(error):
    def run(problem, device):
        raise error
    return run


def sudden(problem, device):
    global calls
    calls += 1
    if calls > 9:
        os._exit(9)
    return MATH.run(problem, device)


def candidate(name, run=MATH.run, *expected, **claims):
    return replace(MATH, name=name, run=run, expected_failures=expected, claims=replace(MATH.claims, **claims))


right = candidate("right")
halved = candidate("halved", output(lambda output: output / 2))
known = candidate("known", output(lambda output: output / 2), ExpectedFailure("causal.square", "halved", LINK))
mended = candidate("mended", MATH.run, ExpectedFailure("causal.square", "halved", LINK))
narrow = candidate("narrow", output(lambda output: output if output.size else output[..., :-1]))
numbed = candidate("numbed", output(np.nan_to_num))
skips = candidate("skips", raising(pytest.skip.Exception("not today")))
exits = candidate("exits", raising(SystemExit(0)))
leaves = candidate("leaves", raising(pytest.exit.Exception("enough")))
fails = candidate("fails", raising(ZeroDivisionError("by zero")))
xfails = candidate("xfails", raising(pytest.xfail.Exception("known")))
silent = candidate("silent", lambda problem, device: None)
stops = candidate("stops", raising(KeyboardInterrupt()))
shy = candidate("shy", fit=lambda case: Unsupported("rather not"))
dies = candidate("dies", sudden)
corner = candidate("corner", conventions=Conventions(causal_alignment=Alignment.BOTTOM_RIGHT))
"""


OF_NUMPY = """
import numpy as np


def right(query, key, value, is_causal=False):
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


def halved(query, key, value, is_causal=False):
    return right(query, key, value, is_causal) / 2
"""
"""Candidates for processes: without torch they start in a third of the time."""

LOADED = (html,)
"""Imported before a session in this process begins: what it imports itself is dropped after it, and meets its older
self in the next one."""


class Sessions:
    """Runs the suite on the candidates above, in this process or in one of its own."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.file = pytester.makepyfile(candidates=CANDIDATES)

    def run(self, *arguments: str, diagnosed: bool = False) -> pytest.RunResult:
        """In this process, candidates too; warnings and output are those of a run of its own.

        Failures are diagnosed only where a test is about that, as it takes five times as long as all else.
        """
        without = patch(f"{post_run.__name__}.diagnose", lambda *given, **options: None)
        with nullcontext() if diagnosed else without:
            return self.pytester.runpytest_inprocess(*SUITE, "--in-process", *arguments)

    def judge(self, candidate: str, *arguments: str) -> pytest.RunResult:
        """One candidate, in float64."""
        return self.run("--candidate", f"{self.file}:{candidate}", "--dtype", "float64", *arguments)

    def refused(self, *arguments: str) -> str:
        """The only line that a run prints when it cannot use its arguments."""
        result = self.run(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert not result.stdout.str().strip()
        (error_line,) = (line for line in result.errlines if line.strip())
        return error_line

    def apart(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """In a process of its own, which may die."""
        command = [sys.executable, "-m", "pytest", *SUITE, *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.fixture
def sessions(pytester: pytest.Pytester) -> Sessions:
    """The runner of sessions."""
    return Sessions(pytester)


def checks_of(implementation: Implementation, *beginnings: str) -> list[str]:
    """The clauses, once for each dtype, that the claims of an implementation call for."""
    marks = (mark for name, mark in clause_tests().items() if name.startswith(beginnings))
    own = (mark for mark in marks if not claimed(load()[mark.clause], implementation.claims))
    return [mark.clause for mark in own for dtype in mark.dtypes if dtype in implementation.claims.dtypes]


def unfolded(screen: str) -> str:
    """The text of a screen with its commands in one line each."""
    return re.sub(r" \\\n +", " ", screen)
