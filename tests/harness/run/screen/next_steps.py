"""Next steps: the last lines of a run that does not conform, or is not complete: what to do next."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType

from attention_conformance import __version__
from attention_conformance.spec.clauses import load
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.judge.clause_tests import Selection, claimed
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.screen.command_lines import again, checked_with, explaining
from attention_conformance.tests.report.model import VerdictsEnd
from attention_conformance.tests.report.recorder import Recorder, environment
from attention_conformance.tests.report.verdict import Status, Verdict

NOTHING_INTENDED: Mapping[str, tuple[str, ...]] = MappingProxyType({})
WORD = re.compile(r"(?:'[^']*'|\S)+")
"""A word of a command line, with its quotes."""


def next_steps(
    status: int,
    settings: RunSettings,
    selection: Selection,
    recorder: Recorder,
    intended: Mapping[str, tuple[str, ...]] = NOTHING_INTENDED,
) -> list[str]:
    """What to do after an exit with this status: nothing after a success.

    `intended` are options under which what fails would hold, by implementation.
    """
    match status:
        case ExitStatus.FAILS:
            return list(_after_failures(settings, recorder, intended))
        case ExitStatus.INTERRUPTED:
            if settings.budget is not None:
                reason = "" if settings.first_screen else f", {_not_complete(recorder)}"
                return [
                    f"the run is not complete{reason}: this is no verdict; a larger --budget, or none, checks the rest"
                ]
            where = f", as {settings.report / 'report.json'} states" if settings.report is not None else ""
            return [f"the run is not complete{where}: this is no verdict; run it again"]
        case ExitStatus.SUITE_ERROR:
            versions = ", ".join(f"{name} {version}" for name, version in environment().items())
            return [f"this is an error of the suite: report it, with these lines; version {__version__}, {versions}"]
        case ExitStatus.NOTHING_CHECKED:
            clause = next(iter(settings.clauses), "CLAUSE")
            return [f"nothing was checked, {_reason(selection, recorder)}: see {explaining(clause)}"]
        case ExitStatus.IN_PART:
            names = dict.fromkeys(name for each in selection.implementations for name in each.findings)
            left_out = [word for name in names for word in ("--without", name)]
            name = selection.implementations[0].name if selection.implementations else ""
            command = checked_with(settings, recorder.targets, name, left_out)
            return [f"{command}  states that this is known: exit status 0, not {status}"]
    return []


def folded(step: str, width: int) -> list[str]:
    """A step in lines of a screen: its command goes on after a backslash, as in shells, and its end is a comment."""
    if len(step) <= width:
        return [step]
    command, gap, purpose = step.rpartition("  ")
    if not gap:
        return wrap(step, width, break_long_words=False, break_on_hyphens=False)
    lines = [""]
    for word in WORD.findall(command):
        if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append("  ")
        lines[-1] += word if not lines[-1].strip() else f" {word}"
    return [*lines, *wrap(f"# {purpose}", width, subsequent_indent="# ")]


def _not_complete(recorder: Recorder) -> str:
    return next((event.reason for event in recorder.events if isinstance(event, VerdictsEnd)), "nothing was checked")


def _reason(selection: Selection, recorder: Recorder) -> str:
    """Why the first of the selected clauses that does not fit an implementation is not checked."""
    for implementation in selection.implementations:
        own = implementation.claims.dtypes
        if selection.dtypes and not {*selection.dtypes} & {*own}:
            other = f"give --dtype {own[0]}" if own else "it answers in none"
            return f"because {implementation.name} claims {', '.join(own) or 'no dtype'} alone: {other}"
    selected = [clause for clause in load().values() if selection.wants(clause)]
    for clause, implementation in product(selected, selection.implementations):
        if why := claimed(clause, implementation.claims):
            other_scope = clause.scope not in (None, implementation.claims.scope)
            return f"because {clause.id if other_scope else implementation.name} {why}"
    for v in (v for v in recorder.verdicts if v.status is Status.NOT_CLAIMED):
        return f"because {v.implementation} supports no case of {v.clause} ({v.reason})"
    for v in (v for v in recorder.verdicts if v.status is Status.NOT_PROVABLE):
        return f"because {v.clause} is not provable in {v.dtype} ({v.reason})"
    return "as no claim calls for it"


def _after_failures(
    settings: RunSettings, recorder: Recorder, intended: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    order = list(load())
    failing = sorted(
        (v for v in recorder.verdicts if v.status is Status.FAIL and v.level == "MUST"),
        key=lambda v: order.index(v.clause),
    )
    lost = [v for v in recorder.verdicts if v.status is Status.NOT_FINISHED]
    for first in lost[:1]:
        ways = "--deadline SECONDS gives it more time, --memory SIZE more memory, --in-process runs it in a debugger"
        yield f"{first.implementation} was not checked to the end, {first.reason}: {ways}"
    if not failing and not lost:
        yield "an ERROR is no failure of the candidate: do what its line states; if it states nothing to do, report it"
    for first in failing[:1]:
        if options := intended.get(first.implementation):
            command = checked_with(settings, recorder.targets, first.implementation, options)
            yield f"{command}  judges it as one that is meant to do so"
        else:
            yield f"{explaining(first.clause)}  explains the first failing clause"
        yield f"{again(settings, recorder.targets, first.implementation, first.clause, first.dtype)}  runs it alone"
    for feature in _of_all(failing) if settings.has_candidates else ():
        yield f"--without {feature}  leaves out what fails, if {failing[0].implementation} is not meant to offer it"
    if settings.report is not None:
        yield f"{_page(settings.report)}  shows every failure"


def _of_all(failing: Sequence[Verdict]) -> list[Feature]:
    """The rarest feature that every failing clause of one implementation needs, if there is one beyond the core."""
    own = [load()[v.clause].features for v in failing if v.implementation == failing[0].implementation]
    shared = frozenset.intersection(*own) - NO_OFFERS if own else frozenset()
    return sorted(shared, key=lambda feature: (_clauses_of(feature), feature))[:1]


NO_OFFERS = frozenset({Feature.CORE, Feature.AS_BUILT, Feature.ALTERNATIVES})
"""What every implementation is meant to do right: as it is built, and in each way in which it can be called."""


def _clauses_of(feature: Feature) -> int:
    return sum(feature in clause.features for clause in load().values())


def _page(report: Path) -> Path:
    page = report / "report.html"
    return page if page.exists() else report / "report.json"
