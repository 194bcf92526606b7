"""Next steps after every exit that is not 0, and the line of progress on a terminal."""

import os
import pty
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from attention_conformance.implementations.worker.observer import LocalObserver
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.screen import command_lines
from attention_conformance.tests.harness.run.screen.next_steps import folded
from attention_conformance.tests.harness.run.screen.progress import Progress, colours, duration
from attention_conformance.tests.selftest.sessions import OF_NUMPY, ROOT, SUITE, Sessions

ONE = ("--clause", "causal.square")


def end(result: pytest.RunResult) -> list[str]:
    """The last lines, from `next:` on."""
    starts = [number for number, line in enumerate(result.outlines) if line.startswith("next: ")]
    return result.outlines[starts[-1] :] if starts else []


def test_a_failure_names_its_clause_the_command_and_the_report(sessions: Sessions, tmp_path: Path) -> None:
    lines = end(sessions.judge("halved", "--clause", "causal.*", "--clause", "values.*", "--report", str(tmp_path)))
    assert re.fullmatch(r"next: .*pytest --explain values.weighted-sum  explains the first failing clause", lines[0])
    assert lines[1].endswith(
        f"--candidate {sessions.file}:halved --clause values.weighted-sum --dtype float64  runs it alone"
    )
    assert re.fullmatch(rf" +{tmp_path}/report\.(html|json)  shows every failure", lines[2])


def test_the_command_of_the_last_lines_runs_the_clause_again(sessions: Sessions) -> None:
    lines = end(sessions.judge("halved", *ONE))
    words = lines[1].split("  runs")[0].split()
    assert sessions.run(*words[words.index("--candidate") :]).ret == pytest.ExitCode.TESTS_FAILED


def test_where_a_convention_explains_everything_the_next_command_claims_it(sessions: Sessions) -> None:
    options = ("--clause", "causal.alignment", "--dtype", "float64")
    lines = end(sessions.run("--candidate", f"{sessions.file}:corner", *options, diagnosed=True))
    command, _, purpose = lines[0].rpartition("  ")
    assert purpose == "judges it as one that is meant to do so"
    words = command.split()[command.split().index("--candidate") + 1 :]
    assert words == [f"{sessions.file}:corner", "--convention", "causal-alignment=top-left", *options]


def test_a_command_that_is_too_long_goes_on_after_a_backslash() -> None:
    options = "--clause masks.bool --dtype float32"
    step = f"attention-conformance check 'my models/attention.py:Attention' {options}  runs it alone"
    lines = folded(step, 60)
    assert max(map(len, lines)) <= 60
    assert lines[-1] == "# runs it alone"
    words = "".join(line.removesuffix("\\") for line in lines[:-1])
    assert shlex.split(words) == shlex.split(step.rpartition("  ")[0])
    assert folded("run it again", 60) == ["run it again"]


def test_success_ends_without_advice(sessions: Sessions) -> None:
    assert end(sessions.judge("right", *ONE)) == []


def test_a_bad_end_fails_a_run_of_other_clauses(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalObserver, "ended", lambda self: "ended its process with exit status 3")
    result = sessions.judge("right", *ONE)
    assert result.ret == ExitStatus.FAILS
    line = "FAIL  effects.global-state [float64]: its process after the last call: ended its process with exit status 3"
    assert line in result.stdout.str()


def test_an_error_is_no_failure_of_the_candidate(sessions: Sessions) -> None:
    assert end(sessions.judge("mended", *ONE))[0].startswith("next: an ERROR is no failure of the candidate")


def test_a_claim_that_is_wrong_comes_with_the_option_that_drops_it(sessions: Sessions) -> None:
    lines = end(sessions.judge("halved", *ONE))
    dropped = [line.strip() for line in lines if "--without" in line]
    assert dropped == ["--without causal  leaves out what fails, if halved is not meant to offer it"]


def test_nothing_checked(sessions: Sessions) -> None:
    result = sessions.judge("right", "--clause", "projections.query")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "because projections.query is a clause of the module level" in end(result)[0]
    assert end(result)[0].endswith("--explain projections.query")
    unclaimed = sessions.judge("right", "--clause", "cache.*")
    assert "because right does not claim query-start: " in end(unclaimed)[0]


def test_an_interrupted_run_is_no_verdict(sessions: Sessions, tmp_path: Path) -> None:
    result = sessions.apart("--candidate", f"{sessions.file}:stops", "--in-process", *ONE, "--report", str(tmp_path))
    assert result.returncode == pytest.ExitCode.INTERRUPTED
    last = result.stdout.splitlines()[-1]
    assert last.startswith("next: the run is not complete")
    assert last.endswith("report.json states: this is no verdict; run it again")


