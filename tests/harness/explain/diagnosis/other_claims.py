"""Other claims: the convention under which everything that fails would hold, found by judging the clauses again."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from attention_conformance.implementations.api.contract import Implementation, PathError
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.spec.clauses import load
from attention_conformance.spec.conventions import ProductPrecision, values_of
from attention_conformance.spec.problem import HALF
from attention_conformance.tests.harness.judge.clause_tests import clause_tests
from attention_conformance.tests.harness.judge.judge import FailureLimitError, Judge

OWN = ("log-of-nothing", "dropout-sharing", "full-dropout")
"""Conventions that no comparison of answers can name: each is stated by a clause that fails without it."""
MOST = 12
"""Failing clauses that are judged again."""


def stated(failed: Collection[str]) -> Iterator[str]:
    """The conventions of `OWN` that one of the failing clauses states."""
    notes = " ".join(note for clause in failed for note in load()[clause].notes)
    yield from (key for key in OWN if f"`{key}=" in notes)


def holding(
    implementation: Implementation, failed: Sequence[tuple[str, str]], keys: Collection[str], device: str
) -> str:
    """The first other value of these conventions, as KEY=VALUE, under which the failing clauses hold; empty: none.

    `failed` are clauses and dtypes. Precisions of products are tried from the finest on.
    """
    claimed = implementation.claims.conventions
    own = dict(claimed.items())
    pairs = dict.fromkeys(failed)
    spread = list(pairs)[:: max(1, len(pairs) // MOST)]
    for key in keys:
        for value in (str(value) for value in values_of(key) if str(value) != own[key]):
            conventions = claimed.claiming({key: value})
            other = replace(implementation, claims=replace(implementation.claims, conventions=conventions))
            if all(_holds(other, clause, dtype, device) for clause, dtype in spread):
                return f"{key}={value}"
    return ""


def rounded_operands(implementation: Implementation, failed: Sequence[tuple[str, str]], device: str) -> str:
    """The finest precision of the operands of products under which the failing clauses hold; empty: none.

    In a half type alone there is none: it would only make every bound wider.
    """
    working = implementation.claims.conventions.product_precision is ProductPrecision.WORKING
    if not working or all(dtype in HALF for _, dtype in failed):
        return ""
    return holding(implementation, failed, ("product-precision",), device)


def _holds(implementation: Implementation, clause: str, dtype: str, device: str) -> bool:
    judge = Judge(implementation, dtype, device, failure_limit=1)
    try:
        clause_tests()[clause](judge)
        judge.settle()
    except (FailureLimitError, PathError, CandidateError):
        return False
    return bool(judge.tally.checks) and not judge.tally.failures
