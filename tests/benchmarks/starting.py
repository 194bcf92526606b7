"""Starting: what a first call costs, and an import, apart from the steady state."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

from attention_conformance.implementations.adapters.cached import Cached, Chunked
from attention_conformance.implementations.adapters.numpy_op import NumpyOp
from attention_conformance.implementations.api.contract import Implementation

_PROGRAM = """
import importlib, runpy, sys, time
name = sys.argv[1]
start = time.perf_counter()
runpy.run_path(name) if name.endswith(".py") else importlib.import_module(name)
print()
print(time.perf_counter() - start)
"""
PATIENCE = 120.0
"""Seconds after which an import is given up."""


def first_call(ready: Callable[[], Callable[[], object]]) -> tuple[float, Callable[[], object]]:
    """Seconds of the very first call, compilation included, and the call, for the steady state that follows.

    Args:
        ready: makes the call ready; that is not timed.
    """
    call = ready()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start, call


def import_seconds(module: str, times: int = 3) -> float:
    """Seconds to import a module in a process of its own: the median of several, the first of which may read disks.

    Args:
        module: its name, or the path of a file that ends in `.py`.
        times: so many processes, one after another.

    Raises:
        ImportError: it cannot be imported; with the last line that the process wrote.
    """
    return median([_imported(module) for _ in range(times)])


def library(implementation: Implementation) -> str:
    """The module without which the implementation cannot be called: NumPy, or torch, which imports NumPy."""
    run: object = implementation.run
    if isinstance(run, Chunked):
        run = run.run
    on_arrays = isinstance(run, NumpyOp) or (isinstance(run, Cached) and run.arrays)
    return "numpy" if on_arrays else "torch"


def _imported(module: str) -> float:
    command = [sys.executable, "-c", _PROGRAM, module]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise ImportError(f"{module} cannot be imported in a process of its own within {PATIENCE:g} s") from None
    if done.returncode:
        told = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ImportError(f"{module} cannot be imported in a process of its own: {told[-1]}")
    return float(done.stdout.split()[-1])
