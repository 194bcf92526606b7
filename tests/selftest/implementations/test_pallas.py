"""The Pallas kernel: absent with a reason, or right; and with one mistake of such kernels, caught."""

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from attention_conformance.implementations.adapters.jax_op import jax_op
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin import kernel_entries
from attention_conformance.spec.cases import Case, Scores, Sizes
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.thorough import thorough

SOURCE = Path(kernel_entries.__file__).with_name("pallas_flash.py")
FEW = Sizes(batch=1, num_heads=2, query_length=3, key_length=17)
"""Two tiles of keys, of which the second has one."""


@dataclass(frozen=True)
class Mistake:
    """One in the source, the clause that catches it, and a small case that shows it."""

    right: str
    wrong: str
    clause: str
    case: Case
    part: str = "output"


LOOP = "jax.lax.fori_loop(0, tiles(sizes[1]), add, state)"
MISTAKES = {
    "wrong tile edge": Mistake(
        LOOP, LOOP.replace("tiles(sizes[1])", "sizes[1] // TILE"), "shapes.tile-edges", Case(FEW)
    ),
    "no mask on the last tile": Mistake(
        "& (j[None, :] < keys)", "& (j[None, :] >= 0)", "scores.dot-product", Case(FEW)
    ),
    "stale accumulator": Mistake(
        "mixed = mixed * shrunk[:, None] +", "mixed = mixed +", "softmax.late-maximum", Case(FEW, scores=Scores.RISING)
    ),
    "sums in float16": Mistake(
        "        return higher, total, mixed",
        "        return higher, total, mixed.astype(jnp.float16).astype(jnp.float32)",
        "numerics.accumulation",
        Case(FEW),
    ),
    "wrong stride from tile to tile": Mistake(
        "ref[member, pl.ds(tile * TILE, TILE), :]",
        "ref[member, pl.ds(tile * (TILE // 2), TILE), :]",
        "shapes.tile-edges",
        Case(FEW),
    ),
    "tiles of another head": Mistake(
        "(head // group, *(0,)", "(head // group * 0, *(0,)", "heads.independent", Case(FEW)
    ),
    "softcap without its slope": Mistake(
        "of_scores * slope * scale",
        "of_scores * scale",
        "softcap.gradients",
        Case(FEW, score_std=6.0).extended(softcap=1.5),
        "gradients",
    ),
}


@pytest.fixture(scope="module")
def right() -> Implementation:
    """Where JAX is absent, the tests are not run."""
    if why := kernel_entries.no_pallas():
        pytest.skip(why)
    return kernel_entries.of_pallas()


@pytest.fixture
def wrong(request: pytest.FixtureRequest, tmp_path: Path, right: Implementation) -> Implementation:
    """With a mistake in the source."""
    mistake = MISTAKES[request.param]
    text = SOURCE.read_text(encoding="utf-8")
    assert text.count(mistake.right) == 1
    (tmp_path / "kernel.py").write_text(text.replace(mistake.right, mistake.wrong), encoding="utf-8")
    found = importlib.util.spec_from_file_location("kernel", tmp_path / "kernel.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return replace(right, name="wrong", run=jax_op(module.attention, extras=("log_sum_exp",)))


def failures(implementation: Implementation, mistake: Mistake) -> int:
    judge = Judge(implementation, "float32")
    judge.assert_conforms(mistake.case, mistake.part)
    assert judge.tally.checks
    return len(judge.tally.failures)


def test_why_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_entries, "jax", False)
    assert "attention-conformance[jax]" in kernel_entries.no_pallas()
    monkeypatch.setattr(kernel_entries, "jax", True)
    assert kernel_entries.no_pallas() == ""


def test_it_is_right(right: Implementation) -> None:
    assert [name for name, mistake in MISTAKES.items() if failures(right, mistake)] == []


@pytest.mark.parametrize("wrong", MISTAKES, indirect=True)
def test_a_mistake_of_kernels_is_caught(request: pytest.FixtureRequest, wrong: Implementation) -> None:
    assert failures(wrong, MISTAKES[request.node.callspec.params["wrong"]])


@thorough
def test_every_clause_of_the_mistakes_holds(right: Implementation) -> None:
    verdicts = run(right, tuple({mistake.clause for mistake in MISTAKES.values()}), ("float32",))
    assert {v.status for v in verdicts} == {Status.PASS}


@thorough
@pytest.mark.parametrize("wrong", MISTAKES, indirect=True)
def test_the_clause_of_a_mistake_does_not_hold(request: pytest.FixtureRequest, wrong: Implementation) -> None:
    mistake = MISTAKES[request.node.callspec.params["wrong"]]
    assert [v.status for v in run(wrong, (mistake.clause,), ("float32",))] == [Status.FAIL]
