"""The view for readers: report.html, one file that needs no network, and no script to be read."""

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from attention_conformance.spec.clauses import load
from attention_conformance.spec.conventions import Conventions
from attention_conformance.tests.report import counts
from attention_conformance.tests.report.counts import ClauseCount, Conformance, Outcome, Row
from attention_conformance.tests.report.grades import grade
from attention_conformance.tests.report.model import Run
from attention_conformance.tests.report.verdict import Verdict
from attention_conformance.tests.report.views import pictures
from attention_conformance.tests.report.views.equations import equation, prose
from attention_conformance.tests.report.views.inline import embedded
from attention_conformance.tests.report.views.page_failures import Depth, FailingClause, failing_clauses
from attention_conformance.tests.report.wording import UNREADABLE, dtypes_of, in_bounds, isolation, one_line, selected

ASSETS = Path(__file__).parent / "assets"
FEW = 3
"""So many implementations get a sentence each in the head of the page, and are open from the start."""
SIGNS = {
    Conformance.CONFORMS: Outcome.HOLDS,
    Conformance.IN_PART: Outcome.ADVICE,
    Conformance.FAILS: Outcome.FAILS,
    Conformance.ERROR: Outcome.ERROR,
    Conformance.UNDECIDED: Outcome.NOT_CHECKED,
    Conformance.NOTHING_CHECKED: Outcome.NOT_CHECKED,
}


def text(run: Run) -> str:
    """The page; all text of the run is shown as text."""
    matrix = counts.counts(run)
    failing = failing_clauses(run, matrix)
    judged = {each.clause for row in matrix for each in row.total.clauses}
    return (
        templates()
        .get_template("page.html")
        .render(
            run=run,
            part=selected(run),
            matrix=matrix,
            columns=counts.chapters_of(run),
            failing=failing,
            opened_of=_opened(matrix, failing).get,
            clauses=[clause for name, clause in load().items() if name in judged],
            conformances={each: sum(row.conformance is each for row in matrix) for each in Conformance},
            few=FEW,
            broken=counts.BROKEN,
            grades={row.subject.name: grade(row.verdicts) for row in matrix},
            defaults=dict(Conventions().items()),
            maps={n: pictures.weights(each, len(matrix) > FEW) for n, each in run.weight_maps.items() if each.expected},
            **embedded(ASSETS / "page.css", ASSETS / "page.js"),
        )
    )


def templates() -> jinja2.Environment:
    """What renders the templates: with text as text, and an error for a name that is not given."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"one_line": one_line, "code": code, "slug": slug, "bounds": in_bounds, "web": web}
    environment.filters |= {"named": named, "reasons": reasons, "isolation": isolation}
    environment.globals |= {"Outcome": Outcome, "Conformance": Conformance, "Depth": Depth, "outcome": counts.outcome}
    environment.globals |= {"prose": prose, "equation": equation, "specification": load(), "signs": SIGNS}
    environment.globals |= {"legend": counts.LEGEND, "meanings": counts.MEANINGS}
    return environment


def slug(name: str) -> str:
    """The name as part of an address: all but letters, digits and `_.-~` are spelt by their bytes."""
    return quote(name, safe="", errors="replace")


def code(source: str) -> str:
    """Lines of a program, without characters that steer a terminal or change the direction of writing."""
    return "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else UNREADABLE for c in source)


def named(sentence: str) -> Markup:
    """The sentence, with text in backticks as code."""
    pieces = enumerate(sentence.split("`"))
    return Markup("").join(Markup("<code>{}</code>" if odd % 2 else "{}").format(each) for odd, each in pieces)


def web(link: str) -> bool:
    """Whether a link leads to the web: others, such as `javascript:`, are shown as text."""
    return link.startswith(("https://", "http://"))


def reasons(clause: ClauseCount) -> list[tuple[str, str, str]]:
    """Why a clause was not judged, or is a known deviation; each reason once, with its dtypes and its link."""
    by_reason: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in clause.verdicts:
        if verdict.reason:
            by_reason.setdefault((verdict.reason, verdict.link), []).append(verdict)
    return [(dtypes_of(verdicts), one_line(reason), link) for (reason, link), verdicts in by_reason.items()]


def _opened(matrix: Sequence[Row], failing: Mapping[str, Mapping[str, FailingClause]]) -> Mapping[str, tuple[str, ...]]:
    """The clauses whose failure is open from the start: the first of each implementation, if there are few."""
    if len(matrix) > FEW:
        return dict.fromkeys(failing, ())
    return {
        name: tuple(clause for clause, each in clauses.items() if each.count.outcome is Outcome.FAILS)[:1]
        for name, clauses in failing.items()
    }
