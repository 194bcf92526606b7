"""The page of one clause: all that the project knows of it, as text for a terminal."""

import textwrap
from collections.abc import Iterator, Sequence

from attention_conformance.implementations.api.contract import ExpectedFailure, Implementation
from attention_conformance.implementations.defects import catalogue
from attention_conformance.spec.clauses import Clause, equations, specification
from attention_conformance.tests.harness.explain.plain_math import formula, line

WIDTH = 100
MOST = 8
"""How many defects are described; of the others, the names are listed."""


def explanation(clause: Clause, implementations: Sequence[Implementation]) -> Iterator[str]:
    """The lines: statement, equation, why it matters, where it comes from, what breaks it, and what deviates."""
    yield f"{clause.id} ({clause.level}, chapter {clause.chapter})"
    yield from _paragraph(line(clause.statement), "  ")
    if clause.equation is not None:
        yield ""
        yield f"  ({clause.equation})  {formula(equations()[clause.equation])}"
    for note in clause.notes:
        yield ""
        yield from _paragraph(line(note), "  ")
    yield from _section("applies to", [_scope(clause)])
    yield from _section("why it matters", map(line, specification()[clause.chapter].introduction))
    yield from _section("sources", ["; ".join(clause.sources), *map(line, clause.errata)])
    yield from _section("what breaks it", _defects(clause))
    yield from _section("known to deviate", _deviations(clause, implementations))


def _scope(clause: Clause) -> str:
    scope = "any implementation" if clause.scope is None else f"an implementation of the {clause.scope} level"
    measured = ". It is measured by the benchmarks, and is no part of a verdict" if clause.measured else ""
    presumed = f", unless it is always {' or '.join(sorted(clause.presumes))}" if clause.presumes else ""
    kernels = (
        ""
        if clause.kernels is clause.level
        else f"; a {clause.kernels} for what takes half types alone, or claims wide-scores"
    )
    features = " and ".join([*sorted(clause.features), *filter(None, [" or ".join(sorted(clause.either))])])
    return f"{scope} that claims {features}{presumed}{measured}{kernels}"


def _defects(clause: Clause) -> Iterator[str]:
    """The mistakes that are named by this clause, then those that are named by another and break this one, too."""
    first = [defect for defect in catalogue() if defect.clauses[0] == clause.id]
    for defect in first[:MOST]:
        yield f"{defect.id} ({defect.severity}): {defect.text.does} {defect.matters} Repair: {defect.text.repair}"
    others = [defect.id for defect in (*first[MOST:], *(d for d in catalogue() if clause.id in d.clauses[1:]))]
    if others:
        yield f"{'also' if first else 'named by other clauses'}: {', '.join(others)}"


def _deviations(clause: Clause, implementations: Sequence[Implementation]) -> Iterator[str]:
    for implementation in implementations:
        for entry in implementation.expected_failures:
            if entry.clause == clause.id:
                yield f"{implementation.name} {_where(entry)}: {entry.reason} {entry.link}"


def _where(entry: ExpectedFailure) -> str:
    dtypes = f"in {', '.join(entry.dtypes)}" if entry.dtypes else "in every dtype"
    return f"{dtypes} on {entry.device}" if entry.device else dtypes


def _section(title: str, paragraphs: Iterator[str] | Sequence[str]) -> Iterator[str]:
    known = list(paragraphs) or ["nothing that is known here"]
    yield ""
    yield f"{title}:"
    for paragraph in known:
        yield from _paragraph(paragraph, "  ")


def _paragraph(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
