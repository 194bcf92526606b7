"""The mutation score as a page of Markdown, from the result that `make mutation` has stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from attention_conformance.implementations.defects import SCORE, catalogue

INTRODUCTION = """\
# Mutation score

Every defect of [the catalogue](defects.md) is judged as a candidate is: in all dtypes where range or precision
matter, in float64 elsewhere. A margin is an error in units of its rounding bound; ∞ stands for NaN, a wrong shape or an
exception. Seconds count the judging alone, in a process that has judged others before. `make mutation` measures all of
it again."""


def page() -> str:
    """The score, what kills each defect, and what each clause and each option of a case kills."""
    score = json.loads(SCORE.read_text(encoding="utf-8"))
    parts = (_totals, _defects, _clauses, _options, _redundancy)
    return "\n".join([INTRODUCTION, *(line for part in parts for line in part(score))]) + "\n"


def _totals(score: Mapping[str, Any]) -> Iterator[str]:
    defects, first, named = score["defects"], score["first"], score["named"]
    yield ""
    yield f"The quick tier kills {score['killed']} of {defects} defects, the full tier {score['killed in full']}, in"
    yield f"{score['seconds']} s; the first kill comes after {first['median']:.2f} s of judging in the median, after"
    yield f"{first['most']:.1f} s at most."
    yield f"Judged without its name, {named} of {defects} are named first by the diagnosis"
    yield f"({named / defects:.1%}). Of {score['pairs']} implementations with two of the mistakes, drawn at random, the"
    yield f"diagnosis names one of both in {score['pairs named']}."


def _defects(score: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Defects", "")
    yield "| defect | severity | breaks | margin | clauses | checks | dtypes | first kill | diagnosis |"
    yield "| --- | --- | --- | ---: | ---: | ---: | --- | ---: | --- |"
    for defect in catalogue():
        if row := score["of defects"].get(defect.id):
            first = "-" if row["first"] is None else f"{row['first']:.2f} s"
            named = "named" if row["diagnosis"] == defect.id else row["diagnosis"] or "-"
            kills = f"{row['margin']} | {row['clauses']} | {row['checks']} | {', '.join(row['dtypes'])}"
            yield f"| `{defect.id}` | {defect.severity} | {defect.clauses[0]} | {kills} | {first} | {named} |"


def _clauses(score: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Clauses", "", "Alone: defects that no other clause kills.", "")
    yield from ("| clause | kills | alone | largest margin | defects |", "| --- | ---: | ---: | ---: | --- |")
    for clause, row in score["of clauses"].items():
        yield f"| {clause} | {row['kills']} | {row['alone']} | {row['margin']} | {_some(row)} |"


def _options(score: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Options of a case", "")
    yield from ("Defects that show with this option only: without it they would survive.", "")
    yield from ("| option | kills | defects |", "| --- | ---: | --- |")
    for option, row in score["of options"].items():
        yield f"| {option} | {row['kills']} | {_some(row)} |"


def _redundancy(score: Mapping[str, Any]) -> Iterator[str]:
    chosen, clauses = score["smallest set"], score["of clauses"]
    yield from ("", "## Redundancy", "")
    yield f"{len(chosen)} of {len(clauses)} clauses kill each defect twice, or as often as any clause can."
    yield f"The other {len(clauses) - len(chosen)} name mistakes more exactly, and kill nothing that these do not."
    yield ""
    ordered = [clause for clause in clauses if clause in chosen]
    for _, names in groupby(ordered, key=lambda clause: clause.partition(".")[0]):
        yield f"- {', '.join(f'`{name}`' for name in names)}"


def _some(row: Mapping[str, Any]) -> str:
    """The defects that are stored of all that are killed, and how many more there are."""
    more = row["kills"] - len(row["defects"])
    return ", ".join(f"`{name}`" for name in row["defects"]) + (f" and {more} more" if more else "")
