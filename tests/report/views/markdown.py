"""The view for a pull request: report.md, short enough for a comment on GitHub."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attention_conformance.spec.clauses import chapters, load
from attention_conformance.tests.report.model import Run, Subject, overall
from attention_conformance.tests.report.text import by_clause, clauses, dtypes_of, plain, selected, tally, told
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.report.views.terminal import SHORT, cell

MOST = 60_000
"""Characters; a comment on GitHub holds 65,536."""
RESERVED = 600
"""Of them for what was left out."""
LONGEST_SCRIPT = 4_000
LINK = re.compile(r"https://[\w./#?=&%~:+-]+", re.ASCII)
SPECIAL = re.compile(r"[\\*_\[\]<>&#|~$]")
ACTIVE = re.compile(r"(?<=[@#:])(?=\w)|(?<=www)(?=\.)|(?<=http)(?=s?:)|(?<=GH)(?=-)", re.IGNORECASE)
"""Where a mention, an issue, an emoji or a link would begin on GitHub."""
NO_BREAK = "\N{WORD JOINER}"
LEGEND = (
    "\nA cell counts the clauses that hold; **2/5**: 2 of 5 do not, advice and known deviations among them; "
    "-: none is claimed.\n"
)
FRAME, HEAD, FIRST, SCRIPT, FOLDED = -2, -1, 0, 100_000, 200_000
"""Ranks: what is left out first has the highest."""


@dataclass(frozen=True)
class Block:
    """A part of the page that stands or falls as a whole.

    Attributes:
        rank: lower ones are kept; failures count from `FIRST` within their implementation, so that each shows some.
        what: a noun for the list of what was left out.
    """

    rank: int
    what: str
    text: str


def text(run: Run) -> str:
    """The report as GitHub's Markdown, `MOST` characters at most."""
    return _joined([*_head(run), *_failures(run), *_folded(run), Block(FRAME, "", _foot(run))])


def _joined(blocks: Sequence[Block]) -> str:
    """As many blocks as there is room for, in their own order, and what was left out."""
    room, kept = MOST - RESERVED, set[int]()
    for number in sorted(range(len(blocks)), key=lambda number: blocks[number].rank):
        if len(blocks[number].text) <= room:
            room -= len(blocks[number].text)
            kept.add(number)
    left = Counter(block.what for number, block in enumerate(blocks) if number not in kept)
    whole = "".join(block.text for number, block in enumerate(blocks) if number in kept)
    return whole + (_left_out(left) if left else "")


def _left_out(left: Counter[str]) -> str:
    counts = ", ".join(f"{number} x {what}" for what, number in left.items())
    return (
        f"\n**Left out**, because a comment has room for {MOST:,} characters: {counts}. "
        "`report.html` and `report.json` have everything.\n"
    )


def _head(run: Run) -> Iterator[Block]:
    closing, subjects = run.closing, run.begin.subjects
    if not closing.complete:
        context = (
            f"**Incomplete: {prose(closing.reason)}.** What is missing was not judged, and nothing here is a pass."
        )
        yield Block(FRAME, "", f"{context}\n\n")
    yield Block(FRAME, "", "## Attention conformance\n\n")
    if part := selected(run):
        yield Block(FRAME, "", f"Not everything was asked, but {code(part)}.\n\n")
    for subject in subjects:
        yield Block(HEAD, "verdict", f"- {code(subject.name, 80)} {_verdict(run, run.of(subject.name))}\n")
    judged = [(subject, mine) for subject in subjects if (mine := run.of(subject.name))]
    shown = [name for name in chapters() if any(v.clause.startswith(f"{name}.") for v in run.verdicts)]
    if judged:
        titles = " | ".join(SHORT.get(name, name) for name in shown)
        yield Block(FRAME, "", f"\n| | {titles} |\n|---|{'--:|' * len(shown)}\n")
    for subject, mine in judged:
        cells = " | ".join(_cell(mine, name) for name in shown)
        yield Block(HEAD, "row of the table", f"| {in_table(code(subject.name, 80))} | {cells} |\n")
    if judged:
        yield Block(FRAME, "", LEGEND)


def _verdict(run: Run, mine: Sequence[Verdict]) -> str:
    counts, verdict = tally(mine), overall(mine)
    also = _several(counts.known, "known deviation") + _several(counts.advice, "advice not followed")
    if not counts.judged:
        return "**was not judged**"
    if verdict == "fails":
        return f"**fails** {counts.fails} of {clauses(counts.judged)}{also}"
    if verdict == "error":
        return f"**could not be judged** on {counts.errors} of {clauses(counts.judged)}{also}"
    if not run.closing.complete:
        return f"has held so far, on {clauses(counts.holds)}{also}: **not all were asked**"
    return f"**conforms** in {clauses(counts.holds)}{also}"


def _several(number: int, what: str) -> str:
    return f", {number} x {what}" if number else ""


def _cell(mine: Sequence[Verdict], chapter: str) -> str:
    found = cell(mine, chapter)
    return f"**{found}**" if "/" in found else found


