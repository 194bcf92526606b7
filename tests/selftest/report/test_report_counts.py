"""Counts of a run: every view shows the same numbers for each implementation and chapter, and states what they mean."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

import pytest

from attention_conformance.tests.report.counts import LEGEND, Conformance, Outcome, chapters_of, conformance, counts
from attention_conformance.tests.report.model import Run
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.report.views import badge, html, json_view, junit, markdown
from attention_conformance.tests.report.views.terminal import lines
from attention_conformance.tests.selftest.report.run_builders import (
    failed,
    known,
    passed,
    run,
    subject,
    unclaimed,
    unjudged,
)

MINE = (
    passed("mine", "scores.dot-product"),
    failed("mine", "scores.scale-default"),
    passed("mine", "scores.scale-default", "float32"),
    passed("mine", "causal.square"),
    known("mine", "causal.square", "float32"),
    failed("mine", "causal.any-scale", level="SHOULD"),
    passed("mine", "causal.no-future"),
    unclaimed("mine", "masks.bool"),
    unjudged("mine", "values.mix"),
    passed("mine", "values.single-key"),
)
THEIRS = (
    passed("theirs", "scores.dot-product"),
    passed("theirs", "scores.scale-default"),
    known("theirs", "causal.square"),
    passed("theirs", "causal.no-future"),
    unclaimed("theirs", "masks.bool"),
)
BOTH = run(*MINE, *THEIRS)
CELLS = {
    "mine": {"scores": "1/2", "values": "1/2", "masks": "-", "causal": "1/3"},
    "theirs": {"scores": "2", "values": "·", "masks": "-", "causal": "1/2"},
}
SENTENCES = {
    "mine": "3 of 7 clauses hold, 1 fails, 1 could not be judged, 1 known deviation, 1 advice not followed",
    "theirs": "3 of 4 clauses hold, 1 known deviation",
}
CONCLUSIONS = {"mine": "fails", "theirs": "conforms"}


def cells_of_terminal(shown: Run) -> Mapping[str, Mapping[str, str]]:
    titles, *rows = lines(shown)
    words = [row.split() for row in rows[: len(shown.opening.subjects)]]
    return {name: dict(zip(titles.split(), cells, strict=False)) for name, *cells in words}


def cells_of_markdown(shown: Run) -> Mapping[str, Mapping[str, str]]:
    titles, _, *rows = (line.strip("| ").split(" | ") for line in markdown.text(shown).splitlines() if line[:1] == "|")
    return {row[0].strip("`"): dict(zip(titles, [c.strip("*") for c in row[1:]], strict=True)) for row in rows}


def cells_of_page(shown: Run) -> Mapping[str, Mapping[str, str]]:
    row = r'<tr data-of="(\w+)/">(.*?)</tr>'
    cell = r'<td class="cell \w">.*?>([^<>]*)(?:<small>(.*?)</small></a>|</span>)'
    rows = re.findall(row, html.text(shown), re.DOTALL)
    return {
        name: dict(zip(chapters_of(shown), [small or sign for sign, small in re.findall(cell, text)], strict=True))
        for name, text in rows
    }


@pytest.mark.parametrize("cells_of", [cells_of_terminal, cells_of_markdown, cells_of_page])
def test_every_view_shows_the_same_cells(cells_of: Callable[[Run], Mapping[str, Mapping[str, str]]]) -> None:
    cells = cells_of(BOTH)
    assert {name: {title: cells[name][title] for title in CELLS[name]} for name in CELLS} == CELLS


def test_programs_get_the_same_cells() -> None:
    mine, theirs = json.loads(json_view.text(BOTH))["implementations"]
    cells = [{name: f"{n['holds']}/{n['judged']}" for name, n in each["chapters"].items()} for each in (mine, theirs)]
    assert (mine["name"], theirs["name"]) == ("mine", "theirs")
    assert cells == [
        {"scores": "1/2", "values": "1/2", "masks": "0/0", "causal": "1/3"},
        {"scores": "2/2", "masks": "0/0", "causal": "1/2"},
    ]
    assert mine["counts"] == {"judged": 7, "holds": 3, "fails": 1, "error": 1, "known deviation": 1, "advice": 1} | {
        "not provable": 0
    }


def test_every_view_has_the_same_sentence_for_an_implementation() -> None:
    page, comment = unescape(re.sub("<[^>]*>", "", html.text(BOTH))), markdown.text(BOTH)
    suites = ElementTree.fromstring(junit.text(BOTH))
    entries = {entry["name"]: entry for entry in json.loads(json_view.text(BOTH))["implementations"]}
    properties = {s.get("name"): {p.get("name"): p.get("value") for p in s.iter("property")} for s in suites}
    for name, sentence in SENTENCES.items():
        assert f"{name} {CONCLUSIONS[name]}: {sentence}\n" in page
        assert f"- `{name}` **{CONCLUSIONS[name]}**: {sentence}\n" in comment
        assert (properties[name]["verdict"], properties[name]["clauses"]) == (CONCLUSIONS[name], sentence)
        assert entries[name]["verdict"] == CONCLUSIONS[name]
    assert badge.message(run(*MINE))[0] == "fails · 3/7 hold"
    assert badge.message(run(*THEIRS))[0] == "conforms · 3/4 hold"


def test_the_terminal_has_the_same_totals_and_verdicts() -> None:
    mine, theirs = (line.split() for line in list(lines(BOTH))[1:3])
    assert mine[5:8] == ["3/7", "24", "9"]
    assert " ".join(mine[8:]) == "fails, 1 known deviation, 1 advice not followed"
    assert (theirs[5], " ".join(theirs[8:])) == ("3/4", "conforms, 1 known deviation")


def test_every_view_has_the_same_legend() -> None:
    assert f"cells: {LEGEND}" in list(lines(BOTH))
    assert f"Cells: {LEGEND}" in markdown.text(BOTH)
    assert LEGEND in html.text(BOTH)
    assert "4/5: 4 of 5 hold" in LEGEND


def test_a_clause_counts_once_by_the_worst_of_its_dtypes() -> None:
    (mine, theirs) = counts(BOTH)
    assert [mine.total.number(kind) for kind in Outcome] == [1, 1, 1, 1, 3, 0, 1, 0]
    assert {cell.chapter: (cell.outcome, cell.text) for cell in mine.cells} == {
        "scores": (Outcome.FAILS, "1/2"),
        "values": (Outcome.ERROR, "1/2"),
        "masks": (Outcome.UNCLAIMED, "-"),
        "causal": (Outcome.ADVICE, "1/3"),
    }
    assert [cell.sentence for cell in theirs.cells] == [
        "2 of 2 clauses hold",
        "not checked",
        "not claimed",
        "1 of 2 clauses hold, 1 known deviation",
    ]


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        (MINE, Conformance.FAILS),
        (THEIRS, Conformance.CONFORMS),
        ([passed("a", "causal.square"), failed("a", "causal.any-scale", level="SHOULD")], Conformance.CONFORMS),
        ([passed("a", "causal.square"), unjudged("a", "values.mix")], Conformance.ERROR),
        ([passed("a", "causal.square"), unjudged("a", "values.mix", checks=3)], Conformance.ERROR),
        ([failed("a", "causal.square"), unjudged("a", "values.mix")], Conformance.FAILS),
        ([unclaimed("a", "masks.bool")], Conformance.NOTHING_CHECKED),
        ([], Conformance.NOTHING_CHECKED),
    ],
)
def test_the_verdict_on_an_implementation(verdicts: list[Verdict], verdict: Conformance) -> None:
    assert conformance(verdicts, complete=True) is verdict
    decided = verdict in (Conformance.FAILS, Conformance.ERROR)
    assert conformance(verdicts, complete=False) is (verdict if decided else Conformance.UNDECIDED)
    in_part = Conformance.IN_PART if verdict is Conformance.CONFORMS else verdict
    assert conformance(verdicts, complete=True, findings=True) is in_part


def test_a_clause_that_no_dtype_proves_is_listed_in_every_view() -> None:
    unproved = Verdict(
        "causal.any-scale", "SHOULD", "a", "bfloat16", Status.NOT_PROVABLE, inconclusive=3, reason="too wide"
    )
    elsewhere = replace(unproved, clause="causal.square")  # proved in float64
    shown = run(passed("a", "causal.square"), elsewhere, unproved)
    text = list(lines(shown))
    assert text[1].endswith("conforms, 1 not provable in its dtypes")
    assert [line for line in text if "too wide" in line] == ["  not provable  causal.any-scale [bfloat16]: too wide"]
    assert "1 of 1 clause holds, 1 not provable in its dtypes" in markdown.text(shown)
    assert "a: not provable in its dtypes (1)" in markdown.text(shown)
    assert json.loads(json_view.text(shown))["implementations"][0]["counts"]["not provable"] == 1
    assert "not provable: too wide" in junit.text(shown)
    assert "bfloat16: too wide" in html.text(shown)


def test_nothing_conforms_in_a_view_of_an_incomplete_run() -> None:
    cut = run(*MINE, *THEIRS, reason="the run was interrupted")
    views = [*lines(cut), markdown.text(cut), junit.text(cut), json_view.text(cut), *badge.message(cut)]
    assert not [text for text in views if "conforms" in text]
    assert "3 of 4 clauses hold so far, 1 known deviation" in markdown.text(cut)
    assert "<b>undecided</b>: 3 of 4 clauses hold so far" in html.text(cut)


def test_a_chapter_without_verdicts_is_not_claimed_or_not_checked() -> None:
    of_one = [*THEIRS, passed("mine", "scores.dot-product")]
    few, all_claims = subject("mine", features=("core",)), subject("mine")
    for who, kind in ((few, Outcome.UNCLAIMED), (all_claims, Outcome.NOT_CHECKED)):
        (mine, _) = counts(run(*of_one, subjects=(who, subject("theirs"))))
        assert {cell.chapter: cell.outcome for cell in mine.cells}["causal"] is kind


def test_an_unknown_chapter_comes_last() -> None:
    shown = run(passed("mine", "new.clause"), passed("mine", "causal.square"))
    assert chapters_of(shown) == ["causal", "new"]
    assert [cell.text for cell in counts(shown)[0].cells] == ["1", "1"]


def test_a_verdict_that_is_recorded_twice_counts_once() -> None:
    twice = replace(BOTH, verdicts=[*BOTH.verdicts, *BOTH.verdicts])
    assert [row.total.sentence for row in counts(twice)] == list(SENTENCES.values())
