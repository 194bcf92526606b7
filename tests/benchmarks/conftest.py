"""Hooks: the options of benchmarks, a test for each workload and implementation, and the file of the run."""

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.logger import PytestBenchmarkWarning

from attention_conformance.implementations.worker.remote import end_process
from attention_conformance.tests.benchmarks.apart import timing_processes
from attention_conformance.tests.benchmarks.benchmark_run import KEY
from attention_conformance.tests.benchmarks.floor import machine
from attention_conformance.tests.benchmarks.measured_rounds import MeasuredRounds, name_parameters
from attention_conformance.tests.benchmarks.plan import BenchmarkOptions, plan_of
from attention_conformance.tests.benchmarks.speed_session import SpeedSession
from attention_conformance.tests.benchmarks.text_table import lines
from attention_conformance.tests.harness.run.plan.selection import UsageError
from attention_conformance.tests.harness.run.session import KEY as SUITE

BENCH = pytest.StashKey[SpeedSession]()
TIMED_FIXTURES = ("timed", "grown")
"""A test that requests one of these is a step of the run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group, seconds = parser.getgroup("attention benchmarks"), BenchmarkOptions.seconds
    group.addoption(
        "--workload",
        action="append",
        default=[],
        metavar="PATTERN",
        help="time only these, such as 'gpt2*' or 'vit-b16.op.*' (default: representative ones; repeatable)",
    )
    group.addoption("--baseline", default="", metavar="NAME", help="compare with this implementation")
    group.addoption("--seconds", type=float, default=seconds, help="for each pair (default: %(default)g)")
    group.addoption("--whole", action="store_true", help="measure growth with the length and import times, too")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config.option, "workload"):
        return  # this folder is not an argument of pytest: the options were read without the ones above
    if config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        raise pytest.UsageError("-n: benchmarks need the machine for themselves; leave it out")
    if "--benchmark-disable" not in config.invocation_params.args:
        config.option.benchmark_enable = True  # elsewhere in the suite benchmarks are off
    config.addinivalue_line("filterwarnings", "default::pytest_benchmark.logger.PytestBenchmarkWarning")
    config.option.benchmark_quiet = not config.option.benchmark_compare  # our table has more columns


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if not hasattr(config.option, "workload"):
        return
    options = BenchmarkOptions(*(config.getoption(name) for name in ("workload", "baseline", "seconds", "whole")))
    try:
        settings = config.stash[SUITE].settings
        plan = plan_of(settings, config.stash[SUITE].selection, options)
        apart = timing_processes(settings, options, plan)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    for each in plan.implementations:
        end_process(each)  # it has said what it claims, and is timed in another process
    config.stash[BENCH] = SpeedSession(plan, _file(config), apart)


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
    speed = metafunc.config.stash.get(BENCH, None)
    if "timed" in metafunc.fixturenames:
        pairs = [] if speed is None else speed.plan.pairs()
        metafunc.parametrize(("timed", "implementation"), pairs, ids=[f"{i.name}-{t.name}" for t, i in pairs])
    if "grown" in metafunc.fixturenames:
        grown = () if speed is None else speed.growing()
        metafunc.parametrize("grown", grown, ids=[i.name for i in grown])


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    speed = session.config.stash.get(BENCH, None)
    if speed is not None and not speed.growing():
        items[:] = [item for item in items if "grown" not in getattr(item, "fixturenames", ())]


def pytest_collection_finish(session: pytest.Session) -> None:
    speed = session.config.stash.get(BENCH, None)
    planned = sum(any(name in TIMED_FIXTURES for name in getattr(item, "fixturenames", ())) for item in session.items)
    if speed is not None and planned and not session.config.option.collectonly:
        speed.begin(planned)


@pytest.fixture
def speed_session(request: pytest.FixtureRequest) -> SpeedSession:
    """The unfinished run."""
    return request.config.stash[BENCH]


@pytest.fixture
def measured_rounds(request: pytest.FixtureRequest) -> MeasuredRounds:
    """The timer of `benchmark`, which a test requests after this fixture."""
    timer = MeasuredRounds()
    request.node.add_marker(pytest.mark.benchmark(timer=timer, disable_gc=True))
    return timer


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    speed = config.stash.get(BENCH, None)
    if speed is not None:
        output_json[KEY] = json.loads(speed.run.to_json())
        name_parameters(output_json["benchmarks"])


def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any]:
    """The identity of a machine: pytest-benchmark's own record also has the clock rate of the moment."""
    return asdict(machine(config.getoption("device")))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Any:
    """Before pytest-benchmark writes its file."""
    speed = session.config.stash.get(BENCH, None)
    if speed is not None and speed.planned:
        speed.finish()
    with warnings.catch_warnings():
        # An empty measurement is shown by the exit status; elsewhere in the suite this warning is an error.
        warnings.simplefilter("default", PytestBenchmarkWarning)
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    speed = config.stash.get(BENCH, None)
    if speed is None or not speed.planned:
        return
    terminalreporter.section("speed")
    for line in lines(speed.run):
        terminalreporter.write_line(line)
    if speed.file is not None:
        terminalreporter.write_line(f"kept: {speed.file}")
