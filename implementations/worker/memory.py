"""The memory of a call: by how much the process grows at its peak, and by how much afterwards."""

import ctypes
import gc
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from attention_conformance.spec.features import Scope
from attention_conformance.spec.optional import optional
from attention_conformance.spec.problem import Problem

torch = optional("torch")

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
"""Files of Linux: the status of this process, and the one that resets its peak."""
_TRIM, _MAP = -1, -3
"""Settings of the GNU C library: the free memory at the end of the heap above which it is returned to the system, and
the size above which an array gets pages of its own."""
_MAPPED = 2
"""The bit next to the size of a block, before its first byte, that is set if the block has pages of its own."""
_PLUGS = 2**14
"""Largest number of blocks that fill holes of the heap: some hundred are sufficient."""
_EXACT, _USUAL = 2**17, 2**25
"""Bytes for the second setting: the least, so that freed arrays are returned at once, and the largest usual value."""


@dataclass(frozen=True)
class Peak:
    """The growth of memory during one call, in bytes, beyond what was held before and the results.

    Attributes:
        resident: of the resident set, with any allocator; None: see `absent`.
        allocated: by torch's allocator on the device; None on the CPU, where torch keeps no count.
    """

    resident: int | None
    allocated: int | None

    @property
    def of_device(self) -> int | None:
        """On the device of the call: the allocator's count if there is one."""
        return self.resident if self.allocated is None else self.allocated


def peak(call: Callable[[], object], device: str = "cpu", results: int = 0) -> Peak:
    """Makes one call and returns its peak. It costs 0.3 ms: do not use it in a timed call.

    Freed memory is returned to the system before and during the call: otherwise the peak would depend on the holes in
    the heap and on earlier calls. Pages count when they are first touched, also those of code: make the call, or a
    smaller one, once before.

    Args:
        call: its result is dropped.
        device: as torch spells it.
        results: bytes of the result, which are not counted.

    Raises:
        Exception: of the call.
    """
    on_gpu = device.startswith("cuda")
    with _no_collection(), _exact():
        before = _forgotten_peak()
        if on_gpu:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            held_there = torch.cuda.memory_allocated(device)
        call()
        after = _status("VmHWM")
    allocated = None
    if on_gpu:
        torch.cuda.synchronize(device)
        allocated = max(0, torch.cuda.max_memory_allocated(device) - held_there - results)
    own = 0 if on_gpu else results
    return Peak(None if before is None or after is None else max(0, after - before - own), allocated)


def output_shape(problem: Problem) -> tuple[int, ...]:
    """The shape of the output: (B, H, Lq, d_v), or (B, Lq, width) of a module."""
    *shape, _ = problem.query.shape
    if problem.scope is Scope.OP:
        return (*shape, problem.value.shape[-1])
    matrices = problem.parameters
    if "w_o" in matrices:
        return (*shape, matrices["w_o"].shape[1])
    return (*shape, matrices["w_v"].shape[1] * problem.num_heads // problem.num_kv_heads)


def result_bytes(problem: Problem) -> int:
    """Bytes of the output and of the required gradients, in the dtype of the inputs."""
    arrays = problem.arrays()
    names = problem.needs if problem.cotangent is not None else ()
    return prod(output_shape(problem)) * problem.query.itemsize + sum(arrays[name].nbytes for name in names)


def held(device: str = "cpu") -> int | None:
    """Bytes of the resident set; on a device, by torch's allocator there; None: see `absent`."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        return int(torch.cuda.memory_allocated(device))
    if library := _gnu():
        library.malloc_trim(0)
    return _status("VmRSS")


def left_behind(call: Callable[[], object], times: int, suspicious: int, device: str = "cpu") -> int | None:
    """The bytes by which the process grows over calls whose results are dropped; None: see `absent`.

    Args:
        call: made twice before, so that caches are filled.
        times: number of measured calls.
        suspicious: growth above which the garbage collector runs, which takes long, before a second look.
        device: as torch spells it.
    """
    for _ in range(2):
        call()
    growth = _growth(call, times, suspicious, device)
    if growth is None or growth <= suspicious:
        return growth
    again = _growth(call, times, suspicious, device)  # a pool grows once
    return None if again is None else min(growth, again)


def _growth(call: Callable[[], object], times: int, suspicious: int, device: str) -> int | None:
    before = held(device)
    for _ in range(times):
        call()
    after = held(device)
    if before is not None and after is not None and after - before > suspicious:
        gc.collect()
        after = held(device)
    return None if before is None or after is None else after - before


def absent() -> str:
    """The reason why the resident set cannot be measured here; empty if it can."""
    return "" if _forgotten_peak() is not None else f"memory is not measured: {FORGET} is not available"


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collection during the call, which would hide memory of the call."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def settle() -> None:
    """Fixes the settings of the C library, which otherwise adjusts them by what was freed before.

    Times need it, too: the first implementation would be slower, because its large arrays get new pages in every call.
    """
    if library := _gnu():
        _set(library, _USUAL)


@contextmanager
def _exact() -> Iterator[None]:
    """With arrays in pages of their own, none in a hole of the heap."""
    library = _gnu()
    if library is None:
        yield
        return
    _set(library, _EXACT)
    plugs = list(_plugs(library))
    try:
        library.malloc_trim(0)
        yield
    finally:
        for plug in plugs:
            library.free(plug)
        settle()


def _plugs(library: ctypes.CDLL) -> Iterator[int]:
    """Addresses of untouched blocks that fill every hole of the heap that is large enough for an array."""
    size = _USUAL
    for _ in range(_PLUGS):
        block = library.malloc(size) if size >= _EXACT else None
        if not block:
            return
        if ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & _MAPPED:
            library.free(block)
            size //= 2
        else:
            yield block


def _set(library: ctypes.CDLL, size: int) -> None:
    library.mallopt(_MAP, size)
    library.mallopt(_TRIM, 2 * size)


@cache
def _gnu() -> ctypes.CDLL | None:
    """The GNU C library, or None where another allocator is in use."""
    try:
        library = ctypes.CDLL(None)
    except OSError:
        return None
    if not hasattr(library, "gnu_get_libc_version"):
        return None
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    # Such a large block begins directly after its size, at the start of a page, but for one that fits into a hole of
    # the heap; other allocators differ.
    for size in (2 * _USUAL, 2**29, 2**31):
        block = library.malloc(size)
        library.free(block)
        if block and block % mmap.PAGESIZE == 2 * ctypes.sizeof(ctypes.c_size_t):
            return library
    return None


def _forgotten_peak() -> int | None:
    """Resets the peak of the resident set, and returns the resident set; None where that is not possible."""
    try:
        FORGET.write_text("5")
    except OSError:
        return None
    return _status("VmHWM")


def _status(name: str) -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
