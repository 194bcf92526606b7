"""Starts the suite for the command: its folder, and a call of pytest that nothing around it changes."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from attention_conformance.implementations.api.process_state import write_no_bytecode
from attention_conformance.implementations.worker.nursery import warm_up

FOLDER = Path(__file__).parents[2]
"""Where `spec`, `reference`, `implementations` and `tests` are: in site-packages, or in the clone."""
PLAIN = "-q --import-mode=importlib --strict-markers --strict-config -p no:logging -rN"
"""Options of every run, in place of the clone's: the summary lists failed clauses, without the paths of files."""
PREFIX = "PYTEST_"


def judge(options: Sequence[str], isolated: bool = False) -> int:
    """Checks the clauses, and returns the exit status. `isolated`: a worker will be needed, which imports meanwhile."""
    with alone(isolated):
        if isolated:
            warm_up()
        return _pytest([*options, str(FOLDER / "tests" / "conformance")])


def time(options: Sequence[str]) -> int:
    """Runs the benchmarks, and returns the exit status."""
    with alone(), TemporaryDirectory() as scratch:  # pytest-benchmark makes its folder even where nothing is saved
        storage = ("-p", "benchmark", f"--benchmark-storage=file://{scratch}")
        return _pytest([*storage, *options, str(FOLDER / "tests" / "benchmarks")])


def _pytest(arguments: Sequence[str]) -> int:
    import pytest

    return int(pytest.main([*_settings(), *arguments]))


def _settings() -> Iterator[str]:
    root = FOLDER
    yield from ("-c", str(root / "pyproject.toml"), "--rootdir", str(root), "-o", f"addopts={PLAIN}")
    yield from ("-p", "no:cacheprovider", "--assert=plain", "--disable-plugin-autoload")


@contextmanager
def alone(isolated: bool = False) -> Iterator[None]:
    """Pytest's own variables out of the way, and nothing written next to code, unless that is the suite's own alone."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
    if not isolated:
        write_no_bytecode()
    yield
