"""The folder of a report: claimed before a candidate is imported, by one run at a time, and never green by accident."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch.nn.functional import scaled_dot_product_attention

import attention_conformance
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.report.folder import FolderError, claim
from attention_conformance.tests.report.log import FILE, replay
from attention_conformance.tests.report.recorder import Recorder
from attention_conformance.tests.report.views import VIEWS
from attention_conformance.tests.selftest.report.run_builders import SUITE, passed, subject
from attention_conformance.tests.selftest.sessions import ROOT, Sessions
from attention_conformance.tests.selftest.sessions import SUITE as ON_THE_SUITE
from attention_conformance.tests.selftest.thorough import thorough

STALE = ("report.json", "report.html", "report.md", "junit.xml", "badge.json", "badge.svg", FILE)
SDPA = "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
SLOW = (
    f"import time\n{SDPA}def attention(query, key, value):\n    time.sleep(0.02)\n    return sdpa(query, key, value)\n"
)
ONE = ("--clause", "scores.dot-product", "--dtype", "float64")
HOLDING = """
import sys
from pathlib import Path
from attention_conformance.tests.report.folder import claim

held = claim(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def stale(folder: Path) -> Path:
    """A folder with the report of an earlier run, which says that all is well."""
    folder.mkdir()
    for name in STALE:
        (folder / name).write_text("conforms")
    return folder


def completion(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "report.json").read_text())["completion"]
    return read


