"""Links that pages need not write: from the names of clauses, defects and chapters to their explanations."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from posixpath import normpath

from attention_conformance.implementations.defects import Defect
from attention_conformance.spec.clauses import Clause, chapters

__all__ = ["chapter_page", "outside_code", "slug", "targets", "with_links_moved", "with_names_linked"]

NAME = re.compile(r"(?<![\[`])`([a-z0-9./-]+)`(?!`)|(?<=\| )([a-z0-9-]+\.[a-z0-9-]+)(?= \|)")
NUMBER = re.compile(r"\b([Cc]hapter (\d+))\b(?!:)|(?<![\d.{\w])([1-9]\d?)\.([1-9]\d?)(?![\d}\w]|\.\d)")
LINK = re.compile(r"(?<=\]\()([^)#:]+)(#[^)]*)?(?=\))")


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with each line changed outside of fenced blocks."""
    within, lines = False, []
    for line in text.split("\n"):
        fence = line.startswith("```")
        lines.append(line if within or fence else change(line))
        within ^= fence
    return "\n".join(lines)


def slug(name: str) -> str:
    """The anchor that Markdown gives to a heading of this name."""
    return name.replace(".", "")


def targets(clauses: Mapping[str, Clause], defects: Iterable[Defect]) -> dict[str, str]:
    """Where each clause and each defect is explained: a page, and an anchor."""
    of_clauses = {name: f"spec/{clause.chapter}.md#{slug(name)}" for name, clause in clauses.items()}
    return {defect.id: f"defects.md#{defect.id}" for defect in defects} | of_clauses


def with_names_linked(text: str, page: str, targets: Mapping[str, str]) -> str:
    """Links each name in code type, or alone in the cell of a table, to its target."""

    def link(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return f"[{match[0]}]({_from(page, targets[name])})" if name in targets else match[0]

    return outside_code(text, lambda line: line if line.startswith("#") else NAME.sub(link, line))


def with_links_moved(text: str, file: PurePosixPath, pages: Mapping[PurePosixPath, str]) -> str:
    """Links between files of the repository, as links between the pages that are made of them."""

    def move(match: re.Match[str]) -> str:
        page = pages.get(PurePosixPath(normpath(file.parent / match[1])))
        return match[0] if page is None else _from(pages[file], page) + (match[2] or "")

    return outside_code(text, lambda line: LINK.sub(move, line))


def _from(page: str, target: str) -> str:
    """The target as a link on the page; both are relative to the root of the documentation."""
    return f"#{target.partition('#')[2]}" if target.startswith(f"{page}#") else "../" * page.count("/") + target


def chapter_page(text: str, defects: Iterable[Defect]) -> str:
    """A chapter as a page: equations and chapters are linked, and a clause ends with the defects that break it."""
    broken: dict[str, list[str]] = {}
    for defect in defects:
        for clause in defect.clauses:
            broken.setdefault(clause, []).append(f"`{defect.id}`")
    text = text.replace("\n\n- level: ", "\n\n{.facts}\n- level: ")
    parts = re.split(r"^(?=## )", outside_code(text, _cross_references), flags=re.MULTILINE)
    return "\n".join(part.rstrip("\n") + "\n" + _broken(part, broken) for part in parts)


def _broken(part: str, broken: Mapping[str, list[str]]) -> str:
    listed = broken.get(part.partition("\n")[0].removeprefix("## "))
    return f"\nBroken by: {', '.join(listed)}.\n" if listed else ""


def _cross_references(line: str) -> str:
    """The line with the numbers of chapters and equations linked, except in equations and in code."""
    names = chapters()

    def link(match: re.Match[str]) -> str:
        chapter, equation = int(match[2] or match[3]), match[4]
        before = match.string[: match.start()]
        if chapter > len(names) or before.count("$") % 2 or before.count("`") % 2 or _is_source(line):
            return match[0]
        if equation is None:
            return f"[{match[0]}]({names[chapter - 1]}.md)"
        return f'<a href="{names[chapter - 1]}.html#equation-{chapter}-{equation}">{match[0]}</a>'

    return NUMBER.sub(link, line)


def _is_source(line: str) -> bool:
    return line.startswith("- ") and not line.startswith("- equation: ")
