"""Wrong implementations fail on the right clause, and every clause is one that something fails."""

from __future__ import annotations

import pytest

from tests.harness.running import run
from tests.harness.suite import declared
from tests.harness.verdicts import Status
from tests.selftest.wrong import WRONG, Wrong


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_fails_on_the_right_clauses(wrong: Wrong) -> None:
    verdicts = run(wrong.implementation, wrong.fails + wrong.holds, (wrong.dtype,))
    found = {verdict.clause: verdict for verdict in verdicts}
    assert set(found) == {*wrong.fails, *wrong.holds}
    assert {clause for clause, verdict in found.items() if verdict.status is Status.FAIL} == set(wrong.fails)
    for clause in wrong.fails:
        failure = found[clause].failure
        assert failure is not None
        assert wrong.raises or "raised " not in failure.message, failure.message


def test_names_are_unique() -> None:
    names = [str(wrong) for wrong in WRONG]
    assert len(set(names)) == len(names)


def test_every_clause_can_fail() -> None:
    assert not set(declared()) - {clause for wrong in WRONG for clause in wrong.fails}
