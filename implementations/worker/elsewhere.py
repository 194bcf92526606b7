"""The command of our own worker, in this environment or in another one, where nothing of the suite is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from attention_conformance.implementations.worker.limits import STARTING

WORKER = "attention_conformance.implementations.worker.serve"
SUITE = Path(__file__).resolve().parents[2]
"""The folder of the package, which may have any name."""
SAFE_PATH = "-P"
"""Files of the current folder, such as a `random.py`, stand in for no module that the suite imports."""
OLDEST = (3, 11)
NEEDED = f"import sys; assert sys.version_info >= {OLDEST}, 'it is older than Python %d.%d' % {OLDEST}; import numpy"
START = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("attention_conformance", {str(SUITE / "__init__.py")!r})
sys.modules[spec.name] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from {WORKER} import main
main()
"""
"""A program that makes the package importable from where it lies, whatever its folder is called."""


def worker_command(python: str = "") -> tuple[str, ...]:
    """The command that starts the worker: by this interpreter, or by that of another environment."""
    return (python, SAFE_PATH, "-c", START) if python else module_command(WORKER)


def module_command(module: str) -> tuple[str, ...]:
    """The command that runs a module of the suite by this interpreter."""
    return sys.executable, SAFE_PATH, "-m", module


def unusable(python: str) -> str:
    """Why the worker cannot run by this interpreter; empty if it can."""
    try:
        done = subprocess.run([python, "-c", NEEDED], capture_output=True, text=True, timeout=STARTING)
    except OSError as error:
        return f"it cannot be started ({error.strerror})"
    except subprocess.TimeoutExpired:
        return f"it did not import NumPy within {STARTING:g} s"
    lines = done.stderr.strip().splitlines() or [f"it ended with exit status {done.returncode}"]
    return lines[-1] if done.returncode else ""
