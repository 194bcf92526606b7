"""The mutation score: which defect is killed by which clauses, by what margin, and how fast.

`make mutation` writes implementations/defects/score.json, of which the documentation makes a page, and fails where a
defect survives or a clause is idle.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from attention_conformance.implementations.defects import SCORE, Defect, catalogue
from attention_conformance.tests.harness.judge.clause_tests import clause_tests
from attention_conformance.tests.measurements import half_alone, mutation_score
from attention_conformance.tests.measurements.mutation_added import missing, with_added
from attention_conformance.tests.measurements.pages import store

PAIRS = 40
"""Implementations with two mistakes."""
TWICE = 2
"""Kills of each defect that the smallest set of clauses keeps."""
HALVES = ("bfloat16", "float16")
"""Dtypes that many kernels have alone; the score of candidates that claim nothing else is given next to the first."""
FEW = 5
"""Defects that are stored by name for a clause or an option; the others are counted."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="defects whose id contains this; the score is printed, not written")
    parser.add_argument(
        "--added", action="store_true", help="defects without a stored row alone, which are added to it"
    )
    options = parser.parse_args()
    stored = json.loads(SCORE.read_text(encoding="utf-8"))
    judged = missing(stored, catalogue()) if options.added else catalogue()
    defects = [defect for defect in judged if options.only in defect.id]
    partial = bool(options.only or options.added)
    start = time.perf_counter()
    quick = _quick(defects, options.processes)
    problems = list(mutation_score.complaints(defects, quick, whole=not partial))
    full = mutation_score.rejudged(defects, quick, options.processes)
    pairs = [] if partial else mutation_score.pairs(PAIRS)
    of_pairs = zip(pairs, mutation_score.outcomes(pairs, "quick", options.processes), strict=True)
    halves = () if options.added else HALVES
    alone = {dtype: half_alone.changes(defects, dtype, options.processes) for dtype in halves}
    totals = _totals(quick, full, list(of_pairs), time.perf_counter() - start)
    score = totals | {f"killed in {dtype} alone": half_alone.score(changes) for dtype, changes in alone.items()}
    print("\n".join([*(f"{name}: {value}" for name, value in score.items()), *problems]))
    if options.only:
        return 0
    whole = {**score, **_tables(defects, quick)}
    store(SCORE, with_added(stored, whole, quick, TWICE, FEW) if options.added else whole)
    return 1 if problems else 0


def _quick(defects: Sequence[Defect], processes: int) -> dict[str, mutation_score.Outcome]:
    """The outcome of each defect in the quick tier, by its id."""
    results = {}
    for number, each in enumerate(mutation_score.outcomes([[d] for d in defects], "quick", processes), 1):
        results[each.defect] = each
        print(f"{number}/{len(defects)} {each.defect}: {len(each.clauses)} clauses", file=sys.stderr)
    return results


def _totals(
    quick: Mapping[str, mutation_score.Outcome],
    full: Mapping[str, mutation_score.Outcome],
    pairs: Sequence[tuple[Sequence[Defect], mutation_score.Outcome]],
    seconds: float,
) -> dict[str, Any]:
    firsts = sorted(each.first for each in quick.values() if each.first is not None)
    return {
        "defects": len(quick),
        "killed": sum(bool(each.kills) for each in quick.values()),
        "killed in full": sum(bool(each.kills) for each in full.values()),
        "named": sum(each.diagnosis == each.defect for each in quick.values()),
        "seconds": round(seconds),
        "first": {"median": round(firsts[len(firsts) // 2], 2), "most": round(firsts[-1], 1)} if firsts else {},
        "pairs": len(pairs),
        "pairs named": sum(each.diagnosis in {defect.id for defect in pair} for pair, each in pairs),
    }


def _tables(defects: Sequence[Defect], quick: Mapping[str, mutation_score.Outcome]) -> dict[str, Any]:
    """The rows of the page for each defect, clause and option."""
    alone = mutation_score.sole_kills(quick.values())
    chosen = mutation_score.smallest_set(list(quick.values()), TWICE)
    return {
        "of defects": {defect.id: _of_defect(defect, quick[defect.id]) for defect in defects},
        "of clauses": {clause: _of_clause(clause, quick, alone[clause]) for clause in clause_tests()},
        "of options": {option: _some(names) for option, names in mutation_score.needed(quick.values()).items()},
        "smallest set": [clause for clause in clause_tests() if clause in chosen],
    }


def _of_defect(defect: Defect, each: mutation_score.Outcome) -> dict[str, Any]:
    return {
        "margin": _margin(each.margin(defect.clauses[0])),
        "clauses": len(each.clauses),
        "checks": each.checks,
        "dtypes": list(dict.fromkeys(kill.dtype for kill in each.kills)),
        "first": None if each.first is None else round(each.first, 2),
        "diagnosis": each.diagnosis,
    }


def _of_clause(clause: str, quick: Mapping[str, mutation_score.Outcome], alone: int) -> dict[str, Any]:
    killed = [each for each in quick.values() if clause in each.clauses]
    margin = max((each.margin(clause) for each in killed), default=0.0)
    return {"alone": alone, "margin": _margin(margin), **_some([each.defect for each in killed])}


def _some(names: Sequence[str]) -> dict[str, Any]:
    return {"kills": len(names), "defects": list(names[:FEW])}


def _margin(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.2g}"


if __name__ == "__main__":
    sys.exit(main())
