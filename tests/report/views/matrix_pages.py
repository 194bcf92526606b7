"""The pages of a matrix: implementations of many packages by chapters, clauses and conventions, without network."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from attention_conformance.spec.clauses import chapters
from attention_conformance.spec.conventions import Conventions
from attention_conformance.tests.report import counts
from attention_conformance.tests.report.counts import Counts, Outcome, Row
from attention_conformance.tests.report.model import Run
from attention_conformance.tests.report.views.html import ASSETS, templates
from attention_conformance.tests.report.views.inline import embedded

if TYPE_CHECKING:
    from attention_conformance.tests.report.views.matrix_state import Standing

PAGES = {
    "index.html": "matrix.html",
    "clauses.html": "matrix_clauses.html",
    "conventions.html": "matrix_conventions.html",
    "versions.html": "matrix_versions.html",
}
"""Files and their templates."""


@dataclass(frozen=True)
class Entry:
    """One implementation of the matrix.

    Attributes:
        package: its requirement, such as "keras==3.15.1".
        folder: of its report, relative to the pages.
        note: why it was not judged, or how it differs from the last time.
        finding: what fails, in words.
        run: None where it was not judged.
    """

    name: str
    package: str
    folder: str
    note: str = ""
    finding: str = ""
    run: Run | None = None

    @cached_property
    def row(self) -> Row | None:
        """Its row; None where it was not judged."""
        return counts.counts(self.run)[0] if self.run else None

    @cached_property
    def cells(self) -> Mapping[str, Counts]:
        """By chapter; those alone that its run has."""
        columns = counts.chapters_of(self.run) if self.run else []
        return dict(zip(columns, self.row.cells if self.row else (), strict=True))

    @property
    def broken(self) -> list[str]:
        """The clauses that a MUST fails of."""
        clauses = self.row.total.clauses if self.row else ()
        return [each.clause for each in clauses if each.outcome is Outcome.FAILS]

    @property
    def judged_on(self) -> str:
        """The day, such as 2026-11-23."""
        return self.run.opening.started[:10] if self.run else ""

    @property
    def part(self) -> str:
        """What alone was selected, such as "float32"."""
        suite = self.run.opening.suite if self.run else None
        return ", ".join((*suite.dtypes, *suite.clauses)) if suite else ""


def pages(
    entries: Sequence[Entry], state: Mapping[str, "Standing"], changes: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """The files by name; all text of the runs is shown as text.

    Args:
        entries: all implementations.
        state: how each of them stands and stood, by its folder.
        changes: what is new, a line each.
    """
    judged = [each for each in entries if each.row]
    given = {
        "entries": entries,
        "state": state,
        "changes": changes,
        "judged": judged,
        "packages": len({each.package for each in entries}),
        "conforming": sum(each.row.conformance in counts.HELD for each in judged if each.row),
        "columns": [name for name in chapters() if any(name in each.cells for each in judged)],
        "answers": by_clause(judged),
        "observed": by_observation(judged),
        "claimed": by_convention(judged),
        **embedded(ASSETS / "page.css", ASSETS / "matrix.js"),
    }
    environment = templates()
    for name, template in PAGES.items():
        yield name, environment.get_template(template).render(**given, page=name)


def write(entries: Sequence[Entry], state: Mapping[str, "Standing"], folder: Path, changes: Sequence[str] = ()) -> None:
    """Writes the pages into a folder."""
    for name, text in pages(entries, state, changes):
        (folder / name).write_text(text, encoding="utf-8")


def by_clause(entries: Sequence[Entry]) -> Mapping[str, Mapping[Outcome, list[Entry]]]:
    """Clauses in the order of the specification: for each outcome, the implementations that have it."""
    found: dict[str, dict[Outcome, list[Entry]]] = {}
    for entry in entries:
        for each in entry.row.total.clauses if entry.row else ():
            if each.outcome is not Outcome.UNCLAIMED:
                found.setdefault(each.clause, {}).setdefault(each.outcome, []).append(entry)
    return {clause: found[clause] for clause in sorted(found, key=counts.clause_place)}


def by_observation(entries: Sequence[Entry]) -> Mapping[str, Mapping[str, list[Entry]]]:
    """Topics where the field disagrees: for each answer that was seen, the implementations that give it."""
    found: dict[str, dict[str, list[Entry]]] = {}
    for entry in entries:
        seen = next(iter(entry.run.observed.values()), {}) if entry.run else {}
        for topic, answer in seen.items():
            found.setdefault(topic, {}).setdefault(answer, []).append(entry)
    return found


def by_convention(entries: Sequence[Entry]) -> Mapping[str, Mapping[str, list[Entry]]]:
    """Conventions: for each answer that is not the specification's, the implementations that claim it."""
    found: dict[str, dict[str, list[Entry]]] = {}
    for entry in entries:
        for key, answer in entry.row.subject.conventions.items() if entry.row else ():
            if answer != DEFAULTS[key]:
                found.setdefault(key, {}).setdefault(answer, []).append(entry)
    return {key: found[key] for key in DEFAULTS if key in found}


DEFAULTS = dict(Conventions().items())
