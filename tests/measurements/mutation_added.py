"""Added defects: a stored mutation score with the rows of defects that it lacks, so that these alone are judged."""

from collections.abc import Mapping, Sequence
from typing import Any

from attention_conformance.implementations.defects import Defect
from attention_conformance.tests.measurements.mutation_score import Outcome, smallest_set

COUNTS = ("defects", "killed", "killed in full", "named")


def missing(stored: Mapping[str, Any], defects: Sequence[Defect]) -> list[Defect]:
    """The defects that the stored score has no row of."""
    return [defect for defect in defects if defect.id not in stored["of defects"]]


def with_added(
    stored: Mapping[str, Any], added: Mapping[str, Any], quick: Mapping[str, Outcome], twice: int, few: int
) -> dict[str, Any]:
    """The stored score with one of other defects added; pairs, seconds until a kill and half types stay as they are."""
    totals = {name: stored[name] + added[name] for name in COUNTS}
    clauses = {**stored["of clauses"]}
    for clause, row in added["of clauses"].items():
        clauses[clause] = _joined(clauses[clause], row, few) if clause in clauses else row
    options = {**stored["of options"]}
    for option, row in added["of options"].items():
        options[option] = _joined(options[option], row, few) if option in options else row
    chosen = {*stored["smallest set"]} | {*_needed_too(stored["smallest set"], list(quick.values()), twice)}
    return {
        **stored,
        **totals,
        "of defects": {**stored["of defects"], **added["of defects"]},
        "of clauses": clauses,
        "of options": dict(sorted(options.items())),
        "smallest set": [clause for clause in clauses if clause in chosen],
    }


def _joined(row: Mapping[str, Any], other: Mapping[str, Any], few: int) -> dict[str, Any]:
    joined = {**row, "kills": row["kills"] + other["kills"], "defects": [*row["defects"], *other["defects"]][:few]}
    if "alone" in row:
        joined["alone"] = row["alone"] + other["alone"]
        joined["margin"] = max(row["margin"], other["margin"], key=lambda text: float(text.replace("∞", "inf")))
    return joined


def _needed_too(chosen: Sequence[str], results: Sequence[Outcome], twice: int) -> list[str]:
    """Clauses that kill so often what those that are chosen kill less often."""
    left = [
        each for each in results if sum(clause in chosen for clause in each.clauses) < min(twice, len(each.clauses))
    ]
    return smallest_set(left, twice)
