"""Seconds of a check of each clause, from the log of a run of the built-in implementations.

`python -m attention_conformance.tests.measurements.clause_seconds REPORT` reads them for `--shard`.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

from attention_conformance.spec.clauses import load
from attention_conformance.tests.harness.run.plan.sharding import SECONDS
from attention_conformance.tests.report.log import replay


def main(folder: Path) -> None:
    """Writes the file."""
    taken = defaultdict[str, list[float]](list)
    for verdict in replay(folder).verdicts:
        taken[verdict.clause].append(verdict.seconds)
    means = {clause: float(f"{mean(taken[clause]):.2g}") for clause in load() if clause in taken}
    SECONDS.write_text(json.dumps(means, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
