"""Hooks: the options of benchmarks, one test for each workload and implementation, and the run that is kept of them."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.logger import PytestBenchmarkWarning

from attention_conformance.tests.benchmarks.choosing import Wish, plan_of
from attention_conformance.tests.benchmarks.floor import machine
from attention_conformance.tests.benchmarks.sessions import Session
from attention_conformance.tests.benchmarks.stored import KEY
from attention_conformance.tests.benchmarks.table import lines
from attention_conformance.tests.harness.run.selection import UsageError
from attention_conformance.tests.harness.run.session import KEY as SUITE

BENCH = pytest.StashKey[Session]()
TIMES = ("timed", "grown")
"""Fixtures by which a test says that it times something."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attention benchmarks")
    group.addoption(
        "--workload",
        action="append",
        default=[],
        metavar="PATTERN",
        help="time only these, such as 'gpt2*' or 'vit-b16.op.*' (default: representative ones; repeatable)",
    )
    group.addoption("--baseline", default="", metavar="NAME", help="compare with this implementation")
    group.addoption("--seconds", type=float, default=Wish.seconds, help="for each pair (default: %(default)g)")
    group.addoption("--whole", action="store_true", help="growth with the length and times of imports, too")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config.option, "workload"):
        return  # not asked for by name: the options were read without these
    if config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        raise pytest.UsageError("-n: benchmarks need the machine for themselves; leave it out")
    if "--benchmark-disable" not in config.invocation_params.args:
        config.option.benchmark_enable = True  # elsewhere in the suite benchmarks are off
    config.addinivalue_line("filterwarnings", "default::pytest_benchmark.logger.PytestBenchmarkWarning")
    config.option.benchmark_quiet = not config.option.benchmark_compare  # the table says more than pytest-benchmark's


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if not hasattr(config.option, "workload"):
        return
    wish = Wish(*(config.getoption(name) for name in ("workload", "baseline", "seconds", "whole")))
    try:
        plan = plan_of(config.stash[SUITE].settings, config.stash[SUITE].selection, wish)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[BENCH] = Session(plan, _file(config))


def _file(config: pytest.Config) -> Path | None:
    path: Path | None = config.getoption("benchmark_json")
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
        except OSError as error:
            raise pytest.UsageError(f"--benchmark-json {str(path)!r} cannot be written ({error.strerror})") from None
    return path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    session = metafunc.config.stash.get(BENCH, None)
    if "timed" in metafunc.fixturenames:
        pairs = [] if session is None else session.plan.pairs()
        metafunc.parametrize(("timed", "implementation"), pairs, ids=[f"{i.name}-{t.name}" for t, i in pairs])
    if "grown" in metafunc.fixturenames:
        grown = () if session is None else session.growing()
        metafunc.parametrize("grown", grown, ids=[i.name for i in grown])


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    found = session.config.stash.get(BENCH, None)
    if found is not None and not found.growing():
        items[:] = [item for item in items if "grown" not in getattr(item, "fixturenames", ())]


def pytest_collection_finish(session: pytest.Session) -> None:
    found = session.config.stash.get(BENCH, None)
    planned = sum(any(name in TIMES for name in getattr(item, "fixturenames", ())) for item in session.items)
    if found is not None and planned and not session.config.option.collectonly:
        found.begin(planned)


@pytest.fixture
def session(request: pytest.FixtureRequest) -> Session:
    """The run in the making."""
    return request.config.stash[BENCH]


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    session = config.stash.get(BENCH, None)
    if session is not None:
        output_json[KEY] = json.loads(session.run.to_json())


def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any]:
    """What tells machines apart: pytest-benchmark's own has the clock rate of the moment, too."""
    return asdict(machine(config.getoption("device")))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Any:
    """Before pytest-benchmark writes its file."""
    found = session.config.stash.get(BENCH, None)
    if found is not None and found.planned:
        found.finish()
    with warnings.catch_warnings():
        # That nothing was measured is told by the exit status; elsewhere in the suite it would be raised.
        warnings.simplefilter("default", PytestBenchmarkWarning)
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    session = config.stash.get(BENCH, None)
    if session is None or not session.planned:
        return
    terminalreporter.section("speed")
    for line in lines(session.run):
        terminalreporter.write_line(line)
    if session.file is not None:
        terminalreporter.write_line(f"kept: {session.file}")
