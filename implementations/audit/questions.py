"""Questions: every probe by name, in an order in which each can read what the ones before have found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from implementations.audit import further, masks, numbers, sides
from implementations.audit.findings import Facts, Finding
from implementations.audit.posing import Subject

Probe: TypeAlias = Callable[[Subject, Facts], Iterator[Finding]]

PROBES: Mapping[str, Probe] = {
    "plain": numbers.plain,
    "scale": numbers.scale,
    "widths": numbers.widths,
    "groups": numbers.groups,
    "boolean mask": masks.boolean,
    "float mask": masks.additive,
    "padding": masks.padding,
    "causal": masks.causal,
    "causal with mask": masks.with_mask,
    "empty rows": masks.empty_rows,
    "returned": sides.returned,
    "dropout": sides.dropout,
    "gradients": sides.gradients,
    "precision": numbers.precision,
    "options": further.options,
    "containment": sides.containment,
    "edges": sides.edges,
}


def asked(subject: Subject, facts: Facts, probe: str) -> list[Finding]:
    """What one probe finds."""
    return list(PROBES[probe](subject, facts))


def all_asked(subject: Subject, found: list[Finding]) -> list[Finding]:
    """The findings so far, and those of every probe, in this process."""
    findings = list(found)
    for probe in PROBES:
        findings += asked(subject, Facts.of(findings), probe)
    return findings
