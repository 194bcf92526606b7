"""Difference of two reports: `python -m attention_conformance.tests.report.diff OLD NEW` names what changed verdict.

OLD and NEW are folders of --report, or the event logs in them. Only what both runs asked is compared. Exit status:
0 nothing got worse, 1 something did or the new run is not complete, 4 a report cannot be read or compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from attention_conformance.spec.clauses import load
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.report.log import FILE, LogError, replay
from attention_conformance.tests.report.model import Run, overall
from attention_conformance.tests.report.text import plain
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.report.views.markdown import code, in_table

SCHEMA = "attention-conformance/diff/1"
WORSE, UNUSABLE = 1, 4
GROWN, NOTABLE = 2.0, 0.5
"""An error of a pass is noted where it is so many times the former one, and beyond this share of its bound."""
MOST_ROWS = 40
"""Of one kind, so that all of it fits into a comment."""
Key: TypeAlias = tuple[str, str, str]
"""Implementation, clause, dtype."""


class Kind(StrEnum):
    """What became of a verdict, or of an implementation; in the order in which they are told."""

    FAILING = "newly failing"
    UNJUDGED = "no longer judged"
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
    """One change. `clause` and `dtype` are empty where it is of an implementation.

    Attributes:
        old, new: what was said; empty where nothing was.
        worse: whether less holds, or less is known to hold, than before.
        said: the reason, or the message of the failure.
    """

    kind: Kind
    implementation: str
    clause: str
    dtype: str
    old: str
    new: str
    worse: bool
    context: str = ""


@dataclass(frozen=True)
class Diff:
    """What two runs differ in.

    Attributes:
        apart: what the runs themselves differ in, such as versions; it may explain the changes.
        only_old, only_new: verdicts that the other run was not asked for, or did not come to.
    """

    old: Run
    new: Run
    apart: tuple[str, ...]
    changes: tuple[Change, ...]
    compared: int
    only_old: int
    only_new: int

    @property
    def worse(self) -> bool:
        """Whether something got worse, or the new run cannot say that nothing did."""
        return not self.new.closing.complete or any(change.worse for change in self.changes)


class IncomparableError(ValueError):
    """The runs cannot be compared; the message is one line with the remedy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what changed; the exit status says whether something got worse."""
    parser = argparse.ArgumentParser(
        prog="python -m attention_conformance.tests.report.diff",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--format", choices=FORMATS, default="text")
    asked = parser.parse_args(arguments)
    try:
        found = compared(run_of(asked.old), run_of(asked.new))
    except (LogError, IncomparableError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return UNUSABLE
    print("\n".join(FORMATS[asked.format](found)))
    return WORSE if found.worse else 0


def run_of(path: Path) -> Run:
    """The run of a report.

    Raises:
        LogError: this is no report, or none that can be read.
    """
    if path.is_file() and path.name != FILE:
        raise LogError(f"{path} is no event log: give the folder of --report, or the {FILE} in it")
    return replay(path.parent if path.is_file() else path)


def compared(old: Run, new: Run) -> Diff:
    """What changed from one run to the other.

    Raises:
        IncomparableError: they have no verdict in common.
    """
    before, after = _by_key(old), _by_key(new)
    both = before.keys() & after.keys()
    if not both:
        raise IncomparableError(
            f"the reports have no verdict in common (old: {_asked(old)}; new: {_asked(new)}): "
            "judge the same implementations and clauses"
        )
    lost = {key: found for key in before.keys() - both if (found := _unclaimed(key, new))}
    won = {key: found for key in after.keys() - both if (found := _unclaimed(key, old))}
    changes = [
        *(change for key in both if (change := _change(before[key], after[key]))),
        *(_lost(before[key], reason) for key, reason in lost.items() if _says(before[key])),
        *(_won(after[key]) for key in won if _says(after[key])),
        *_implementations(old, new),
    ]
    gone, fresh = (_names(one) - _names(other) for one, other in ((old, new), (new, old)))
    return Diff(
        old,
        new,
        tuple(_apart(old, new)),
        tuple(sorted(changes, key=_place)),
        len(both),
        sum(key not in both and key not in lost and key[0] not in gone for key in before),
        sum(key not in both and key not in won and key[0] not in fresh for key in after),
    )


def _by_key(run: Run) -> dict[Key, Verdict]:
    return {(v.implementation, v.clause, v.dtype): v for v in run.verdicts}


def _names(run: Run) -> set[str]:
    return {subject.name for subject in run.begin.subjects}


def _asked(run: Run) -> str:
    names = ", ".join(plain(name, 60) for name in sorted(_names(run))[:3]) or "no implementation"
    return f"{names}{', ...' if len(_names(run)) > 3 else ''}, {len(run.verdicts)} verdicts"


def _says(verdict: Verdict) -> bool:
    return verdict.status is not Status.NOT_CLAIMED


def _place(change: Change) -> tuple[int, str, int, str, int]:
    order, dtypes = list(load()), list(DTYPES)
    clause = order.index(change.clause) if change.clause in order else len(order)
    dtype = dtypes.index(change.dtype) if change.dtype in dtypes else len(dtypes)
    return list(Kind).index(change.kind), change.implementation, clause, change.clause, dtype


def _unclaimed(key: Key, other: Run) -> str:
    """Why the other run did not ask, where its reason is that the clause is not claimed there; else empty."""
    name, clause, dtype = key
    subject = next((s for s in other.begin.subjects if s.name == name), None)
    patterns = other.begin.suite.clauses
    if subject is None or clause not in load() or (patterns and not any(fnmatchcase(clause, p) for p in patterns)):
        return ""
    if other.begin.suite.dtypes and dtype not in other.begin.suite.dtypes:
        return ""
    if dtype not in subject.dtypes:
        return f"does not claim {dtype}"
    missing = sorted({str(feature) for feature in load()[clause].features} - set(subject.features))
    return f"does not claim {missing[0]}" if missing else ""


def _change(old: Verdict, new: Verdict) -> Change | None:
    """What became of a verdict; None where it is the same."""
    if old.status is new.status:
        return _grown(old, new)
    match new.status:
        case Status.PASS if old.status is Status.NOT_CLAIMED:
            return _made(Kind.CLAIMED, old, new, False)
        case Status.PASS:
            return _made(Kind.MENDED if old.status is Status.EXPECTED_FAILURE else Kind.PASSING, old, new, False)
        case Status.FAIL:
            assert new.failure is not None
            return _made(Kind.FAILING, old, new, True, new.failure.message)
        case Status.EXPECTED_FAILURE if old.status is Status.PASS:
            return _made(Kind.FAILING, old, new, True, f"{new.reason} {new.link}")
        case Status.EXPECTED_FAILURE:
            return _made(Kind.KNOWN, old, new, False, f"{new.reason} {new.link}")
        case Status.NOT_CLAIMED:
            return _made(Kind.UNCLAIMED, old, new, old.status is Status.PASS, new.reason)
        case Status.ERROR if old.status is Status.EXPECTED_FAILURE and new.checks:
            return _made(Kind.MENDED, old, new, False, new.reason)
        case Status.ERROR:
            return _made(Kind.UNJUDGED, old, new, True, new.reason)


def _made(kind: Kind, old: Verdict, new: Verdict, worse: bool, context: str = "") -> Change:
    level = f" ({new.level})" if new.level != "MUST" and new.status is Status.FAIL else ""
    told = f"{new.status}{level}"
    return Change(kind, new.implementation, new.clause, new.dtype, str(old.status), told, worse, plain(context))


def _grown(old: Verdict, new: Verdict) -> Change | None:
    before, after = old.worst, new.worst
    if new.status is not Status.PASS or before is None or after is None:
        return None
    if not (after > GROWN * before and after > NOTABLE):
        return None
    told = (f"{before:.2g} of the bound", f"{after:.2g}")
    return Change(Kind.GROWN, new.implementation, new.clause, new.dtype, *told, worse=False)


def _lost(old: Verdict, reason: str) -> Change:
    passed = old.status is Status.PASS
    told = (old.implementation, old.clause, old.dtype, str(old.status), str(Status.NOT_CLAIMED))
    return Change(Kind.UNCLAIMED, *told, worse=passed, context=reason)


def _won(new: Verdict) -> Change:
    told = (new.implementation, new.clause, new.dtype, str(Status.NOT_CLAIMED), str(new.status))
    if new.status is Status.FAIL and new.failure is not None:
        return Change(Kind.FAILING, *told, worse=True, context=plain(new.failure.message))
    if new.status is Status.ERROR:
        return Change(Kind.UNJUDGED, *told, worse=True, context=plain(new.reason))
    return Change(Kind.CLAIMED, *told, worse=False)


def _implementations(old: Run, new: Run) -> Iterator[Change]:
    for name in _names(old) - _names(new):
        yield Change(Kind.GONE, name, "", "", overall(old.of(name)), "", worse=True)
    for name in _names(new) - _names(old):
        yield Change(Kind.NEW, name, "", "", "", overall(new.of(name)), worse=False)


def _apart(old: Run, new: Run) -> Iterator[str]:
    one, other = _setting(old), _setting(new)
    for name in sorted(one.keys() | other.keys(), key=[*one, *other].index):
        before, after = one.get(name, "absent"), other.get(name, "absent")
        if before != after:
            yield plain(f"{name}: {before}, then {after}")


def _setting(run: Run) -> dict[str, str]:
    suite = run.begin.suite
    told = {
        "suite": suite.version,
        "specification": suite.spec,
        "tier": suite.tier,
        "device": suite.device,
        "clauses": " ".join(suite.clauses) or "all",
        "dtypes": " ".join(suite.dtypes) or "all",
        **run.begin.environment,
    }
    for subject in run.begin.subjects:
        told |= {f"convention {name} of {subject.name}": context for name, context in subject.conventions.items()}
    return told


def _incomplete(found: Diff) -> Iterator[str]:
    for name, run in (("old", found.old), ("new", found.new)):
        if not run.closing.complete:
            yield f"the {name} run is not complete ({plain(run.closing.reason)}): what it lacks is not compared"


def _grouped(changes: Sequence[Change]) -> Iterator[tuple[Change, str]]:
    """Changes that differ in the dtype only are one, the first; with the dtypes."""

    def alike(change: Change) -> tuple[str, ...]:
        grown = change.kind is Kind.GROWN
        return change.implementation, change.clause, *(() if grown else (change.old, change.new))

    for _, several in groupby(changes, alike):
        found = list(several)
        yield found[0], ", ".join(filter(None, (change.dtype for change in found)))


def _counts(found: Diff) -> str:
    changed = len({(c.implementation, c.clause, c.dtype) for c in found.changes if c.clause and c.kind != Kind.GROWN})
    told = f"{found.compared} verdicts compared, {changed} changed"
    left = [(found.only_old, "old"), (found.only_new, "new")]
    return told + "".join(f"; {number} that only the {name} run has" for number, name in left if number)


def _conclusion(found: Diff) -> str:
    number = sum(change.worse for change in found.changes)
    if number:
        return f"worse: {number} change{'s' * (number > 1)}"
    return (
        "it cannot be said that nothing got worse: run the new one to its end" if found.worse else "nothing got worse"
    )


def text(found: Diff) -> Iterator[str]:
    """For a terminal."""
    yield from (f"the runs differ in {difference}" for difference in found.apart)
    yield from (f"INCOMPLETE: {line}" for line in _incomplete(found))
    for kind, several in groupby(found.changes, lambda change: change.kind):
        yield f"{kind}:"
        for change, dtypes in _grouped(list(several)):
            yield f"  {_line(change, dtypes)}"
    yield _counts(found)
    yield _conclusion(found)


def _line(change: Change, dtypes: str) -> str:
    place = [plain(change.implementation, 80), change.clause, f"[{dtypes}]" if dtypes else ""]
    moved = ", then ".join(filter(None, (change.old, change.new)))
    return f"{'  '.join(filter(None, place))}: {moved}" + (f": {change.context}" if change.context else "")


def markdown(found: Diff) -> Iterator[str]:
    """For a pull request."""
    yield f"## Attention conformance: {_conclusion(found)}"
    yield ""
    yield from (f"- **Incomplete**: {code(line)}" for line in _incomplete(found))
    yield from (f"- The runs differ in {code(difference)}" for difference in found.apart)
    for kind, several in groupby(found.changes, lambda change: change.kind):
        rows = [_row(change, dtypes) for change, dtypes in _grouped(list(several))]
        yield from ("", f"### {str(kind).capitalize()}", "")
        yield from (
            "| implementation | clause | dtypes | old | new | |",
            "|---|---|---|---|---|---|",
            *rows[:MOST_ROWS],
        )
        if len(rows) > MOST_ROWS:
            yield from ("", f"... and {len(rows) - MOST_ROWS} more: `--format text` shows them all.")
    yield from ("", _counts(found))


def _row(change: Change, dtypes: str) -> str:
    cells = (change.implementation, change.clause, dtypes, change.old, change.new, change.context)
    return f"| {' | '.join(in_table(code(cell, 120)) if cell else '' for cell in cells)} |"


def as_json(found: Diff) -> Iterator[str]:
    """For programs."""
    sides = {
        name: {
            "started": run.begin.started,
            "complete": run.closing.complete,
            "reason": run.closing.reason,
            "verdicts": len(run.verdicts),
        }
        for name, run in (("old", found.old), ("new", found.new))
    }
    yield json.dumps(
        {
            "schema": SCHEMA,
            **sides,
            "apart": found.apart,
            "changes": [asdict(change) for change in found.changes],
            "compared": found.compared,
            "only_old": found.only_old,
            "only_new": found.only_new,
            "worse": found.worse,
        },
        indent=1,
    )


FORMATS: Mapping[str, Callable[[Diff], Iterator[str]]] = {"text": text, "markdown": markdown, "json": as_json}


if __name__ == "__main__":
    sys.exit(main())
