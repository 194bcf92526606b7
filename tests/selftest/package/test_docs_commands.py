"""Every command that README and documentation show is run as they show it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from attention_conformance.tests.cli.main import COMMANDS as COMMANDS_OF_ITSELF
from attention_conformance.tests.measurements import wheels
from attention_conformance.tests.selftest.package.page_commands import Command, File, agree, blocks, steps
from attention_conformance.tests.selftest.sessions import ROOT
from attention_conformance.tests.selftest.thorough import thorough

NAME = "attention_conformance"
RESULTS = {"audit", "benchmark-calibration", "bounds", "conventions", "inhouse-speed", "suite-profile"}
"""Pages of results: programs of minutes have written them, and the Makefile knows how."""
GUIDES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem not in RESULTS]
PAGES = [ROOT / "README.md", *GUIDES]
TRITON = "TRITON_INTERPRET=1 attention-conformance check my_kernel.py:attention --dtype float32"
HEAVY: Mapping[str, str] = {
    "make conformance": "judges all that is built in, in minutes; continuous integration does",
    "make test": "runs this very test",
    "make bench": "times for ten minutes",
    "make mutation": "judges every defect, for ten minutes",
    "make docs": "installs everything first; test_docs builds the pages",
    "attention-conformance vectors judge vectors answers --report report": "test_vectors judges answers",
    "attention-conformance matrix --report matrix --jobs 2": "installs packages; test_matrix judges one",
    "make links": "requests every address on the web",
    "pip install .": "takes long, and test_wheel builds and installs the wheel",
    "pip install 'attention-conformance[triton]'": "Triton is an extra of hundreds of megabytes",
    f"{TRITON} --clause 'scores.*' --clause 'softmax.*'": "needs Triton; where it is, test_triton runs kernels",
    f"{TRITON} --clause 'shapes.*' --clause 'gradients.*'": "the same, in minutes",
    f"{TRITON} --budget 120": "the same, in two minutes",
    "attention-conformance check my_kernel.py:attention --device cuda": "needs a GPU",
}
"""Commands that are not run, and why. Those of make are held against the Makefile."""
CLONE = ("pytest", "python -m", "make", ".venv")
"""How commands begin that need a clone around them."""
LANGUAGES = {"console", "python", "toml", "yaml", "text", "json", "markdown"}
TIMEOUT = 300
"""Seconds for one command."""


def of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def marks_of(page: Path) -> Sequence[pytest.MarkDecorator]:
    """Benchmarks and adapters have tests of their own, and what contributors run are tests that run anyway.

    The longest pages take a minute each.
    """
    return [thorough] if page.stem in ("adapter", "benchmarks", "contributing", "judge", "reading") else []


COMMANDS = {page: [step.text for step in steps(page) if isinstance(step, Command)] for page in PAGES}
SHOWN = {command for listed in COMMANDS.values() for command in listed}


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=of(page), marks=marks_of(page)) for page in PAGES if COMMANDS[page]]
)
def test_commands_do_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    needs_clone = any(command.startswith(CLONE) for command in COMMANDS[page])
    folder = cloned(tmp_path / NAME) if needs_clone else tmp_path
    (folder / ".venv").symlink_to(sys.prefix)
    for step in steps(page):
        if isinstance(step, File) and step.excerpt:
            assert step.text in (ROOT / step.name).read_text(encoding="utf-8"), f"{step.name} has changed"
        elif isinstance(step, File):
            (folder / step.name).write_text(step.text, encoding="utf-8")
        elif step.text in HEAVY:
            assert_makes(step.text)
        else:
            assert_shown(page, step, run(step.text, folder))


def cloned(folder: Path) -> Path:
    """A copy of what runs, so that commands may write where they like."""
    wheels.copied(folder)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command as a reader does; a folder with the name of the package is the package."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CI"))}
    own = {"PYTHONPATH": str(folder.parent)} if folder.name == NAME else {}
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=kept | {"PATH": path, "NO_COLOR": "1"} | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
    )


def assert_shown(page: Path, command: Command, done: subprocess.CompletedProcess[str]) -> None:
    where = f"{of(page)}: $ {command.text}"
    assert done.returncode == command.status, f"{where}\nends with {done.returncode}\n{done.stdout}"
    assert agree(command.output, done.stdout), f"{where}\nshown:\n{command.output}\n\nprinted:\n{done.stdout}"


def assert_makes(command: str) -> None:
    """The target exists, and make knows what to do for it."""
    program, *target = command.split()
    if program == "make":
        done = subprocess.run(["make", "-n", *target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "python" in done.stdout


def test_nothing_is_left_out_that_is_not_shown() -> None:
    assert set(HEAVY) <= SHOWN


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_commands_stand_in_blocks_that_are_run(page: Path) -> None:
    for block in blocks(page):
        place = f"{of(page)}:{block.line}"
        assert block.language in LANGUAGES or block.language.startswith("{"), f"{place}: name its language"
        typed = re.search(r"^(\$|make|pytest|python|pip|attention-conformance|\.venv)\b.*", block.text, re.MULTILINE)
        assert block.language == "console" or typed is None, f"{place}: {typed and typed[0]} is never run"


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_commands_within_sentences_leave_a_name_open_or_are_run(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for command in re.findall(r"`((?:attention-conformance|pytest|python|pip|\.venv/\S+) [^`]+)`", prose):
        assert command in SHOWN or re.search(r"\b[A-Z]{3,}\b|--help$", command), f"{of(page)}: {command} is never run"


def test_targets_of_make_exist() -> None:
    for target in sorted({name for page in PAGES for name in re.findall(r"`make ([a-z-]+)", page.read_text())}):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"there is no make {target}"


def options() -> Iterator[str]:
    """Those of the suite and of benchmarks as pytest prints them, those of the commands, and of smaller programs."""
    done = run("pytest tests/benchmarks --help", ROOT)
    assert done.returncode == 0, done.stdout
    yield from re.findall(r"--[a-z][a-z-]+", done.stdout)
    yield from (option for command in COMMANDS_OF_ITSELF.values() for option in command.takes)
    for program in ("tests/benchmarks/compare.py", "implementations/worker/ranks.py", "docs/build.py"):
        yield from re.findall(r"""add_argument\("(--[a-z-]+)""", (ROOT / program).read_text(encoding="utf-8"))


def test_options_exist() -> None:
    known = set(options())
    for page in PAGES:
        for option in re.findall(r"`(--[a-z][a-z-]+)", page.read_text(encoding="utf-8")):
            assert option in known, f"{of(page)}: there is no option {option}"


def test_a_page_is_read_as_a_reader_does(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\n# a.py\nx = 1\n```\n\n```console\n$ one \\\n  --two\nout 0.5\n...\n# exit status 3\n$ two\n```\n"
    )
    assert steps(page) == [
        File("a.py", "# a.py\nx = 1\n"),
        Command("one   --two", "out 0.5\n...", 3),
        Command("two", "", 0),
    ]


def test_outputs_that_differ_are_distinguished() -> None:
    assert agree("error 1.5e+3 x\n...\nend", "error 2.7e+9 x\nmore\nand more\nend\n")
    assert not agree("error 1.5e+3 x\n...\nend", "no error\nend\n")
    assert not agree("3 of 4 fail", "4 of 4 fail")
