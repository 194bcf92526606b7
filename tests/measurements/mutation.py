"""The mutation score: which defect is killed by which clauses, by what margin, and how fast.

`make mutation` writes docs/mutation.md and fails where a defect survives or a clause is idle.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attention_conformance.implementations.defects import SCORE, Defect, catalogue
from attention_conformance.tests.harness.judge.clause_tests import clause_marks
from attention_conformance.tests.measurements.mutation_score import (
    Outcome,
    complaints,
    needed,
    outcomes,
    pair_outcomes,
    rejudged,
    smallest_sets,
    sole_kills,
)

PAGE = Path(__file__).parents[2] / "docs" / "mutation.md"
PAIRS = 40
"""Implementations with two mistakes."""
TWICE = 2
"""Kills of each defect that the smallest set of clauses keeps."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="defects whose id contains this; the page is not written")
    options = parser.parse_args()
    defects = [defect for defect in catalogue() if options.only in defect.id]
    start = time.perf_counter()
    found = {}
    for number, each in enumerate(outcomes(defects, "quick", options.processes), 1):
        found[each.defect] = each
        print(f"{number}/{len(defects)} {each.defect}: {len(each.clauses)} clauses", file=sys.stderr)
    problems = list(complaints(defects, found))
    in_full = rejudged(defects, found, options.processes)
    paired = [] if options.only else list(pair_outcomes(PAIRS, options.processes))
    seconds = time.perf_counter() - start
    told = [_score(found, in_full, seconds), _accuracy(found), _of_pairs(paired)]
    page = "\n".join(_page(defects, found, problems, told))
    if options.only:
        print(page)
        return 0
    PAGE.write_text(page + "\n")
    killed, named = (sum(map(test, found.values())) for test in (_killed, _is_named))
    SCORE.write_text(json.dumps({"defects": len(found), "killed": killed, "named": named}) + "\n")
    print("\n".join([*told, *problems, f"written: {PAGE.name}"]))
    return 1 if problems else 0


def _killed(each: Outcome) -> bool:
    return bool(each.kills)


def _is_named(each: Outcome) -> bool:
    return each.diagnosis == each.defect


def _score(found: Mapping[str, Outcome], in_full: Mapping[str, Outcome], seconds: float) -> str:
    quick, full = (sum(map(_killed, tier.values())) for tier in (found, in_full))
    firsts = sorted(each.first for each in found.values() if each.first is not None)
    median = firsts[len(firsts) // 2] if firsts else math.nan
    return (
        f"The quick tier kills {quick} of {len(found)} defects, the full tier {full}, in {seconds:.0f} s; "
        f"the first kill comes after {median:.2f} s of judging in the median, after {max(firsts):.1f} s at most."
    )


def _accuracy(found: Mapping[str, Outcome]) -> str:
    named = sum(map(_is_named, found.values()))
    return (
        f"Judged without its name, {named} of {len(found)} are named first by the diagnosis ({named / len(found):.1%})."
    )


def _of_pairs(paired: Sequence[tuple[tuple[str, str], Outcome]]) -> str:
    named = sum(each.diagnosis in names for names, each in paired)
    return (
        f"Of {len(paired)} implementations with two of the mistakes, drawn at random, it names one of both in {named}."
    )


def _page(
    defects: Sequence[Defect], found: Mapping[str, Outcome], problems: Sequence[str], told: Sequence[str]
) -> Iterator[str]:
    yield "# Mutation score"
    yield ""
    yield "Written by `make mutation`: every defect of the catalogue (`pytest --list-defects`) is judged as a candidate"
    yield "is: in all dtypes where range or precision matter; in float64 elsewhere."
    yield "A margin is an error in units of its rounding bound; ∞ stands for NaN, a wrong shape or"
    yield "an exception. Seconds count the judging alone, in a process that has judged others before."
    yield ""
    yield from told
    yield ""
    yield from (f"- **{problem}**" for problem in problems)
    yield from _defect_table(defects, found)
    yield from _clause_table(found)
    yield from _liveness(found)
    yield from _redundancy(found)


def _defect_table(defects: Sequence[Defect], found: Mapping[str, Outcome]) -> Iterator[str]:
    yield from (
        "",
        "## Defects",
        "",
        "| defect | severity | breaks | margin | clauses | checks | dtypes | first kill | diagnosis |",
    )
    yield "| --- | --- | --- | ---: | ---: | ---: | --- | ---: | --- |"
    for defect in defects:
        each, clause = found[defect.id], defect.clauses[0]
        dtypes = ", ".join(dict.fromkeys(kill.dtype for kill in each.kills))
        first = "-" if each.first is None else f"{each.first:.2f} s"
        yield (
            f"| {defect.id} | {defect.severity} | {clause} | {_margin(each.margin(clause))} | {len(each.clauses)} | "
            f"{each.checks} | {dtypes} | {first} | {_named(each)} |"
        )


def _named(each: Outcome) -> str:
    return "named" if each.diagnosis == each.defect else each.diagnosis or "-"


def _clause_table(found: Mapping[str, Outcome]) -> Iterator[str]:
    alone = sole_kills(found.values())
    yield from (
        "",
        "## Clauses",
        "",
        "| clause | kills | alone | largest margin | defects |",
        "| --- | ---: | ---: | ---: | --- |",
    )
    for clause in clause_marks():
        killed = [each for each in found.values() if clause in each.clauses]
        margin = max((each.margin(clause) for each in killed), default=0.0)
        names = ", ".join(each.defect for each in killed)
        yield f"| {clause} | {len(killed)} | {alone[clause]} | {_margin(margin)} | {names} |"


def _liveness(found: Mapping[str, Outcome]) -> Iterator[str]:
    yield from (
        "",
        "## Options of a case",
        "",
        "Defects that show with this option only, so that without it they would survive.",
        "",
    )
    yield from ("| option | defects |", "| --- | --- |")
    yield from (f"| {option} | {', '.join(names)} |" for option, names in needed(found.values()).items())


def _redundancy(found: Mapping[str, Outcome]) -> Iterator[str]:
    chosen = smallest_sets(list(found.values()), TWICE)
    rest = [clause for clause in clause_marks() if clause not in chosen]
    yield from ("", "## Redundancy", "")
    yield f"{len(chosen)} of {len(clause_marks())} clauses kill each defect twice, or as often as any clause can:"
    yield from ("", ", ".join(chosen) + ".", "")
    yield f"The other {len(rest)} name mistakes more exactly, and kill nothing that these do not: {', '.join(rest)}."


def _margin(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.2g}"


if __name__ == "__main__":
    sys.exit(main())
