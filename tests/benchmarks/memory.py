"""Memory: how far a call makes the process grow at its peak, and what it leaves behind."""

from __future__ import annotations

import ctypes
import gc
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
"""What Linux tells of this process, and where it is told to forget the peak."""
_TRIM, _MAP = -1, -3
"""The numbers of the GNU C library's settings: free memory at the end of the heap that is given back, and the size from
which on an array gets pages of its own."""
_MAPPED = 2
"""The bit beside the size of a block, before its first byte, that tells that it has pages of its own."""
_PLUGS = 2**14
"""Blocks with which holes of the heap are filled, at most: some hundred do."""
_EXACT, _USUAL = 2**17, 2**25
"""Bytes for the second: its least, with which freed arrays are gone at once, and the most that it reaches by itself."""


@dataclass(frozen=True)
class Peak:
    """The growth of memory during one call, in bytes, beyond what was held before and the results.

    Attributes:
        resident: of the resident set: whoever allocates, torch, NumPy or a library; None: see `absent`.
        allocated: by torch's allocator on the device; None on the CPU, where torch keeps no count.
    """

    resident: int | None
    allocated: int | None

    @property
    def of_device(self) -> int | None:
        """Where the call computes: the allocator's count if there is one."""
        return self.resident if self.allocated is None else self.allocated


def peak(call: Callable[[], object], device: str = "cpu", results: int = 0) -> Peak:
    """The peak of one call, which is made here. It costs 0.3 ms, and so belongs outside of timed calls.

    What is freed is given back to the system at once meanwhile, and what was kept is given back before: otherwise the
    peak would depend on the holes in the heap, and on all calls before. Pages count when they are first touched, also
    those of code: let the call, or a smaller one, be made once before.

    Args:
        call: what it returns is dropped.
        device: as torch spells it.
        results: bytes of what it returns, which are no cost of computing it.

    Raises:
        Exception: whatever the call raises.
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


def held(device: str = "cpu") -> int | None:
    """Bytes that the process holds now; on a device, by torch's allocator there; None: see `absent`."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        return int(torch.cuda.memory_allocated(device))
    if library := _gnu():
        library.malloc_trim(0)
    return _status("VmRSS")


def left_behind(call: Callable[[], object], times: int, suspicious: int, device: str = "cpu") -> int | None:
    """By how many bytes the process grows over calls whose results are dropped; None: see `absent`.

    Args:
        call: made twice before, so that what is kept on purpose is there.
        times: how many calls are watched.
        suspicious: growth from which on poison is collected, which takes long, and the growth told again.
        device: as torch spells it.
    """
    for _ in range(2):
        call()
    before = held(device)
    for _ in range(times):
        call()
    after = held(device)
    if before is not None and after is not None and after - before > suspicious:
        gc.collect()
        after = held(device)
    return None if before is None or after is None else after - before


def absent() -> str:
    """Why the resident set cannot be watched here; empty where it can."""
    return "" if _forgotten_peak() is not None else f"memory is not measured: {FORGET} is not to be had"


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without a collection of poison amid the call, which would hide what the call needs."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def settle() -> None:
    """Fixes the C library's settings where it would adjust them by itself, by what was freed before.

    For times, too: who comes first would be slower, because its large arrays get fresh pages in every call.
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
    """Addresses of blocks that fill every hole of the heap into which an array could go; nobody touches them."""
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
    """The GNU C library, or None where another one allocates, which gives freed memory back in its own way."""
    try:
        library = ctypes.CDLL(None)
    except OSError:
        return None
    if not hasattr(library, "gnu_get_libc_version"):
        return None
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    block = library.malloc(2 * _USUAL)
    library.free(block)
    # So large a block always begins right behind its size, at the start of a page; other allocators leave no room.
    return library if block and block % mmap.PAGESIZE == 2 * ctypes.sizeof(ctypes.c_size_t) else None


def _forgotten_peak() -> int | None:
    """The resident set, from which on its peak is watched; None where that cannot be."""
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
