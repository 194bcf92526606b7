"""The view for readers: report.html, one file that needs no network, and no script to be read."""

from __future__ import annotations

import base64
import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from attention_conformance.spec.clauses import Clause, load
from attention_conformance.spec.features import Conventions
from attention_conformance.tests.report.grades import grade
from attention_conformance.tests.report.model import Run, WeightMap
from attention_conformance.tests.report.text import UNREADABLE, plain, selected
from attention_conformance.tests.report.views import pictures
from attention_conformance.tests.report.views.equations import equation, prose
from attention_conformance.tests.report.views.findings import Depth, Finding, findings
from attention_conformance.tests.report.views.matrix import BROKEN, MEANINGS, Kind, Line, columns, kind_of, lines

ASSETS = Path(__file__).parent / "assets"
FEW = 3
"""So many implementations get a sentence each in the head of the page, and are open from the start."""
SIGNS = {"conforms": Kind.HOLDS, "fails": Kind.FAILS, "error": Kind.ERROR}
"""Of verdicts on whole implementations; the others have no sign."""


def text(run: Run) -> str:
    """The page; whatever text the run holds is shown as text."""
    loader = jinja2.FileSystemLoader(ASSETS)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"plain": plain, "code": code, "slug": slug, "bounds": in_bounds, "web": web, "named": named}
    environment.globals |= {"Kind": Kind, "Depth": Depth, "kind_of": kind_of, "prose": prose, "equation": equation}
    matrix = lines(run)
    found = findings(run, matrix)
    style, script = _own("page.css", "style"), _own("page.js", "script")
    return environment.get_template("page.html").render(
        run=run,
        part=selected(run),
        matrix=matrix,
        columns=columns(run),
        findings=found,
        opened_of=_opened(matrix, found).get,
        clauses=_clauses(matrix),
        specification=load(),
        counts={state: sum(line.state == state for line in matrix) for state in ("conforms", "fails", "error")},
        few=FEW,
        signs=SIGNS,
        meanings=MEANINGS,
        broken_kinds=BROKEN,
        grades={line.subject.name: grade(line.mine) for line in matrix},
        defaults=dict(Conventions().items()),
        maps={name: _map(shown, len(matrix) > FEW) for name, shown in run.maps.items()},
        style=style,
        script=script,
        allowed={"style": _fingerprint(style), "script": _fingerprint(script)},
    )


def _own(name: str, element: str) -> Markup:
    """An asset, which must not end its own element."""
    own = (ASSETS / name).read_text(encoding="utf-8")
    if f"</{element}" in own.lower() or "<!--" in own:
        raise ValueError(f"{name} contains </{element} or <!--, which would end or hide it")
    return Markup(own)


def _fingerprint(own: str) -> str:
    """By which the page's security policy allows this style or script, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()}'"


def slug(name: str) -> str:
    """The name as part of an address: what is no letter, digit or one of `_.-~` is spelt by its bytes."""
    return quote(name, safe="", errors="replace")


def code(source: str) -> str:
    """Lines of a program, without characters that steer a terminal or turn the direction of writing."""
    return "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else UNREADABLE for c in source)


def named(sentence: str) -> Markup:
    """The sentence, with what stands in backticks as code."""
    pieces = [
        Markup("<code>{}</code>" if odd % 2 else "{}").format(each) for odd, each in enumerate(sentence.split("`"))
    ]
    return Markup("").join(pieces)


def web(link: str) -> bool:
    """Whether a link leads to the web: others, such as `javascript:`, are shown as text."""
    return link.startswith(("https://", "http://"))


def in_bounds(value: float | None) -> str:
    """An error in units of its bound, in two digits; "" for none."""
    if value is None:
        return ""
    return "<0.01" if 0.0 < value < 0.01 else f"{value:.2g}"


def _opened(matrix: Sequence[Line], found: Mapping[str, Mapping[str, Finding]]) -> Mapping[str, tuple[str, ...]]:
    """The clauses whose failure is open from the start: the first of each implementation, where there are few."""
    if len(matrix) > FEW:
        return dict.fromkeys(found, ())
    failing = {name: [c for c, each in mine.items() if each.row.kind is Kind.FAILS] for name, mine in found.items()}
    return {name: tuple(clauses[:1]) for name, clauses in failing.items()}


def _clauses(matrix: Sequence[Line]) -> list[Clause]:
    """Those that were asked, in the order of the specification."""
    asked = {row.clause for line in matrix for row in line.rows}
    return [clause for name, clause in load().items() if name in asked]


def _map(shown: WeightMap, brief: bool) -> pictures.Part | None:
    return None if shown.expected is None else pictures.weights(shown, brief)
