"""Pictures, equations and failures of the page, without a browser."""

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.spec.clauses import equations, load
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.report.counts import counts
from attention_conformance.tests.report.log import decode, encode
from attention_conformance.tests.report.model import Grid, WeightMap
from attention_conformance.tests.report.views import html, pictures
from attention_conformance.tests.report.views.equations import equation, mathml, prose
from attention_conformance.tests.report.views.page_failures import Depth, failing_clauses
from attention_conformance.tests.selftest.report.page_runs import RIGHT, WRONG, invented, softmaxed


def test_numbers_that_differ_are_printed_differently_and_marked() -> None:
    run = invented(names=(WRONG,))
    answer, weights, *handed = pictures.parts(run.failures[0])
    (first, *_), *others = answer.rows
    expected, got = answer.rows[0][0].cells[0][1], answer.rows[0][1].cells[0][1]
    assert first.caption == "expected, sample 0 head 1"
    assert expected[1] != got[1]
    assert len(expected[1]) < 12
    assert got[0].endswith(" d")
    assert not any(picture.marked for row in others for picture in row)
    hidden = weights.rows[0][1].cells[0][1]
    assert hidden[0].endswith(" w")
    assert float(hidden[1]) > 0.0
    assert handed[0].rows[0][0].cells[0][0] == ("no", "-inf")
    assert handed[-1].rows == ()


def test_heads_that_agree_are_not_marked() -> None:
    run = invented(names=(RIGHT,))
    part = pictures.weights(run.weight_maps[RIGHT])
    assert len(part.rows) == 4
    assert not any(picture.marked for row in part.rows for picture in row)
    assert part.rows[0][0].cells[0][0] == ("h10", "1")
    assert part.rows[0][0].cells[0][1] == ("", "0")


def test_heads_that_agree_are_drawn_once_where_there_are_many() -> None:
    run = invented(names=(RIGHT, WRONG))
    alike, other = (pictures.weights(run.weight_maps[name], brief=True) for name in (RIGHT, WRONG))
    assert [[each.caption for each in row] for row in alike.rows] == [[f"got as expected, head {n}"] for n in range(4)]
    assert [len(row) for row in other.rows] == [2, 2, 2, 2]


def test_a_page_shows_some_of_every_implementation_and_names_the_rest() -> None:
    names = [f"{WRONG}.{number}" for number in range(70)]
    run = invented(names=names)
    failing = failing_clauses(run, counts(run))
    for name in names:
        depths = {clause: [each.depth for each in one.dtypes] for clause, one in failing[name].items()}
        assert depths == {
            "scores.scale-default": [Depth.DRAWN, Depth.DESCRIBED],
            "masks.rank": [Depth.NAMED, Depth.NAMED],
            "causal.square": [Depth.NAMED, Depth.NAMED],
        }
    few = invented(names=names[:2])
    of_one = failing_clauses(few, counts(few))[names[0]]
    assert all(one.whole and one.dtypes[0].depth is Depth.DRAWN for one in of_one.values())


def test_what_breaks_a_must_is_drawn_before_advice() -> None:
    names = [f"{WRONG}.{number}" for number in range(24)]
    run = invented(names=names)
    assert [clause for clause, one in failing_clauses(run, counts(run))[names[0]].items() if one.whole] == [
        "scores.scale-default",
        "causal.square",
    ]


def test_nan_is_not_unlike_nan() -> None:
    nan = Grid.of(np.full((1, 2, 2), np.nan))
    part = pictures.weights(replace(invented().weight_maps[RIGHT], expected=nan, got=nan))
    assert not part.rows[0][1].marked
    assert part.rows[0][1].cells[0][0] == ("no", "nan")
    other = pictures.weights(replace(invented().weight_maps[RIGHT], expected=nan, got=Grid.of(softmaxed(1, 1, 2))))
    assert other.rows[0][1].marked


ODD_ARRAYS = {
    "no samples": np.zeros((0, 2, 3, 4)),
    "no heads": np.zeros((2, 0, 3, 4)),
    "no queries": np.zeros((1, 2, 0, 4)),
    "no columns": np.zeros((1, 2, 3, 0)),
    "no axes": np.array(2.5),
    "one axis": np.arange(3),
    "five axes": np.zeros((1, 2, 1, 2, 3)),
    "not finite": np.array([[np.nan, np.inf], [-np.inf, 0.0]]),
    "booleans": np.tri(3, dtype=bool),
    "bfloat16": np.ones((2, 2), DTYPES["bfloat16"]),
    "complex": np.ones((2, 2), complex),
    "objects": np.array([[None, "x"]], object),
    "dates": np.array(["2026-01-01"], "datetime64[D]"),
}
UNDRAWN = {"complex": "not real numbers", "objects": "not real numbers"}


@pytest.mark.parametrize("name", ODD_ARRAYS)
def test_every_array_is_drawn_or_named(name: str) -> None:
    """As input, answer and weights of a failure, and as weights of every head; a log of it reads the same."""
    array = ODD_ARRAYS[name]
    grid, other = Grid.of(array), Grid.of(np.ones((2, 2)))
    assert decode(encode(WeightMap("mine", "float64", "B=0", "returned", grid))) is not None
    obstacle = "empty" if array.size == 0 else UNDRAWN.get(name, "")
    for got in (grid, other, None):
        record = replace(invented().failures[0], arrays={"query": grid}, expected=grid, got=got, error_in_bounds=None)
        answer, weights, query = pictures.parts(replace(record, expected_weights=grid, got_weights=got))
        for part in (answer, weights, query, pictures.weights(WeightMap("mine", "float64", "", "", grid, got))):
            assert (f"{obstacle}" in part.note) if obstacle else part.rows
        assert query.title == f"query {array.shape}"
        assert all("<table" in str(picture.__html__()) for row in answer.rows for picture in row)


def test_the_page_of_a_failure_without_samples_is_made() -> None:
    run = invented(names=(WRONG,))
    empty = Grid.of(ODD_ARRAYS["no samples"])
    odd = [replace(one, arrays={"query": empty}, expected=empty, got=empty) for one in run.failures]
    assert "got (0, 2, 3, 4): empty" in html.text(replace(run, failures=odd))


@pytest.mark.parametrize(
    ("value", "style"), [(0.0, ""), (0.1, ""), (0.11, "h2"), (0.3, "h3"), (1.0, "h10"), (-0.1, "no")]
)
def test_heat(value: float, style: str) -> None:
    assert pictures.heat(value) == style


@pytest.mark.parametrize(("ratio", "style"), [(0.5, "e0"), (1.0, "e0"), (1.1, "e1"), (1e7, "e4"), (np.nan, "e4")])
def test_errors_beyond_the_bound(ratio: float, style: str) -> None:
    assert pictures.bounds(ratio) == style


def test_every_equation_can_be_shown() -> None:
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
    markup = prose("a < b, `causal.square`, `a<b`, $x < y$")
    assert markup.startswith(
        'a &lt; b, <a href="#clause:causal.square"><code>causal.square</code></a>, <code>a&lt;b</code>'
    )
    assert "<mo>&lt;</mo>" in markup
