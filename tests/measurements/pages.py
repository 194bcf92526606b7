"""Pages of the documentation that are made of a template in `templates` and of results."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

DOCS, TEMPLATES = Path(__file__).parents[2] / "docs", Path(__file__).parent / "templates"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numeric: bool = False) -> str:
    """A Markdown table; `numeric` aligns all columns but the first to the right."""
    rule = ["---", *["---:" if numeric else "---"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def rendered(name: str, **values: Any) -> str:
    """The page of this name, from the template of this name."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(values, table=table)


def store(path: Path, score: Mapping[str, Any]) -> None:
    """Writes the results of a measurement as JSON, a line for each row of a table, and prints that it did."""
    entries = ",\n".join(f"{json.dumps(name)}: {_rows(value)}" for name, value in score.items())
    path.write_text(f"{{\n{entries}\n}}\n", encoding="utf-8")
    print(f"written: {path.name}")


def _rows(value: Any) -> str:
    if not isinstance(value, dict) or not any(isinstance(row, dict) for row in value.values()):
        return json.dumps(value, ensure_ascii=False)
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in value.items())
    return f"{{\n{rows}\n}}"


def write_page(name: str, **values: Any) -> None:
    """Writes `docs/<name>`, and prints that it was written."""
    (DOCS / name).write_text(rendered(name, **values), encoding="utf-8")
    print(f"written: {name}")
