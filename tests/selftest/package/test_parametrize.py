"""`parametrize_with_clauses` in a project that has its own options, markers, warnings and package `tests`."""

import subprocess
import sys
from pathlib import Path

import pytest

from attention_conformance.tests.selftest.discovery.making import write

ADAPTER = """
from dataclasses import replace
import numpy as np
from attention_conformance import Claims, ExpectedFailure, Feature, Implementation, Scope, numpy_op

def attention(query, key, value, is_causal=False):
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], MISTAKE, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value

MISTAKE = 0
FEATURES = frozenset({Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.CAUSAL})
adapter = Implementation("own", Claims(Scope.OP, FEATURES, dtypes=("float64", "float32")), numpy_op(attention))

def expecting(clause, **where):
    known = ExpectedFailure(clause, "sees one more", "https://example.org/1", **where)
    return replace(adapter, expected_failures=(known,))
"""
TESTS = """
import pytest
from attention_conformance import parametrize_with_clauses
from tests import adapters

CHOSEN = ("scores.dot-product", "causal.square", "masks.bool")

@pytest.mark.own
@parametrize_with_clauses(adapters.adapter, clauses=CHOSEN)
def test_attention(clause, request):
    assert request.config.getoption("--report") == "mine"
    clause.check()
"""
PROJECT = """
[tool.pytest.ini_options]
addopts = ["--strict-markers", "--strict-config", "--report=mine"]
markers = ["own: a marker of this project"]
filterwarnings = ["error"]
"""
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--report")
    parser.addoption("--candidate")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody's project."""
    tests = {"tests/adapters.py": ADAPTER, "tests/test_attention.py": TESTS, "tests/__init__.py": ""}
    for name, text in {**tests, "conftest.py": CONFTEST, "pyproject.toml": PROJECT}.items():
        write(tmp_path, name, text)
    return tmp_path


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def run(project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Pytest in the project, as its owner starts it."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120)


def test_one_test_a_clause_and_dtype(project: Path) -> None:
    done = run(project, "-v", "-p", "no:randomly")
    assert done.returncode == 0, done.stdout + done.stderr
    ids = [line.split()[0].partition("::")[2] for line in done.stdout.splitlines() if "PASSED" in line]
    assert ids == [
        "test_attention[scores.dot-product-float64]",
        "test_attention[scores.dot-product-float32]",
        "test_attention[causal.square-float64]",
        "test_attention[causal.square-float32]",
    ]


def test_markers_names_and_processes_select_as_usual(project: Path) -> None:
    assert "2/4 tests collected (2 deselected)" in run(project, "--collect-only", "-k", "causal.square").stdout
    assert "no tests collected (4 deselected)" in run(project, "--collect-only", "-m", "not own").stdout
    assert "4 passed" in run(project, "-n", "2").stdout


def test_a_failure_is_explained_without_a_traceback(project: Path) -> None:
    change(project / "tests" / "adapters.py", "MISTAKE = 0", "MISTAKE = 1")
    # Where the variable CI is set, pytest's summary repeats each message.
    done = run(project, "-rN")
    assert done.returncode == 1
    assert "2 failed, 2 passed" in done.stdout
    assert "causal.square (MUST): With as many queries as keys" in done.stdout
    assert "yours also saw key 1" in done.stdout
    assert done.stdout.count("smallest failing case:") == 1
    assert "Traceback" not in done.stdout
    assert "harness" not in done.stdout


def test_a_known_deviation_is_a_strict_xfail(project: Path) -> None:
    known = "adapters.expecting('causal.square', dtypes=('float32',))"
    change(project / "tests" / "test_attention.py", "adapters.adapter", known)
    passing = run(project)
    assert "1 failed, 3 passed" in passing.stdout
    assert "[XPASS(strict)] sees one more https://example.org/1" in passing.stdout
    change(project / "tests" / "adapters.py", "MISTAKE = 0", "MISTAKE = 1")
    failing = run(project, "-rx")
    assert "1 failed, 2 passed, 1 xfailed" in failing.stdout
    assert "test_attention[causal.square-float32] - sees one more https://example.org/1" in failing.stdout


def test_a_target_that_cannot_be_used_is_an_error_of_collection(project: Path) -> None:
    change(project / "tests" / "test_attention.py", "adapters.adapter", "'tests.adapters:adaptor'")
    done = run(project)
    assert done.returncode == 2
    assert "parametrize_with_clauses: 'tests.adapters' has no name 'adaptor'" in done.stdout
    assert "Traceback" not in done.stdout
    assert "harness" not in done.stdout


@pytest.mark.parametrize("options", [("--help",), ("--version",), ("--collect-only", "other")])
def test_the_plugin_is_silent_in_other_projects(project: Path, options: tuple[str, ...]) -> None:
    (project / "other").mkdir()
    (project / "other" / "test_other.py").write_text(
        "import sys\nassert not {'torch', 'numpy'} & {*sys.modules}\ndef test_other():\n    pass\n"
    )
    done = run(project, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "conformance" not in done.stdout.replace("attention-conformance-", "")
    assert "--list-clauses" not in done.stdout
