"""The state of a matrix, `matrix.json`: how each implementation stands, and what has changed between two states."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from pydantic import TypeAdapter

from attention_conformance.tests.report.views.matrix_pages import DEFAULTS, Entry

FILE = "matrix.json"
NOT_JUDGED = "not judged"
REMEMBERED = 50
"""So many earlier standings of an implementation are kept."""


@dataclass(frozen=True)
class Standing:
    """How one implementation stands.

    Attributes:
        package: its requirement, such as "keras==3.15.1".
        part: what alone was selected, such as "float32".
        judged_on: the day, such as 2026-11-23.
        failing: the clauses that a MUST fails of.
        answers: what it claims where the field disagrees, if that is not the specification's answer.
        finding: what fails, in words; or why it was not judged.
        since: the day on which it first stood so; empty: that on which it was judged.
        earlier: how it stood before, the latest first; these have no such list of their own.
    """

    name: str
    package: str
    verdict: str
    part: str = ""
    judged_on: str = ""
    holding: int = 0
    judged: int = 0
    failing: tuple[str, ...] = ()
    answers: Mapping[str, str] = field(default_factory=dict)
    finding: str = ""
    since: str = ""
    earlier: "tuple[Standing, ...]" = ()

    @property
    def first_day(self) -> str:
        """The day on which it first stood so."""
        return self.since or self.judged_on

    @property
    def versions(self) -> "tuple[Standing, ...]":
        """How it stood, the first time first."""
        return (*reversed(self.earlier), self)


STATE = TypeAdapter(dict[str, Standing])
"""By the name of the file of the package and that of the implementation in it."""


def standings(entries: Sequence[Entry]) -> dict[str, Standing]:
    """The state of all entries."""
    return {each.folder: _standing(each) for each in entries}


def remembering(now: Mapping[str, Standing], old: Mapping[str, Standing]) -> dict[str, Standing]:
    """A state with what stood in an older one: whatever is another version, or has another outcome."""
    return {key: _remembering(each, old.get(key)) for key, each in now.items()}


def _remembering(now: Standing, old: Standing | None) -> Standing:
    if old is None:
        return now
    if any(_changed(old, now)):
        return replace(now, earlier=(replace(old, earlier=()), *old.earlier)[:REMEMBERED])
    since = old.first_day if old.first_day != now.judged_on else ""
    return replace(now, since=since, earlier=old.earlier)


def write_state(found: Mapping[str, Standing], folder: Path) -> None:
    """Writes a state into a folder."""
    (folder / FILE).write_bytes(STATE.dump_json(dict(found), indent=1, exclude_defaults=True) + b"\n")


def read_state(file: Path) -> dict[str, Standing]:
    """The state in a file.

    Raises:
        ValueError: it cannot be read, or holds something else.
    """
    try:
        return STATE.validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is no state of a matrix: {type(error).__name__}") from None


def changes(old: Mapping[str, Standing], new: Mapping[str, Standing]) -> Iterator[str]:
    """What a reader of the old state has to know of the new one, a line each; new implementations last."""
    for key in sorted(old.keys() - new.keys()):
        yield f"{old[key].name} of {old[key].package} is gone"
    for key in sorted(old.keys() & new.keys()):
        yield from _changed(old[key], new[key])
    for key in sorted(new.keys() - old.keys()):
        yield _first(new[key])


def history(standing: Standing) -> Iterator[tuple[str, list[str]]]:
    """The days on which an implementation changed, the first time first, with what to know of it."""
    first = standing.versions[0]
    yield first.first_day, [_first(first)]
    for old, new in pairwise(standing.versions):
        yield new.first_day, list(_changed(old, new))


def _first(new: Standing) -> str:
    return f"{new.name} of {new.package} is new: {new.verdict}"


def _changed(old: Standing, new: Standing) -> Iterator[str]:
    if old.package != new.package:
        yield f"{new.name}: {old.package} was judged before, {new.package} now"
    if old.verdict != new.verdict:
        yield f"{new.name} of {new.package}: {new.verdict}; before: {old.verdict}"
    failing, mended = {*new.failing} - {*old.failing}, {*old.failing} - {*new.failing}
    for what, clauses in (("fails now", failing), ("does not fail any more", mended)):
        if clauses and NOT_JUDGED not in (old.verdict, new.verdict):
            yield f"{new.name} of {new.package}: {what}: {', '.join(sorted(clauses))}"
    if old.answers != new.answers:
        yield f"{new.name} of {new.package} claims other answers where the field disagrees"


def _standing(entry: Entry) -> Standing:
    if entry.row is None:
        return Standing(entry.name, entry.package, NOT_JUDGED, finding=entry.note)
    total = entry.row.total
    return Standing(
        entry.name,
        entry.package,
        str(entry.row.conformance),
        entry.part,
        entry.judged_on,
        total.holds,
        total.judged,
        tuple(entry.broken),
        {key: answer for key, answer in entry.row.subject.conventions.items() if answer != DEFAULTS[key]},
        " ".join(entry.finding.split()),
    )
