"""State of the process beyond torch and NumPy, which no call of an attention has a reason to change."""

import fcntl
import gc
import locale
import os
import resource
import signal
import sys
import threading
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
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
"""What can interrupt a process after a time."""
IMPORTS = "modules or folders of imports"
"""What messages call these."""
MODULES, FOLDERS, FINDERS = tuple(sys.modules), tuple(sys.path), tuple(sys.meta_path)
"""What later imports of this process rely on; a call may add to it, as imports do that wait for a first use."""

RECURSION = sys.getrecursionlimit()
COMPILING = max(RECURSION, 2000)
"""What torch's compiler raises it to, whatever it compiles."""


def process_state() -> dict[str, object]:
    """The states by names for messages; equal ones are equal."""
    hooks = sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()
    return {
        "current folder": _folder(),
        "environment variables": {name: value for name, value in os.environ.items() if not name.startswith(LIBRARIES)},
        "locale": locale.setlocale(locale.LC_ALL),
        "signal handlers": {each: signal.getsignal(each) for each in signal.valid_signals()},
        "recursion limit": _recursion_limit(),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "hooks of traces and profiles": _ids(*hooks),
        "standard streams": (*_ids(sys.stdin, sys.stdout, sys.stderr), *map(_file, range(3))),
        "timers": tuple(any(signal.getitimer(each)) for each in TIMERS),
        "switch interval of threads": sys.getswitchinterval(),
        "resource limits": _limits(),
        IMPORTS: _importable(),
    }


def warning_filters() -> tuple[object, ...]:
    """What becomes of warnings; imports that wait for a first call add to it."""
    return tuple(warnings.filters)


def write_no_bytecode() -> None:
    """From now on nothing is written next to code that is imported, by this process and by those that it starts."""
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True


def _recursion_limit() -> int:
    limit = sys.getrecursionlimit()
    return RECURSION if limit == COMPILING else limit


def _ids(*held: object) -> tuple[int, ...]:
    """Which objects these are; to compare them could call what a candidate has written."""
    return tuple(map(id, held))


def _file(number: int) -> tuple[int, ...] | None:
    """What an open file is, and how it is read and written; None where it is closed."""
    try:
        found = os.fstat(number)
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
    except OSError:
        return None
    return found.st_dev, found.st_ino, flags


def _limits() -> dict[str, object]:
    """What the system lets the process use, such as processor time and open files."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _importable() -> tuple[object, ...]:
    """Which of the modules, folders and finders that were there at first still are."""
    modules = tuple(name in sys.modules for name in MODULES)
    return modules, tuple(each in sys.path for each in FOLDERS), tuple(each in sys.meta_path for each in FINDERS)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "none: it was removed"
