"""Views: every file that a report consists of, made from its run alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from attention_conformance.tests.report.model import Run
from attention_conformance.tests.report.views import badge, junit, markdown
from attention_conformance.tests.report.views import json_view as data


def _page(run: Run) -> str:
    from attention_conformance.tests.report.views import (
        html,  # only a page needs its libraries, and most runs make none
    )

    return html.text(run)


VIEWS: Mapping[str, Callable[[Run], str]] = {
    "report.json": data.text,
    "report.html": _page,
    "report.md": markdown.text,
    "junit.xml": junit.text,
    "badge.json": badge.endpoint,
    "badge.svg": badge.svg,
}
"""By file name. Each is made whole, beside its place, and then moved there."""


def write(run: Run, folder: Path) -> None:
    """Writes all views into the folder of the report."""
    for name, view in VIEWS.items():
        _put(folder / name, view(run))


def write_unfinished(run: Run, folder: Path) -> None:
    """Writes what a program may read while the run goes on."""
    _put(folder / "report.json", data.text(run))


def clear(folder: Path) -> None:
    """Removes the views of an earlier run."""
    for name in VIEWS:
        (folder / name).unlink(missing_ok=True)


def _put(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