def test_an_error_of_the_suite_comes_with_how_to_report_it(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention_conformance.tests.harness.run.collector.decode", lambda text: 1 / 0)
    result = sessions.judge("halved", *ONE)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    assert re.fullmatch(
        r"next: this is an error of the suite: report it, .*; version [\d.]+, python .*", end(result)[0]
    )


def test_a_replay_that_fails_names_the_explanation(sessions: Sessions, tmp_path: Path) -> None:
    sessions.judge("halved", *ONE, "--report", str(tmp_path))
    (file,) = (tmp_path / "failures").glob("*.json")
    result = sessions.run(f"--replay={file}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert re.fullmatch(r"next: .*--explain causal.square  explains the clause", end(result)[0])


@pytest.mark.parametrize(
    ("program", "start"),
    [
        ("/no/where/attention-conformance", "/no/where/attention-conformance"),
        (str(command_lines.MAIN), f"{sys.executable} -m attention_conformance"),
    ],
)
def test_the_installed_command_names_itself(monkeypatch: pytest.MonkeyPatch, program: str, start: str) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.chdir("/")
    started = start.replace(sys.executable, sys.executable.removeprefix("/"))
    assert command_lines.installed_command() == started
    candidate = command_lines.checking(["a b.py:f"], "f", ["--clause", "c"], started)
    assert candidate == f"{started} check 'a b.py:f' --clause c"
    assert command_lines.checking([], "torch.sdpa", [], started) == f"{started} check --implementation torch.sdpa"
    assert command_lines.replaying(Path("x/y.json"), RunSettings()) == f"{started} replay x/y.json"
    limited = RunSettings(python="ENV/bin/python", deadline=2.5, memory=2**30)
    limits = "--python ENV/bin/python --deadline 2.5 --memory 1073741824"
    assert command_lines.replaying(Path("y.json"), limited) == f"{started} replay y.json {limits}"
    worker = command_lines.replaying(Path("y.json"), RunSettings(commands=("node 'a b'",)), "node 'a b'")
    assert shlex.split(worker.removeprefix(started)) == ["replay", "y.json", "--command", "node 'a b'"]
    assert command_lines.options_of(limited, ("--clause", "c")) == [*limits.split(), "--clause", "c"]
    assert command_lines.explaining("causal.square") == f"{started} explain causal.square"


def test_the_line_of_progress() -> None:
    now, lines = [0.0], list[str]()
    terminal = SimpleNamespace(rewrite=lambda line, **markup: lines.append(line))
    progress = Progress(terminal, 200, lambda: now[0])  # type: ignore[arg-type]
    for number in range(1, 101):
        now[0] = number / 10
        report = SimpleNamespace(when="call", failed=number == 3)
        progress.pytest_runtest_logreport(report)  # type: ignore[arg-type]
    assert lines[0] == "1 of 200 checked"
    assert lines[-1] == "100 of 200 checked, 1 failed, 10 s left"
    progress.pytest_sessionfinish()
    assert lines[-1] == ""


def test_seconds_in_words() -> None:
    assert [duration(s) for s in (0.2, 59.6, 125, 3840)] == ["0 s", "1 min 0 s", "2 min 5 s", "1 h 4 min"]


def test_colours_of_lines() -> None:
    assert colours("  FAIL  causal.square [float64]: ...") == {"red": True}
    assert colours("  advice (SHOULD)  numerics.x [float64]: ...") == {"yellow": True}
    assert colours("mine   6   21  0.043  conforms, 1 known deviation") == {"green": True}
    assert colours("cells: clauses that hold; 2/5: 2 of 5 fail") == {}


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_gets_one_line_and_colours_unless_no_color_is_set(sessions: Sessions, no_color: bool) -> None:
    file = sessions.pytester.makepyfile(of_numpy=OF_NUMPY)
    command = [sys.executable, "-m", "pytest", *SUITE, "--candidate", f"{file}:halved", "--dtype", "float64", *ONE]
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "CI", "PY_COLORS")}
    environment = inherited | {"TERM": "xterm"} | ({"NO_COLOR": "1"} if no_color else {})
    process = subprocess.Popen(command, cwd=ROOT, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    output = _everything(ours)
    process.wait(60)
    os.close(ours)
    assert re.search(r"\r\d+ of \d+ checked, \d+ failed +\r", output)
    assert "FFFF" not in output
    assert "%]" not in output
    assert ("\x1b[31m" in output) is not no_color
    assert "FAIL  causal.square [float64]" in output


def _everything(descriptor: int) -> str:
    chunks: list[bytes] = []
    with suppress(OSError):  # Linux raises it once the other side is closed
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
    return b"".join(chunks).decode()


def test_without_a_terminal_there_is_nothing_to_write_over(sessions: Sessions) -> None:
    output = sessions.judge("right", *ONE).stdout.str()
    assert ".    " in output
    assert not set("\r\x1b") & set(output)
