"""The device that a run names reaches the process of the candidate, in every call."""

from pathlib import Path

from attention_conformance import Conformance, check

TEXT = """
from dataclasses import replace
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS

MATH = next(i for i in TORCH_OPS if i.name == "torch.sdpa.math")

def run(problem, device):
    if device != "cpu:0":
        raise ValueError(f"it is on {device!r}")
    return MATH.run(problem, device)

attention = replace(MATH, run=run)
"""


def test_it_reaches_the_candidate(tmp_path: Path) -> None:
    """torch calls the processor by this name as well, so that no other device is needed."""
    file = tmp_path / "placed.py"
    file.write_text(TEXT)
    report = check(
        f"{file}:attention", device="cpu:0", clauses=("scores.dot-product", "gradients.query"), dtypes="float64"
    )
    assert report.verdict is Conformance.CONFORMS


LOST = """
import torch
from torch.nn.functional import scaled_dot_product_attention

faults = []
torch.cuda.is_initialized = lambda: bool(faults)

def synchronize(device=None):
    raise RuntimeError("CUDA error: misaligned address")

torch.cuda.synchronize = synchronize

def attention(query, key, value, is_causal=False):
    if faults or query.shape[-1] == 257:
        faults.append(True)
        synchronize()
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal)
"""


def test_a_fault_that_every_later_call_would_repeat_costs_its_own_clause_alone(tmp_path: Path) -> None:
    """CUDA refuses all calls of a process after an access to a wrong address: what comes later gets a new process."""
    file = tmp_path / "faulty.py"
    file.write_text(LOST)
    clauses = ("scores.dot-product", "shapes.head-width", "heads.independent", "causal.square")
    report = check(f"{file}:attention", clauses=clauses, dtypes="float32")
    (failing,) = report.failures
    assert failing.clause == "shapes.head-width"
    assert "CUDA error: misaligned address; its process has lost the accelerator" in str(failing)
