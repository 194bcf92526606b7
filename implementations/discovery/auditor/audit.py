"""Audits: every probe of a target, in a process of its own, so that a crash or silence costs one answer."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

from attention_conformance.implementations.api.global_state import compute_on_one_thread
from attention_conformance.implementations.api.safe_call import error_line
from attention_conformance.implementations.discovery.auditor import (
    probe_interface,
    probe_masks,
    probe_options,
    probe_results,
    probe_scores,
)
from attention_conformance.implementations.discovery.auditor.adapter import Adapter, find_adapter
from attention_conformance.implementations.discovery.auditor.adapter_text import adapter_text
from attention_conformance.implementations.discovery.auditor.findings import (
    ABSENT,
    ALWAYS,
    IGNORED,
    LOST,
    MASKED_OUT,
    MAY_ATTEND,
    OFFERED,
    Facts,
    Finding,
)
from attention_conformance.implementations.discovery.auditor.probe_interface import find_subject
from attention_conformance.implementations.discovery.auditor.skeleton import Refusal, SkeletonError, skeleton
from attention_conformance.implementations.discovery.extra_options import EXTRA_OPTIONS, UNSEEN
from attention_conformance.implementations.discovery.probe import Oracle, Subject
from attention_conformance.implementations.discovery.targets.loading import TargetError, load_target
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
    **{str(option.feature): probe_options.probe_of(option) for option in EXTRA_OPTIONS if option.feature not in UNSEEN},
    "softcap order": probe_options.softcap_order,
    "empty-row-causal": probe_options.row_beyond_window,
    "containment": probe_results.containment,
    "views": probe_results.views,
    "empty-sizes": probe_results.empty_sizes,
}
"""Every probe, in an order in which each can read what those before it have detected."""
WIDTHS = (Feature.VALUE_WIDTH, Feature.MODEL_WIDTH, Feature.INPUT_WIDTHS)


def audit(target: object, oracle: Oracle, device: str = "cpu") -> tuple[Adapter, list[Finding]]:
    """How a target is run, and all findings, in this process: for targets that do not end it; else `audit_apart`.

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
    if finding.topic in adapter.named and (finding.idle or finding.answer == ALWAYS):
        return replace(finding, answer=IGNORED, evidence="it has a parameter for it, and nothing changes")
    if finding.answer == ABSENT and finding.topic in WIDTHS and adapter.one_width:
        return replace(finding, answer=LOST, evidence="it was built with one width for all inputs")
    return finding


STARTING = 60.0
"""Seconds for a new process to import what it needs, in addition to those for an answer."""


class LostError(Exception):
    """The process has died or has not answered in time; the message states which."""


def audit_apart(
    target: str, oracle: Oracle, device: str, seconds: float, folder: Path | None
) -> tuple[list[Finding], str]:
    """All findings, and the text of an adapter for a folder, if there is one.

    Raises:
        TargetError: the target cannot be used.
        LostError: it ended the process, or did not answer, before anything could be probed.
    """
    child = Child(target, oracle, device, seconds, folder)
    try:
        findings = child.start()
        for probe in PROBES:
            try:
                findings += child.request(probe, findings)
            except LostError as error:
                findings += [Finding(probe, LOST, str(error))]
                child.start()
        findings = child.request("", findings)
        return findings, "" if folder is None else child.request("", findings, folder)
    finally:
        child.end()


@dataclass
class Child:
    """A process that answers requests about one target.

    Attributes:
        seconds: how long to wait for an answer.
        folder: of the adapter that is left to be completed where the target cannot be read; None: none is wanted.
        caution: why the effects of masks and of parameters of unknown names are not probed, see `find_adapter`.
        loaded: whether the target could be imported.
    """

    target: str
    oracle: Oracle
    device: str
    seconds: float
    folder: Path | None = None
    caution: str = ""
    process: BaseProcess | None = None
    connection: Connection[Any, Any] | None = field(default=None, repr=False)
    loaded: bool = False

    def start(self) -> list[Finding]:
        """Loads the target in a fresh process and finds its adapter, with caution where it does not survive that.

        Raises:
            TargetError: it cannot be used.
            LostError: it has ended the process or has not answered in time.
        """
        try:
            return self._start()
        except LostError as error:
            if self.caution or not self.loaded:
                raise
            self.caution = str(error)
        return self._start()

    def _start(self) -> list[Finding]:
        self.end()
        self.loaded = False
        context = get_context("spawn")
        self.connection, child_end = context.Pipe()
        arguments = (child_end, self.target, self.oracle, self.device, self.caution, self.folder)
        self.process = context.Process(target=_serve, args=arguments)
        self.process.start()
        child_end.close()
        for step, more in (("importing it", STARTING), ("calling it", 0.0)):
            try:
                answer = self._answer(self.seconds + more)
            except LostError as error:
                raise LostError(f"{step} {error}") from error
            if isinstance(answer, Refusal):
                raise SkeletonError(answer)
            self.loaded = True
        findings: list[Finding] = answer
        return findings

    def request(self, probe: str, findings: Sequence[Finding], folder: Path | None = None) -> Any:
        """The findings of a probe; without one, all findings in the target's own terms, or the text of the adapter.

        Raises:
            LostError: the process has died or has not answered in time; it has to be started anew.
        """
        assert self.connection is not None
        with contextlib.suppress(OSError):  # that it is gone shows as the answer is read
            self.connection.send((probe, findings, folder))
        return self._answer(self.seconds)

    def _answer(self, seconds: float) -> Any:
        assert self.connection is not None
        if not self.connection.poll(seconds):
            self.end()
            raise LostError(f"gave no answer in {seconds:g} s")
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            raise LostError(self._death()) from None

    def _death(self) -> str:
        assert self.process is not None
        self.process.join(5.0)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"killed the process (signal {-code})"
        return f"ended the process (exit status {code})"

    def end(self) -> None:
        """Ends the process, and those that it has started."""
        if self.process is None or self.connection is None:
            return
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)  # it leads a group of its own
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.process = self.connection = None


def _serve(
    connection: Connection[Any, Any], target: str, oracle: Oracle, device: str, caution: str, wanted: Path | None
) -> None:
    """Answers requests until the other end is closed. What the target prints is discarded."""
    with contextlib.suppress(OSError, AttributeError):
        os.setsid()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    compute_on_one_thread()
    loaded: object = None
    try:
        loaded = load_target(target)
        connection.send([])
        adapter = find_adapter(loaded, device, oracle, caution)
        subject, findings = first_findings(adapter, device, oracle)
    except TargetError as error:
        connection.send(Refusal(str(error), skeleton(target, loaded, str(error), wanted) if wanted else ""))
        return
    except Exception as error:
        connection.send(Refusal(f"its answers could not be read: {error_line(error)}"))
        return
    connection.send(findings if subject is not None else Refusal(findings[-1].evidence))
    while subject is not None:
        try:
            probe, before, folder = connection.recv()
        except EOFError:
            return
        if folder is not None:
            connection.send(adapter_text(target, adapter, before, folder))
        else:
            connection.send(findings_of(probe, subject, before) if probe else in_own_terms(before, adapter))
