"""The peak of a call is that of its arrays, with any allocator; memory that stays after calls is detected."""

import gc
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from attention_conformance.implementations.builtin.catalogue import BUILTIN
from attention_conformance.implementations.worker import memory
from attention_conformance.implementations.worker.memory import absent, held, left_behind, peak, settle
from attention_conformance.tests.benchmarks import import_times
from attention_conformance.tests.benchmarks.import_times import import_seconds, library

watched = pytest.mark.skipif(bool(absent()), reason=absent() or "measured")
MILLION = 10**6
"""Bytes: all sizes are multiples of it, and a result is right if it is nearer to its own size than to any other."""


def resident(call: Callable[[], object], results: int = 0) -> int:
    call()
    size = peak(call, results=results).resident
    assert size is not None
    return size


def millions(size: int) -> int:
    """The nearest number of millions: code and small objects, which a call may touch in addition, take less."""
    return round(size / MILLION)


def by_torch(size: int) -> None:
    torch.ones(size, dtype=torch.uint8)


def by_numpy(size: int) -> None:
    np.ones(size, np.uint8)


@watched
@pytest.mark.parametrize("make", [by_torch, by_numpy])
@pytest.mark.parametrize("size", [4, 40])
def test_an_array_counts_with_any_allocator(make: Callable[[int], None], size: int) -> None:
    assert millions(resident(partial(make, size * MILLION))) == size


@watched
def test_only_what_lives_together_counts() -> None:
    def one_after_another() -> None:
        for _ in range(5):
            by_torch(8 * MILLION)

    def together() -> None:
        _ = [torch.ones(8 * MILLION, dtype=torch.uint8) for _ in range(5)]

    assert millions(resident(one_after_another)) == 8
    assert millions(resident(together)) == 40


@watched
def test_holes_in_the_heap_do_not_count() -> None:
    """Between small arrays that stay, each is too large for the place that the one before has left.

    They are so large that what earlier tests have left changes no number.
    """
    unit, most = 10 * MILLION, 8

    def growing() -> None:
        small = []
        for size in range(1, most + 1):
            by_torch(size * unit)
            small.append(torch.ones(10_000))

    settle()
    hole = [torch.ones((most + 2) * unit, dtype=torch.uint8) for _ in range(4)]
    after = [torch.ones(10_000) for _ in range(20)]
    del hole
    assert round(resident(growing) / unit) == most
    del after


@watched
def test_memory_freed_by_earlier_calls_does_not_hide_a_call() -> None:
    settle()
    by_torch(20 * MILLION)
    assert resident(partial(by_torch, 10 * MILLION)) > 9 * MILLION


@watched
def test_results_are_not_counted() -> None:
    assert millions(resident(lambda: torch.ones(8 * MILLION, dtype=torch.uint8), results=8 * MILLION)) == 0
    assert resident(lambda: None, results=MILLION) == 0


@watched
def test_a_call_that_raises_leaves_collection_as_it_was() -> None:
    def wrong() -> None:
        raise KeyError

    assert gc.isenabled()
    with pytest.raises(KeyError):
        peak(wrong)
    assert gc.isenabled()


@watched
def test_kept_arrays_are_left_behind() -> None:
    """In arrays of such a size that what earlier tests have left, which is freed within, changes no number."""
    array, kept = 20 * MILLION, []
    gc.collect()
    left = left_behind(lambda: kept.append(torch.ones(array, dtype=torch.uint8)), 4, MILLION)
    assert left is not None
    assert round(left / array) == 4


@watched
def test_caches_and_garbage_are_not_left_behind() -> None:
    table: dict[str, torch.Tensor] = {}

    def in_a_circle() -> None:
        circle: list[object] = [torch.ones(2 * MILLION, dtype=torch.uint8)]
        circle.append(circle)

    for call in (lambda: table.setdefault("positions", torch.ones(4 * MILLION, dtype=torch.uint8)), in_a_circle):
        left = left_behind(call, 4, MILLION)
        assert left is not None
        assert left < MILLION


def test_a_system_without_measurement_has_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "FORGET", tmp_path / "nothing" / "here")
    monkeypatch.setattr(memory, "STATUS", tmp_path / "nothing")
    assert "is not available" in absent()
    assert peak(lambda: None).of_device is None
    assert held() is None
    assert left_behind(lambda: None, 1, 0) is None


def test_an_import_is_timed_in_a_process_of_its_own(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(0.3)\nprint('noise')\n")
    assert import_seconds(str(slow), times=1) >= 0.3
    assert import_seconds("json", times=1) >= 0.0


def test_a_failing_import_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match=r"no_such_module cannot be imported .* No module named 'no_such_module'"):
        import_seconds("no_such_module")
    monkeypatch.setattr(import_times, "TIME_LIMIT", 0.001)
    with pytest.raises(ImportError, match=r"json cannot be imported .* within 0.001 s"):
        import_seconds("json")


def test_the_library_of_an_implementation_is_known() -> None:
    libraries = {each.name: library(each) for each in BUILTIN}
    assert libraries["inhouse.numpy"] == "numpy"
    assert libraries["torch.sdpa"] == libraries["inhouse.tiled"] == libraries["torch.mha"] == "torch"


HOLE = """
import ctypes
from attention_conformance.implementations.worker.memory import _gnu
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes, library.free.argtypes = (
    ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
)
library.mallopt(-3, 2**25)
library.mallopt(-1, 2**28)
blocks, last = [library.malloc(2**24) for _ in range(8)], library.malloc(1000)
for block in blocks:
    library.free(block)
print(_gnu() is not None)
"""


def test_a_hole_of_the_heap_is_not_taken_for_another_allocator() -> None:
    """In a process that has freed much, no call was seen to need memory."""
    done = subprocess.run([sys.executable, "-c", HOLE], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
