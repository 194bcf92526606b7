"""Speed: each workload, timed on each implementation in pairs with its baseline; see `tests/benchmarks/conftest.py`."""

from functools import partial
from typing import Any

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.tests.benchmarks.benchmark_run import Measurement, Speed
from attention_conformance.tests.benchmarks.measured_rounds import MeasuredRounds, extra_info
from attention_conformance.tests.benchmarks.speed_session import SpeedSession
from attention_conformance.tests.benchmarks.workloads import Timed

REFUSED = (Speed.WRONG, Speed.IMPOSSIBLE, Speed.ERROR)


class NoSpeedError(Exception):
    """The measurement has no speed; the message is the verdict with its reason."""


def test_speed(
    timed: Timed,
    implementation: Implementation,
    speed_session: SpeedSession,
    measured_rounds: MeasuredRounds,
    benchmark: Any,
) -> None:
    measurement = speed_session.pair(timed, implementation)
    if measurement.verdict is Speed.UNSUPPORTED:
        pytest.skip(measurement.reason)
    measured_rounds.of(measurement)
    benchmark.group = timed.name
    benchmark.extra_info = extra_info(measurement)
    rounds, calls = len(measurement.seconds) or 1, measurement.calls
    try:
        benchmark.pedantic(partial(_require_speed, measurement), rounds=rounds, iterations=calls)
    except NoSpeedError as error:
        pytest.fail(str(error), pytrace=False)


def _require_speed(measurement: Measurement) -> None:
    """An exception here marks the benchmark as one with an error, which pytest-benchmark leaves out of its files."""
    if measurement.verdict in REFUSED:
        raise NoSpeedError(f"{measurement.verdict}: {measurement.reason}")


def test_growth(grown: Implementation, speed_session: SpeedSession) -> None:
    if reason := speed_session.growth(grown):
        pytest.skip(reason)
