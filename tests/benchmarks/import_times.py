"""Seconds to import the library of an implementation, in a process of its own."""

import subprocess
import sys
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
TIME_LIMIT = 120.0
"""Seconds after which an import fails."""


def import_seconds(module: str, times: int = 3) -> float:
    """Seconds to import a module in a process of its own: the median of several, the first of which may read disks.

    The module is a name, or the path of a file that ends in `.py`.

    Raises:
        ImportError: it cannot be imported; with the last line that the process wrote.
    """
    return median([_imported(module) for _ in range(times)])


def library(implementation: Implementation) -> str:
    """The module that the implementation needs: NumPy, or torch, which imports NumPy."""
    run: object = implementation.run
    if isinstance(run, Chunked):
        run = run.run
    on_arrays = isinstance(run, NumpyOp) or (isinstance(run, Cached) and run.arrays)
    return "numpy" if on_arrays else "torch"


def _imported(module: str) -> float:
    command = [sys.executable, "-c", _PROGRAM, module]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        raise ImportError(f"{module} cannot be imported in a process of its own within {TIME_LIMIT:g} s") from None
    if ended.returncode:
        error_lines = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
        raise ImportError(f"{module} cannot be imported in a process of its own: {error_lines[-1]}")
    return float(ended.stdout.split()[-1])
