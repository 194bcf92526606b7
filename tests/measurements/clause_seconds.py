"""Seconds of a check of each clause, from the logs of runs: of the built-in implementations, and of one alone.

`python -m attention_conformance.tests.measurements.clause_seconds REPORT ...` reads them for `--shard`. The last run
that has a clause counts: where many are judged together, the reference answers once for all of them.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from attention_conformance.spec.clauses import load
from attention_conformance.tests.harness.run.plan.sharding import SECONDS
from attention_conformance.tests.report.log import replay


def main(folders: Sequence[Path]) -> None:
    """Writes the file."""
    means = dict[str, float]()
    for folder in folders:
        taken = defaultdict[str, list[float]](list)
        for verdict in replay(folder).verdicts:
            taken[verdict.clause].append(verdict.seconds)
        means |= {clause: float(f"{mean(each):.2g}") for clause, each in taken.items()}
    ordered = {clause: means[clause] for clause in load() if clause in means}
    SECONDS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:]])
