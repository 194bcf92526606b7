"""What the page of a report draws, tells and counts, without a browser: pictures, equations, findings, the matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.spec.clauses import equations, load
from attention_conformance.tests.report.model import Grid
from attention_conformance.tests.report.views import pictures
from attention_conformance.tests.report.views.equations import equation, mathml, prose
from attention_conformance.tests.report.views.findings import Depth, findings
from attention_conformance.tests.report.views.matrix import Kind, lines
from attention_conformance.tests.selftest.report_data import KNOWN, RIGHT, WRONG, invented, softmaxed


def test_numbers_that_differ_are_told_apart_and_marked() -> None:
    run = invented(names=(WRONG,))
    answer, weights, *handed = pictures.parts(run.shown[0])
    (first, *_), *others = answer.rows
    wanted, got = answer.rows[0][0].cells[0][1], answer.rows[0][1].cells[0][1]
    assert first.caption == "expected, sample 0 head 1"
    assert wanted[1] != got[1]
    assert len(wanted[1]) < 12
    assert got[0].endswith(" d")
    assert not any(picture.marked for row in others for picture in row)
    hidden = weights.rows[0][1].cells[0][1]
    assert hidden[0].endswith(" w")
    assert float(hidden[1]) > 0.0
    assert handed[0].rows[0][0].cells[0][0] == ("no", "-inf")
    assert handed[-1].rows == ()


def test_heads_that_agree_are_not_marked() -> None:
    run = invented(names=(RIGHT,))
    part = pictures.weights(run.maps[RIGHT])
    assert len(part.rows) == 4
    assert not any(picture.marked for row in part.rows for picture in row)
    assert part.rows[0][0].cells[0][0] == ("h10", "1")
    assert part.rows[0][0].cells[0][1] == ("", "0")


def test_heads_that_agree_are_drawn_once_where_there_are_many() -> None:
    run = invented(names=(RIGHT, WRONG))
    alike, other = (pictures.weights(run.maps[name], brief=True) for name in (RIGHT, WRONG))
    assert [[each.caption for each in row] for row in alike.rows] == [[f"seen as expected, head {n}"] for n in range(4)]
    assert [len(row) for row in other.rows] == [2, 2, 2, 2]


def test_a_page_shows_some_of_every_implementation_and_names_the_rest() -> None:
    names = [f"{WRONG}.{number}" for number in range(70)]
    run = invented(names=names)
    found = findings(run, lines(run))
    for name in names:
        depths = {clause: [each.depth for each in one.failing] for clause, one in found[name].items()}
        assert depths == {
            "scores.scale-default": [Depth.DRAWN, Depth.TOLD],
            "masks.rank": [Depth.NAMED, Depth.NAMED],
            "causal.square": [Depth.NAMED, Depth.NAMED],
        }
    few = invented(names=names[:2])
    of_one = findings(few, lines(few))[names[0]]
    assert all(one.whole and one.failing[0].depth is Depth.DRAWN for one in of_one.values())


def test_what_breaks_a_must_is_drawn_before_advice() -> None:
    names = [f"{WRONG}.{number}" for number in range(24)]
    run = invented(names=names)
    assert [clause for clause, one in findings(run, lines(run))[names[0]].items() if one.whole] == [
        "scores.scale-default",
        "causal.square",
    ]


def test_nan_is_not_unlike_nan() -> None:
    nan = Grid.of(np.full((1, 2, 2), np.nan))
    part = pictures.weights(replace(invented().maps[RIGHT], expected=nan, got=nan))
    assert not part.rows[0][1].marked
    assert part.rows[0][1].cells[0][0] == ("no", "nan")
    other = pictures.weights(replace(invented().maps[RIGHT], expected=nan, got=Grid.of(softmaxed(1, 1, 2))))
    assert other.rows[0][1].marked


@pytest.mark.parametrize(
    ("value", "style"), [(0.0, ""), (0.1, ""), (0.11, "h2"), (0.3, "h3"), (1.0, "h10"), (-0.1, "no")]
)
def test_heat(value: float, style: str) -> None:
    assert pictures.heat(value) == style


@pytest.mark.parametrize(("ratio", "style"), [(0.5, "e0"), (1.0, "e0"), (1.1, "e1"), (1e7, "e4"), (np.nan, "e4")])
def test_errors_beyond_the_bound(ratio: float, style: str) -> None:
    assert pictures.bounds(ratio) == style


def test_the_worst_dtype_decides_a_cell() -> None:
    by_name = {line.subject.name: line for line in lines(invented())}
    assert {cell.chapter: (cell.kind, cell.counts) for cell in by_name[KNOWN].cells} == {
        "scores": (Kind.HOLDS, "2"),
        "masks": (Kind.HOLDS, "2"),
        "causal": (Kind.ERROR, "1/2"),
    }
    assert {cell.chapter: (cell.kind, cell.counts) for cell in by_name[WRONG].cells} == {
        "scores": (Kind.FAILS, "1/2"),
        "masks": (Kind.ADVICE, "1/2"),
        "causal": (Kind.FAILS, "1/2"),
    }


def test_a_chapter_that_is_not_there_is_not_claimed_or_not_asked() -> None:
    run = invented(names=(RIGHT, WRONG))
    left = [v for v in run.verdicts if v.implementation == WRONG or not v.clause.startswith("masks.")]
    few = replace(run.begin.subjects[0], features=("core",))
    for who, kind in ((few, Kind.UNCLAIMED), (run.begin.subjects[0], Kind.UNASKED)):
        begin = replace(run.begin, subjects=(who, run.begin.subjects[1]))
        cells = {cell.chapter: cell.kind for cell in lines(replace(run, begin=begin, verdicts=left))[0].cells}
        assert cells["masks"] is kind


def test_every_equation_is_found_and_can_be_shown() -> None:
    named = {clause.equation for clause in load().values() if clause.equation}
    assert named <= set(equations())
    for tag in equations():
        assert equation(tag).startswith("<math")
    for clause in load().values():
        for sentence in (clause.statement, *clause.errata):
            assert "$" not in prose(sentence)
    with pytest.raises(ValueError, match=r"\\nonsense is unknown"):
        mathml(r"x + \nonsense")


def test_prose_is_escaped_and_clauses_are_linked() -> None:
    told = prose("a < b, `causal.square`, `a<b`, $x < y$")
    assert told.startswith(
        'a &lt; b, <a href="#clause:causal.square"><code>causal.square</code></a>, <code>a&lt;b</code>'
    )
    assert "<mo>&lt;</mo>" in told
