"""The view for a pull request: report.md, short enough for a comment on GitHub."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from attention_conformance.spec.clauses import load
from attention_conformance.tests.report.counts import LEGEND, Outcome, Row, chapters_of, counts, outcome
from attention_conformance.tests.report.model import Run, key_of
from attention_conformance.tests.report.verdict import Verdict
from attention_conformance.tests.report.views.terminal import SHORT
from attention_conformance.tests.report.wording import dtypes_of, failure_text, isolation, one_line, selected

MOST = 60_000
"""Characters; a comment on GitHub holds 65,536."""
RESERVED = 600
"""Of them for the list of blocks that were left out."""
LONGEST_SCRIPT = 4_000
LINK = re.compile(r"https://[\w./#?=&%~:+-]+", re.ASCII)
SPECIAL = re.compile(r"[\\*_\[\]<>&#|~$]")
ACTIVE = re.compile(r"(?<=[@#:])(?=\w)|(?<=www)(?=\.)|(?<=http)(?=s?:)|(?<=GH)(?=-)", re.IGNORECASE)
"""Where a mention, an issue, an emoji or a link would begin on GitHub."""
NO_BREAK = "\N{WORD JOINER}"
FRAME, HEAD, FIRST, SCRIPT, FOLDED = -2, -1, 0, 100_000, 200_000
"""Ranks: blocks with the highest are left out first."""


@dataclass(frozen=True)
class Block:
    """A part of the page that is kept or left out as a whole.

    Attributes:
        rank: lower ones are kept; failures count from `FIRST` within their implementation, so that each shows some.
        noun: for the list of what was left out.
    """

    rank: int
    noun: str
    text: str


def text(run: Run) -> str:
    """The report as GitHub's Markdown, `MOST` characters at most."""
    rows = counts(run)
    blocks = [*_head(run, rows), *_table(run, rows), *_failures(run, rows), *_folded(rows)]
    return _joined([*blocks, Block(FRAME, "", _foot(run))])


def _joined(blocks: Sequence[Block]) -> str:
    """As many blocks as there is room for, in their own order, and a list of the others."""
    room, kept = MOST - RESERVED, set[int]()
    for number in sorted(range(len(blocks)), key=lambda number: blocks[number].rank):
        if len(blocks[number].text) <= room:
            room -= len(blocks[number].text)
            kept.add(number)
    left = Counter(block.noun for number, block in enumerate(blocks) if number not in kept)
    whole = "".join(block.text for number, block in enumerate(blocks) if number in kept)
    return whole + (_left_out(left) if left else "")


def _left_out(left: Counter[str]) -> str:
    counts = ", ".join(f"{number} x {noun}" for noun, number in left.items())
    return (
        f"\n**Left out**, because a comment has room for {MOST:,} characters: {counts}. "
        "`report.html` and `report.json` have everything.\n"
    )


def _head(run: Run, rows: Sequence[Row]) -> Iterator[Block]:
    if not run.closing.complete:
        reason = prose(run.closing.reason)
        rest = "What is missing was not judged, and nothing here is a pass."
        yield Block(FRAME, "", f"**Incomplete: {reason}.** {rest}\n\n")
    yield Block(FRAME, "", "## Attention conformance\n\n")
    if part := selected(run):
        yield Block(FRAME, "", f"Only a part was selected: {code(part)}.\n\n")
    for row in rows:
        verdict = f"**{row.conformance}**{prose(row.condition)}: {row.total.sentence}"
        left_out = "".join(f"  - {code(name, 80)}: {prose(why)}\n" for name, why in row.subject.findings.items())
        yield Block(HEAD, "verdict", f"- {code(row.subject.name, 80)} {verdict}\n{left_out}")


def _table(run: Run, rows: Sequence[Row]) -> Iterator[Block]:
    judged, columns = [row for row in rows if row.verdicts], chapters_of(run)
    if judged:
        titles = " | ".join(SHORT.get(name, name) for name in columns)
        yield Block(FRAME, "", f"\n| | {titles} |\n|---|{'--:|' * len(columns)}\n")
    for row in judged:
        cells = " | ".join(f"**{cell.text}**" if "/" in cell.text else cell.text for cell in row.cells)
        yield Block(HEAD, "row of the table", f"| {in_table(code(row.subject.name, 80))} | {cells} |\n")
    if judged:
        yield Block(FRAME, "", f"\nCells: {LEGEND}\n")
    for row in judged:
        if where := isolation(row.subject):
            yield Block(HEAD, "note on a process", f"\n{code(row.subject.name, 80)} ran {where}.\n")


