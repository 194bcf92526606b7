"""Comparison of two runs: regressions are named with intervals, and different machines only on request."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.tests.benchmarks.benchmark_run import Interval, Measurement, Run, Speed
from attention_conformance.tests.benchmarks.compare import REGRESSED, UNUSABLE, IncomparableError, compared, main
from attention_conformance.tests.selftest.benchmarks.benchmark_data import invented

NAME = "inhouse.tiled"
RUN = invented()


def _changed(change: Callable[[Measurement], Measurement], run: Run = RUN) -> Run:
    """The run with each measurement of one implementation changed."""
    return replace(run, measurements=tuple(change(m) if m.implementation == NAME else m for m in run.measurements))


def _faster(factor: float) -> Run:
    def change(each: Measurement) -> Measurement:
        assert each.speed is not None
        value = each.speed.value * factor
        return replace(each, speed=Interval(value, 0.99 * value, 1.01 * value), noise=0.02)

    return _changed(change, STEADY)


STEADY = _changed(lambda each: replace(each, speed=Interval(0.6, 0.594, 0.606), noise=0.02))


def test_a_run_has_not_changed_from_itself() -> None:
    changes = compared(RUN, RUN)
    assert changes
    assert not any(change.worse or change.better for change in changes)


@pytest.mark.parametrize(("factor", "worse", "better"), [(0.8, True, False), (1.25, False, True), (0.99, False, False)])
def test_a_change_beyond_intervals_and_noise_is_named(factor: float, worse: bool, better: bool) -> None:
    own = [change for change in compared(STEADY, _faster(factor)) if change.name.endswith(NAME)]
    assert own
    assert {(change.worse, change.better) for change in own} == {(worse, better)}
    for change in own:
        assert change.ratio is not None
        assert change.ratio.low < factor < change.ratio.high


def test_noise_hides_a_change_that_is_no_larger() -> None:
    noisy = _changed(lambda each: replace(each, noise=0.5), _faster(0.8))
    assert not any(change.worse for change in compared(STEADY, noisy))


@pytest.mark.parametrize("verdict", [Speed.WRONG, Speed.IMPOSSIBLE, Speed.ERROR, Speed.UNSUPPORTED])
def test_a_lost_speed_is_a_regression(verdict: Speed) -> None:
    broken = _changed(lambda each: replace(each, verdict=verdict, speed=None, reason="off by one"), STEADY)
    lost = [change for change in compared(STEADY, broken) if change.worse]
    assert lost
    assert all("off by one" in change.context and change.name.endswith(NAME) for change in lost)
    assert not any(change.worse for change in compared(broken, STEADY))


def test_different_machines_are_compared_only_on_request() -> None:
    other = replace(RUN, machine=replace(RUN.machine, processor="another", threads=7))
    with pytest.raises(IncomparableError, match=r"processor: .*, then another; threads: 2, then 7.*--across-machines"):
        compared(RUN, other)
    assert compared(RUN, other, across_machines=True)


def test_a_newer_library_is_no_other_machine() -> None:
    assert compared(RUN, replace(RUN, machine=replace(RUN.machine, versions={"torch": "9"})))


def test_runs_that_were_cut_short_or_share_nothing_are_not_compared() -> None:
    with pytest.raises(IncomparableError, match="the new run was cut short"):
        compared(RUN, replace(RUN, complete=False))
    with pytest.raises(IncomparableError, match="no measurement in common"):
        compared(RUN, replace(RUN, measurements=()))


def test_the_exit_status_shows_regressions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(STEADY.to_json())
    new.write_text(_faster(0.5).to_json())
    assert main([str(old), str(old)]) == 0
    assert main([str(old), str(new)]) == REGRESSED
    assert "x as fast as before (" in capsys.readouterr().out
    assert main([str(old), str(tmp_path / "absent.json")]) == UNUSABLE
    new.write_text("{}")
    assert main([str(old), str(new)]) == UNUSABLE
    assert "holds no benchmark run" in capsys.readouterr().err
