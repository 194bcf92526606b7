"""How a measurement writes its page of the documentation: a template in `templates`, and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2

DOCS, TEMPLATES = Path(__file__).parents[2] / "docs", Path(__file__).parent / "templates"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numeric: bool = False) -> str:
    """A Markdown table; `numeric` aligns all columns but the first to the right."""
    rule = ["---", *["---:" if numeric else "---"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def write_page(name: str, **values: Any) -> None:
    """Writes `docs/<name>` from the template of this name, and prints that it was written."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    (DOCS / name).write_text(environment.get_template(name).render(values, table=table), encoding="utf-8")
    print(f"written: {name}")
