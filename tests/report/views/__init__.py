"""Views: every file of a report, made from its run alone. A new view is a module, and a line in `VIEWS`."""

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from attention_conformance.tests.report.model import Run
from attention_conformance.tests.report.views import badge, json_view, junit, markdown
from attention_conformance.tests.report.wording import one_line


def _page(run: Run) -> str:
    from attention_conformance.tests.report.views import html  # its libraries take time, and most runs make no page

    return html.text(run)


VIEWS: Mapping[str, Callable[[Run], str]] = {
    "report.json": json_view.text,
    "report.html": _page,
    "report.md": markdown.text,
    "junit.xml": junit.text,
    "badge.json": badge.endpoint,
    "badge.svg": badge.svg,
}
"""By file name."""
ERRORS = "view-errors.txt"
"""The tracebacks of the views that could not be made."""


def write(run: Run, folder: Path, views: Mapping[str, Callable[[Run], str]] = VIEWS) -> dict[str, str]:
    """Writes all views into the folder of the report; one that fails leaves the others alone.

    Returns:
        Why a view could not be made, in one line, by its file name.

    Raises:
        OSError: one could not be written; all others that could be are.
    """
    failed, tracebacks = {}, []
    unwritten = list[OSError]()
    for name, view in views.items():
        try:
            text = view(run).encode("utf-8")
        except Exception as error:  # an error of the suite, which must not cost the rest of the report
            failed[name] = one_line(f"{type(error).__name__}: {error}")
            tracebacks.append(f"{name}\n{traceback.format_exc()}")
            continue
        try:
            _put(folder / name, text)
        except OSError as error:
            unwritten.append(error)
    if tracebacks:
        _put(folder / ERRORS, "\n".join(tracebacks).encode("utf-8", "replace"))
    for first in unwritten[:1]:
        raise first
    return failed


def write_unfinished(run: Run, folder: Path) -> None:
    """Writes the view that a program may read while the run goes on."""
    _put(folder / "report.json", json_view.text(run).encode("utf-8"))


def clear(folder: Path) -> None:
    """Removes the views of an earlier run."""
    for name in (*VIEWS, ERRORS):
        (folder / name).unlink(missing_ok=True)


def _put(path: Path, text: bytes) -> None:
    """Writes a file whole, next to its place, and then moves it there.

    Raises:
        OSError: it cannot be written; it names the file.
    """
    unfinished = path.with_name(f"{path.name}.part")
    try:
        unfinished.write_bytes(text)
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
