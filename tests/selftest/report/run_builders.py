"""Reports for the tests of views: runs put together by hand, and text that tries to break out of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attention_conformance.spec.cases import Case
from attention_conformance.tests.report import log, model
from attention_conformance.tests.report.verdict import Failure, Status, Verdict

LINK = "https://example.org/issues/1"
HOSTILE = (
    "</details><script>alert(1)</script> ]]> & | `` ``` `x` **b** [l](https://evil.example) @octocat #1 :smile:\n"
    "# heading\r\n- item\x00\x1b[31m\x0b\u202e\ud800\ufffe www.evil.example <!-- $x$ GH-7"
)
"""Markup that must not come to life in any view."""
SUITE = model.Suite("0.1.0", "0.1", "quick", "cpu", (), 553, 553)
FEATURES = ("core", "cross", "heads", "bool-mask", "float-mask", "causal", "scale", "gradients", "key-value")


def passed(name: str, clause: str, dtype: str = "float64", worst: float | None = 0.25) -> Verdict:
    return Verdict(clause, "MUST", name, dtype, Status.PASS, checks=3, worst=worst, seconds=0.125)


def failed(name: str, clause: str, dtype: str = "float64", message: str = "off", level: str = "MUST") -> Verdict:
    failure = Failure(message, Case().to_json(), dtype, "output")
    return Verdict(clause, level, name, dtype, Status.FAIL, checks=3, failed=1, worst=9.0, seconds=0.5, failure=failure)


def known(name: str, clause: str, dtype: str = "float64", reason: str = "reported", link: str = LINK) -> Verdict:
    failing = failed(name, clause, dtype)
    return replace(failing, status=Status.EXPECTED_FAILURE, reason=reason, link=link)


def unclaimed(name: str, clause: str, dtype: str = "float64", reason: str = "no masks") -> Verdict:
    return Verdict(clause, "MUST", name, dtype, Status.NOT_CLAIMED, reason=reason)


def unjudged(name: str, clause: str, dtype: str = "float64", reason: str = "too wide", checks: int = 0) -> Verdict:
    return Verdict(clause, "MUST", name, dtype, Status.ERROR, checks=checks, reason=reason)


def subject(name: str, target: str = "", **fields: object) -> model.Subject:
    plain = model.Subject(
        name, "a function", "op", FEATURES, ("float64", "float32"), {"bool-mask": "may-attend"}, target
    )
    return replace(plain, **fields)  # type: ignore[arg-type]  # a test names what differs


def run(
    *verdicts: Verdict,
    subjects: Sequence[model.Subject] = (),
    reason: str = "",
    suite: model.Suite = SUITE,
    environment: Mapping[str, str] | None = None,
    **records: Any,
) -> model.Run:
    """A run of these verdicts and other records; `reason` makes it one that is not complete."""
    named = subjects or [subject(name) for name in dict.fromkeys(v.implementation for v in verdicts)]
    opening = model.Opening(
        model.SCHEMA, "2026-01-02T03:04:05+00:00", suite, environment or {"torch": "2.9"}, tuple(named)
    )
    return model.Run(opening, verdicts, model.Closing(not reason, reason, len(verdicts), 1.5), **records)


def write_log(folder: Path, run: model.Run) -> Path:
    """Writes the event log of a run into a folder, and returns the folder."""
    folder.mkdir(exist_ok=True)
    log.write_log(run, folder)
    return folder
