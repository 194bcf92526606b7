"""Mistakes of newcomers on the command line: each is answered by one line with the remedy, and by exit status 4."""

import subprocess
import sys
from pathlib import Path

import pytest

from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.selftest.sessions import ROOT, Sessions
from attention_conformance.tests.selftest.thorough import by_turns

FILES = {
    "mine.py": """
import sys
import torch

def attention(query, key, value):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)

def nothing(query, key, value):
    attention(query, key, value)

def lists(query, key, value):
    return attention(query, key, value).tolist()

def leaves(query, key, value):
    sys.exit(3)

def two(query, key):
    return query

def unreadable(query, key, value):
    return Unreadable()

def prints(query, key, value):
    print("called with", query.shape)
    return attention(query, key, value) * 2

def stopped(query, key, value):
    raise KeyboardInterrupt

class Unreadable:
    @property
    def requires_grad(self):
        raise RuntimeError("no attribute can be read")

instance = torch.nn.MultiheadAttention(8, 2)
number = 3
""",
    "needs.py": "import torch\nimport no_such_package_at_all\n",
    "raises.py": 'raise RuntimeError("no device here\\nand more")\n',
    "broken.py": "def attention(query, key, value): return (\n",
    "script.py": 'import sys\nsys.exit("usage: script.py CONFIG")\n',
}
CLAUSE = ("--clause", "scores.dot-product")


@pytest.fixture(autouse=True)
def folder(sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files in it."""
    for name, source in FILES.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "mine.py",
            "has no colon: write FILE.py:NAME or package.module:NAME; it defines attention, nothing, lists, leaves",
        ),
        ("mine.py:", "has no NAME: write FILE.py:NAME or package.module:NAME"),
        ("mime.py:attention", "there is no file 'mime.py', but there is 'mine.py'"),
        ("mine.py:atention", "did you mean 'attention'?"),
        ("mine.py:instance", "it is an instance of MultiheadAttention: give the class"),
        ("mine.py:number", "mine.py:number: "),
        ("mine.py:nothing", "it returned None: return a tensor"),
        ("mine.py:lists", "it returned a tuple of (list, list): return a tensor, or a tuple that begins with it"),
        ("mine.py:unreadable", "it returned an object of type Unreadable: return a tensor"),
        ("mine.py:leaves", "SystemExit: 3"),
        ("mine.py:two", "mine.py:two: "),
        ("needs.py:attention", "install 'no_such_package_at_all', or put it next to the file"),
        ("raises.py:attention", "raised RuntimeError: no device here (raises.py, line 1)"),
        ("broken.py:attention", "SyntaxError"),
        ("script.py:attention", "ended with sys.exit('usage: script.py CONFIG')"),
    ],
)
def test_a_target_that_cannot_be_used(sessions: Sessions, target: str, message: str) -> None:
    error_line = sessions.refused("--candidate", target, *CLAUSE)
    assert error_line.startswith("ERROR: ")
    assert message in error_line


def test_what_a_candidate_prints_does_not_hide_the_summary(sessions: Sessions, folder: Path) -> None:
    result = sessions.apart("--candidate", f"{folder / 'mine.py'}:prints", "--dtype", "float64", *CLAUSE)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    outside = result.stdout.partition("FAILURES")[0] + result.stdout.partition("short test summary")[2]
    assert "called with" not in outside + result.stderr


def test_a_first_call_that_is_interrupted_is_named(sessions: Sessions, folder: Path) -> None:
    target = f"{folder / 'mine.py'}:stopped"
    result = sessions.apart("--candidate", target, *CLAUSE, "--in-process")
    assert result.returncode == pytest.ExitCode.INTERRUPTED
    assert f"interrupted while {target} was called for the first time" in result.stdout + result.stderr


def test_a_first_call_that_raises_an_interrupt_in_its_own_process_is_refused(sessions: Sessions, folder: Path) -> None:
    target = f"{folder / 'mine.py'}:stopped"
    result = sessions.apart("--candidate", target, *CLAUSE)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {target}: it raised KeyboardInterrupt when it was first called" in result.stderr


def test_the_command_of_a_failure_names_one_of_several_candidates(sessions: Sessions) -> None:
    candidates = [word for name in ("right", "halved") for word in ("--candidate", f"{sessions.file}:{name}")]
    result = sessions.run(*candidates, "--clause", "causal.square", "--dtype", "float64")
    again = next(line for line in result.outlines if "again: " in line)
    assert again.endswith(f"--candidate {sessions.file}:halved --clause causal.square --dtype float64")
    assert again.count("--candidate") == 1


@pytest.mark.parametrize("joined", by_turns([False, True], 2))
def test_a_path_that_pytest_takes_for_the_place_of_the_tests(tmp_path: Path, joined: bool) -> None:
    report = tmp_path / "report"
    report.mkdir()
    option = [f"--report={report}"] if joined else ["--report", str(report)]
    chosen = ("--implementation", "torch.sdpa.math", "--clause", "causal.square", "--dtype", "float64")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *option, *chosen]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == (ExitStatus.CONFORMS if joined else ExitStatus.UNUSABLE), result.stdout + result.stderr
    assert (report / "report.json").exists() is joined
    assert ("join them, --report=PATH" in result.stderr) is not joined
