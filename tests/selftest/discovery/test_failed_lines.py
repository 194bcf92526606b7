"""Files that raise as they are imported: what a user of the target needs is a finding, a demonstration a note."""

from pathlib import Path

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.tests.selftest.discovery.making import write

BEFORE = "import torch\n{}\n"
DEFINED = """
def attend(query, key, value):
    return torch.softmax(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, -1) @ value
"""
CANNOT = "as the file is imported: it was loaded without it, and cannot be imported"


@pytest.mark.parametrize(
    ("before", "after", "name", "raised"),
    [
        ("raise RuntimeError('not here')", "", "line 2", "RuntimeError: not here"),
        ("import sys; sys.exit(0)", "", "line 2", "SystemExit: 0"),
        ("import os; os.environ['NO_SUCH_VARIABLE']", "", "line 2", "KeyError: 'NO_SUCH_VARIABLE'"),
        ("", "RATE = 1 / 0", "line 6", "ZeroDivisionError: division by zero"),
        ("", "def more(rate=unknown): pass", "line 6", "NameError: name 'unknown' is not defined"),
        ("", "from json import nothing_such", "", ""),
        ("", "raise RuntimeError('not here')", "line 6", "RuntimeError: not here"),
    ],
)
def test_what_a_user_needs_is_a_finding(tmp_path: Path, before: str, after: str, name: str, raised: str) -> None:
    file = write(tmp_path, "mine.py", BEFORE.format(before) + DEFINED + after)
    if not name:
        with pytest.raises(TargetError, match="nothing_such"):
            candidate(f"{file}:attend", {})
        return
    made = candidate(f"{file}:attend", {})
    assert list(made.findings) == [name]
    assert made.findings[name].startswith(f"raises {raised}")
    assert made.findings[name].endswith(CANNOT)
    assert not any(each.startswith("loaded without") for each in made.stated)


@pytest.mark.parametrize(
    "shown",
    [
        "print(attend(1, 2, 3))",
        "shown = attend(torch.zeros(2), 2, 3)",
        "assert attend is None",
        "for each in range(3): 1 / 0",
        "raise SystemExit(1)",
    ],
)
def test_a_demonstration_after_it_is_a_note(tmp_path: Path, shown: str) -> None:
    file = write(tmp_path, "mine.py", BEFORE.format("") + DEFINED + shown)
    made = candidate(f"{file}:attend", {})
    assert not made.findings
    assert [each for each in made.stated if each.startswith("loaded without its line 6, which raised ")]


def test_what_is_no_text_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes((BEFORE.format("") + DEFINED).encode() + b"# caf\xe9\n")
    with pytest.raises(TargetError, match=r"is no text in utf-8: byte 0xe9 in line 6 is none, which is a SyntaxError"):
        candidate(f"{file}:attend", {})


@pytest.mark.parametrize(("after", "found"), [("", []), ("RATE = 1 / 0", ["line 8"])])
def test_a_declared_encoding_is_text(tmp_path: Path, after: str, found: list[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes(b"# coding: latin-1\n# caf\xe9\n" + (BEFORE.format("") + DEFINED + after).encode())
    assert list(candidate(f"{file}:attend", {}).findings) == found


def test_a_file_that_is_absent_here_may_be_elsewhere(tmp_path: Path) -> None:
    file = write(tmp_path, "mine.py", BEFORE.format("corpus = open('nowhere.txt')") + DEFINED)
    made = candidate(f"{file}:attend", {})
    assert not made.findings
    assert made.stated[0].startswith("loaded without its line 2, which raised FileNotFoundError")
