"""Shards: each check belongs to one, and the report of all is that of a single run."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.spec.clauses import load
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.plan.sharding import Shard, seconds
from attention_conformance.tests.report import merge
from attention_conformance.tests.report.log import replay
from attention_conformance.tests.report.model import Run
from attention_conformance.tests.selftest.report.run_builders import (
    SUITE,
    failed,
    passed,
    run,
    subject,
    unclaimed,
    unjudged,
    write_log,
)
from attention_conformance.tests.selftest.sessions import Sessions

GROUPS = [(clause, name) for clause in load() for name in ("one", "other")]
NAMES = (subject("one", features=("core",)), subject("other", features=("core",)))


def shard(text: str, *verdicts: object, **changes: object) -> Run:
    return run(*verdicts, suite=replace(SUITE, shard=text), subjects=NAMES, **changes)  # type: ignore[arg-type]


FIRST = shard("1/2", passed("one", "scores.dot-product"), passed("other", "scores.dot-product"))
SECOND = shard("2/2", passed("one", "causal.square", "float32"), passed("one", "causal.square"))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_check_belongs_to_one_part_and_the_parts_take_as_long(count: int) -> None:
    parts = [Shard(number, count).own(GROUPS) for number in range(1, count + 1)]
    assert sorted(group for part in parts for group in part) == sorted(GROUPS)
    loads = [sum(seconds(clause) for clause, _ in part) for part in parts]
    assert max(loads) - min(loads) <= max(seconds(clause) for clause in load())


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"give K/N with K from 1 to N, such as 2/4$"):
        Shard.parse(text)


def test_merged_verdicts_are_in_the_order_of_the_specification() -> None:
    whole = merge.merged([SECOND, FIRST])
    assert [(v.clause, v.implementation, v.dtype) for v in whole.verdicts] == [
        ("scores.dot-product", "one", "float64"),
        ("scores.dot-product", "other", "float64"),
        ("causal.square", "one", "float64"),
        ("causal.square", "one", "float32"),
    ]
    assert whole.opening.suite == SUITE
    assert (whole.closing.complete, whole.closing.verdicts, whole.closing.seconds) == (True, 4, 3.0)


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([FIRST], "shard 2/2 is missing"),
        (
            [FIRST, replace(SECOND, closing=run(reason="it was cut").closing)],
            "shard 2/2: it was cut",
        ),
    ],
)
def test_a_part_that_is_not_there_leaves_the_whole_incomplete(runs: list[Run], reason: str) -> None:
    closing = merge.merged(runs).closing
    assert not closing.complete
    assert closing.reason.startswith(reason)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (run(), "a report is that of a whole run, and no shard"),
        (FIRST, "shard 1/2 is there twice"),
        (shard("2/3"), "shards of different runs: 1/2, 2/3"),
        (shard("2/2", environment={"torch": "1.0"}), "shard 2/2 differs from shard 1/2 in its environment"),
        (run(suite=replace(SUITE, shard="2/2", tier="full:3"), subjects=NAMES), "in its suite: run both in one way"),
    ],
)
def test_what_is_no_part_of_the_same_run_is_refused(other: Run, words: str) -> None:
    with pytest.raises(merge.MergeError) as caught:
        merge.merged([FIRST, other])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (passed("other", "causal.square"), ExitStatus.CONFORMS),
        (failed("other", "causal.square"), ExitStatus.FAILS),
        (failed("other", "causal.square", level="SHOULD"), ExitStatus.CONFORMS),
        (unjudged("other", "causal.square"), ExitStatus.FAILS),
    ],
)
def test_the_status_is_that_of_the_whole(last: object, status: ExitStatus, tmp_path: Path) -> None:
    parts = [write_log(tmp_path / "1", FIRST), write_log(tmp_path / "2", shard("2/2", last))]
    assert merge.merge(parts, tmp_path / "whole") == status
    assert {"report.html", "junit.xml", "events.jsonl"} <= {file.name for file in (tmp_path / "whole").iterdir()}
    assert merge.merge(parts[:1], tmp_path / "part") == ExitStatus.INTERRUPTED
    assert merge.merge(parts, parts[0]) == ExitStatus.UNUSABLE


def test_a_claim_of_which_nothing_was_checked_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    claiming = (subject("one", features=("core", "causal")),)
    absent = unclaimed("one", "causal.square")
    one, two = (
        run(verdict, suite=replace(SUITE, shard=f"{number}/2"), subjects=claiming)
        for number, verdict in enumerate([passed("one", "scores.dot-product"), absent], start=1)
    )
    parts = [write_log(tmp_path / "1", one), write_log(tmp_path / "2", two)]
    assert merge.merge(parts, tmp_path / "whole") == ExitStatus.FAILS
    assert "one claims causal, and nothing was checked of it" in capsys.readouterr().out


def test_the_parts_of_a_run_are_the_run(sessions: Sessions, tmp_path: Path) -> None:
    given = ("--clause", "scores.*", "--report")
    assert sessions.judge("halved", *given, str(tmp_path / "single")).ret == ExitStatus.FAILS
    for number in (1, 2):
        sessions.judge("halved", "--shard", f"{number}/2", *given, str(tmp_path / f"{number}"))
    assert merge.merge([tmp_path / "1", tmp_path / "2"], tmp_path / "whole") == ExitStatus.FAILS
    single, whole = (replay(tmp_path / name) for name in ("single", "whole"))
    assert {(v.clause, v.status, v.checks, v.worst) for v in single.verdicts} == {
        (v.clause, v.status, v.checks, v.worst) for v in whole.verdicts
    }
    assert {f.clause for f in single.failures} == {f.clause for f in whole.failures}
    for failure in whole.failures:
        assert (tmp_path / "whole" / failure.replay_file).is_file()
    report = json.loads((tmp_path / "1" / "report.json").read_text())
    assert report["suite"]["shard"] == "1/2"


def test_a_reader_that_has_read_enough_sees_no_error_of_the_suite(tmp_path: Path) -> None:
    target = "torch.nn.functional:scaled_dot_product_attention"
    words = [sys.executable, "-m", "attention_conformance", "check", target, "--clause", "values.*", "--in-process"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.close()
        assert started.stderr.read() == b""
        assert started.wait(100) == ExitStatus.INTERRUPTED