def _failures(run: Run) -> Iterator[Block]:
    for subject in run.begin.subjects:
        mine = [v for v in run.of(subject.name) if v.level == "MUST" or v.status is Status.ERROR]
        heading = f"\n### {code(subject.name, 80)}\n\n"
        if diagnosis := run.diagnoses.get(subject.name, ""):
            heading += f"Diagnosis: {prose(diagnosis)}\n\n"
        for rank, found in enumerate(by_clause(mine, Status.FAIL, Status.ERROR)):
            yield Block(FIRST + rank, "clause that fails", (heading if rank == 0 else "") + _clause(run, found))
            script = _script(run, found[0]) if rank == 0 else ""
            if script:
                yield Block(SCRIPT, "script", script)


def _clause(run: Run, found: Sequence[Verdict]) -> str:
    first, clause = found[0], load().get(found[0].clause)
    title = f"#### {code(first.clause)} in {code(dtypes_of(found))}\n\n"
    statement = f"> {clause.statement}\n\n" if clause is not None else ""
    if first.status is Status.ERROR:
        return f"{title}{statement}Could not be judged: {code(first.reason)}\n\n"
    one = told(run, first)
    answer = f": {code(one.answer)}" if one.answer != one.message else ""
    lines = f"- Found: {code(one.message)}\n- Smallest case: {code(one.case)}{answer}\n- Ask again:\n\n"
    return f"{title}{statement}{lines}{fenced(plain(one.again, 2_000), 'sh')}\n"


def _script(run: Run, verdict: Verdict) -> str:
    mine = (verdict.implementation, verdict.clause, verdict.dtype)
    scripts = [s.script for s in run.shown if (s.implementation, s.clause, s.dtype) == mine and s.script]
    if not scripts or len(scripts[0]) > LONGEST_SCRIPT:
        return ""
    lines = "\n".join(_kept(line) for line in scripts[0].splitlines())
    return _details("A program that shows it without this suite", fenced(lines, "python"))


def _kept(line: str) -> str:
    """A line of a program with its indentation."""
    return line[: len(line) - len(line.lstrip(" "))] + plain(line, LONGEST_SCRIPT)


def _folded(run: Run) -> Iterator[Block]:
    for subject in run.begin.subjects:
        mine = run.of(subject.name)
        advice = list(by_clause([v for v in mine if v.level != "MUST"], Status.FAIL))
        known = list(by_clause(mine, Status.EXPECTED_FAILURE))
        yield from _list(subject, "advice not followed", [_advice(found) for found in advice])
        yield from _list(subject, "known deviations", [_known(found[0], found) for found in known])


def _list(subject: Subject, what: str, lines: Sequence[str]) -> Iterator[Block]:
    if lines:
        name = prose(plain(subject.name, 80))
        yield Block(FOLDED, f"list of {what}", _details(f"{name}: {what} ({len(lines)})", "\n".join(lines) + "\n"))


def _advice(found: Sequence[Verdict]) -> str:
    first = found[0]
    assert first.failure is not None
    return f"- {code(first.clause)} ({first.level}) in {code(dtypes_of(found))}: {code(first.failure.message, 300)}"


def _known(first: Verdict, found: Sequence[Verdict]) -> str:
    link = f"<{first.link}>" if LINK.fullmatch(first.link) else code(first.link)
    return f"- {code(first.clause)} in {code(dtypes_of(found))}: {code(first.reason, 300)} {link}"


def _details(title: str, body: str) -> str:
    return f"\n<details><summary>{title}</summary>\n\n{body}\n</details>\n\n"


def _foot(run: Run) -> str:
    suite, env = run.begin.suite, run.begin.environment
    versions = {"attention-conformance": suite.version, "tier": suite.tier, "device": suite.device, **env}
    return "\n" + code(", ".join(f"{name} {context}" for name, context in versions.items())) + "\n"


def code(text: str, most: int = 600) -> str:
    """A candidate's text as a span of code: no markup, mention or link comes to life in it."""
    line = plain(text, most) or " "
    ticks = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    space = " " if "`" in line or line != line.strip() else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def in_table(text: str) -> str:
    """Inline Markdown for a cell of a table, in which a bar would end the cell, even within code."""
    return text.replace("|", "\\|")


def prose(text: str) -> str:
    """Text as prose in which only `code` is markup."""
    parts = plain(text, 1_200).split("`")
    paired = len(parts) % 2 == 1
    if not paired:
        return _escaped("".join(parts))
    return "".join(code(part) if number % 2 else _escaped(part) for number, part in enumerate(parts))


def _escaped(text: str) -> str:
    still = ACTIVE.sub(NO_BREAK, text)
    return SPECIAL.sub(lambda found: f"&#{ord(found[0])};", still)


def fenced(text: str, language: str = "") -> str:
    """Lines as a block of code, whatever they hold."""
    ticks = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{ticks}{language}\n{text}\n{ticks}\n"
