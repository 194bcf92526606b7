"""Audits: every probe of a target, and what its findings mean in the target's own terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from attention_conformance.implementations.api.safe_call import error_line
from attention_conformance.implementations.discovery import (
    probe_interface,
    probe_masks,
    probe_options,
    probe_results,
    probe_scores,
)
from attention_conformance.implementations.discovery.adapter import Adapter, find_adapter
from attention_conformance.implementations.discovery.extra_options import EXTRA_OPTIONS
from attention_conformance.implementations.discovery.findings import (
    ABSENT,
    IGNORED,
    LOST,
    MASKED_OUT,
    MAY_ATTEND,
    OFFERED,
    Facts,
    Finding,
)
from attention_conformance.implementations.discovery.probe import Oracle, Subject
from attention_conformance.implementations.discovery.probe_interface import find_subject
from attention_conformance.spec.features import Feature

Probe: TypeAlias = Callable[[Subject, Facts], Iterator[Finding]]

PROBES: Mapping[str, Probe] = {
    "dtypes": probe_interface.dtypes,
    "plain answer": probe_scores.plain,
    "scale": probe_scores.scale,
    "widths": probe_scores.widths,
    "grouped": probe_scores.groups,
    "bool-mask": probe_masks.boolean,
    "float-mask": probe_masks.additive,
    "key-padding": probe_masks.padding,
    "causal": probe_masks.causal,
    "causal-with-mask": probe_masks.causal_with_mask,
    "empty rows": probe_masks.empty_rows,
    "returned parts": probe_results.returned,
    "dropout": probe_results.dropout,
    "gradients": probe_results.gradients,
    "softmax-precision": probe_scores.precision,
    **{str(option.feature): probe_options.probe_of(option) for option in EXTRA_OPTIONS},
    "softcap order": probe_options.softcap_order,
    "empty-row-causal": probe_options.row_beyond_window,
    "containment": probe_results.containment,
    "views": probe_results.views,
    "empty-sizes": probe_results.empty_sizes,
}
"""Every probe, in an order in which each can read what those before it have found."""
WIDTHS = (Feature.VALUE_WIDTH, Feature.MODEL_WIDTH, Feature.INPUT_WIDTHS)


def audit(target: object, oracle: Oracle, device: str = "cpu") -> tuple[Adapter, list[Finding]]:
    """How a target is run, and all findings, in this process: for targets that do not end it. See `process`.

    Raises:
        TargetError: it cannot be called at all.
    """
    adapter = find_adapter(target, device, oracle)
    subject, findings = first_findings(adapter, device, oracle)
    if subject is not None:
        findings = all_findings(subject, findings)
    return adapter, in_own_terms(findings, adapter)


def first_findings(adapter: Adapter, device: str, oracle: Oracle) -> tuple[Subject | None, list[Finding]]:
    """The target with an interface at which it answers, and the findings so far."""
    subject, findings = find_subject(adapter.run, device, oracle)
    if subject is not None:
        subject = subject.with_masks(adapter.mask_shape)
    functions = probe_results.functions(adapter.functions, oracle)
    return subject, [*adapter.findings, *functions, *findings]


def findings_of(probe: str, subject: Subject, findings: Sequence[Finding]) -> list[Finding]:
    """What one probe finds; the next ones are independent of an answer that cannot be read."""
    try:
        return list(PROBES[probe](subject, Facts.of(findings)))
    except Exception as error:
        return [Finding.undetermined(probe, f"its answers could not be read: {error_line(error)}")]


def all_findings(subject: Subject, findings: Sequence[Finding]) -> list[Finding]:
    """The findings so far, and those of every probe."""
    every = list(findings)
    for probe in PROBES:
        every += findings_of(probe, subject, every)
    return every


def in_own_terms(findings: Sequence[Finding], adapter: Adapter) -> list[Finding]:
    """The findings in terms of the target and not of its adapter."""
    inverted = Facts.of(findings).answer("mask polarity") == MASKED_OUT
    return [_in_own_terms(finding, adapter, inverted) for finding in findings]


def _in_own_terms(finding: Finding, adapter: Adapter, inverted: bool) -> Finding:
    if inverted and finding.answer == MAY_ATTEND:  # through an adapter that inverts masks
        return Finding(finding.topic, OFFERED, f"with True and False exchanged, {finding.evidence}")
    if finding.answer == ABSENT and finding.topic in adapter.named and finding.evidence.startswith(IGNORED):
        return replace(finding, answer=IGNORED, evidence="it has a parameter for it, and nothing changes")
    if finding.answer == ABSENT and finding.topic in WIDTHS and adapter.one_width:
        return replace(finding, answer=LOST, evidence="it was built with one width for all inputs")
    return finding
