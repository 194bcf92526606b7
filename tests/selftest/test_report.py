"""The report: it follows its schema, counts what was done, and says whether the run is complete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from implementations.torch_ops import TORCH_OPS
from tests.harness import report as reporting
from tests.harness.report import Recorder, overall, suite_version
from tests.harness.summary import summary
from tests.harness.verdicts import Failure, Status, Verdict
from tests.selftest.sessions import Sessions, asked_of, sessions
from tests.selftest.test_verdicts import BAD, FAILURE, GOOD, WHO

__all__ = ["sessions"]

pytest_plugins = ["pytester"]

SCHEMA = json.loads(reporting.SCHEMA_FILE.read_text())
REPORT = Draft202012Validator(SCHEMA)
ONE_VERDICT = Draft202012Validator({"$ref": "#/$defs/verdict", "$defs": SCHEMA["$defs"]})
BEYOND_A_SCHEMA = ("no more checks", "finite")
"""Rules of the records that compare two counts, or speak of numbers that JSON does not have."""
MATH = next(i for i in TORCH_OPS if i.name == "torch.sdpa.math")
CAUSAL = set(asked_of(MATH, "causal."))
RUN = {"tier": "quick", "device": "cpu", "clauses": ["masks.*"]}
VERDICTS = [Verdict(**{**WHO, "implementation": MATH.name}, **fields) for fields in GOOD]


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    REPORT.validate(found)
    return found


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def recorder(folder: Path | None, planned: int = len(VERDICTS)) -> Recorder:
    return Recorder([MATH], RUN, folder, planned)


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema"]["const"] == reporting.SCHEMA


def test_a_complete_run(tmp_path: Path) -> None:
    written = recorder(tmp_path / "new" / "report")
    written.begin()
    for verdict in VERDICTS:
        written.add(verdict)
    written.finish()
    found = read(tmp_path / "new" / "report")
    assert found["closing"] == {"complete": True, "reason": "", "verdicts": len(VERDICTS)}
    assert found["suite"]["version"] == suite_version()
    (entry,) = found["implementations"]
    assert [Verdict.from_json(json.dumps(v)) for v in entry["clauses"]] == VERDICTS
    assert entry["verdict"] == "fails"
    assert entry["claims"]["conventions"]["causal-with-mask"] == "either"
    assert events(tmp_path / "new" / "report")[-1] == {"closing": found["closing"]}


@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_run_that_stops_is_not_complete(tmp_path: Path, done: int) -> None:
    written = recorder(tmp_path)
    written.begin()
    assert read(tmp_path)["closing"] == {"complete": False, "reason": "the run has not ended", "verdicts": 0}
    for verdict in VERDICTS[:done]:
        written.add(verdict)
    assert read(tmp_path)["closing"]["complete"] is False
    assert [Verdict.from_json(json.dumps(e)) for e in events(tmp_path)] == VERDICTS[:done]
    written.finish()
    assert read(tmp_path)["closing"]["reason"] == f"{done} of {len(VERDICTS)} verdicts"


def test_an_interrupted_run_says_why(tmp_path: Path) -> None:
    written = recorder(tmp_path, planned=1)
    written.begin()
    written.add(VERDICTS[0])
    written.finish("the run was interrupted")
    assert read(tmp_path)["closing"] == {"complete": False, "reason": "the run was interrupted", "verdicts": 1}


def test_an_earlier_report_does_not_survive_a_new_start(tmp_path: Path) -> None:
    first = recorder(tmp_path, planned=1)
    first.begin()
    first.add(VERDICTS[0])
    first.finish()
    recorder(tmp_path).begin()
    assert read(tmp_path)["closing"]["complete"] is False
    assert events(tmp_path) == []


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    silent = recorder(None)
    silent.begin()
    silent.add(VERDICTS[0])
    silent.finish()
    assert list(tmp_path.iterdir()) == []


def test_overall() -> None:
    passed, _, failed, unclaimed, known, blunt, gone = VERDICTS
    advice = replace(failed, level="SHOULD")
    assert overall([passed, unclaimed, known, advice]) == "conforms"
    assert overall([passed, failed, blunt]) == "fails"
    assert overall([passed, blunt]) == overall([passed, gone]) == "error"
    assert overall([]) == overall([unclaimed]) == "error"


@pytest.mark.parametrize("fields", GOOD)
def test_verdicts_follow_the_schema(fields: Mapping[str, Any]) -> None:
    ONE_VERDICT.validate(json.loads(Verdict(**WHO, **fields).to_json()))


@pytest.mark.parametrize("fields", [fields for rule, fields in BAD if rule not in BEYOND_A_SCHEMA])
def test_contradictions_do_not_follow_the_schema(fields: Mapping[str, Any]) -> None:
    plain = json.loads(Verdict(**WHO, status=Status.PASS, checks=1).to_json())
    failure = vars(FAILURE) if fields.get("failure") else None
    wrong = {**plain, "checks": 0, **fields, "status": str(fields["status"]), "failure": failure}
    assert not ONE_VERDICT.is_valid(wrong)


def test_the_schema_knows_no_other_fields() -> None:
    plain = json.loads(Verdict(**WHO, status=Status.PASS, checks=1).to_json())
    assert not ONE_VERDICT.is_valid({**plain, "comment": ""})
    for name in plain:
        assert not ONE_VERDICT.is_valid({key: value for key, value in plain.items() if key != name})


def test_the_summary_shows_what_failed() -> None:
    lines = list(summary([MATH], VERDICTS, {MATH.name: "matches nothing"}))
    assert lines[0].split() == ["masks", "checks", "worst", "verdict"]
    assert lines[1].split()[:2] == [MATH.name, "1/1"]
    assert "  FAIL  masks.bool [float32]: output of sample 0 is 1, expected 2" in lines
    assert any(line.startswith("  known deviation  masks.bool [float32]: so https://") for line in lines)
    assert any(line.startswith("  ERROR  masks.bool [float32") for line in lines)


def test_a_session_writes_its_report(sessions: Sessions, tmp_path: Path) -> None:
    result = sessions.judge("right", "--clause", "causal.*", "--report", str(tmp_path / "report"))
    assert result.ret == 0
    found = read(tmp_path / "report")
    assert found["closing"] == {"complete": True, "reason": "", "verdicts": len(CAUSAL)}
    assert found["suite"]["clauses"] == ["causal.*"]
    assert [v["checks"] > 0 for v in found["implementations"][0]["clauses"]] == [True] * len(CAUSAL)
    assert result.outlines[-2] == f"report: {tmp_path / 'report' / 'report.json'}"


def test_a_failing_session_is_complete_too(sessions: Sessions, tmp_path: Path) -> None:
    assert sessions.judge("halved", "--clause", "causal.*", "--report", str(tmp_path)).ret == 1
    found = read(tmp_path)
    assert found["closing"]["complete"] is True
    assert found["implementations"][0]["verdict"] == "fails"
    failure = found["implementations"][0]["clauses"][0]["failure"]
    assert Failure(**failure).dtype == "float64"


def test_a_session_that_stops_at_the_first_failure_is_not_complete(sessions: Sessions, tmp_path: Path) -> None:
    assert sessions.judge("halved", "--clause", "causal.*", "--report", str(tmp_path), "-x").ret != 0
    closing = read(tmp_path)["closing"]
    assert closing["complete"] is False
    assert closing["verdicts"] == 1


@pytest.mark.parametrize("processes", [(), ("-n", "1")])
def test_a_process_that_dies_leaves_what_was_done(
    sessions: Sessions, tmp_path: Path, processes: tuple[str, ...]
) -> None:
    arguments = ("--candidate", f"{sessions.file}:dies", "--dtype", "float64", "--clause", "causal.*")
    result = sessions.apart(*arguments, "--report", str(tmp_path), *processes)
    assert result.returncode != 0
    closing = read(tmp_path)["closing"]
    assert closing["complete"] is False
    done = [event for event in events(tmp_path) if "closing" not in event]
    assert [Verdict.from_json(json.dumps(event)).status for event in done] == [Status.PASS] * len(done)
    assert 1 <= len(done) < len(CAUSAL)


def test_a_folder_that_cannot_be_written_is_told_in_one_line(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    result = sessions.judge("right", "--clause", "causal.square", "--report", str(tmp_path / "taken"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = [line for line in result.errlines if line.strip()]
    assert told == [f"ERROR: --report: {tmp_path / 'taken'} cannot be written (File exists)"]
