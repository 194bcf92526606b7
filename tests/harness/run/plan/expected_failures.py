"""Expected failures: the file that lists the clauses a candidate breaks, with the reason and a public link."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from attention_conformance.implementations.api.contract import ExpectedFailure, Implementation
from attention_conformance.implementations.defects import catalogue
from attention_conformance.implementations.discovery.targets.loading import Target
from attention_conformance.spec.clauses import load
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.clause_tests import claimed
from attention_conformance.tests.report.verdict import FailureKind, Status, Verdict

FILE = "expected_failures.toml"
TABLE = "expected"
REQUIRED = ("clause", "reason", "link")
KEYS = (*REQUIRED, "dtypes", "candidate", "expires")


class ExpectingError(ValueError):
    """A file of expected failures that cannot be used; the message is one line that names the entry."""


@dataclass(frozen=True)
class Entry:
    """One `[[expected]]` of the file.

    Attributes:
        candidate: the name of the implementation that it is about; empty for every candidate in its folder.
        expires: the last day on which it is valid.
        place: the file and the number of the entry, for messages.
    """

    failure: ExpectedFailure
    candidate: str
    expires: date | None
    place: str


def read(path: Path) -> tuple[Entry, ...]:
    """The entries of a file.

    Raises:
        ExpectingError: it cannot be read, or an entry has an unknown key or clause, or lacks what it needs.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExpectingError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ExpectingError(f"{path} is no TOML: {error}") from None
    _require_known(str(path), "table", data, (TABLE,))
    tables = data.get(TABLE, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ExpectingError(f"{path}: write each entry below a line [[{TABLE}]]")
    return tuple(_entry(table, f"{path}, entry {number}") for number, table in enumerate(tables, 1))


def _entry(table: Mapping[str, Any], place: str) -> Entry:
    _require_known(place, "key", table, KEYS)
    for key in REQUIRED:
        if key not in table:
            raise ExpectingError(f"{place} lacks {key!r}: an entry has {', '.join(REQUIRED)}")
    dtypes, expires = table.get("dtypes", []), table.get("expires")
    texts = [table[key] for key in (*REQUIRED, "candidate") if key in table]
    if not all(isinstance(text, str) for text in texts) or not isinstance(dtypes, list):
        raise ExpectingError(f"{place}: {', '.join(REQUIRED)} and candidate are strings, dtypes is a list of strings")
    if expires is not None and type(expires) is not date:
        raise ExpectingError(f"{place}: expires is {expires!r}, and has to be a date, such as 2027-01-31, unquoted")
    _require_known(place, "clause", [table["clause"]], list(load()))
    _require_known(place, "dtype", dtypes, list(DTYPES))
    try:
        failure = ExpectedFailure(table["clause"], table["reason"], table["link"], tuple(dtypes))
    except ValueError as error:
        raise ExpectingError(f"{place}: {error}") from None
    return Entry(failure, table.get("candidate", ""), expires, place)


def _require_known(place: str, kind: str, names: Mapping[str, Any] | Sequence[Any], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            near = get_close_matches(str(name), known, 1, 0.4)
            remedy = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known[:6])}"
            raise ExpectingError(f"{place}: no {kind} is named {name!r}; {remedy}")


def next_to(target: str) -> Path:
    """Where the file of a candidate is looked for: in the folder of its own file, or else in the current one."""
    if not target:
        return Path(FILE)
    parsed = Target.parse(target)
    return (Path(parsed.place).parent if parsed.is_file else Path()) / FILE


def expecting(
    candidates: Sequence[Implementation], targets: Sequence[str], named: Path | None, today: date
) -> tuple[tuple[Implementation, ...], tuple[str, ...]]:
    """The candidates with their expected failures, and a line for each entry that has expired.

    Args:
        candidates: to be judged.
        targets: theirs, in the same order; empty for what a command starts.
        named: the file for all of them; None looks in the folder of each.
        today: the day on which entries have expired or not.

    Raises:
        ExpectingError: a file cannot be used, or has an entry that concerns no candidate.
    """
    files = [named or next_to(target) for target in targets]
    entries = {file: read(file) for file in dict.fromkeys(files) if named or file.exists()}
    groups = {file: [c for c, f in zip(candidates, files, strict=True) if f == file] for file in entries}
    for file, listed in entries.items():
        for entry in listed:
            _require_checked(entry, groups[file])
    expired = [entry for listed in entries.values() for entry in listed if entry.expires and entry.expires < today]
    notes = [f"{e.place} expired on {e.expires}, and no longer excuses {e.failure.clause}" for e in expired]
    valid = {file: [entry for entry in listed if entry not in expired] for file, listed in entries.items()}
    pairs = zip(candidates, files, strict=True)
    return tuple(_with(candidate, valid.get(file, ())) for candidate, file in pairs), tuple(notes)


def _require_checked(entry: Entry, candidates: Sequence[Implementation]) -> None:
    described = [c for c in candidates if entry.candidate in ("", c.name)]
    if not described and len(candidates) > 1:
        _require_known(entry.place, "candidate", [entry.candidate], [c.name for c in candidates])
    clause = load()[entry.failure.clause]
    reasons = [claimed(clause, c.claims) for c in described]
    if described and all(reasons):
        name = described[0].name
        raise ExpectingError(f"{entry.place}: {clause.id} is not checked, as {name} {reasons[0]}: remove it")


def _with(candidate: Implementation, entries: Sequence[Entry]) -> Implementation:
    listed = [entry.failure for entry in entries if entry.candidate in ("", candidate.name)]
    return replace(candidate, expected_failures=(*listed, *candidate.expected_failures))


def proposed(verdicts: Sequence[Verdict], diagnoses: Mapping[str, str]) -> Iterator[str]:
    """The entries for what fails now, as lines of the file. Each lacks its link, without which it is refused."""
    failing = [v for v in verdicts if v.status is Status.FAIL and v.level == "MUST"]
    if not failing:
        yield f"# nothing fails that MUST hold: {FILE} needs no entry"
        return
    yield f"# {FILE}, for the folder of the candidate: fill in each link with the public report of the deviation"
    for implementation, clause in dict.fromkeys((v.implementation, v.clause) for v in failing):
        own = [v for v in verdicts if (v.implementation, v.clause) == (implementation, clause)]
        failed = [v for v in own if v in failing]
        yield ""
        yield f"[[{TABLE}]]"
        yield f"clause = {_text(clause)}"
        yield f"candidate = {_text(implementation)}"
        if len(failed) < len([v for v in own if v.status is not Status.NOT_CLAIMED]):
            yield f"dtypes = [{', '.join(_text(v.dtype) for v in failed)}]"
        yield f"reason = {_text(_reason(clause, failed[0], diagnoses.get(implementation, '')))}"
        yield 'link = ""'
    yield ""
    yield f"# end of {FILE}"


def _reason(clause: str, verdict: Verdict, diagnosis: str) -> str:
    """The mistake of the diagnosis, where it breaks this clause; else the failure, without numbers of this machine."""
    named = [defect for defect in catalogue() if f"`{defect.id}`" in diagnosis and clause in defect.clauses]
    if named:
        return f"{named[0].id}: {named[0].text.does}"
    failure = verdict.failure
    if failure is None or failure.kind is not FailureKind.VALUE:
        return verdict.message if failure is None else failure.summary or failure.message
    return ": ".join(filter(None, [failure.summary, f"{failure.part or 'an answer'} is not within its bound"]))


def _text(text: str) -> str:
    """A basic string of TOML, which JSON's strings are."""
    return json.dumps(" ".join(text.split()), ensure_ascii=False)
