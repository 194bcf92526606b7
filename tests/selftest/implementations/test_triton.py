"""The Triton kernel: absent with a reason, or right; and with one mistake of such kernels, caught."""

from pathlib import Path

import pytest

from attention_conformance.implementations.builtin import kernel_entries
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

SOURCE = Path(kernel_entries.__file__).with_name("triton_flash.py")
OF_QUERIES = "    query = rows_of(q + head * queries * d_k, i, queries, d_k, WIDTH)\n    "
MISTAKES = {
    "wrong tile edge": (
        "for first in range(0, keys, TILE):\n        j = first + tl.arange(0, TILE)\n        products",
        "for first in range(0, keys // TILE * TILE if keys > TILE else keys, TILE):\n"
        "        j = first + tl.arange(0, TILE)\n        products",
        "shapes.tile-edges",
    ),
    "no mask on the last tile": ("& (j[None, :] < keys)\n    if", "& (j[None, :] >= 0)\n    if", "scores.dot-product"),
    "stale accumulator": ("mixed = mixed * shrunk[:, None] +", "mixed = mixed +", "softmax.late-maximum"),
    "sums in float16": (
        "        top = higher\n",
        "        top = higher\n        mixed = mixed.to(tl.float16).to(tl.float32)\n",
        "numerics.accumulation",
    ),
    "stride of another array": ("* d_v\n" + OF_QUERIES + "top", "* d_k\n" + OF_QUERIES + "top", "values.width"),
    "softcap without its slope": ("(1.0 - (scores / cap) * (scores / cap))", "1.0", "softcap.gradients"),
}


def failing(target: Path, *clauses: str) -> set[str]:
    made = candidate(f"{target}:attention", {})
    verdicts = run(made, clauses, ("float32",))
    assert any(verdict.checks for verdict in verdicts)
    return {v.clause for v in verdicts if v.status in (Status.FAIL, Status.ERROR)}


@pytest.fixture
def interpreted() -> None:
    """Where it is absent, or was imported before it could know that it is interpreted, the test is not run."""
    if why := kernel_entries.no_triton():
        pytest.skip(why)


@pytest.mark.parametrize(
    ("installed", "gpu", "variable", "reason"),
    [
        (False, False, "1", "Triton is not installed"),
        (True, False, "0", "TRITON_INTERPRET=1"),
        (True, False, "1", ""),
        (True, True, "0", ""),
    ],
)
def test_why_it_is_absent(
    monkeypatch: pytest.MonkeyPatch, installed: bool, gpu: bool, variable: str, reason: str
) -> None:
    monkeypatch.setattr(kernel_entries, "triton", installed)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setenv("TRITON_INTERPRET", variable)
    assert bool(kernel_entries.no_triton()) is bool(reason)
    assert reason in kernel_entries.no_triton()


@pytest.mark.usefixtures("interpreted")
def test_it_is_right() -> None:
    clauses = {clause for _, _, clause in MISTAKES.values()}
    verdicts = run(kernel_entries.of_triton(), tuple(sorted(clauses)), ("float32",))
    assert {v.clause for v in verdicts} == clauses
    assert {v.status for v in verdicts} == {Status.PASS}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("right", "wrong", "clause"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_of_kernels_is_caught(tmp_path: Path, right: str, wrong: str, clause: str) -> None:
    text = SOURCE.read_text(encoding="utf-8")
    assert text.count(right) == 1
    (tmp_path / "kernel.py").write_text(text.replace(right, wrong), encoding="utf-8")
    assert failing(tmp_path / "kernel.py", clause) == {clause}
