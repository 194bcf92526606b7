"""Questions: every probe by name, in an order in which each can read what the ones before have found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from attention_conformance.implementations.discovery.audit import forms, further, masks, numbers, sides
from attention_conformance.implementations.discovery.audit.findings import (
    ABSENT,
    IGNORED,
    LOST,
    OFFERED,
    Facts,
    Finding,
    undetermined,
)
from attention_conformance.implementations.discovery.audit.posing import Subject
from attention_conformance.implementations.discovery.audit.probes import NAMES, OPTIONS
from attention_conformance.implementations.discovery.loading import told

Probe: TypeAlias = Callable[[Subject, Facts], Iterator[Finding]]

_IN_ORDER: tuple[Probe, ...] = (
    forms.dtypes,
    numbers.plain,
    numbers.scale,
    numbers.widths,
    numbers.groups,
    masks.boolean,
    masks.additive,
    masks.padding,
    masks.causal,
    masks.with_mask,
    masks.empty_rows,
    sides.returned,
    sides.dropout,
    sides.gradients,
    numbers.precision,
    *(further.asking(further.BY_NAME[name]) for name in OPTIONS),
    further.cap_order,
    further.beyond_window,
    sides.containment,
    sides.views,
    sides.empty_sizes,
)
PROBES: Mapping[str, Probe] = dict(zip(NAMES, _IN_ORDER, strict=True))


def asked(subject: Subject, found: Sequence[Finding], probe: str) -> list[Finding]:
    """What one probe finds; that it cannot read an answer is no reason to stop."""
    try:
        return list(PROBES[probe](subject, Facts.of(found)))
    except Exception as error:
        return [undetermined(probe, f"its answers could not be read: {told(error)}")]


def all_asked(subject: Subject, found: Sequence[Finding]) -> list[Finding]:
    """The findings so far, and those of every probe, in this process."""
    findings = list(found)
    for probe in PROBES:
        findings += asked(subject, findings, probe)
    return findings


WIDTHS = ("d_v other than d_k", "width of the model", "widths of the inputs")


def heeding(findings: Sequence[Finding], named: Collection[str], tied: bool) -> list[Finding]:
    """The findings in the target's own terms: what it has a parameter for and does not heed is told as such.

    Args:
        findings: all of them.
        named: the questions that it has parameters for.
        tied: it was built with one width for all, so that others could not be asked.
    """
    rotated = Facts.of(findings).answer("mask polarity") == masks.MASKED_OUT
    return [_rotated(f) if rotated and f.answer == masks.MAY_ATTEND else _heeding(f, named, tied) for f in findings]


def _rotated(finding: Finding) -> Finding:
    """What was seen through an adapter that turns masks, told so that it does not contradict their polarity."""
    return Finding(finding.question, OFFERED, f"with True and False exchanged, {finding.evidence}")


def _heeding(finding: Finding, named: Collection[str], tied: bool) -> Finding:
    if finding.answer != ABSENT:
        return finding
    if finding.question in named and finding.evidence.startswith(IGNORED):
        return Finding(finding.question, IGNORED, "it has a parameter for it, and nothing changes")
    if tied and finding.question in WIDTHS:
        return Finding(finding.question, LOST, "it was built with one width for all")
    return finding
