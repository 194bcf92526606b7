"""The view for programs: report.json, which follows `SCHEMA_FILE`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attention_conformance.tests.report.counts import BROKEN, Counts, Outcome, Row, counts
from attention_conformance.tests.report.model import Run

SCHEMA = "attention-conformance/report/2"
SCHEMA_FILE = Path(__file__).with_name("report.schema.json")


def text(run: Run) -> str:
    """The report as JSON."""
    suite, closing = run.opening.suite, run.closing
    selection = {"device": suite.device, "clauses": list(suite.clauses), "dtypes": list(suite.dtypes)}
    if suite.shard:
        selection["shard"] = suite.shard
    report = {
        "schema": SCHEMA,
        "suite": {"version": suite.version, "specification": suite.spec, "tier": suite.tier, **selection},
        "environment": dict(run.opening.environment),
        "implementations": [_entry(row, run) for row in counts(run)],
        "completion": {"complete": closing.complete, "reason": closing.reason, "verdicts": closing.verdicts},
    }
    return json.dumps(report, indent=1, allow_nan=False) + "\n"


def _entry(row: Row, run: Run) -> dict[str, Any]:
    subject = row.subject
    extent = {"scope": subject.scope, "features": list(subject.features), "dtypes": list(subject.dtypes)}
    return {
        "name": subject.name,
        "description": subject.about,
        "isolated": subject.isolated,
        "claims": {**extent, "conventions": dict(subject.conventions), "premises": list(subject.premises)},
        "verdict": row.conformance,
        "findings": dict(subject.findings),
        "as_seen": list(subject.as_seen),
        "stated": list(subject.stated),
        "unclaimed": list(subject.unclaimed),
        "counts": _numbers(row.total),
        "chapters": {cell.chapter: _numbers(cell) for cell in row.cells if cell.clauses},
        "diagnosis": run.diagnoses.get(subject.name, ""),
        "observed": dict(run.observed.get(subject.name, {})),
        "verdicts": [asdict(v) for v in row.verdicts],
    }


def _numbers(counted: Counts) -> dict[str, int]:
    """How many clauses were judged, hold, do not hold, and are not provable, by the names of their outcomes."""
    outcomes = (Outcome.HOLDS, *BROKEN, Outcome.UNPROVED)
    return {"judged": counted.judged, **{kind.word: counted.number(kind) for kind in outcomes}}
