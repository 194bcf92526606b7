"""Mistakes of newcomers on the command line: each is answered by one line with the remedy, and by exit status 4."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.selftest.sessions import Sessions, sessions

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
        ("mine.py", "has no colon: write FILE.py:NAME or package.module:NAME"),
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
