"""Benchmark runs: what the command line selects, what is stored, and which messages a user reads."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.benchmarks.apart import timing_processes
from attention_conformance.tests.benchmarks.benchmark_run import WITH_RATIO, Measurement, Rates, Speed, run_of, store
from attention_conformance.tests.benchmarks.paired_timing import Effort
from attention_conformance.tests.benchmarks.plan import KNOWN, BenchmarkOptions, Plan
from attention_conformance.tests.benchmarks.workloads import _CHOSEN, IMPLEMENTATIONS, REPRESENTATIVE, WORKLOADS, timed
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.plan.selection import UsageError
from attention_conformance.tests.selftest.benchmarks.benchmark_data import invented
from attention_conformance.tests.selftest.sessions import ROOT, SETTINGS

BENCHMARKS = (*SETTINGS, str(ROOT / "tests" / "benchmarks"))
SHORT = ("--seconds", "0.05", "--workload", "tiny.op.forward.float32")
CANDIDATES = """
import os

import torch
import torch.nn.functional as F


def right(query, key, value):
    return F.scaled_dot_product_attention(query, key, value)


def zeros(query, key, value):
    output = F.scaled_dot_product_attention(query, key, value)
    return output if len(query) < 64 else torch.zeros_like(output)  # wrong in timed sizes only


def breaks(query, key, value):
    if len(query) == 64:
        raise KeyboardInterrupt
    return F.scaled_dot_product_attention(query, key, value)


def dies(query, key, value):
    if len(query) == 64:
        os._exit(0)
    return F.scaled_dot_product_attention(query, key, value)


def hangs(query, key, value):
    while len(query) == 64:
        pass
    return F.scaled_dot_product_attention(query, key, value)
