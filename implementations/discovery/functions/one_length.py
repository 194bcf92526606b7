"""Functions that take queries and keys of one length alone, as they document it, and raise nothing for others."""

from __future__ import annotations

from attention_conformance.implementations.discovery.always import changes
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.documented import states_one_length
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature

SQUARE, MORE_KEYS = PLAIN.sized(query_length=9, key_length=9), PLAIN.sized(query_length=5, key_length=9)


def without_other_lengths(check: ClaimCheck, written: object) -> tuple[ClaimCheck, list[str]]:
    """The check without keys of another length than the queries where not all of those are read, and a note.

    Without documentation it is a mistake.
    """
    other = Feature.CROSS in check.claims and not check.claims.premises.hides_later
    if not other or not states_one_length(written) or not _sees_all(check, SQUARE) or _sees_all(check, MORE_KEYS):
        return check, []
    return check.without({Feature.CROSS}), [unclaimed("other lengths of keys", "it documents one length for both")]


def _sees_all(check: ClaimCheck, case: Case) -> bool:
    """Whether each query sees all keys, and it answers."""
    queries, keys = case.sizes.query_length, case.sizes.key_length
    columns = dict(changes(check, case, at=tuple(range(queries - keys, queries))))
    return columns.keys() == {*range(keys)} and all(seen.all() for seen in columns.values())
