"""What a file to replay may hold: few bytes, and a case that its clause and its implementation may have."""

from pathlib import Path

from attention_conformance.implementations.api.contract import Claims, Unsupported
from attention_conformance.implementations.api.fitting import fit_to_explain
from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import Clause
from attention_conformance.tests.harness.judge.clause_tests import claimed

MOST_BYTES = 2**20
"""Of a failure file."""
MOST_DECIMALS = 30


def text_of(path: Path) -> str:
    """The text of a file.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is no text.
        ValueError: it is too long.
    """
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes, the most of a failure file")
    return data.decode("utf-8")


def foreign(case: Case, clause: Clause, claims: Claims) -> str:
    """Why the clause of an implementation with these claims has no such case; empty if it may have it."""
    if why := claimed(clause, claims):
        return f"clause {clause.id} {why}" if clause.scope not in (None, claims.scope) else f"the implementation {why}"
    if case.scope is not claims.scope:
        return f"the case is one of the {case.scope} level, and the implementation is of the {claims.scope} level"
    fitted = fit_to_explain(case, claims)
    return f"the implementation cannot be given the case: {fitted.reason}" if isinstance(fitted, Unsupported) else ""
