"""The number of checks for each profile of claims: a test that makes fewer than before is detected; stages of a run."""

import subprocess
import sys

import pytest

from attention_conformance.implementations.builtin.catalogue import BUILTIN
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.selftest.sessions import ROOT
from attention_conformance.tests.selftest.thorough import thorough

PINS = {
    ("torch.sdpa.math", "float16"): (1047, 1043),
    ("torch.mha", "float32"): (2547, 2413),
    ("source.e", "bfloat16"): (761, 490),
    ("inhouse.numpy", "float64"): (2853, 2848),
}
"""Checks of the quick tier in one dtype, and how many of them have to count: an inconclusive one does not, and which
ones are inconclusive may depend on the last digits of a machine. Fewer checks need a reason."""
RENEWED = 1.02
"""New clauses and cases add to the checks. Once there are more than so many times as many, write down the new numbers
that the failure shows, so that a loss is still seen."""


LONGEST = ("torch.mha", "float32")
"""The profile whose run takes longest."""


@pytest.mark.parametrize(
    ("name", "dtype"), [pytest.param(*pin, marks=thorough if pin == LONGEST else ()) for pin in PINS]
)
def test_no_check_is_lost(name: str, dtype: str) -> None:
    (implementation,) = (i for i in BUILTIN if i.name == name)
    verdicts = run(implementation, dtypes=(dtype,))
    checks, counted = PINS[name, dtype]
    assert checks <= sum(v.checks + v.inconclusive for v in verdicts) <= RENEWED * checks
    assert sum(v.checks for v in verdicts) >= counted


def test_clauses_of_one_profile_are_all_checked_in_all_dtypes() -> None:
    (implementation,) = (i for i in BUILTIN if i.name == "inhouse.numpy")
    clauses = ("masks.bool", "numerics.working-precision", "numerics.half-range")
    checked = [(v.clause, v.dtype) for v in run(implementation, clauses)]
    assert checked == [
        *(("masks.bool", dtype) for dtype in ("float64", "float32", "bfloat16", "float16")),
        ("numerics.working-precision", "float64"),
        ("numerics.half-range", "float16"),
    ]


def test_every_stage_of_the_profile_of_time_exists() -> None:
    """In a process of its own: the clocks stay in."""
    program = "from attention_conformance.tests.measurements.suite_profile import Stages, watched; watched(Stages())"
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert process.returncode == 0, process.stderr
