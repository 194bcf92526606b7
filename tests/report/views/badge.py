"""The badge: one line for a README, as an endpoint of shields.io and as a picture of its own."""

import json

from attention_conformance.tests.report.counts import HELD, Conformance, Row, counts
from attention_conformance.tests.report.model import Run
from attention_conformance.tests.report.wording import selected

LABEL = "attention"
GREEN, RED, ORANGE, GREY = "brightgreen", "red", "orange", "lightgrey"
FILLS = {GREEN: "#2a7d2a", RED: "#c0392b", ORANGE: "#a85d00", GREY: "#6b6b6b"}
"""White letters on these, and on `LEFT`, have a contrast of 4.5 at least."""
LEFT = "#4a4a4a"
HEIGHT, PADDING, SIZE = 20, 6, 11
WIDTHS = {
    **dict.fromkeys("0123456789", 636),
    **dict.fromkeys(" ft", 373),
    **dict.fromkeys("ijl", 290),
    **dict.fromkeys("mw", 900),
    **dict.fromkeys("crsz", 510),
    "·": 364,
}
"""Advance widths in thousandths of the letter size, about those of Verdana; other small letters have `OTHERS`."""
OTHERS = 615


def message(run: Run) -> tuple[str, str]:
    """The text of the badge, and its colour. A run that is not complete has no other text.

    If only some clauses or dtypes were selected, an implementation conforms in part.
    """
    if not run.closing.complete:
        return "incomplete", GREY
    rows, part = counts(run), " in part" if selected(run) else ""
    if not any(row.total.judged for row in rows):
        return "nothing judged", GREY
    if len(rows) == 1:
        return _of_one(rows[0], part)
    conforming = sum(row.conformance is Conformance.CONFORMS for row in rows)
    failing = any(row.conformance is Conformance.FAILS for row in rows)
    colour = GREEN if conforming == len(rows) else RED if failing else ORANGE
    return f"{conforming} of {len(rows)} conform{part}", colour


def _of_one(row: Row, part: str) -> tuple[str, str]:
    share = f"{row.total.holds}/{row.total.judged} hold"
    if row.conformance in HELD:
        whole = row.conformance is Conformance.CONFORMS
        return f"conforms{part if whole else ' in part'} · {share}", GREEN if whole else ORANGE
    return (f"fails · {share}", RED) if row.conformance is Conformance.FAILS else (f"error · {share}", ORANGE)


def endpoint(run: Run) -> str:
    """JSON that shields.io makes a badge from (schema version 1)."""
    context, colour = message(run)
    data = {"schemaVersion": 1, "label": LABEL, "message": context, "color": colour}
    return json.dumps(data, ensure_ascii=False) + "\n"


def svg(run: Run) -> str:
    """The badge as a picture. `textLength` makes every font as wide as the boxes expect."""
    context, colour = message(run)
    left, right = _width(LABEL), _width(context)
    whole = left + right + 4 * PADDING
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{HEIGHT}" role="img" \
aria-label="{LABEL}: {context}">
<title>{LABEL}: {context}</title>
<clipPath id="round"><rect width="{whole}" height="{HEIGHT}" rx="3"/></clipPath>
<g clip-path="url(#round)">
<rect width="{left + 2 * PADDING}" height="{HEIGHT}" fill="{LEFT}"/>
<rect x="{left + 2 * PADDING}" width="{right + 2 * PADDING}" height="{HEIGHT}" fill="{FILLS[colour]}"/>
</g>
<g fill="#fff" font-family="Verdana, DejaVu Sans, Geneva, sans-serif" font-size="{SIZE}" aria-hidden="true">
<text x="{PADDING}" y="14" textLength="{left}">{LABEL}</text>
<text x="{left + 3 * PADDING}" y="14" textLength="{right}">{context}</text>
</g>
</svg>
"""


def _width(text: str) -> int:
    """Pixels that a text takes, about."""
    return round(sum(WIDTHS.get(letter, OTHERS) for letter in text) * SIZE / 1000)
