"""Workers that are no Python: the examples are judged by the real command, the right ones and the wrong ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.implementations.builtin.catalogue import BUILTIN
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.worker.door import Door
from attention_conformance.implementations.worker.hello import Hello
from attention_conformance.implementations.worker.remote import commanded_candidate, implementation_of
from attention_conformance.tests.harness.explain.replay import ReplayError, read, replay
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.plan.selection import UsageError, require_different
from attention_conformance.tests.selftest.sessions import ROOT, unfolded

EXAMPLES = ROOT / "docs" / "examples" / "workers"
CLAUSES = ("scores.*", "masks.bool", "masks.float", "causal.*", "effects.global-state", "errors.*")
WORKER = """
import json, sys
from attention_conformance.implementations.worker.wire import Message, read, write

requests, answers = sys.stdin.buffer, sys.stdout.buffer
while (request := read(requests)) is not None:
    write(answers, Message({{**{answer}, "number": request.fields["number"]}}))
"""
CLAIMS = {"scope": "op", "features": ["core"], "dtypes": ["float32"]}
HELLO = {"protocol": 1, "name": "made", "claims": CLAIMS}


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """How each example is started; those that can be built here."""
    found = {"attention.mjs": f"node {EXAMPLES / 'attention.mjs'}"} if shutil.which("node") else {}
    if shutil.which("cc"):
        program = tmp_path_factory.mktemp("built") / "attention"
        source = str(EXAMPLES / "attention.c")
        strict = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror")
        subprocess.run(["cc", *strict, "-o", str(program), source, "-lm"], check=True)
        found["attention.c"] = str(program)
    return found


def checked(command: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "attention_conformance", "check", "--command", command, "--report", "report", *more]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)


def clauses(names: Sequence[str]) -> list[str]:
    return [word for name in names for word in ("--clause", name)]


def verdicts(folder: Path) -> list[dict[str, Any]]:
    (entry,) = json.loads((folder / "report" / "report.json").read_text())["implementations"]
    found: list[dict[str, Any]] = entry["verdicts"]
    return found


def started(commands: dict[str, str], example: str) -> str:
    if example not in commands:
        pytest.skip(f"there is no {'node' if example.endswith('mjs') else 'cc'} here")
    return commands[example]


@pytest.mark.parametrize("example", ["attention.mjs", "attention.c"])
def test_a_right_worker_conforms(commands: dict[str, str], example: str, tmp_path: Path) -> None:
    done = checked(started(commands, example), tmp_path, *clauses(CLAUSES))
    assert done.returncode == ExitStatus.CONFORMS, done.stdout
    judged = verdicts(tmp_path)
    passed = {(v["clause"], v["dtype"]) for v in judged if v["status"] == "pass"}
    assert {v["implementation"] for v in judged} == {example}
    for clause in ("causal.square", "masks.bool", "scores.scale-default", "errors.width"):
        assert {(clause, "float64"), (clause, "float32")} <= passed
    (unobserved,) = {v["reason"] for v in judged if v["clause"] == "effects.global-state"}
    assert unobserved == "its worker does not answer the request 'changed_state'"


@pytest.mark.parametrize(
    ("example", "clause", "defect"),
    [
        ("attention.mjs", "scores.scale-default", "scale-without-root"),
        ("attention.c", "causal.square", "next-position-seen"),
    ],
)
def test_a_wrong_worker_is_caught_and_its_mistake_named(
    commands: dict[str, str], example: str, clause: str, defect: str, tmp_path: Path
) -> None:
    done = checked(f"{started(commands, example)} --wrong", tmp_path, *clauses(("scores.*", "causal.*")))
    assert done.returncode == ExitStatus.FAILS
    assert f"matches `{defect}`" in done.stdout
    assert clause in {v["clause"] for v in verdicts(tmp_path) if v["status"] == "fail"}
    assert f"--command '{commands[example]} --wrong' --clause" in unfolded(done.stdout)
    file = next((tmp_path / "report" / "failures").glob(f"{clause}--*--float64.json"))
    assert f"{file.relative_to(tmp_path)} --command '{commands[example]} --wrong'" in unfolded(done.stdout)
    failure = read(file)
    with pytest.raises(ReplayError, match=r"is started only if you give it: --command '.* --wrong'$"):
        replay(failure, RunSettings())
    assert replay(failure, RunSettings(commands=(failure.command,)))[0] is False
    assert replay(failure, RunSettings(commands=(commands[example],)))[0] is True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"protocol": 2}, "hello.protocol is 2: this suite speaks version 1"),
        ({"protocol": None}, "hello.protocol is None: this suite speaks version 1"),
        ({"name": ""}, "hello.name is empty: give the candidate one"),
        ({"name": 3}, "hello.name cannot be 3"),
        ({"colour": "red"}, "hello has no field 'colour'; it has: protocol, name, claims"),
        ({"claims": {"scope": "op", "dtypes": ["float32"]}}, "hello.claims lacks the field 'features'"),
        ({"claims": {**CLAIMS, "features": ["core", "speed"]}}, "hello.claims.features[1] cannot be 'speed'"),
        ({"claims": {**CLAIMS, "features": []}}, "hello.claims.features lacks 'core'"),
        ({"claims": {**CLAIMS, "dtypes": ["int8"]}}, "hello.claims.dtypes cannot have 'int8'; choose from: float64"),
        ({"claims": {**CLAIMS, "dtypes": []}}, "hello.claims.dtypes is empty; choose from: float64"),
        ({"claims": {**CLAIMS, "conventions": {"empty-row": "one"}}}, "convention empty-row cannot be 'one'"),
        ({"requests": ["fly"]}, "hello.requests cannot have 'fly'; choose from: fit"),
        ({"alternatives": ["again"]}, "claim Feature.ALTERNATIVES"),
    ],
    ids=str,
)
def test_a_hello_that_cannot_be_used_names_its_field(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        implementation_of(Door({}, ()), Hello.of({**HELLO, "number": 1, **change}))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("no-such-program", "'no-such-program' cannot be started (No such file or directory)"),
        ("", "it is empty: give a program and its arguments"),
        ("'", "No closing quotation"),
        ("true", "ended its process with exit status 0"),
        ("sh -c 'echo oh no >&2; exit 5'", "ended its process with exit status 5; its last output: oh no"),
        ("sh -c 'echo hello, judge; sleep 9'", "sent what is no answer: a message of"),
    ],
)
def test_a_program_that_is_no_worker_is_reported(command: str, words: str) -> None:
    with pytest.raises(TargetError, match=r"^--command ") as caught:
        commanded_candidate(command, {})
    assert words in str(caught.value)


def worker(folder: Path, answer: dict[str, Any]) -> str:
    """The command of a worker that gives one answer to everything."""
    program = folder / f"{len(list(folder.iterdir()))}.py"
    program.write_text(WORKER.format(answer=repr(answer)))
    return f"{sys.executable} {program}"


def test_what_cannot_be_used_ends_with_one_sentence(tmp_path: Path) -> None:
    done = checked(worker(tmp_path, {**HELLO, "protocol": 2}), tmp_path)
    assert done.returncode == ExitStatus.UNUSABLE, done.stdout
    text = " ".join(done.stderr.split())
    assert text.startswith("ERROR: --command ")
    assert text.endswith("its hello cannot be used: hello.protocol is 2: this suite speaks version 1")


def test_two_workers_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^two candidates have the name .*: let each worker give a name of its own$"):
        require_different((BUILTIN[0], BUILTIN[1], BUILTIN[0]))
