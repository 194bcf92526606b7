"""The memory that a candidate's process may take, and how a process that had too little of it looks."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SHARE = 0.5
"""How much of the free memory a candidate gets, unless the user says otherwise: the judge and others need some too."""
LEAST = 2**28
"""Bytes that a worker needs before it has a candidate."""
NEAR = 0.8
"""The share of its limit from which on a process that was killed had too little memory."""


def size_of(text: str) -> int:
    """The bytes of a size such as 8G, 500M or 1.5G.

    Raises:
        ValueError: the text is no size, or one in which no worker can start.
    """
    given = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if given is None:
        raise ValueError(f"{text!r} is no size of memory: give a number and a unit, such as 8G or 500M")
    size = int(float(given[1]) * UNITS[given[2].upper()])
    if size < LEAST:
        raise ValueError(f"{text} is less than a worker takes to start: give at least {LEAST // 2**20}M")
    return size


def free_memory() -> int | None:
    """Bytes that this process could still take: of the machine, and of its control groups; None where unknown."""
    return min(_free(), default=None)


def _free() -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        yield int(lines["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _left(Path("/sys/fs/cgroup") / path[1:], "memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                own = Path("/sys/fs/cgroup/memory") / path[1:]
                yield from _left(own, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _left(group: Path, limit: str, used: str) -> Iterator[int]:
    """What is left of the limits of a control group and of those above it; "max" is no limit."""
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            yield max(0, int((folder / limit).read_text()) - int((folder / used).read_text()))


def memory_limit(size: int | None) -> int | None:
    """What a candidate may allocate, in bytes: half of what is free, unless a size is given; None where unknown."""
    if size is None and (free := free_memory()) is not None:
        return max(LEAST, int(free * SHARE))
    return size


def shared_memory(process: int) -> int:
    """Resident bytes of memory that a process may share, which the limit of its own does not count; 0 where unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{process}/status").read_text(errors="replace")
        return int(status.partition("\nRssShmem:")[2].split()[0]) * 1024
    return 0


def end_first() -> None:
    """Has the system end this process and those that stem from it first, where the machine's memory is full."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_memory(size: int | None) -> int | None:
    """Limits what this process may allocate, as `memory_limit` has it.

    The address space is not limited: torch and drivers reserve much more of it than they use.

    Returns:
        The limit; None where the system has none.
    """
    size = memory_limit(size)
    if size is None or sys.platform != "linux":
        return None
    import resource  # not on every system

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    size = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    return size


def was_full(peak: int, limit: int | None) -> bool:
    """Whether a killed process had come near its limit of memory.

    Args:
        peak: its most resident bytes, which Linux counts from those of its keeper on: they are few.
        limit: bytes that the process may allocate, if there is a limit.
    """
    return limit is not None and peak > NEAR * limit
