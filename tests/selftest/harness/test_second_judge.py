"""Two judges of one run: the same verdicts as one has, whichever of them gives them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.worker.remote import end_process, isolated_candidate
from attention_conformance.tests.harness.judge.clause_tests import PlannedCheck, Selection
from attention_conformance.tests.harness.judge.judging import judged
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run import second_judge
from attention_conformance.tests.harness.run.plan import sharding
from attention_conformance.tests.harness.run.plan.sharding import long_groups
from attention_conformance.tests.harness.run.second_judge import SecondJudge, SharedWork, core_is_free, parts_of
from attention_conformance.tests.report.verdict import FailureKind, Status, Verdict
from attention_conformance.tests.selftest.sessions import OF_NUMPY

CANDIDATES = f"""{OF_NUMPY}
import os, subprocess, sys

def dying(query, key, value):
    if key.shape[-2] == 1:
        os._exit(9)
    return right(query, key, value)

def leaving(query, key, value):
    if key.shape[-2] == 1:
        subprocess.Popen(["sleep", "60"])
    return right(query, key, value)
"""
CLAUSES = ("scores.*", "values.*")
SETTINGS = RunSettings(dtypes=("float32", "float16"))


@contextmanager
def loaded(folder: Path, name: str) -> Iterator[tuple[Implementation, list[PlannedCheck]]]:
    """A candidate in a process of its own, and its checks; `values.single-key` is among the last."""
    file = folder / "two_judges.py"
    file.write_text(CANDIDATES, encoding="utf-8")
    candidate = isolated_candidate(f"{file}:{name}", {})
    try:
        first, second, *others = Selection((candidate,), CLAUSES, SETTINGS.dtypes).plan()
        yield candidate, [first, *others, second]  # a clause in one dtype first, as those that tell most
    finally:
        end_process(candidate)


def alone(planned: PlannedCheck) -> Verdict:
    return judged(planned.clause, planned.test, SETTINGS.judge(planned.implementation, planned.dtype))


@contextmanager
def shared(planned: list[PlannedCheck]) -> Iterator[SecondJudge]:
    """With a second judge, although little is to be done."""
    free = patch.multiple(second_judge, core_is_free=lambda: True, can_be_copied=lambda: True, LEAST=0.0, STARTS=0.0)
    with free, patch.object(sharding, "LONG", 1.0):
        second = second_judge.second_judge(planned, SETTINGS, 0.0)
    assert second is not None
    try:
        yield second
    finally:
        second.end()


def verdicts(planned: list[PlannedCheck], second: SecondJudge) -> Iterator[tuple[Verdict, bool]]:
    """All in turn, with whether it was there already: all that come once the second judge has done what it could."""
    for each in planned:
        known = second.verdict(each)
        yield (alone(each) if known is None else known[0]), known is not None
        os.waitid(os.P_PID, second.number, os.WEXITED | os.WNOWAIT)


def timeless(verdict: Verdict) -> Verdict:
    return replace(verdict, seconds=0.0)


@pytest.mark.parametrize("name", ["right", "halved"])
def test_each_judges_a_part_and_all_verdicts_are_those_of_one(tmp_path: Path, name: str) -> None:
    with loaded(tmp_path, name) as (_, planned), shared(planned) as second:
        given, known = zip(*verdicts(planned, second), strict=True)
        assert list(map(timeless, given)) == [timeless(alone(each)) for each in planned]
        assert not known[0]
        assert all(known[1:])  # the group that was begun here was ended here, ahead of its turn
        assert {v.status for v in given} == {Status.PASS if name == "right" else Status.FAIL}


@pytest.mark.parametrize("name", ["dying", "leaving"])
def test_what_the_second_judge_finds_out_of_the_ordinary_is_left_to_the_first(tmp_path: Path, name: str) -> None:
    with loaded(tmp_path, name) as (candidate, planned), shared(planned) as second:
        given, known = zip(*verdicts(planned, second), strict=True)
        assert [v.clause for v, had in zip(given, known, strict=True) if had] == [planned[0].clause.id]
        failed = {v.clause: v.failure.kind for v in given if v.failure is not None}
        assert failed == ({"values.single-key": FailureKind.DIED} if name == "dying" else {})
        assert candidate.name == name


def test_a_clause_that_takes_a_twentieth_of_the_plan_is_long() -> None:
    with patch.object(sharding, "_measured", lambda: {"long": 1.0, "short": 0.9}):
        planned = [("long", "one"), *[("short", f"{n}") for n in range(20)], ("long", "one")]
        assert long_groups(planned) == {("long", "one"): 2.0}


@pytest.mark.parametrize(("share", "parts"), [(0.0, 2), (1.0, 1)], ids=["long", "short"])
def test_a_long_clause_of_which_one_dtype_comes_first_is_in_two_parts(tmp_path: Path, share: float, parts: int) -> None:
    with loaded(tmp_path, "right") as (_, planned), patch.object(sharding, "LONG", share):
        of_first = {part for (clause, *_), part in parts_of(planned).items() if clause == planned[0].clause.id}
        assert len(of_first) == parts
        together = [planned[0], planned[-1]]
        assert len(set(parts_of(together).values())) == 1


def test_there_is_a_second_judge_once_a_candidate_turns_out_to_be_slow(tmp_path: Path) -> None:
    free: dict[str, Any] = {"core_is_free": lambda: True, "can_be_copied": lambda: True}
    free |= {"LEAST": 1e3, "STARTS": 0.0, "LOOK": 0.0}
    with loaded(tmp_path, "right") as (_, planned), patch.multiple(second_judge, **free):
        shared = SharedWork.of(planned, SETTINGS)
        try:
            assert [shared.verdict(each) for each in planned[:3]] == [None] * 3
            before, shared.begun = shared.second, shared.begun - 1e6
            assert shared.verdict(planned[3]) is None
            second = shared.second
            assert before is None
            assert second is not None
            given = [timeless(verdict) for verdict, _ in verdicts(planned[4:], second)]
            assert given == [timeless(alone(each)) for each in planned[4:]]
        finally:
            shared.end()


LITTLE = {"LEAST": 0.0, "STARTS": 0.0}


@pytest.mark.parametrize(
    "lacking",
    [
        {"core_is_free": lambda: True, "can_be_copied": lambda: True},
        {"core_is_free": lambda: False, "can_be_copied": lambda: True, **LITTLE},
        {"core_is_free": lambda: True, "can_be_copied": lambda: False, **LITTLE},
    ],
    ids=["little to do", "no free core", "not to be copied"],
)
def test_one_judge_does_all(tmp_path: Path, lacking: dict[str, Any]) -> None:
    with loaded(tmp_path, "right") as (_, planned), patch.multiple(second_judge, **lacking):
        assert second_judge.second_judge(planned, SETTINGS, 0.0) is None


def test_where_torch_was_imported_nothing_is_copied() -> None:
    with patch.dict(sys.modules, {"torch": ModuleType("torch")}):
        assert not second_judge.can_be_copied()


@pytest.mark.parametrize(("scheduled", "free"), [("1000 50 7", True), ("1000 500 7", False)])
def test_who_has_waited_for_a_core_finds_none_free(tmp_path: Path, scheduled: str, free: bool) -> None:
    file = tmp_path / "schedstat"
    file.write_text(scheduled, encoding="ascii")
    cores = patch.object(os, "sched_getaffinity", lambda process: {0, 1})
    with patch.object(second_judge, "SCHEDULED", file), cores:
        assert core_is_free() is free
    with patch.object(second_judge, "SCHEDULED", tmp_path / "elsewhere"), cores:
        assert not core_is_free()
