"""The matrix on the workers of a Dask scheduler: one that is killed in the middle loses nothing."""

import os
import signal
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.tests.cli import matrix_command
from attention_conformance.tests.cli.matrix_command import STATE, matrix
from attention_conformance.tests.cli.matrix_executor import INSTALL
from attention_conformance.tests.cli.matrix_packages import READY, packages
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.selftest.worker.test_matrix import METADATA, PLAIN

SLOW = """
import time
from pathlib import Path

BEGUN = Path({!r})
with BEGUN.open("a") as file:
    file.write("begun\\n")
time.sleep({})
"""
NAMES = ("first", "second")


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """A matrix of two packages, whose environments are this one; each is slow where it is judged first."""
    (tmp_path / "packages").mkdir()
    for name in NAMES:
        slow = SLOW.format(str(tmp_path / f"{name}.begun"), 5)
        (tmp_path / "packages" / f"{name}.py").write_text(METADATA + slow + PLAIN)
    for each in packages(tmp_path / "packages"):
        python = tmp_path / f"{each.name}-{each.digest}" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        (python.parents[1] / READY).write_text("numpy==2.4.6\n")
    monkeypatch.setattr(matrix_command, "packages", lambda: packages(tmp_path / "packages"))
    lists: dict[str, Any] = {"pattern": [], "clause": ["scores.dot-product"], "dtype": ["float32"]}
    folders = {"report": tmp_path / "report", "environments": tmp_path, "constraint": None, "since": None}
    return Namespace(**lists, **folders, jobs=1, tier="quick", scheduler="")


def test_a_worker_that_is_killed_loses_nothing(given: Namespace, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install '.[cluster]'")
    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**local) as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(2)
        victim, _ = client.run(os.getpid).values()
        given.scheduler = cluster.scheduler_address

        def kill() -> None:
            while not all((tmp_path / f"{name}.begun").exists() for name in NAMES):
                time.sleep(0.1)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        status = matrix(given)
        killer.join()
    assert status == ExitStatus.CONFORMS
    begun = [len((tmp_path / f"{name}.begun").read_text().splitlines()) for name in NAMES]
    assert sum(begun) > min(begun) * len(NAMES)  # one of them was begun again
    assert all((given.report / f"{name}.plain" / STATE).is_file() for name in NAMES)


@pytest.mark.parametrize("absent", [True, False])
def test_what_is_lacking_is_named(
    given: Namespace, absent: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if absent:
        monkeypatch.setitem(sys.modules, "distributed", None)
    else:
        pytest.importorskip("distributed", reason="Dask is not installed: pip install '.[cluster]'")
    given.scheduler = "nonsense://nowhere"
    assert matrix(given) == ExitStatus.UNUSABLE
    error = capsys.readouterr().err
    assert error.startswith("matrix: ")
    assert (INSTALL if absent else "nonsense://nowhere") in error
