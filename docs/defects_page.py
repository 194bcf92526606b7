"""The catalogue of defects as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from attention_conformance.implementations.defects import Defect, catalogue


def page() -> str:
    """Every defect under its chapter."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Defects"
    yield ""
    yield f"{len(catalogue())} wrong implementations, one mistake each. See [which clauses detect them](mutation.md)."
    for chapter in dict.fromkeys(defect.chapter for defect in catalogue()):
        yield from ("", f"## {chapter}")
        for defect in catalogue():
            if defect.chapter == chapter:
                yield from _entry(defect)


def _entry(defect: Defect) -> Iterator[str]:
    links = " ".join(f"<{link}>" for link in defect.text.links)
    yield from ("", f"### {defect.id}", "")
    yield f"{defect.text.does} *Breaks* {', '.join(f'`{clause}`' for clause in defect.clauses)} ({defect.severity})."
    yield ""
    yield f"- hidden by: {defect.text.hides}"
    yield f"- matters: {defect.matters}"
    yield f"- repair: {defect.text.repair}"
    yield from ([f"- reported in: {links}"] if links else [])
