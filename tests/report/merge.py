"""Merging: one report of the shards of a run, equal to that of the whole run.

Exit status: 0 every MUST held, 1 one did not, or a claimed feature was not checked, 2 the run is not complete, 4 the
reports cannot be merged.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from attention_conformance.spec.clauses import load
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.report import views
from attention_conformance.tests.report.counts import Conformance, conformance
from attention_conformance.tests.report.folder import FolderError, claim
from attention_conformance.tests.report.log import LogError, replay, write_log
from attention_conformance.tests.report.model import Closing, Opening, Run
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.report.views import terminal

CONFORMS, FAILS, INCOMPLETE, UNUSABLE = 0, 1, 2, 4


class MergeError(ValueError):
    """Reports that are no shards of one run; the message is one line."""


def merged(runs: Sequence[Run]) -> Run:
    """The whole run of these shards; one that is missing makes it incomplete.

    Raises:
        MergeError: they differ in more than their part, or one is there twice.
    """
    opening = _opening(runs)
    verdicts = [verdict for run in runs for verdict in run.verdicts]
    reason = "; ".join(_lacking(runs))
    own = sorted(verdicts, key=_place(opening))
    return Run(
        opening=opening,
        verdicts=own,
        closing=Closing(not reason, reason, len(own), round(sum(run.closing.seconds for run in runs), 3)),
        diagnoses=_diagnoses(runs),
        observed={name: given for run in reversed(runs) for name, given in run.observed.items()},
        failures=[failure for run in runs for failure in run.failures],
        weight_maps={name: given for run in reversed(runs) for name, given in run.weight_maps.items()},
    )


def _opening(runs: Sequence[Run]) -> Opening:
    first = min((run.opening for run in runs), key=lambda opening: opening.started)
    whole = replace(first, suite=replace(first.suite, shard=""))
    shards = [run.opening.suite.shard for run in runs]
    for run, shard in zip(runs, shards, strict=True):
        if not shard:
            raise MergeError("a report is that of a whole run, and no shard: run each part with --shard K/N")
        if shards.count(shard) > 1:
            raise MergeError(f"shard {shard} is there twice: give each one once")
        for name in ("schema", "suite", "environment", "subjects"):
            own = replace(run.opening, suite=replace(run.opening.suite, shard=""))
            if getattr(own, name) != getattr(whole, name):
                raise MergeError(f"shard {shard} differs from shard {shards[0]} in its {name}: run both in one way")
    if len({shard.partition("/")[2] for shard in shards}) > 1:
        raise MergeError(f"shards of different runs: {', '.join(shards)}")
    return whole


def _lacking(runs: Sequence[Run]) -> Iterator[str]:
    given = {run.opening.suite.shard: run.closing for run in runs}
    count = int(next(iter(given)).partition("/")[2])
    for number in range(1, count + 1):
        name = f"{number}/{count}"
        if name not in given:
            yield f"shard {name} is missing"
        elif not given[name].complete:
            yield f"shard {name}: {given[name].reason}"


def _place(opening: Opening) -> Callable[[Verdict], tuple[int, ...]]:
    clauses, dtypes, names = list(load()), list(DTYPES), [subject.name for subject in opening.subjects]
    return lambda v: (clauses.index(v.clause), names.index(v.implementation), dtypes.index(v.dtype))


def _diagnoses(runs: Sequence[Run]) -> dict[str, str]:
    """Each shard has explained its own failures; equal explanations are one."""
    texts: dict[str, list[str]] = {}
    for run in runs:
        for name, text in run.diagnoses.items():
            texts.setdefault(name, []).append(text)
    return {name: "; ".join(dict.fromkeys(several)) for name, several in texts.items()}


def unchecked(run: Run) -> list[str]:
    """Claimed features that clauses were run for, and of which nothing was checked; of a run of all clauses."""
    if run.opening.suite.clauses or run.opening.suite.dtypes or not run.closing.complete:
        return []
    lines = []
    for subject in run.opening.subjects:
        own = run.by_name[subject.name]
        settled = _features(v.clause for v in own if v.checks or v.status is Status.NOT_PROVABLE)
        lost = sorted((_features(v.clause for v in own) & set(subject.features)) - settled)
        lines += [f"{subject.name} claims {feature}, and nothing was checked of it" for feature in lost]
    return lines


def _features(clauses: Iterable[str]) -> set[str]:
    return {str(feature) for clause in clauses for feature in load()[clause].features}


def merge(folders: Sequence[Path], into: Path) -> int:
    """Writes the report of the whole run, and returns the exit status."""
    try:
        runs = [replay(folder) for folder in folders]
        run = merged(runs)
        _write(run, folders, into)
    except (LogError, MergeError, FolderError, OSError) as error:
        print(f"report-merge: {error}", file=sys.stderr)
        return UNUSABLE
    lines = unchecked(run)
    print("\n".join([*terminal.lines(run), *lines]))
    if not run.closing.complete:
        return INCOMPLETE
    held = {conformance(own, True) for own in run.by_name.values()} <= {Conformance.CONFORMS}
    return CONFORMS if held and not lines else FAILS


def _write(run: Run, folders: Sequence[Path], into: Path) -> None:
    if into.resolve() in [folder.resolve() for folder in folders]:
        raise MergeError(f"{into} is one of the shards: give another folder for the whole")
    with closing(claim(into)):
        views.clear(into)
        write_log(run, into)
        for folder in folders:
            for file in sorted(folder.glob("failures/*")):
                (into / "failures").mkdir(exist_ok=True)
                shutil.copyfile(file, into / "failures" / file.name)
        views.write(run, into)
