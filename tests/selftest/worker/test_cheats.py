"""Cheats: what is wrong and tries to look right. docs/security.md has the table of them, with what happens to each."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.implementations.worker.remote import Remote, isolated_candidate
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.sessions import ROOT
from attention_conformance.tests.selftest.worker.detection_calls import detection_calls

TEXT = """
import gc, inspect, os, sys, threading
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

calls = 0

class Lying(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in ("allclose", "equal", "__eq__", "isclose"):
            return True
        return super().__torch_function__(function, types, args, kwargs or {{}})

class Equal(np.ndarray):
    def __eq__(self, other):
        return np.True_
    def __sub__(self, other):
        return np.zeros(self.shape)
    __rsub__ = __sub__

class Lazy:
    def __init__(self, shape):
        self.shape, self.dtype, self.ndim = shape, torch.float32, len(shape)
    def __array__(self, dtype=None, copy=None):
        return Equal(self.shape)

def right(query, key, value):
    return sdpa(query, key, value)

def wrong(query, key, value):
    return sdpa(query, key, value).mul(1.5)

def attention(query, key, value):
    global calls
    calls += 1
    # A candidate that detection refuses would be no cheat.
    if calls <= DETECTION:
        return right(query, key, value)
    {}
    return wrong(query, key, value)
"""
SEARCHED = """
    for frame in inspect.stack():
        for name, held in list(frame.frame.f_locals.items()):
            if "expected" in name and hasattr(held, "value"):
                return torch.from_numpy(np.asarray(held.value)).to(query.dtype)"""
COLLECTED = """
    shape = (*query.shape[:-1], value.shape[-1])
    for held in gc.get_objects():
        if type(held).__name__ == "Expected" and held.value.shape == tuple(shape):
            return torch.from_numpy(held.value).to(query.dtype)"""
LOADED = """
    for name, module in list(sys.modules.items()):
        if ".reference" in name and name.startswith("attention_conformance") or ".judge" in name:
            return right(query, key, value)"""
PATCHED = """
    from attention_conformance.tests.harness.judge import comparison
    np.allclose = np.testing.assert_allclose = comparison.compare = lambda *a, **k: comparison.Comparison(0.0)"""
LATER = """
    output = wrong(query, key, value)
    def repair(): output.copy_(right(query, key, value))
    threading.Timer(0.2, repair).start()
    return output"""
FORGED = """
    for number in range(3, 32):
        try: os.write(number, (8).to_bytes(8, "little") + bytes(8))
        except OSError: pass"""
IMPORTED = """
    from attention_conformance.reference.pipeline import Pipeline
    return right(query, key, value)"""
TOLD = """
    parent = open(f"/proc/{os.getppid()}/cmdline").read()
    if parent: return right(query, key, value)"""
FAILING = {
    "looks for the expected answer in the frames of its callers": SEARCHED,
    "looks for the expected answer among all objects": COLLECTED,
    "looks for loaded modules of the reference or the judge": LOADED,
    "patches the comparison": PATCHED,
    "returns a tensor subclass that calls itself equal": "return wrong(query, key, value).as_subclass(Lying)",
    "returns an array subclass whose differences are zero": (
        "return wrong(query, key, value).detach().numpy().view(Equal)"
    ),
    "returns an object that is computed when it is read": "return Lazy((*query.shape[:-1], value.shape[-1]))",
    "changes its answer after the call": LATER,
    "writes an answer of its own into the connection": FORGED,
    "is right while pytest is loaded": "if 'pytest' in sys.modules: return right(query, key, value)",
    "is right while a variable of pytest is set": (
        "if any('PYTEST' in name for name in os.environ): return right(query, key, value)"
    ),
    "is right in its first 30 calls": "if calls <= 30: return right(query, key, value)",
}
"""What is done after detection; the answer is wrong where nothing else is returned."""
PASSING = {
    "calls the reference itself": IMPORTED,
    "is right while the suite is loaded": (
        "if 'attention_conformance' in sys.modules: return right(query, key, value)"
    ),
    "is right while a process of the suite is its parent": TOLD,
    "is right in its first million calls": "if calls <= 10**6: return right(query, key, value)",
    "is right up to the longest sequence that is checked": "if key.shape[-2] <= 10**4: return right(query, key, value)",
}
"""What no run detects, as the page has to admit."""
CLAUSES = ("scores.dot-product", "softmax.over-keys", "values.weighted-sum", "masks.none", "shapes.coincident")


def statuses(tmp_path: Path, body: str) -> list[Status]:
    file = tmp_path / "cheat.py"
    file.write_text(f"DETECTION = {detection_calls()}\n" + TEXT.format(body))
    implementation = isolated_candidate(f"{file}:attention", {}, deadline=30.0)
    assert isinstance(implementation.run, Remote)
    try:
        return [verdict.status for verdict in run(implementation, CLAUSES, ("float32",))]
    finally:
        implementation.run.door.end()


@pytest.mark.parametrize("body", FAILING.values(), ids=FAILING)
def test_a_cheat_fails(tmp_path: Path, body: str) -> None:
    assert Status.FAIL in statuses(tmp_path, body)


@pytest.mark.parametrize("body", PASSING.values(), ids=PASSING)
def test_what_is_not_detected_passes_as_the_page_admits(tmp_path: Path, body: str) -> None:
    assert set(statuses(tmp_path, body)) == {Status.PASS}


def test_the_page_has_each_of_them_with_what_happens() -> None:
    lines = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in lines if line.startswith("| ")]
    tried = {**dict.fromkeys(FAILING, "fails"), **dict.fromkeys(PASSING, "is not detected")}
    assert {cheat: outcome for cheat, outcome in rows if cheat in tried} == tried