def check(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "attention_conformance", "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def nothing_conforms(folder: Path) -> None:
    """All views are there, and state that the run is not complete."""
    assert completion(folder)["complete"] is False
    assert {*VIEWS} <= {path.name for path in folder.iterdir()}
    data = json.loads((folder / "report.json").read_text())
    assert "conforms" not in {entry["verdict"] for entry in data["implementations"]}
    assert json.loads((folder / "badge.json").read_text())["message"] == "incomplete"
    for name in ("report.md", "badge.svg", "junit.xml"):
        assert "conforms" not in (folder / name).read_text(), name
        assert "complete" in (folder / name).read_text(), name
    assert "<title>INCOMPLETE" in (folder / "report.html").read_text()
    assert '<testcase name="the run is complete"' in (folder / "junit.xml").read_text()


def test_the_folder_is_claimed_before_the_candidate_is_imported(sessions: Sessions, tmp_path: Path) -> None:
    folder = stale(tmp_path / "report")
    seen = tmp_path / "seen.json"
    text = f"import os, pathlib\nfolder = pathlib.Path({str(folder)!r})\n"
    text += f"pathlib.Path({str(seen)!r}).write_text((folder / 'report.json').read_text())\n"
    text += f"assert not (folder / 'report.html').exists()\n{SDPA}attention = sdpa\n"
    file = tmp_path / "looking.py"
    file.write_text(text)
    result = sessions.run("--candidate", f"{file}:attention", *ONE, "--report", str(folder))
    assert result.ret == 0
    at_import = json.loads(seen.read_text())
    assert at_import["completion"] == {"complete": False, "reason": "the run has not ended", "verdicts": 0}
    assert completion(folder)["complete"] is True


@pytest.mark.parametrize("target", ["nowhere.py:f", "candidates.py:nothing"])
def test_a_run_that_cannot_start_leaves_no_older_report(sessions: Sessions, tmp_path: Path, target: str) -> None:
    folder = stale(tmp_path / "report")
    sessions.refused("--candidate", target, "--report", str(folder))
    nothing_conforms(folder)
    assert completion(folder)["reason"].startswith("the run could not start: ")
    assert target.partition(":")[0] in completion(folder)["reason"]


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes its report into the folder."""
    command = [sys.executable, "-c", HOLDING, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_run_in_one_folder_is_refused(sessions: Sessions, tmp_path: Path) -> None:
    with held(tmp_path) as process:
        (tmp_path / "report.json").write_text("of the first run")
        line = sessions.refused("--candidate", f"{sessions.file}:right", *ONE, "--report", str(tmp_path))
        remedy = "wait until it has ended, or give another folder"
        assert line == f"ERROR: --report: another run (process {process.pid}) writes into {tmp_path}: {remedy}"
        assert (tmp_path / "report.json").read_text() == "of the first run"


def test_a_report_of_a_script_is_not_written_over_a_run(tmp_path: Path) -> None:
    report = attention_conformance.check(scaled_dot_product_attention, clauses="scores.dot-product", dtypes="float64")
    with held(tmp_path), pytest.raises(FolderError, match=r"^another run \(process \d+\) writes into "):
        report.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {".lock"}
    assert report.write(tmp_path) == tmp_path / "report.html"
    assert {path.name for path in tmp_path.iterdir()} == {*VIEWS, FILE}


def test_the_folder_of_a_run_that_died_is_taken_over(sessions: Sessions, tmp_path: Path) -> None:
    with held(tmp_path) as process:
        process.kill()
        process.wait()
        assert (tmp_path / ".lock").exists()
        assert sessions.judge("right", *ONE, "--report", str(tmp_path)).ret == 0
    assert not (tmp_path / ".lock").exists()


def test_a_folder_is_free_again(tmp_path: Path) -> None:
    for _ in range(2):
        claim(tmp_path).close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["/dev/null/report", "/proc/report", "/sys/report"])
def test_a_folder_that_cannot_be_made_is_named(place: str) -> None:
    with pytest.raises(FolderError, match=rf"^{place} cannot be written \(.*\): give another folder$"):
        claim(Path(place))


def test_a_run_in_a_folder_that_cannot_be_made_is_refused(sessions: Sessions) -> None:
    line = sessions.refused("--candidate", f"{sessions.file}:right", *ONE, "--report", "/dev/null/report")
    assert line == "ERROR: --report: /dev/null/report cannot be written (Not a directory): give another folder"


def test_a_full_disk_ends_the_log_and_is_named(tmp_path: Path) -> None:
    recorder = Recorder([subject("mine")], SUITE, tmp_path, planned=2)
    recorder.begin()
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to("/dev/full")
    recorder.add(passed("mine", "causal.square"))
    recorder.add(passed("mine", "masks.bool"))
    recorder.judged()
    recorder.close()
    assert recorder.unwritten == f"{tmp_path / FILE} cannot be written (No space left on device)"
    assert completion(tmp_path)["reason"] == recorder.unwritten
    assert "conforms" not in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(("limit", "name"), [(9_000, FILE), (30_000, "report.html")])
def test_a_run_on_a_full_disk_is_not_complete(sessions: Sessions, tmp_path: Path, limit: int, name: str) -> None:
    """A limit on the size of files stands for the disk: the log has 15 kB here, report.json 20, the page 43."""
    chosen = ("--clause", "scores.*", "--clause", "softmax.*", "--report", str(tmp_path / "report"))
    limited = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
    command = [sys.executable, "-m", "attention_conformance", "check", f"{sessions.file}:right", *chosen]
    start = [sys.executable, "-c", f"{limited}os.execv(sys.argv[1], sys.argv[1:])", *command]
    result = subprocess.run(start, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == ExitStatus.INTERRUPTED, result.stdout + result.stderr
    named = f"{tmp_path / 'report' / name} cannot be written (File too large)"
    assert named in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    assert completion(tmp_path / "report") == {**completion(tmp_path / "report"), "complete": False, "reason": named}
    assert "conforms" not in (tmp_path / "report" / "report.md").read_text()
    assert not list((tmp_path / "report").glob("*.part"))


@pytest.mark.parametrize(
    ("number", "processes"),
    [
        (signal.SIGTERM, ("-n", "2")),
        (signal.SIGINT, ()),
        pytest.param(signal.SIGINT, ("-n", "2"), marks=thorough),
        pytest.param(signal.SIGTERM, (), marks=thorough),
    ],
)
def test_a_signal_leaves_all_views_marked(tmp_path: Path, number: signal.Signals, processes: tuple[str, ...]) -> None:
    file, folder = tmp_path / "slow.py", tmp_path / "report"
    file.write_text(SLOW)
    chosen = ("--candidate", f"{file}:attention", "--dtype", "float64", "--report", str(folder), *processes)
    command = [sys.executable, "-m", "pytest", *ON_THE_SUITE, *chosen]
    named = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with heeded(number), subprocess.Popen(command, cwd=ROOT, env=named, stdout=subprocess.PIPE, text=True) as process:
        waits(lambda: (folder / FILE).exists() and len((folder / FILE).read_text().splitlines()) > 2)
        process.send_signal(number)
        output = ended(process)
    assert process.returncode == ExitStatus.INTERRUPTED, output
    nothing_conforms(folder)
    assert completion(folder)["reason"] == "the run was interrupted"
    assert completion(folder)["verdicts"] >= 1
    assert "next: the run is not complete" in output
    assert "conforms" not in output
    assert replay(folder).closing.complete is False


def ended(process: subprocess.Popen[str]) -> str:
    """What it has written once it ended; one that does not end shows on the error stream where it stands.

    The processes of pytest-xdist have twice 10 s to end, and other tests run at the same time.
    """
    try:
        return process.communicate(timeout=150)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        raise


@contextmanager
def heeded(number: signal.Signals) -> Iterator[None]:
    """Lets processes that start here heed a signal: background jobs of a shell, and all they start, ignore SIGINT."""
    inherited = signal.getsignal(number)
    if inherited is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, inherited)


def waits(until: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_interrupt_while_failures_are_explained_is_no_complete_run(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attention_conformance.tests.harness.run.post_run.record_observations", interrupted)
    result = sessions.judge("right", "--report", str(tmp_path), "--dtype", "float64")
    assert result.ret == ExitStatus.INTERRUPTED
    nothing_conforms(tmp_path)
    assert "conforms" not in result.stdout.str()
