"""The report: it follows its schema, holds every verdict, and marks runs that are not complete."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from attention_conformance import __version__
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS
from attention_conformance.spec.clauses import load
from attention_conformance.spec.problem import Array
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.run_records import subject_of, suite_of
from attention_conformance.tests.report import model
from attention_conformance.tests.report.__main__ import main
from attention_conformance.tests.report.counts import Conformance
from attention_conformance.tests.report.log import LogError, decode, encode, replay
from attention_conformance.tests.report.model import Event, Grid, Run
from attention_conformance.tests.report.recorder import Recorder
from attention_conformance.tests.report.verdict import Failure, FailureKind, Status, Verdict
from attention_conformance.tests.report.views import ERRORS, VIEWS
from attention_conformance.tests.report.views import json_view as reporting
from attention_conformance.tests.report.views.terminal import lines, summary
from attention_conformance.tests.selftest.report.test_verdicts import BAD, FAILURE, GOOD, WHO
from attention_conformance.tests.selftest.sessions import Sessions, checks_of
from attention_conformance.tests.selftest.thorough import by_turns

SCHEMA = json.loads(reporting.SCHEMA_FILE.read_text())
REPORT = Draft202012Validator(SCHEMA)
ONE_VERDICT = Draft202012Validator({"$ref": "#/$defs/verdict", "$defs": SCHEMA["$defs"]})
BEYOND_A_SCHEMA = ("no more checks", "finite")
"""Rules of the records that compare two counts, or speak of numbers that JSON does not have."""
MATH = next(i for i in TORCH_OPS if i.name == "torch.sdpa.math")
CAUSAL = set(checks_of(MATH, "causal."))
SUITE = suite_of(RunSettings(clauses=("masks.*",)))
PLAIN = asdict(Verdict(**WHO, status=Status.PASS, checks=1))
VERDICTS = [Verdict(**{**WHO, "implementation": MATH.name}, **fields) for fields in GOOD]


def read(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    REPORT.validate(report)
    return report


def finish(written: Recorder, interrupted: str = "") -> None:
    written.judged(interrupted)
    written.close()


def logged(folder: Path | None, *events: Event, planned: int = len(VERDICTS)) -> Recorder:
    """A run that has begun and has recorded these events."""
    written = Recorder([subject_of(MATH)], SUITE, folder, planned=planned)
    written.begin()
    for event in events:
        written.add(event)
    return written


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema"]["const"] == reporting.SCHEMA


def test_the_schema_knows_the_same_words_as_the_records() -> None:
    definitions = SCHEMA["$defs"]
    for field, words in (
        (definitions["failure"]["properties"]["kind"], FailureKind),
        (definitions["verdict"]["properties"]["status"], Status),
        (definitions["implementation"]["properties"]["verdict"], Conformance),
    ):
        assert field["enum"] == list(words)


def test_a_complete_run(tmp_path: Path) -> None:
    finish(logged(tmp_path / "new" / "report", *VERDICTS))
    report = read(tmp_path / "new" / "report")
    assert report["completion"] == {"complete": True, "reason": "", "verdicts": len(VERDICTS)}
    assert report["suite"]["version"] == __version__
    (entry,) = report["implementations"]
    assert [decode(json.dumps({"event": "verdict", **each})) for each in entry["verdicts"]] == VERDICTS
    assert entry["verdict"] == "fails"
    assert entry["claims"]["conventions"]["causal-with-mask"] == "either"
    closing = replay(tmp_path / "new" / "report").closing
    assert (closing.complete, closing.verdicts) == (True, len(VERDICTS))


@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_run_that_stops_is_not_complete(tmp_path: Path, done: int) -> None:
    written = logged(tmp_path)
    assert read(tmp_path)["completion"] == {"complete": False, "reason": "the run has not ended", "verdicts": 0}
    for verdict in VERDICTS[:done]:
        written.add(verdict)
    assert read(tmp_path)["completion"]["complete"] is False
    unfinished = replay(tmp_path)
    assert unfinished.verdicts == VERDICTS[:done]
    assert unfinished.closing.reason == "the run was cut short"
    finish(written)
    assert read(tmp_path)["completion"]["reason"] == f"{done} of {len(VERDICTS)} verdicts"


def test_an_interrupted_run_states_its_reason(tmp_path: Path) -> None:
    finish(logged(tmp_path, VERDICTS[0], planned=1), "the run was interrupted")
    assert read(tmp_path)["completion"] == {"complete": False, "reason": "the run was interrupted", "verdicts": 1}


def test_an_earlier_report_does_not_survive_a_new_start(tmp_path: Path) -> None:
    finish(logged(tmp_path, VERDICTS[0], planned=1))
    logged(tmp_path)
    assert read(tmp_path)["completion"]["complete"] is False
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 1
    assert replay(tmp_path).verdicts == []


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finish(logged(None, VERDICTS[0]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fields", GOOD)
def test_verdicts_follow_the_schema(fields: Mapping[str, Any]) -> None:
    ONE_VERDICT.validate(asdict(Verdict(**WHO, **fields)))


@pytest.mark.parametrize("fields", [fields for rule, fields in BAD if rule not in BEYOND_A_SCHEMA])
def test_contradictions_do_not_follow_the_schema(fields: Mapping[str, Any]) -> None:
    failure = vars(FAILURE) if fields.get("failure") else None
    wrong = {**PLAIN, "checks": 0, **fields, "status": str(fields["status"]), "failure": failure}
    assert not ONE_VERDICT.is_valid(wrong)


def test_the_schema_knows_no_other_fields() -> None:
    assert not ONE_VERDICT.is_valid({**PLAIN, "comment": ""})
    for name in PLAIN:
        assert not ONE_VERDICT.is_valid({key: value for key, value in PLAIN.items() if key != name})


def test_the_summary_shows_what_failed() -> None:
    clauses = [c.id for c in load().values() if c.chapter == "masks"]
    verdicts = [replace(verdict, clause=clause) for clause, verdict in zip(clauses, VERDICTS, strict=False)]
    shown = list(summary(logged(None, *verdicts, model.DiagnosisRecord(MATH.name, "matches nothing")).run))
    assert shown[0].split() == ["masks", "all", "checks", "worst", "verdict"]
    assert shown[1].split()[:2] == [MATH.name, "2/6"]
    assert "  diagnosis  matches nothing" in shown
    assert any(line.endswith(" [float32]: output of sample 0 is 1, expected 2") for line in shown)
    assert any(re.fullmatch(r"  known deviation  masks\.\S+ \[float32\]: so https://.*", line) for line in shown)
    assert sum(line.startswith("  ERROR  masks.") for line in shown) == 2


def test_a_session_writes_its_report(sessions: Sessions, tmp_path: Path) -> None:
    result = sessions.judge("right", "--clause", "causal.*", "--report", str(tmp_path / "report"))
    assert result.ret == 0
    report = read(tmp_path / "report")
    assert report["completion"] == {"complete": True, "reason": "", "verdicts": len(CAUSAL)}
    assert report["suite"]["clauses"] == ["causal.*"]
    assert [v["checks"] > 0 for v in report["implementations"][0]["verdicts"]] == [True] * len(CAUSAL)
    assert result.outlines[-2] == f"report: {tmp_path / 'report' / 'report.html'}"


def test_a_failing_session_is_complete_too(sessions: Sessions, tmp_path: Path) -> None:
    assert sessions.judge("halved", "--clause", "causal.*", "--report", str(tmp_path)).ret == 1
    report = read(tmp_path)
    (entry,) = report["implementations"]
    assert report["completion"]["complete"] is True
    assert entry["verdict"] == "fails"
    assert Failure(**entry["verdicts"][0]["failure"]).dtype == "float64"


def test_a_session_that_stops_at_the_first_failure_is_not_complete(sessions: Sessions, tmp_path: Path) -> None:
    assert sessions.judge("halved", "--clause", "causal.*", "--report", str(tmp_path), "-x").ret != 0
    completion = read(tmp_path)["completion"]
    assert completion["complete"] is False
    assert completion["verdicts"] == 1


@pytest.mark.parametrize("processes", by_turns([(), ("-n", "1")], 2))
def test_a_process_that_dies_leaves_what_was_done(
    sessions: Sessions, tmp_path: Path, processes: tuple[str, ...]
) -> None:
    arguments = ("--candidate", f"{sessions.file}:dies", "--dtype", "float64", "--clause", "causal.*", "--in-process")
    result = sessions.apart(*arguments, "--report", str(tmp_path), *processes)
    assert result.returncode != 0
    completion = read(tmp_path)["completion"]
    assert completion["complete"] is False
    done = replay(tmp_path).verdicts
    assert [verdict.status for verdict in done] == [Status.PASS] * len(done)
    assert 1 <= len(done) < len(CAUSAL)


def test_a_folder_that_cannot_be_written_is_reported_in_one_line(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    result = sessions.judge("right", "--clause", "causal.square", "--report", str(tmp_path / "taken"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = [line for line in result.errlines if line.strip()]
    assert message == [f"ERROR: --report: {tmp_path / 'taken'} cannot be written (File exists): give another folder"]


def test_a_view_that_fails_costs_neither_the_others_nor_the_summary(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run: Run) -> str:
        raise ZeroDivisionError("by zero")

    monkeypatch.setitem(cast(dict[str, Callable[[Run], str]], VIEWS), "junit.xml", broken)
    result = sessions.judge("right", "--clause", "causal.square", "--report", str(tmp_path))
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    text = result.stdout.str()
    assert "ERROR  junit.xml could not be made: ZeroDivisionError: by zero" in text
    assert f"report: {tmp_path / ERRORS}" in text
    assert "conforms" in text
    assert read(tmp_path)["completion"]["complete"] is True
    assert (tmp_path / "report.html").exists()
    assert not (tmp_path / "junit.xml").exists()
    assert main([str(tmp_path)]) == 3


def test_a_failing_case_without_samples_is_reported_whole(sessions: Sessions, tmp_path: Path) -> None:
    arguments = ("--clause", "shapes.empty", "--dtype", "float64", "--report", str(tmp_path))
    result = sessions.judge("narrow", *arguments)
    assert result.ret == 1
    assert "narrow" in result.stdout.str().partition("= conformance =")[2]
    assert any(0 in grid.shape for one in replay(tmp_path).failures for grid in one.arrays.values())
    assert "empty" in (tmp_path / "report.html").read_text(encoding="utf-8")


EVERY_KIND: tuple[Event, ...] = (
    VERDICTS[2],
    model.VerdictsEnd(3, ""),
    model.DiagnosisRecord(MATH.name, "matches `no-scale`"),
    model.ObservationRecord(MATH.name, {"empty row": "zeros"}),
    model.FailureRecord(
        "masks.bool", MATH.name, "float32", "B=1", "off", arrays={"query": Grid.of(np.array([[np.nan, -np.inf, 0.1]]))}
    ),
    model.WeightMap(MATH.name, "float64", "B=1", "returned", got=Grid.of(np.eye(2))),
    model.Closing(True, "", 3, 0.5),
)


@pytest.mark.parametrize("event", EVERY_KIND, ids=lambda event: type(event).__name__)
def test_an_event_reads_as_it_was_written(event: Event) -> None:
    line = encode(event)
    assert "\n" not in line
    assert not {"NaN", "Infinity"} & set(line.replace('"', " ").split())  # JSON has no such numbers
    assert repr(decode(line)) == repr(event)  # NaN is unequal to itself


def test_a_large_array_is_recorded_by_its_shape() -> None:
    assert Grid.of(np.zeros((33, 32))) == Grid((33, 32), None)


def test_a_log_makes_the_same_views_again(tmp_path: Path) -> None:
    finish(logged(tmp_path, *VERDICTS))
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(VIEWS) < set(before)
    for name in VIEWS:
        (tmp_path / name).unlink()
    assert main([str(tmp_path)]) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_a_log_that_ends_in_the_middle_is_a_run_that_is_not_complete(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    logged(tmp_path, *VERDICTS)
    whole = log.read_text()
    log.write_text(whole[:-10])
    assert len(replay(tmp_path).verdicts) == len(VERDICTS) - 1
    log.write_text(whole + encode(model.VerdictsEnd(len(VERDICTS), "")) + "\n")
    assert replay(tmp_path).closing.reason.startswith("all verdicts are recorded, but the run was cut short")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda log: log.write_text(""), ":1: this is not the opening of a log of attention-conformance/events/2"),
        (lambda log: log.write_text(log.read_text().replace("events/2", "events/1")), ":1: this is not the opening"),
        (lambda log: log.write_text("{}\n" + log.read_text()), ":1: event is 'None'; known are: opening, verdict"),
        (lambda log: log.write_text(log.read_text().replace('"checks":', '"cheks":', 1)), ":2: verdict: "),
        (lambda log: log.write_bytes(b"\xff\xfe"), " cannot be read (it is no text): give the folder of --report"),
        (lambda log: log.unlink(), " cannot be read (No such file or directory): give the folder of --report"),
    ],
)
def test_a_log_that_cannot_be_read_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], message: str
) -> None:
    finish(logged(tmp_path, *VERDICTS))
    damage(tmp_path / "events.jsonl")
    with pytest.raises(LogError) as raised:
        replay(tmp_path)
    assert f"events.jsonl{message}" in str(raised.value)
    assert main([str(tmp_path)]) == 4
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_summary_is_printed_from_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = logged(tmp_path, *VERDICTS)
    finish(written)
    assert main([str(tmp_path), "--print"]) == 0
    assert capsys.readouterr().out.splitlines() == list(lines(written.run))


def array_of(grid: Grid | None) -> Array:
    assert grid is not None
    return np.reshape(grid.values or (), grid.shape)


def test_failures_are_logged_with_their_numbers(sessions: Sessions, tmp_path: Path) -> None:
    assert sessions.judge("halved", "--clause", "causal.square", "--report", str(tmp_path)).ret == 1
    run = replay(tmp_path)
    assert run.closing.complete
    one = run.failures[0]
    assert (one.clause, one.implementation) == ("causal.square", "halved")
    assert array_of(one.expected).shape == array_of(one.got).shape
    assert array_of(one.error_in_bounds).max() > 1.0
    assert (tmp_path / one.replay_file).exists()
    assert array_of(one.got_weights) == pytest.approx(0.5 * array_of(one.expected_weights))


def test_weights_of_every_head_are_logged(sessions: Sessions, tmp_path: Path) -> None:
    assert sessions.judge("right", "--dtype", "float64", "--report", str(tmp_path)).ret == 0
    shown = replay(tmp_path).weight_maps["right"]
    assert shown.source == "measured by changing one value at a time"
    assert array_of(shown.got).shape == array_of(shown.expected).shape == (4, 10, 10)
    assert array_of(shown.got) == pytest.approx(array_of(shown.expected))
