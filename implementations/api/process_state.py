"""State of the process beyond torch and NumPy, which no call of an attention has a reason to change."""

import locale
import os
import signal
import sys
import warnings

LIBRARIES = (
    "CUDA",
    "DNNL",
    "GOMP",
    "JAX",
    "KMP_",
    "MKL",
    "NCCL",
    "OMP_",
    "PYTORCH",
    "TORCH",
    "TPU",
    "TRITON",
    "TF_",
    "XLA",
)
"""How the environment variables begin that libraries set themselves when they are first used."""


def process_state() -> dict[str, object]:
    """The states by names for messages; equal ones are equal."""
    return {
        "current folder": _folder(),
        "environment variables": {name: value for name, value in os.environ.items() if not name.startswith(LIBRARIES)},
        "locale": locale.setlocale(locale.LC_ALL),
        "signal handlers": {each: signal.getsignal(each) for each in signal.valid_signals()},
        "recursion limit": sys.getrecursionlimit(),
    }


def warning_filters() -> tuple[object, ...]:
    """What becomes of warnings; imports that wait for a first call add to it."""
    return tuple(warnings.filters)


def write_no_bytecode() -> None:
    """From now on nothing is written next to code that is imported, by this process and by those that it starts."""
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "none: it was removed"
