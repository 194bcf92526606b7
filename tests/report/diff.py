"""Difference of two reports, OLD and NEW: which verdicts changed, and which of them got worse.

OLD and NEW are folders of --report, or the event logs in them. Only verdicts that both runs have are compared.
Exit status: 0 nothing got worse, 1 something did or the new run is not complete, 4 a report cannot be read or compared.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

from attention_conformance.spec.clauses import load
from attention_conformance.tests.report.counts import clause_place, conformance, dtype_place
from attention_conformance.tests.report.log import FILE, LogError, replay
from attention_conformance.tests.report.model import Key, Run, key_of
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.report.views.markdown import code, in_table
from attention_conformance.tests.report.wording import one_line

SCHEMA = "attention-conformance/diff/2"
WORSE, UNUSABLE = 1, 4
GROWN, NOTABLE = 2.0, 0.5
"""An error of a pass is noted if it is so many times the former one, and beyond this fraction of its bound."""
MOST_ROWS = 40
"""Of one kind, so that all of it fits into a comment."""


class ChangeKind(StrEnum):
    """How a verdict changed, or that an implementation came or went; in the order of the lists."""

    FAILING = "newly failing"
    UNJUDGED = "no longer judged"
    UNPROVED = "no longer provable"
    UNCLAIMED = "no longer claimed"
    GONE = "implementations gone"
    PASSING = "newly passing"
    MENDED = "known deviations that pass now"
    KNOWN = "failures that are known deviations now"
    CLAIMED = "newly claimed"
    NEW = "new implementations"
    GROWN = "notes: errors that have grown within their bounds"


@dataclass(frozen=True)
class Change:
    """One change. `clause` and `dtype` are empty if an implementation came or went.

    Attributes:
        old, new: the verdicts; empty if there was none.
        worse: whether less holds, or less is known to hold, than before.
        reason: of the new verdict, or the message of its failure.
    """

    kind: ChangeKind
    implementation: str
    clause: str
    dtype: str
    old: str
    new: str
    worse: bool
    reason: str = ""


@dataclass(frozen=True)
class Diff:
    """The difference of two runs.

    Attributes:
        settings: differences between the runs themselves, such as versions; they may explain the changes.
        only_old, only_new: verdicts that the other run did not select, or did not reach.
    """

    old: Run
    new: Run
    settings: tuple[str, ...]
    changes: tuple[Change, ...]
    compared: int
    only_old: int
    only_new: int

    @property
    def worse(self) -> bool:
        """Whether something got worse, or that is unknown because the new run is not complete."""
        return not self.new.closing.complete or any(change.worse for change in self.changes)


class IncomparableError(ValueError):
    """The runs cannot be compared; the message is one line with the remedy."""


def diff(old: Path, new: Path, layout: str = "text") -> int:
    """Prints the changes in a layout of `FORMATS`; the exit status is 1 if something got worse."""
    try:
        changes = compared(run_of(old), run_of(new))
    except (LogError, IncomparableError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return UNUSABLE
    print("\n".join(FORMATS[layout](changes)))
    return WORSE if changes.worse else 0


def run_of(path: Path) -> Run:
    """The run of a report.

    Raises:
        LogError: this is no report, or none that can be read.
    """
    if path.is_file() and path.name != FILE:
        raise LogError(f"{path} is no event log: give the folder of --report, or the {FILE} in it")
    return replay(path.parent if path.is_file() else path)


def compared(old: Run, new: Run) -> Diff:
    """The changes from one run to the other. A verdict that one run lacks for want of a claim is "not claimed" there.

    Raises:
        IncomparableError: they have no verdict in common.
    """
    before, after = ({key_of(v): v for v in run.verdicts} for run in (old, new))
    both = before.keys() & after.keys()
    if not both:
        raise IncomparableError(
            f"the reports have no verdict in common (old: {_contents(old)}; new: {_contents(new)}): "
            "judge the same implementations and clauses"
        )
    old_alone, new_alone = before.keys() - both, after.keys() - both
    before |= {key: verdict for key in new_alone if (verdict := _unclaimed(after[key], old))}
    after |= {key: verdict for key in old_alone if (verdict := _unclaimed(before[key], new))}
    changes = [change for key in before.keys() & after.keys() if (change := _change(before[key], after[key]))]
    return Diff(
        old,
        new,
        tuple(_settings_apart(old, new)),
        tuple(sorted([*changes, *_implementations(old, new)], key=_place)),
        len(both),
        _alone(before.keys() - after.keys(), _names(old) - _names(new)),
        _alone(after.keys() - before.keys(), _names(new) - _names(old)),
    )


def _alone(keys: Set[Key], without: Set[str]) -> int:
    """The number of verdicts that only one run has, except those of implementations that only this run has."""
    return sum(name not in without for name, _, _ in keys)


def _names(run: Run) -> set[str]:
    return {subject.name for subject in run.opening.subjects}


def _contents(run: Run) -> str:
    names = ", ".join(one_line(name, 60) for name in sorted(_names(run))[:3]) or "no implementation"
    return f"{names}{', ...' if len(_names(run)) > 3 else ''}, {len(run.verdicts)} verdicts"


def _place(change: Change) -> tuple[int, str, tuple[int, str], tuple[int, str]]:
    order = list(ChangeKind).index(change.kind)
    return order, change.implementation, clause_place(change.clause), dtype_place(change.dtype)


def _unclaimed(verdict: Verdict, other: Run) -> Verdict | None:
    """The verdict as another run has it that selected the clause, and where it is not claimed; else None."""
    suite, clause = other.opening.suite, load().get(verdict.clause)
    subject = next((s for s in other.opening.subjects if s.name == verdict.implementation), None)
    selected = not suite.clauses or any(fnmatchcase(verdict.clause, pattern) for pattern in suite.clauses)
    if subject is None or clause is None or not selected or verdict.dtype not in (suite.dtypes or (verdict.dtype,)):
        return None
    missing = verdict.dtype if verdict.dtype not in subject.dtypes else clause.lacking(subject.features.__contains__)
    if not missing:
        return None
    who = (verdict.clause, verdict.level, verdict.implementation, verdict.dtype)
    return Verdict(*who, Status.NOT_CLAIMED, reason=f"does not claim {missing}")


def _change(old: Verdict, new: Verdict) -> Change | None:
    """How a verdict changed; None if it is the same."""
    if old.status is new.status:
        return _grown(old, new)
    match new.status:
        case Status.PASS if old.status is Status.NOT_CLAIMED:
            return _changed(ChangeKind.CLAIMED, old, new, False)
        case Status.PASS:
            kind = ChangeKind.MENDED if old.status is Status.EXPECTED_FAILURE else ChangeKind.PASSING
            return _changed(kind, old, new, False)
        case Status.FAIL:
            return _changed(ChangeKind.FAILING, old, new, True, new.message)
        case Status.EXPECTED_FAILURE if old.status is Status.PASS:
            return _changed(ChangeKind.FAILING, old, new, True, f"{new.reason} {new.link}")
        case Status.EXPECTED_FAILURE:
            return _changed(ChangeKind.KNOWN, old, new, False, f"{new.reason} {new.link}")
        case Status.NOT_PROVABLE:
            return _changed(ChangeKind.UNPROVED, old, new, old.status is Status.PASS, new.reason)
        case Status.NOT_CLAIMED:
            return _changed(ChangeKind.UNCLAIMED, old, new, old.status is Status.PASS, new.reason)
        case Status.ERROR if old.status is Status.EXPECTED_FAILURE and new.checks:
            return _changed(ChangeKind.MENDED, old, new, False, new.reason)
        case Status.ERROR | Status.NOT_FINISHED:
            return _changed(ChangeKind.UNJUDGED, old, new, True, new.reason)


def _changed(kind: ChangeKind, old: Verdict, new: Verdict, worse: bool, reason: str = "") -> Change:
    level = f" ({new.level})" if new.level != "MUST" and new.status is Status.FAIL else ""
    return Change(kind, *key_of(new), str(old.status), f"{new.status}{level}", worse, one_line(reason))


def _grown(old: Verdict, new: Verdict) -> Change | None:
    before, after = old.worst, new.worst
    if new.status is not Status.PASS or before is None or after is None or after <= max(GROWN * before, NOTABLE):
        return None
    return Change(ChangeKind.GROWN, *key_of(new), f"{before:.2g} of the bound", f"{after:.2g}", worse=False)


def _implementations(old: Run, new: Run) -> Iterator[Change]:
    for name in _names(old) - _names(new):
        yield Change(ChangeKind.GONE, name, "", "", _verdict(old, name), "", worse=True)
    for name in _names(new) - _names(old):
        yield Change(ChangeKind.NEW, name, "", "", "", _verdict(new, name), worse=False)


def _verdict(run: Run, name: str) -> str:
    findings = any(subject.findings for subject in run.opening.subjects if subject.name == name)
    return str(conformance(run.by_name[name], run.closing.complete, findings))


def _settings_apart(old: Run, new: Run) -> Iterator[str]:
    one, other = _settings(old), _settings(new)
    for name in sorted(one.keys() | other.keys(), key=[*one, *other].index):
        before, after = one.get(name, "absent"), other.get(name, "absent")
        if before != after:
            yield one_line(f"{name}: {before}, then {after}")


def _settings(run: Run) -> dict[str, str]:
    suite = run.opening.suite
    settings = {
        "suite": suite.version,
        "specification": suite.spec,
        "tier": suite.tier,
        "device": suite.device,
        "clauses": " ".join(suite.clauses) or "all",
        "dtypes": " ".join(suite.dtypes) or "all",
        **run.opening.environment,
    }
    for subject in run.opening.subjects:
        settings |= {f"premises of {subject.name}": ", ".join(subject.premises)} if subject.premises else {}
        settings |= {f"convention {name} of {subject.name}": value for name, value in subject.conventions.items()}
    return settings


def _incomplete(diff: Diff) -> Iterator[str]:
    for name, run in (("old", diff.old), ("new", diff.new)):
        if not run.closing.complete:
            yield f"the {name} run is not complete ({one_line(run.closing.reason)}): what it lacks is not compared"


def _by_kind(diff: Diff) -> Iterator[tuple[ChangeKind, list[tuple[Change, str]]]]:
    """Each kind with its changes; changes that differ in the dtype only are one, the first; with the dtypes."""
    for kind, several in groupby(diff.changes, lambda change: change.kind):
        rows = [list(same) for _, same in groupby(several, _except_dtype)]
        yield kind, [(row[0], ", ".join(change.dtype for change in row if change.dtype)) for row in rows]


def _except_dtype(change: Change) -> tuple[str, ...]:
    statuses = () if change.kind is ChangeKind.GROWN else (change.old, change.new)
    return change.implementation, change.clause, *statuses


def _counts(diff: Diff) -> str:
    verdicts = [c for c in diff.changes if c.clause and c.kind != ChangeKind.GROWN]
    changed = len({(c.implementation, c.clause, c.dtype) for c in verdicts})
    alone = [(diff.only_old, "old"), (diff.only_new, "new")]
    rest = "".join(f"; {number} that only the {name} run has" for number, name in alone if number)
    return f"{diff.compared} verdicts compared, {changed} changed{rest}"


def _conclusion(diff: Diff) -> str:
    if number := sum(change.worse for change in diff.changes):
        return f"worse: {number} change{'s' * (number > 1)}"
    return "unknown whether something got worse: run the new one to its end" if diff.worse else "nothing got worse"


def text(diff: Diff) -> Iterator[str]:
    """For a terminal."""
    yield from (f"the runs differ in {difference}" for difference in diff.settings)
    yield from (f"INCOMPLETE: {line}" for line in _incomplete(diff))
    for kind, rows in _by_kind(diff):
        yield f"{kind}:"
        yield from (f"  {_line(change, dtypes)}" for change, dtypes in rows)
    yield _counts(diff)
    yield _conclusion(diff)


def _line(change: Change, dtypes: str) -> str:
    where = [one_line(change.implementation, 80), change.clause, f"[{dtypes}]" if dtypes else ""]
    verdicts = ", then ".join(filter(None, (change.old, change.new)))
    return f"{'  '.join(filter(None, where))}: {verdicts}" + (f": {change.reason}" if change.reason else "")


def markdown(diff: Diff) -> Iterator[str]:
    """For a pull request."""
    yield f"## Attention conformance: {_conclusion(diff)}"
    yield ""
    yield from (f"- **Incomplete**: {code(line)}" for line in _incomplete(diff))
    yield from (f"- The runs differ in {code(difference)}" for difference in diff.settings)
    for kind, rows in _by_kind(diff):
        yield from ("", f"### {str(kind).capitalize()}", "")
        yield from ("| implementation | clause | dtypes | old | new | |", "|---|---|---|---|---|---|")
        yield from (_row(change, dtypes) for change, dtypes in rows[:MOST_ROWS])
        if len(rows) > MOST_ROWS:
            yield from ("", f"... and {len(rows) - MOST_ROWS} more: `--format text` shows them all.")
    yield from ("", _counts(diff))


def _row(change: Change, dtypes: str) -> str:
    cells = (change.implementation, change.clause, dtypes, change.old, change.new, change.reason)
    return f"| {' | '.join(in_table(code(cell, 120)) if cell else '' for cell in cells)} |"


def as_json(diff: Diff) -> Iterator[str]:
    """For programs."""
    counts = {name: getattr(diff, name) for name in ("compared", "only_old", "only_new", "worse")}
    changes = [asdict(change) for change in diff.changes]
    sides = {"old": _side(diff.old), "new": _side(diff.new)}
    yield json.dumps({"schema": SCHEMA, **sides, "settings": diff.settings, "changes": changes, **counts}, indent=1)


def _side(run: Run) -> dict[str, object]:
    closing = run.closing
    ended = {"complete": closing.complete, "reason": closing.reason, "verdicts": len(run.verdicts)}
    return {"started": run.opening.started, **ended}


FORMATS: Mapping[str, Callable[[Diff], Iterator[str]]] = {"text": text, "markdown": markdown, "json": as_json}
