"""The feed of a matrix, in Atom (RFC 4287): what changed, by implementation and day; made of the states alone."""

from collections.abc import Mapping
from uuid import NAMESPACE_URL, uuid5
from xml.etree import ElementTree as ET

from attention_conformance.tests.report.views.matrix_state import Standing, history
from attention_conformance.tests.report.wording import one_line

FEED = "feed.xml"
NAMESPACE = "http://www.w3.org/2005/Atom"
TITLE = "Attention in the field: changes"
LONGEST = 200
"""So many entries, the latest first."""


def feed(state: Mapping[str, Standing]) -> bytes:
    """The feed of a state."""
    found = [
        (day, number, key, lines) for key in state for number, (day, lines) in enumerate(history(state[key])) if day
    ]
    latest = sorted(found, key=lambda each: each[:3], reverse=True)[:LONGEST]
    root = ET.Element("feed", xmlns=NAMESPACE)
    _common(root, "matrix", TITLE, max((day for day, *_ in latest), default="1970-01-01"))
    ET.SubElement(ET.SubElement(root, "author"), "name").text = "attention-conformance"
    ET.SubElement(root, "link", rel="self", type="application/atom+xml", href=FEED)
    ET.SubElement(root, "link", rel="alternate", type="text/html", href="index.html")
    for day, _, key, lines in latest:
        entry = ET.SubElement(root, "entry")
        _common(entry, " ".join((key, day, *lines)), lines[0], day)
        ET.SubElement(entry, "link", rel="alternate", type="text/html", href=f"versions.html#{key}")
        ET.SubElement(entry, "content", type="text").text = one_line("; ".join(lines))
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _common(element: ET.Element, identity: str, title: str, day: str) -> None:
    ET.SubElement(element, "id").text = uuid5(NAMESPACE_URL, f"attention-conformance {identity}").urn
    ET.SubElement(element, "title").text = one_line(title)
    ET.SubElement(element, "updated").text = f"{day}T00:00:00Z"
