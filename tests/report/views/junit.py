"""The view for CI systems: junit.xml, a test suite for each implementation, a test case for each clause and dtype."""

import re
from collections.abc import Mapping, Sequence
from shlex import quote
from xml.etree import ElementTree

from attention_conformance.spec.clauses import load
from attention_conformance.tests.report.counts import HELD, Outcome, Row, counts, outcome
from attention_conformance.tests.report.model import Run
from attention_conformance.tests.report.verdict import Verdict
from attention_conformance.tests.report.wording import UNREADABLE, failure_text, one_line, selected

NAME = "attention-conformance"
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text(run: Run) -> str:
    """The run as JUnit XML. A run that is not complete, or judges in part, holds an error with the reason."""
    root = ElementTree.Element("testsuites")
    if not run.closing.complete:
        root.append(_incomplete(run))
    root.extend(_of(run, row) for row in counts(run))
    for number, suite in enumerate(root):
        suite.set("id", str(number))
    ElementTree.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _of(run: Run, row: Row) -> ElementTree.Element:
    properties = {
        "verdict": f"{row.conformance}{row.condition}",
        "clauses": row.total.sentence,
        "diagnosis": run.diagnoses.get(row.subject.name, ""),
        "tier": run.opening.suite.tier,
        "device": run.opening.suite.device,
        "selected": selected(run) or "all",
        "suite": run.opening.suite.version,
        **run.opening.environment,
    }
    cases = [_case(run, verdict) for verdict in row.verdicts]
    cases += [_not_judged(row, name, why) for name, why in row.subject.findings.items() if row.conformance in HELD]
    return _suite(run, one_line(row.subject.name), properties, cases, sum(v.seconds for v in row.verdicts))


def _not_judged(row: Row, name: str, why: str) -> ElementTree.Element:
    """What the interface names and the verdict leaves out, so that no view of a pipeline is green in silence."""
    case = _element("testcase", name=f"{name} is judged", classname=one_line(row.subject.name), time="0.000")
    case.append(_result("error", why, "not judged", f"{why}. --without {quote(name)} states that this is known."))
    return case


def _incomplete(run: Run) -> ElementTree.Element:
    case = _element("testcase", name="the run is complete", classname=NAME, time="0.000")
    message = f"the run is not complete: {run.closing.reason}"
    case.append(_result("error", message, "incomplete", f"{message}. What is missing here was not judged."))
    return _suite(run, NAME, {}, [case], 0.0)


def _suite(
    run: Run, name: str, properties: Mapping[str, str], cases: Sequence[ElementTree.Element], seconds: float
) -> ElementTree.Element:
    """All that the schemas of Ant and Jenkins require, in the order of the stricter one."""
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite = _element(
        "testsuite",
        name=name,
        package=NAME,
        hostname="localhost",
        timestamp=run.opening.started[:19],  # without the time zone, which Ant does not read
        tests=str(len(cases)),
        **{count: str(sum(case.find(tag) is not None for case in cases)) for count, tag in counts.items()},
        time=f"{seconds:.3f}",
    )
    held = ElementTree.SubElement(suite, "properties")
    held.extend(_element("property", name=key, value=one_line(value)) for key, value in properties.items())
    suite.extend([*cases, _element("system-out"), _element("system-err")])
    return suite


def _case(run: Run, verdict: Verdict) -> ElementTree.Element:
    name, seconds = f"{verdict.clause}[{verdict.dtype}]", f"{verdict.seconds:.3f}"
    case = _element("testcase", name=name, classname=one_line(verdict.implementation), time=seconds)
    match outcome(verdict):
        case Outcome.UNCLAIMED:
            case.append(_result("skipped", f"not claimed: {verdict.reason}"))
        case Outcome.UNPROVED:
            case.append(_result("skipped", f"not provable: {verdict.reason}"))
        case Outcome.KNOWN:
            case.append(_result("skipped", f"known deviation: {verdict.reason} {verdict.link}"))
        case Outcome.ERROR:
            case.append(_result("error", verdict.reason, "not judged", verdict.reason))
        case Outcome.FAILS:
            case.append(_result("failure", *_failed(run, verdict)))
        case Outcome.ADVICE:
            case.append(_result("skipped", f"advice ({verdict.level}) not followed: {verdict.message}"))
    return case


def _failed(run: Run, verdict: Verdict) -> tuple[str, str, str]:
    """Message, type and text."""
    failure, clause = failure_text(run, verdict), load().get(verdict.clause)
    lines = [
        clause.statement if clause is not None else "",
        failure.message,
        f"{verdict.failed} of {verdict.checks} checks fail; the smallest case: {failure.case}",
        failure.reduced_message if failure.reduced_message != failure.message else "",
        f"run again: {failure.command}",
    ]
    return failure.message, verdict.level, "\n".join(filter(None, lines))


def _result(tag: str, message: str, kind: str = "", body: str = "") -> ElementTree.Element:
    element = _element(tag, **({"type": kind} if kind else {}), message=one_line(message))
    element.text = _legal(body) or None
    return element


def _element(tag: str, /, **attributes: str) -> ElementTree.Element:
    return ElementTree.Element(tag, {name: _legal(value) for name, value in attributes.items()})


def _legal(text: str) -> str:
    """Characters that XML 1.0 does not allow become a mark; markup is escaped by the writer."""
    return NOT_IN_XML.sub(UNREADABLE, text)
