"""Speed: each workload, timed on each implementation beside its baseline; see `tests/benchmarks/conftest.py`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.tests.benchmarks.record import Measurement, Speed
from attention_conformance.tests.benchmarks.sessions import Session
from attention_conformance.tests.benchmarks.workloads import Timed

REFUSED = (Speed.WRONG, Speed.IMPOSSIBLE, Speed.ERROR)


def test_speed(timed: Timed, implementation: Implementation, session: Session, request: pytest.FixtureRequest) -> None:
    found = session.pair(timed, implementation)
    if found.seconds:
        _keep(found, timed, request.getfixturevalue("benchmark"))
    if found.verdict is Speed.UNSUPPORTED:
        pytest.skip(found.reason)
    if found.verdict in REFUSED:
        pytest.fail(f"{found.verdict}: {found.reason}", pytrace=False)


def test_growth(grown: Implementation, session: Session) -> None:
    if reason := session.growth(grown):
        pytest.skip(reason)


def _keep(found: Measurement, timed: Timed, benchmark: Any) -> None:
    """Hands pytest-benchmark the seconds, each that of a call, and what it has no place for."""
    benchmark.group = timed.name
    benchmark.pedantic(lambda: None)
    benchmark.stats.stats.data[:] = found.seconds
    told = json.loads(json.dumps(asdict(found)))
    benchmark.extra_info |= {name: value for name, value in told.items() if not name.endswith("seconds")}
