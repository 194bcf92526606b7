"""State of the process: what calls change is reported; what a module sets on import is its own, and harms no one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from attention_conformance.implementations.api.global_state import THREADS, multiply_on_one_thread
from attention_conformance.implementations.worker.remote import Remote, end_process, isolated_candidate
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import FailureKind, Status, Verdict

TEXT = """
import gc, locale, os, resource, signal, sys, warnings
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

{}

def attention(query, key, value):
    {}
    return sdpa(query, key, value)
"""
CHANGES = {
    "number of threads": "torch.set_num_threads(3)",
    "current folder": "os.chdir('/')",
    "environment variables": "os.environ['SEEN'] = '1'",
    "locale": "locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    "signal handlers": "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "warning filters": "warnings.simplefilter('error')",
    "recursion limit": "sys.setrecursionlimit(5000)",
    "garbage collection": "gc.set_threshold(50)",
    "hooks of traces and profiles": "sys.setprofile(lambda *given: None)",
    "standard streams": "sys.stdout = None",
    "timers": "signal.setitimer(signal.ITIMER_REAL, 1000)",
    "switch interval of threads": "sys.setswitchinterval(0.1)",
    "modules or folders of imports": "sys.path.clear()",
    "resource limits": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "error handling of numpy": "np.seterr(all='raise')",
    "default dtype": "torch.set_default_dtype(torch.float64)",
}
FILLED_LATER = {
    "a variable of a library": "os.environ['KMP_BLOCKTIME'] = '1'",
    "what torch's compiler sets": "sys.setrecursionlimit(max(sys.getrecursionlimit(), 2000))",
    "an import that adds a filter once": (
        "if 'late' not in sys.modules: sys.modules['late'] = sys; warnings.filterwarnings('ignore', 'late')"
    ),
}
HARMLESS = {
    **CHANGES,
    "default device": "torch.set_default_device('meta')",
    "gradients": "torch.set_grad_enabled(False)",
}


def verdict(tmp_path: Path, module: str, call: str, *clauses: str) -> tuple[Verdict, ...]:
    file = tmp_path / "stateful.py"
    file.write_text(TEXT.format(module, call))
    implementation = isolated_candidate(f"{file}:attention", {}, deadline=30.0)
    assert isinstance(implementation.run, Remote)
    try:
        return tuple(run(implementation, clauses, ("float32", "float16")))
    finally:
        implementation.run.door.end()


@pytest.mark.parametrize(("variables", "threads"), [({}, 1), ({"OPENBLAS_NUM_THREADS": "2"}, 2)])
def test_products_are_made_on_one_thread_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], threads: int
) -> None:
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "environ", {**os.environ, **variables})
    with threadpool_limits(2, user_api="blas"):
        multiply_on_one_thread()
        assert {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"} == {threads}


def test_a_worker_computes_on_one_thread(tmp_path: Path) -> None:
    used = "assert [each['num_threads'] for each in threadpool_info()] == [1] * len(threadpool_info())"
    verdicts = verdict(tmp_path, "from threadpoolctl import threadpool_info", used, "scores.dot-product")
    assert [each.status for each in verdicts] == [Status.PASS] * 2


@pytest.mark.parametrize(("name", "change"), CHANGES.items(), ids=CHANGES)
def test_a_change_by_every_call_is_reported(tmp_path: Path, name: str, change: str) -> None:
    for each in verdict(tmp_path, "", change, "effects.global-state"):
        assert each.failure is not None
        assert (each.failure.kind, each.failure.message) == (FailureKind.STATE, f"the call changed the {name}")


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_what_a_module_sets_is_its_own(tmp_path: Path, change: str) -> None:
    for each in verdict(
        tmp_path, change, "pass", "effects.*", "numerics.half-range", "shapes.head-width", "gradients.q*"
    ):
        assert each.status in (Status.PASS, Status.NOT_CLAIMED), (each.clause, each.message)


@pytest.mark.parametrize("change", FILLED_LATER.values(), ids=FILLED_LATER)
def test_what_libraries_do_when_first_used_is_no_failure(tmp_path: Path, change: str) -> None:
    assert all(v.status is Status.PASS for v in verdict(tmp_path, "", change, "effects.global-state"))


def test_the_candidate_keeps_its_default_dtype(tmp_path: Path) -> None:
    needed = "assert torch.zeros(1).dtype is torch.float64"
    found = verdict(tmp_path, "torch.set_default_dtype(torch.float64)", needed, "scores.dot-product")
    assert all(each.status is Status.PASS for each in found)


BESIDE = """
from torch.nn.functional import scaled_dot_product_attention as sdpa

def attention(query, key, value):
    from helpers import scale
    return sdpa(query, key, value, scale=scale)
"""


def test_files_beside_the_candidate_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some have the names of modules that the suite and torch import; one is imported as the candidate is called."""
    for name in ("locale", "random", "types", "copy"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('this is not the standard library')")
    (tmp_path / "helpers.py").write_text("scale = None")
    (tmp_path / "mine.py").write_text(BESIDE)
    monkeypatch.setenv("KEPT", "a worker of another environment is started anew")
    for folder, target in ((tmp_path, "mine.py:attention"), (Path("/"), f"{tmp_path / 'mine.py'}:attention")):
        monkeypatch.chdir(folder)
        implementation = isolated_candidate(target, {})
        verdicts = run(implementation, ("scores.dot-product",), ("float32",))
        end_process(implementation)
        assert [each.status for each in verdicts] == [Status.PASS], verdicts[0].message
