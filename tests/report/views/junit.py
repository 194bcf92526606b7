"""The view for CI systems: junit.xml, a test suite for each implementation, a test case for each clause and dtype."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from attention_conformance.spec.clauses import load
from attention_conformance.tests.report.model import Run, Subject, overall
from attention_conformance.tests.report.text import UNREADABLE, plain, selected, told
from attention_conformance.tests.report.verdict import Status, Verdict

NAME = "attention-conformance"
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text(run: Run) -> str:
    """The run as JUnit XML. A run that is not complete holds an error that says so."""
    root = ElementTree.Element("testsuites")
    if not run.closing.complete:
        root.append(_incomplete(run))
    root.extend(_of(run, subject, run.of(subject.name)) for subject in run.begin.subjects)
    for number, suite in enumerate(root):
        suite.set("id", str(number))
    ElementTree.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _of(run: Run, subject: Subject, mine: Sequence[Verdict]) -> ElementTree.Element:
    properties = {
        "verdict": overall(mine),
        "diagnosis": run.diagnoses.get(subject.name, ""),
        "tier": run.begin.suite.tier,
        "device": run.begin.suite.device,
        "asked": selected(run) or "all",
        "suite": run.begin.suite.version,
        **run.begin.environment,
    }
    cases = [_case(run, verdict) for verdict in mine]
    return _suite(run, plain(subject.name), properties, cases, sum(v.seconds for v in mine))


def _incomplete(run: Run) -> ElementTree.Element:
    case = _element("testcase", name="the run is complete", classname=NAME, time="0.000")
    context = f"the run is not complete: {run.closing.reason}"
    case.append(_outcome("error", context, "incomplete", f"{context}. What is missing here was not judged."))
    return _suite(run, NAME, {}, [case], 0.0)


def _suite(
    run: Run, name: str, properties: Mapping[str, str], cases: Sequence[ElementTree.Element], seconds: float
) -> ElementTree.Element:
    """All that the schemas of Ant and Jenkins ask for, in the order of the stricter one."""
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite = _element(
        "testsuite",
        name=name,
        package=NAME,
        hostname="localhost",
        timestamp=run.begin.started[:19],  # without the time zone, which Ant does not read
        tests=str(len(cases)),
        **{count: str(sum(case.find(tag) is not None for case in cases)) for count, tag in counts.items()},
        time=f"{seconds:.3f}",
    )
    held = ElementTree.SubElement(suite, "properties")
    held.extend(_element("property", name=key, value=plain(value)) for key, value in properties.items())
    suite.extend([*cases, _element("system-out"), _element("system-err")])
    return suite


def _case(run: Run, verdict: Verdict) -> ElementTree.Element:
    name, seconds = f"{verdict.clause}[{verdict.dtype}]", f"{verdict.seconds:.3f}"
    case = _element("testcase", name=name, classname=plain(verdict.implementation), time=seconds)
    match verdict.status:
        case Status.NOT_CLAIMED:
            case.append(_outcome("skipped", f"not claimed: {verdict.reason}"))
        case Status.EXPECTED_FAILURE:
            case.append(_outcome("skipped", f"known deviation: {verdict.reason} {verdict.link}"))
        case Status.ERROR:
            case.append(_outcome("error", verdict.reason, "not judged", verdict.reason))
        case Status.FAIL if verdict.level == "MUST":
            case.append(_outcome("failure", *_failed(run, verdict)))
        case Status.FAIL:
            case.append(_outcome("skipped", f"advice ({verdict.level}) not followed: {told(run, verdict).message}"))
    return case


def _failed(run: Run, verdict: Verdict) -> tuple[str, str, str]:
    """Message, type and text."""
    found, clause = told(run, verdict), load().get(verdict.clause)
    lines = [
        clause.statement if clause is not None else "",
        found.message,
        f"{verdict.failed} of {verdict.checks} checks fail; the smallest case: {found.case}",
        found.answer if found.answer != found.message else "",
        f"again: {found.again}",
    ]
    return found.message, verdict.level, "\n".join(filter(None, lines))


def _outcome(tag: str, message: str, kind: str = "", body: str = "") -> ElementTree.Element:
    made = _element(tag, **({"type": kind} if kind else {}), message=plain(message))
    made.text = _legal(body) or None
    return made


def _element(tag: str, /, **attributes: str) -> ElementTree.Element:
    return ElementTree.Element(tag, {name: _legal(value) for name, value in attributes.items()})


def _legal(text: str) -> str:
    """What XML 1.0 has no place for becomes a mark; markup is escaped by the writer."""
    return NOT_IN_XML.sub(UNREADABLE, text)
