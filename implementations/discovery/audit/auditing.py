"""Auditing in this process: for targets that are trusted not to end it. `children` runs the same probes apart."""

from __future__ import annotations

from dataclasses import replace

from attention_conformance.implementations.discovery.audit.convention import Convention, find_convention
from attention_conformance.implementations.discovery.audit.findings import Finding
from attention_conformance.implementations.discovery.audit.forms import find_subject
from attention_conformance.implementations.discovery.audit.posing import Subject
from attention_conformance.implementations.discovery.audit.questions import all_asked, heeding
from attention_conformance.implementations.discovery.audit.sides import functions


def audit(target: object, device: str = "cpu") -> tuple[Convention, list[Finding]]:
    """How a target is called, and all that is found of it.

    Raises:
        TargetError: it cannot be called at all.
    """
    convention = find_convention(target, device)
    subject, found = opened(convention, device)
    found = all_asked(subject, found) if subject is not None else found
    return convention, heeding([*found, *functions(convention.functions)], convention.named, convention.tied)


def opened(convention: Convention, device: str) -> tuple[Subject | None, list[Finding]]:
    """The target in a form in which it answers, and what has been found so far."""
    subject, found = find_subject(convention.run, device)
    if subject is not None:
        subject = replace(subject, form=replace(subject.form, mask_shape=convention.mask_shape))
    return subject, [*convention.findings, *found]