"""


@pytest.fixture(autouse=True)
def _any_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine on which nothing is impossible: to measure the real ones takes seconds."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # pytest-benchmark times nothing in a worker
    monkeypatch.setattr(
        "attention_conformance.tests.benchmarks.speed_session.rates",
        lambda device, dtypes: Rates({"float32": 1e18}, 1e18),
    )


@pytest.fixture
def candidates(pytester: pytest.Pytester) -> Path:
    return pytester.makepyfile(candidates=CANDIDATES)


def test_a_candidate_is_timed_in_pairs_and_stored(pytester: pytest.Pytester, candidates: Path) -> None:
    kept = pytester.path / "new" / "bench.json"
    ran = pytester.runpytest(*BENCHMARKS, *SHORT, "--candidate", f"{candidates}:right", "--benchmark-json", str(kept))
    assert ran.ret == 0
    ran.stdout.fnmatch_lines(["*tiny: op, forward, float32*", "*baseline torch.sdpa*", "*right*", "*kept: *"])
    run = run_of(kept)
    (measurement,) = run.measurements
    assert run.complete
    assert (measurement.workload, measurement.implementation, measurement.baseline) == ("tiny", "right", "torch.sdpa")
    assert measurement.verdict in WITH_RATIO
    assert not measurement.adapter
    assert run.machine.threads >= 1


Invent = Callable[..., Measurement]


@pytest.fixture
def invent(monkeypatch: pytest.MonkeyPatch) -> Invent:
    """Replaces the next measurements by an invented one, so that its rounds are known."""

    def replaced(**changes: Any) -> Measurement:
        invention = replace(invented().measurements[1], calls=8, **changes)
        monkeypatch.setattr("attention_conformance.tests.benchmarks.speed_session.measure", lambda *_: invention)
        return invention

    return replaced


def stored(pytester: pytest.Pytester, *options: str) -> tuple[pytest.RunResult, list[Any]]:
    """A run on one implementation, and the benchmarks in the file that it wrote."""
    file = pytester.path / "bench.json"
    json_file = () if "--benchmark-disable" in options else ("--benchmark-json", str(file))
    ran = pytester.runpytest(*BENCHMARKS, *SHORT, "--implementation", "torch.sdpa.flash", *json_file, *options)
    return ran, json.loads(file.read_text())["benchmarks"] if file.exists() else []


def test_pytest_benchmark_has_the_measured_rounds(pytester: pytest.Pytester, invent: Invent) -> None:
    measurement = invent()
    ran, (benchmark,) = stored(pytester, "--benchmark-only")
    ran.assert_outcomes(passed=1)
    stats, calls = benchmark["stats"], measurement.calls
    assert stats["data"] == [seconds * calls / calls for seconds in measurement.seconds]
    assert (stats["rounds"], stats["iterations"]) == (len(measurement.seconds), calls)
    assert stats["median"] == median(stats["data"])
    assert benchmark["group"] == "tiny.op.forward.float32"
    assert benchmark["params"]["implementation"] == measurement.implementation
    assert benchmark["extra_info"]["verdict"] == measurement.verdict
    assert benchmark["options"]["timer"] == "time.perf_counter"
    assert run_of(pytester.path / "bench.json").machine.device == "cpu"


@pytest.mark.parametrize("verdict", [Speed.WRONG, Speed.IMPOSSIBLE, Speed.ERROR])
def test_what_has_no_speed_has_no_statistics(pytester: pytest.Pytester, invent: Invent, verdict: Speed) -> None:
    invent(verdict=verdict, reason="of a reason")
    ran, benchmarks = stored(pytester)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines([f"*{verdict}: of a reason*"])
    assert benchmarks == []


def test_statistics_can_be_switched_off(pytester: pytest.Pytester, invent: Invent) -> None:
    invent()
    ran, benchmarks = stored(pytester, "--benchmark-disable")
    ran.assert_outcomes(passed=1)
    assert benchmarks == []


def test_pytest_benchmark_compares_the_measured_rounds(pytester: pytest.Pytester, invent: Invent) -> None:
    seconds = invent().seconds
    storage = ("--benchmark-storage", str(pytester.path / "saved"))
    assert stored(pytester, *storage, "--benchmark-save", "first")[0].ret == 0
    check = (*storage, "--benchmark-compare", "--benchmark-compare-fail", "median:10%")
    for factor, regressed in ((1.05, False), (0.5, False), (1.15, True)):
        invent(seconds=tuple(factor * each for each in seconds))
        ran, _ = stored(pytester, *check)
        ran.stdout.fnmatch_lines(["*(0001_first)*"])
        assert ("Performance has regressed" in ran.stdout.str() + ran.stderr.str()) == regressed
        assert (ran.ret != 0) == regressed


def test_a_wrong_answer_in_a_timed_size_fails(pytester: pytest.Pytester, candidates: Path) -> None:
    ran = pytester.runpytest(*BENCHMARKS, *SHORT, "--candidate", f"{candidates}:zeros")
    assert ran.ret == 1
    ran.stdout.fnmatch_lines(["*wrong: output of *expected*"])


def test_a_candidate_that_dies_or_interrupts_loses_its_own_figures(pytester: pytest.Pytester, candidates: Path) -> None:
    kept = pytester.path / "bench.json"
    targets = (f"--candidate={candidates}:{name}" for name in ("dies", "breaks", "right"))
    ran = pytester.runpytest(*BENCHMARKS, *SHORT, *targets, "--benchmark-json", str(kept))
    assert ran.ret == 1
    run = run_of(kept)
    died, interrupted, right = run.measurements
    assert (died.verdict, died.reason) == (Speed.ERROR, "dies ended its process with exit status 0")
    assert (interrupted.verdict, interrupted.reason) == (Speed.ERROR, "breaks raised KeyboardInterrupt")
    assert right.verdict in WITH_RATIO
    assert run.complete


def test_a_candidate_that_never_answers_is_ended(pytester: pytest.Pytester, candidates: Path) -> None:
    ran = pytester.runpytest(*BENCHMARKS, *SHORT, "--candidate", f"{candidates}:hangs", "--deadline", "1")
    assert ran.ret == 1
    ran.stdout.fnmatch_lines(["*hangs gave no answer within * s*"])


@pytest.mark.parametrize("option", ["--command", "--python"])
def test_what_another_interpreter_runs_is_not_timed(option: str) -> None:
    settings = RunSettings(commands=("true",)) if option == "--command" else RunSettings(("c.py:f",), python="python")
    with pytest.raises(UsageError, match=f"^{option}: benchmarks time what this interpreter imports"):
        timing_processes(settings, BenchmarkOptions(), Plan((), (), "cpu", Effort(), None, False))


def test_an_interrupted_run_is_incomplete(pytester: pytest.Pytester, candidates: Path) -> None:
    kept = pytester.path / "bench.json"
    target = ("--in-process", "--candidate", f"{candidates}:breaks", "--benchmark-json", str(kept))
    ran = pytester.runpytest_subprocess(*BENCHMARKS, *SHORT, *target)
    assert ran.ret == 2
    assert not run_of(kept).complete


def test_the_file_of_a_killed_run_is_incomplete(tmp_path: Path) -> None:
    """The file that a session writes before its end."""
    file = tmp_path / "bench.json"
    store(invented(complete=False), file)
    assert not run_of(file).complete
    assert not (tmp_path / "bench.json.part").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--workload", "gpt3*"), "--workload 'gpt3[*]' selects nothing; there are for example: *"),
        (("--baseline", "torch.spda"), "--baseline 'torch.spda' is no implementation; *torch.sdpa*"),
        (("--dtype", "float33"), "--dtype 'float33' selects nothing; *"),
        (("--implementation", "nope"), "--implementation 'nope' selects nothing; *"),
        (("--seconds", "0"), "--seconds 0 is not positive: *"),
        (("--device", "tpu"), "--device 'tpu' is not available here: *"),
        (("--workload", "decode-128", "--implementation", "source.d"), "--workload selects op workloads only*"),
        (("--candidate", "absent.py:name"), "there is no file 'absent.py'*"),
    ],
)
def test_a_usage_error_is_one_line(pytester: pytest.Pytester, given: tuple[str, ...], message: str) -> None:
    ran = pytester.runpytest(*BENCHMARKS, *given)
    assert ran.ret == 4
    ran.stderr.fnmatch_lines([f"ERROR: {message}"])


def test_nothing_is_timed_outside_of_benchmarks(pytester: pytest.Pytester) -> None:
    """`pytest tests` would otherwise time for minutes."""
    others = [f"--ignore={ROOT / 'tests' / name}" for name in ("selftest", "conformance")]
    ran = pytester.runpytest(*SETTINGS, str(ROOT / "tests"), *others)
    assert ran.ret == 0
    ran.assert_outcomes(skipped=2)


def test_every_chosen_name_is_a_workload_and_every_kind_is_chosen() -> None:
    assert {each.name for each in REPRESENTATIVE} == set(_CHOSEN)
    assert {each.passes for each in REPRESENTATIVE} == {"forward", "forward+backward"}
    assert {each.dtype for each in REPRESENTATIVE} == {"float32", "bfloat16"}
    assert {each.workload.level for each in REPRESENTATIVE} == {"op", "module"}


def test_names_are_unique_and_baselines_exist() -> None:
    names = [each.name for each in timed()]
    assert len(names) == len(set(names))
    assert {each.baseline for each in WORKLOADS} | {*IMPLEMENTATIONS} <= KNOWN.keys()
    assert all(KNOWN[w.baseline].claims.scope is w.case.scope for w in WORKLOADS)
    assert all(Feature.CORE in KNOWN[name].claims for name in IMPLEMENTATIONS)
