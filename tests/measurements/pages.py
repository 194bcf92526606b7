"""How a measurement writes its page of the documentation: lines, Markdown tables, one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numeric: bool = False) -> Iterator[str]:
    """The lines of a table.

    Args:
        header: titles of the columns.
        rows: the cells of each row as text.
        numeric: True to align all columns but the first to the right.
    """
    rule = ["---", *["---:" if numeric else "---"] * (len(header) - 1)]
    yield from (f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def write_page(name: str, lines: Iterable[str]) -> None:
    """Writes `docs/<name>`, and prints that it was written."""
    (DOCS / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"written: {name}")
