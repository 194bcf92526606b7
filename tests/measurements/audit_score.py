"""Measures the auditor on implementations whose claims are known, but hidden from it: `make audit-score`."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping

import torch

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.catalogue import BUILTIN, NAMED
from attention_conformance.implementations.discovery.auditor.audit import all_findings, audit
from attention_conformance.implementations.discovery.auditor.claims import features
from attention_conformance.implementations.discovery.auditor.findings import Facts
from attention_conformance.implementations.discovery.auditor.probe_interface import find_subject
from attention_conformance.implementations.discovery.auditor.probe_results import functions
from attention_conformance.tests.cli.audit_command import ORACLE
from attention_conformance.tests.measurements.audit_compared import (
    DETECTED,
    KNOWN,
    OUTCOMES,
    UNDETERMINED,
    WRONG,
    Score,
    compared,
    scores,
)
from attention_conformance.tests.measurements.audit_targets import TARGETS
from attention_conformance.tests.measurements.pages import table, write_page


def anonymous(implementation: Implementation) -> Facts:
    """The findings of the auditor for an implementation without its name and claims."""
    subject, findings = find_subject(implementation.run, "cpu", ORACLE)
    if subject is not None:
        findings = all_findings(subject, findings)
    return Facts.of([*findings, *functions(implementation.functions, ORACLE)])


def known_scores(target: object, known: Mapping[str, str]) -> Iterator[Score]:
    """The known facts of a callable, compared with the findings of the auditor."""
    facts = Facts.of(audit(target, ORACLE)[1])
    for topic, answer in known.items():
        yield compared(topic, answer, facts.findings.get(topic))


def main() -> int:
    torch.set_num_threads(1)
    built_in = {each.name: each for each in (*BUILTIN, *NAMED)}
    facts = {name: anonymous(each) for name, each in built_in.items()}
    rows = {name: list(scores(built_in[name], each)) for name, each in facts.items()}
    beyond = {name: sorted(features(each) - built_in[name].claims.features) for name, each in facts.items()}
    callables = {name: list(known_scores(target, known)) for name, (target, known) in TARGETS.items()}
    by_claim: dict[str, list[Score]] = {}
    for score in (score for listed in rows.values() for score in listed):
        by_claim.setdefault(score.claim, []).append(score)
    write_page(
        "audit.md",
        count_of_built_in=_counted(rows),
        built_in=_table("implementation", rows),
        offered=beyond,
        count_of_callables=_counted(callables),
        callables=_table("callable", callables),
        by_claim=_table("claim", by_claim, with_claims=False),
    )
    wrong = [(n, score) for n, listed in {**rows, **callables}.items() for score in listed if score.outcome == WRONG]
    for name, score in wrong:
        print(f"wrong: {name}, {score.claim}: claimed {score.claimed}, detected {score.answer}")
    return 1 if wrong else 0


def _counted(rows: Mapping[str, list[Score]]) -> str:
    counts = Counter(score.outcome for listed in rows.values() for score in listed)
    parts = [f"{counts[outcome]} {outcome}" for outcome in (DETECTED, UNDETERMINED, KNOWN) if counts[outcome]]
    return f"of {sum(counts.values())} {', '.join(parts)}, {counts[WRONG]} wrong"


def _table(first: str, rows: Mapping[str, list[Score]], with_claims: bool = True) -> str:
    """The number of claims with each outcome by row; in the last column the undetermined claims, on request."""
    cells = []
    for name, listed in rows.items():
        by = Counter(score.outcome for score in listed)
        undetermined = ", ".join(score.claim for score in listed if score.outcome == UNDETERMINED)
        cells.append([name, *(str(by[outcome]) for outcome in OUTCOMES), *([undetermined] if with_claims else [])])
    return table([first, *OUTCOMES, *(["undetermined claims"] if with_claims else [])], cells)


if __name__ == "__main__":
    sys.exit(main())
