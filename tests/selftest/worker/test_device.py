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
