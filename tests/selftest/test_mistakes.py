"""Mistakes of newcomers on the command line: each is answered by one line with the remedy, and by exit status 4."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.tests.selftest.sessions import Sessions, sessions

__all__ = ["sessions"]

pytest_plugins = ["pytester"]

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

def prints(query, key, value):
    print("called with", query.shape)
    return attention(query, key, value) * 2

def stopped(query, key, value):
    raise KeyboardInterrupt

instance = torch.nn.MultiheadAttention(8, 2)
number = 3
""",
    "needs.py": "import torch\nimport no_such_package_at_all\n",
    "raises.py": 'raise RuntimeError("no device here\\nand more")\n',
    "broken.py": "def attention(query, key, value): return (\n",
    "script.py": 'import sys\nsys.exit("usage: script.py CONFIG")\n',
}


@pytest.mark.parametrize(
    ("target", "told"),
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
        ("mine.py:lists", "it returned an object of type list: return a tensor"),
        ("mine.py:leaves", "SystemExit: 3"),
        ("mine.py:two", "mine.py:two: "),
        ("needs.py:attention", "install 'no_such_package_at_all', or put it beside the file"),
        ("raises.py:attention", "raised RuntimeError: no device here (raises.py, line 1)"),
        ("broken.py:attention", "SyntaxError"),
        ("script.py:attention", "ended with sys.exit('usage: script.py CONFIG')"),
    ],
)
def test_a_target_that_cannot_be_used_is_told_in_one_line(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, told: str
) -> None:
    for name, source in FILES.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = sessions.run("--candidate", target, "--clause", "scores.dot-product")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.strip()]
    assert line.startswith("ERROR: ")
    assert told in line
    assert not [line for line in result.outlines if line.strip()]


def written(folder: Path) -> Path:
    """The folder, with the files in it."""
    for name, source in FILES.items():
        (folder / name).write_text(source, encoding="utf-8")
    return folder


def test_what_a_candidate_prints_does_not_hide_the_summary(sessions: Sessions, tmp_path: Path) -> None:
    target = f"{written(tmp_path) / 'mine.py'}:prints"
    result = sessions.apart("--candidate", target, "--dtype", "float64", "--clause", "scores.dot-product")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    outside = result.stdout.partition("FAILURES")[0] + result.stdout.partition("short test summary")[2]
    assert "called with" not in outside + result.stderr


def test_a_first_call_that_is_interrupted_is_named(sessions: Sessions, tmp_path: Path) -> None:
    target = f"{written(tmp_path) / 'mine.py'}:stopped"
    result = sessions.apart("--candidate", target, "--clause", "scores.dot-product")
    assert result.returncode == pytest.ExitCode.INTERRUPTED
    assert f"interrupted while {target} was called for the first time" in result.stdout + result.stderr


def test_the_command_to_ask_again_names_one_of_several_candidates(sessions: Sessions) -> None:
    named = [word for name in ("right", "halved") for word in ("--candidate", f"{sessions.file}:{name}")]
    result = sessions.run(*named, "--clause", "causal.square", "--dtype", "float64")
    again = next(line for line in result.outlines if "again: " in line)
    assert again.endswith(f"--candidate {sessions.file}:halved --clause causal.square --dtype float64")
    assert again.count("--candidate") == 1
