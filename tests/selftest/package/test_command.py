"""The installed command: what it passes on, what it suggests, and that the documentation's examples call it rightly."""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from attention_conformance.tests.cli import audit_command
from attention_conformance.tests.cli import launch as suite
from attention_conformance.tests.cli.main import main, read
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.options import NAME, OPTIONS, nearest
from attention_conformance.tests.measurements.wheels import ROOT
from attention_conformance.tests.report import diff
from attention_conformance.tests.report.views import VIEWS

EXAMPLES = ROOT / "docs" / "examples"
WORKFLOW, KERNEL, SHARDS, HOOK = (
    EXAMPLES / name
    for name in ("github-workflow.yml", "github-kernel.yml", "github-shards.yml", "pre-commit-hook.yaml")
)
MATRIX = EXAMPLES / "github-matrix.yml"
ARTIFACTS = {"actions/upload-artifact@v4", "actions/download-artifact@v4"}
PUBLIC = {"actions/checkout@v4", "actions/setup-python@v5", *ARTIFACTS}
"""Steps of others that the workflow may use; they exist."""


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What reaches pytest, the auditor or the difference of reports, instead of running it."""
    calls: list[list[str]] = []

    def record(*words: str) -> int:
        calls.append(list(words))
        return 0

    monkeypatch.setattr(suite, "_pytest", lambda arguments: record(*arguments))
    monkeypatch.setattr(audit_command, "audit", lambda *given: record("audit", *map(str, given)))
    monkeypatch.setattr(diff, "diff", lambda *given: record("diff", *map(str, given)))
    return calls


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("check a.py:f", ["--candidate=a.py:f", "--first-screen"]),
        ("check a.py:f -v --exitfirst", ["--candidate=a.py:f", "--exitfirst"]),
        ("check a.py:f b:g --clause 'x.*' --clause y --tier full", [
            "--candidate=a.py:f", "--candidate=b:g", "--clause=x.*", "--clause=y", "--device=cpu", "--tier=full",
        ]),
        ("check --implementation 'torch.*' --report out -- -x -n 2", [
            "--report=out", "--implementation=torch.*", "-x", "-n", "2",
        ]),
        ("check a.py:f --propose-expected-failures --expected-failures f.toml", [
            "--candidate=a.py:f", "--expected-failures=f.toml", "--propose-expected-failures", "--first-screen",
        ]),
        ("replay x.json", ["--replay=x.json"]),
        ("replay x.json --command 'node a.mjs' --deadline 0 --memory 1G", [
            "--replay=x.json", "--command=node a.mjs", "--deadline=0.0", "--memory=1073741824",
        ]),
        ("list defects", ["--list-defects"]),
        ("explain a.b c.d", ["--explain=a.b", "--explain=c.d"]),
        ("audit a.py:f --write w.py --force", ["audit", "a.py:f", "w.py", "True", "cpu", "30.0"]),
        ("report-diff old new --format json", ["diff", "old", "new", "json"]),
    ],
)  # fmt: skip
def test_a_command_passes_on(passed: list[list[str]], line: str, expected: list[str]) -> None:
    assert main(shlex.split(line)) == 0
    tests = str(suite.FOLDER / "tests" / "conformance")
    defaults = {"--device=cpu", "--tier=quick"} - set(expected)
    assert [word for word in passed[0] if word not in defaults and word != tests] == expected


def test_benchmarks_keep_nothing_by_themselves(passed: list[list[str]]) -> None:
    assert main(["bench", "a.py:f", "--workload", "gpt2*", "--seconds", "1"]) == 0
    (words,) = passed
    assert {"--candidate=a.py:f", "--workload=gpt2*", "--seconds=1"} <= set(words)
    storage = next(word for word in words if word.startswith("--benchmark-storage=file://"))
    assert not Path(storage.partition("://")[2]).exists()
    assert words[-1] == str(ROOT / "tests" / "benchmarks")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("chek a.py:f", "there is no command 'chek'; did you mean check?"),
        ("zzz", "there is no command 'zzz'\n"),
        ("check a.py:f --claus x", "cannot read '--claus'; did you mean --clause?"),
        ("list clause", "invalid choice: 'clause'"),
        ("replay", "the following arguments are required: FAILURE.json"),
    ],
)
def test_a_mistyped_command_line_is_refused_with_a_suggestion(
    capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        read(shlex.split(line))
    assert ended.value.code == pytest.ExitCode.USAGE_ERROR
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.splitlines()[-1].endswith("--help lists what can be given")
    assert not output.out


def test_its_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read(["--version"])
    assert not ended.value.code
    assert re.fullmatch(rf"{NAME} \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_options_suggest_the_nearest(pytester: pytest.Pytester) -> None:
    assert [nearest(word) for word in ("--claus=x", "--implementaton", "--zzz")] == ["--clause", "--implementation", ""]
    result = pytester.runpytest_subprocess("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "--claus", "x")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: there is no option --claus; did you mean --clause?"])


def test_every_option_has_a_help_text() -> None:
    assert all(keywords["help"] for keywords in OPTIONS.values())


def steps(workflow: dict[str, Any]) -> list[dict[str, str]]:
    """Those of all jobs."""
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands(file: Path) -> Iterator[str]:
    """The lines of an example that call the command."""
    data = yaml.safe_load(file.read_text().replace("${{ matrix.shard }}", "1"))
    for step in steps(data) if "jobs" in data else data["repos"][0]["hooks"]:
        lines = str(step.get("run", step.get("entry", ""))).splitlines()
        yield from (line for line in lines if line.startswith(NAME))


@pytest.mark.parametrize("file", [WORKFLOW, KERNEL, SHARDS, HOOK], ids=lambda file: file.name)
def test_examples_call_the_command_as_it_is(file: Path) -> None:
    command, *others = commands(file)
    given, rest = read(shlex.split(command)[1:])
    assert given.command == "check"
    assert len(given.target) == 1
    assert rest == []
    assert [read(shlex.split(other)[1:])[0].command for other in others] == ["report-merge"] * (file == SHARDS)


def test_the_example_of_a_published_matrix() -> None:
    (command,) = commands(MATRIX)
    given, rest = read(shlex.split(command)[1:])
    assert (given.command, str(given.report), rest) == ("matrix", "matrix", [])
    jobs = yaml.safe_load(MATRIX.read_text())["jobs"]
    used = [step.get("with", {}).get("path") for step in jobs["judge"]["steps"] if "uses" in step]
    assert used.count("matrix") == 2
    assert jobs["publish"]["needs"] == "judge"


def test_the_shards_of_the_example_are_all_there_are() -> None:
    data = yaml.safe_load(SHARDS.read_text())
    numbers = data["jobs"]["shard"]["strategy"]["matrix"]["shard"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert f"--shard 1/{len(numbers)} " in next(commands(SHARDS))


@pytest.mark.parametrize("file", [WORKFLOW, KERNEL, SHARDS], ids=lambda file: file.name)
def test_the_workflow_uses_what_exists(file: Path) -> None:
    own = steps(yaml.safe_load(file.read_text()))
    assert {step["uses"] for step in own if "uses" in step} <= PUBLIC
    summary = next(step["run"] for step in own if "GITHUB_STEP_SUMMARY" in step.get("run", ""))
    assert summary.split()[1].removeprefix("conformance/") in VIEWS
    assert (ROOT / "constraints.txt").is_file()


def test_every_file_of_the_examples_is_tested() -> None:
    assert {WORKFLOW, KERNEL, SHARDS, MATRIX, HOOK} == {path for path in EXAMPLES.iterdir() if path.is_file()}


@pytest.mark.parametrize("status", ExitStatus)
def test_exit_status(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(pytest, "main", lambda arguments: status)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(os, "environ", {**os.environ, "PYTEST_ADDOPTS": "-x"})
    assert main(["check", "a.py:f", "--clause", "causal.square"]) == status
    assert "PYTEST_ADDOPTS" not in os.environ