def _failures(run: Run, rows: Sequence[Row]) -> Iterator[Block]:
    for row in rows:
        heading = f"\n### {code(row.subject.name, 80)}\n\n"
        if diagnosis := run.diagnoses.get(row.subject.name, ""):
            heading += f"Diagnosis: {prose(diagnosis)}\n\n"
        for rank, verdicts in enumerate(row.together(Outcome.FAILS, Outcome.ERROR)):
            yield Block(FIRST + rank, "clause that fails", (heading if rank == 0 else "") + _clause(run, verdicts))
            if rank == 0 and (script := _script(run, verdicts[0])):
                yield Block(SCRIPT, "script", script)


def _clause(run: Run, verdicts: Sequence[Verdict]) -> str:
    first, clause = verdicts[0], load().get(verdicts[0].clause)
    title = f"#### {code(first.clause)} in {code(dtypes_of(verdicts))}\n\n"
    statement = f"> {clause.statement}\n\n" if clause is not None else ""
    if outcome(first) is Outcome.ERROR:
        return f"{title}{statement}Could not be judged: {code(first.reason)}\n\n"
    failure = failure_text(run, first)
    reduced = f": {code(failure.reduced_message)}" if failure.reduced_message != failure.message else ""
    lines = f"- Result: {code(failure.message)}\n- Smallest case: {code(failure.case)}{reduced}\n- Run again:\n\n"
    return f"{title}{statement}{lines}{fenced(one_line(failure.command, 2_000), 'sh')}\n"


def _script(run: Run, verdict: Verdict) -> str:
    record = run.explained.get(key_of(verdict))
    if record is None or not 0 < len(record.script) <= LONGEST_SCRIPT:
        return ""
    indented = ((line[: len(line) - len(line.lstrip(" "))], line) for line in record.script.splitlines())
    lines = "\n".join(f"{space}{one_line(line, LONGEST_SCRIPT)}" for space, line in indented)
    return _details("A program that shows the failure without this suite", fenced(lines, "python"))


def _folded(rows: Sequence[Row]) -> Iterator[Block]:
    kinds = (
        ("advice not followed", Outcome.ADVICE, _advice),
        ("known deviations", Outcome.KNOWN, _known),
        ("not provable in its dtypes", Outcome.UNPROVED, _unproved),
    )
    for row, (noun, kind, line_of) in product(rows, kinds):
        if lines := list(map(line_of, row.unproved if kind is Outcome.UNPROVED else row.together(kind))):
            title = f"{prose(one_line(row.subject.name, 80))}: {noun} ({len(lines)})"
            yield Block(FOLDED, f"list of {noun}", _details(title, "\n".join(lines) + "\n"))


def _advice(verdicts: Sequence[Verdict]) -> str:
    first = verdicts[0]
    return f"- {code(first.clause)} ({first.level}) in {code(dtypes_of(verdicts))}: {code(first.message, 300)}"


def _known(verdicts: Sequence[Verdict]) -> str:
    first = verdicts[0]
    link = f"<{first.link}>" if LINK.fullmatch(first.link) else code(first.link)
    return f"- {code(first.clause)} in {code(dtypes_of(verdicts))}: {code(first.reason, 300)} {link}"


def _unproved(verdicts: Sequence[Verdict]) -> str:
    return f"- {code(verdicts[0].clause)} in {code(dtypes_of(verdicts))}: {code(verdicts[0].reason, 300)}"


def _details(title: str, body: str) -> str:
    return f"\n<details><summary>{title}</summary>\n\n{body}\n</details>\n\n"


def _foot(run: Run) -> str:
    suite, env = run.opening.suite, run.opening.environment
    versions = {"attention-conformance": suite.version, "tier": suite.tier, "device": suite.device, **env}
    return "\n" + code(", ".join(f"{name} {value}" for name, value in versions.items())) + "\n"


def code(text: str, most: int = 600) -> str:
    """A candidate's text as a span of code: no markup, mention or link comes to life in it."""
    line = one_line(text, most) or " "
    ticks = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    space = " " if "`" in line or line != line.strip() else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def in_table(text: str) -> str:
    """Inline Markdown for a cell of a table, in which a bar would end the cell, even within code."""
    return text.replace("|", "\\|")


def prose(text: str) -> str:
    """Text as prose in which only `code` is markup."""
    parts = one_line(text, 1_200).split("`")
    if len(parts) % 2 == 0:
        return _escaped("".join(parts))
    return "".join(code(part) if number % 2 else _escaped(part) for number, part in enumerate(parts))


def _escaped(text: str) -> str:
    return SPECIAL.sub(lambda match: f"&#{ord(match[0])};", ACTIVE.sub(NO_BREAK, text))


def fenced(text: str, language: str = "") -> str:
    """Lines as a block of code, whatever they hold."""
    ticks = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{ticks}{language}\n{text}\n{ticks}\n"
