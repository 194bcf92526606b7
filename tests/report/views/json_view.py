"""The view for programs: report.json, which follows `SCHEMA_FILE`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attention_conformance.tests.report.model import Run, Subject, overall
from attention_conformance.tests.report.verdict import Verdict

SCHEMA = "attention-conformance/report/1"
SCHEMA_FILE = Path(__file__).with_name("report.schema.json")


def text(run: Run) -> str:
    """The report as JSON."""
    suite, closing = run.begin.suite, run.closing
    report = {
        "schema": SCHEMA,
        "suite": {
            "version": suite.version,
            "spec": suite.spec,
            "tier": suite.tier,
            "device": suite.device,
            "clauses": list(suite.clauses),
            "dtypes": list(suite.dtypes),
        },
        "environment": dict(run.begin.environment),
        "implementations": [_entry(subject, run.of(subject.name), run) for subject in run.begin.subjects],
        "closing": {"complete": closing.complete, "reason": closing.reason, "verdicts": closing.verdicts},
    }
    return json.dumps(report, indent=1, allow_nan=False) + "\n"


def _entry(subject: Subject, mine: Sequence[Verdict], run: Run) -> dict[str, Any]:
    return {
        "name": subject.name,
        "about": subject.about,
        "claims": {
            "scope": subject.scope,
            "features": list(subject.features),
            "dtypes": list(subject.dtypes),
            "conventions": dict(subject.conventions),
        },
        "verdict": overall(mine),
        "diagnosis": run.diagnoses.get(subject.name, ""),
        "observed": dict(run.observed.get(subject.name, {})),
        "clauses": [json.loads(v.to_json()) for v in mine],
    }
