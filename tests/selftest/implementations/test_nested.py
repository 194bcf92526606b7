"""Attention over torch's nested tensors: documents and lengths of samples as items, and their gradients."""

import pytest

from attention_conformance.implementations.builtin.nested import no_nested, of_nested
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

CLAUSES = ("packed.*", "masks.valid-lens", "gradients.key", "scores.scale-explicit")


@pytest.mark.skipif(bool(no_nested()), reason=no_nested())
def test_conforms() -> None:
    verdicts = run(of_nested(), CLAUSES, ("float32",))
    judged = {verdict.clause for verdict in verdicts if verdict.checks}
    assert {verdict.clause for verdict in verdicts if verdict.status in (Status.FAIL, Status.ERROR)} == set()
    assert {"packed.empty-document", "masks.valid-lens", "gradients.key"} <= judged
