"""Defect implementations fail on the right clause, and every clause is one that something fails."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attention_conformance.implementations import defects
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.defects import MODULES, Defect, catalogue
from attention_conformance.implementations.defects.defect import REGISTRY
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.harness.judge.clause_tests import clause_tests
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status


@pytest.mark.parametrize("defect", catalogue(), ids=str)
def test_fails_on_the_right_clauses(defect: Defect) -> None:
    verdicts = run(defect.implementation, defect.clauses + defect.holds, (defect.dtype,))
    by_clause = {verdict.clause: verdict for verdict in verdicts}
    assert set(by_clause) == {*defect.clauses, *defect.holds}
    failing = {clause for clause, verdict in by_clause.items() if verdict.status is Status.FAIL}
    assert failing == set(defect.clauses), [(v.clause, v.status, v.reason) for v in verdicts]
    for clause in defect.clauses:
        failure = by_clause[clause].failure
        assert failure is not None
        assert defect.raises or "raised " not in failure.message, failure.message


def test_each_reads_as_a_catalogue_entry() -> None:
    for defect in catalogue():
        for text in (defect.text.does, defect.text.repair, defect.text.hides, defect.matters):
            assert text[0].isupper(), f"{defect}: {text}"
            assert text.endswith("."), f"{defect}: {text}"
        assert all(link.startswith("https://") for link in defect.text.links), defect.id
        assert defect.holds, defect.id
        assert not {*defect.holds} & {*defect.clauses}, defect.id


def test_texts_and_code_have_the_same_defects_in_the_same_order() -> None:
    for module in MODULES:
        text = (Path(defects.__file__).parent / "texts" / f"{module}.md").read_text(encoding="utf-8")
        ids = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
        assert ids == [defect.id for defect in REGISTRY[f"{defects.__name__}.{module}"]]


def test_names_are_unique() -> None:
    names = [str(defect) for defect in catalogue()]
    assert len(set(names)) == len(names)


def test_the_order_does_not_depend_on_what_was_imported_before() -> None:
    package = "attention_conformance.implementations.defects"
    script = f"import {package}.zero_keys, {package}.causal; print(*{package}.catalogue())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [defect.id for defect in catalogue()]


def test_every_clause_can_fail() -> None:
    assert not set(clause_tests()) - {clause for defect in catalogue() for clause in defect.clauses}


def test_an_output_that_is_off_under_a_negative_scale_is_advice_alone() -> None:
    """Its gradients are not held against it; where its output is right, they are: see the defects of any-scale."""

    def unsigned(query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None) -> Tensor:
        return scaled_dot_product_attention(query, key, value, scale=None if scale is None else abs(scale))

    claims = Claims(Scope.OP, frozenset({Feature.CORE, Feature.SCALE, Feature.GRADIENTS}), dtypes=("float32",))
    verdicts = run(
        Implementation("unsigned", claims, torch_op(unsigned)), ("scores.scale-negative", "gradients.any-scale")
    )
    status = {verdict.clause: verdict.status for verdict in verdicts}
    assert status == {"scores.scale-negative": Status.FAIL, "gradients.any-scale": Status.PASS}
