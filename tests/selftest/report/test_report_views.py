"""The views for pull requests and CI systems: their content, what they leave out, and that no text breaks them."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from attention_conformance.spec.clauses import load
from attention_conformance.tests.report.log import FILE, replay
from attention_conformance.tests.report.model import FailureRecord, Run
from attention_conformance.tests.report.recorder import Recorder
from attention_conformance.tests.report.views import ERRORS, VIEWS, clear, junit, markdown, write
from attention_conformance.tests.report.wording import one_line
from attention_conformance.tests.selftest.report.run_builders import (
    HOSTILE,
    LINK,
    SUITE,
    failed,
    known,
    passed,
    run,
    subject,
    unclaimed,
    unjudged,
    write_log,
)

SHOWN = FailureRecord(
    "causal.square", "mine", "float64", "B=1 H=1", "query 0 saw key 1", script="print(1)", command="pytest -x"
)
MIXED = run(
    passed("mine", "scores.dot-product"),
    failed("mine", "causal.square", "float32", "off by 2"),
    failed("mine", "causal.square", "float64", "off by 1"),
    failed("mine", "numerics.half-range", "float16", "is nan", level="SHOULD"),
    unclaimed("mine", "masks.bool"),
    known("mine", "masks.float"),
    unjudged("mine", "values.mix", reason="nothing was checked"),
    passed("theirs", "scores.dot-product"),
    diagnoses={"mine": "matches `next-position-seen`: triu(1), not triu(2)"},
    failures=[SHOWN],
)
CUT = replace(MIXED, closing=replace(MIXED.closing, complete=False, reason="the run was interrupted"))


def hostile(text: str) -> Run:
    """A run in which a candidate has this text wherever it can."""
    recorded = run(
        *(failed(text, "causal.square", message=text), known(text, "masks.bool", reason=text, link=f"https://{text}")),
        *(failed(text, "causal.any-scale", message=text, level="SHOULD"), unclaimed(text, "masks.float", reason=text)),
        *(unjudged(text, "values.mix", reason=text), passed("other", "causal.square")),
        subjects=[subject(text, text, about=text), subject("other")],
        diagnoses={text: text},
        failures=[
            FailureRecord("causal.square", text, "float64", text, text, script=f"{text}\n    {text}", command=text)
        ],
        environment={"torch": text},
    )
    return replace(recorded, closing=replace(recorded.closing, complete=False, reason=text))


def kinds(page: str, *types: str) -> list[Token]:
    """The tokens of these types that a reader of GitHub's Markdown finds in the page, and within its lines."""
    blocks = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(page)
    return [token for block in blocks for token in (block, *(block.children or ())) if token.type in types]


def test_a_failure_has_clause_case_and_command() -> None:
    page = markdown.text(MIXED)
    statement = load()["causal.square"].statement
    block = page[page.index("#### `causal.square`") : page.index("<details><summary>A program")]
    assert block.splitlines()[0] == "#### `causal.square` in `float64, float32`"
    assert f"> {statement}" in block
    assert "- Result: `off by 1`" in block
    assert "- Smallest case: `B=1 H=1`: `query 0 saw key 1`" in block
    assert "```sh\npytest -x\n```" in block
    assert "Diagnosis: matches `next-position-seen`:" in page
    assert "```python\nprint(1)\n```" in page
    assert "Could not be judged: `nothing was checked`" in page


def test_each_implementation_has_a_line_and_a_row() -> None:
    page = markdown.text(MIXED)
    assert "- `mine` **fails**: 1 of 5 clauses hold, 1 fails, 1 could not be judged" in page
    assert "- `theirs` **conforms**: 1 of 1 clause holds\n" in page
    assert "| | scores | values | masks | causal | numerics |" in page
    assert "| `mine` | 1 | **0/1** | **0/1** | **0/1** | **0/1** |" in page
    assert "| `theirs` | 1 | · | · | · | · |" in page
    assert "Left out" not in page


def test_advice_and_known_deviations_are_folded() -> None:
    page = markdown.text(MIXED)
    for title, line in (
        ("mine: advice not followed (1)", "- `numerics.half-range` (SHOULD) in `float16`: `is nan`"),
        ("mine: known deviations (1)", f"- `masks.float` in `float64`: `reported` <{LINK}>"),
    ):
        folded = page[page.index(f"<details><summary>{title}</summary>") :]
        assert line in folded[: folded.index("</details>")]


def test_a_failure_without_explanation_is_described_by_its_verdict() -> None:
    one = run(failed("mine", "causal.square", message="off"), subjects=[subject("mine", "my.py:mine")])
    page = markdown.text(one)
    assert "- Result: `off`" in page
    assert "pytest --candidate my.py:mine --clause causal.square --dtype float64" in page
    built_in = run(failed("torch.sdpa", "causal.square"))
    assert "pytest --implementation torch.sdpa --clause" in markdown.text(built_in)


def test_an_incomplete_run_is_marked_first_and_never_conforms() -> None:
    page = markdown.text(CUT)
    assert page.splitlines()[0].startswith("**Incomplete: the run was interrupted.**")
    assert "conforms" not in page
    assert "- `theirs` **undecided**: 1 of 1 clause holds so far" in page
    empty = markdown.text(run(subjects=[subject("mine")], reason="the run was interrupted"))
    assert "- `mine` **undecided**: not checked" in empty


@pytest.mark.parametrize("text", [HOSTILE, "`", "`` ` ```", " ", "|", "a\\", "\\`", "<!--", "@a", "$`x`$"])
def test_text_of_a_candidate_is_never_markup(text: str) -> None:
    page = markdown.text(hostile(text))
    page.encode()
    assert not {c for c in page if unicodedata.category(c) in ("Cc", "Cs", "Co", "Cn") and c != "\n"}
    own = re.compile(r"</details>\s*|<details><summary>.*?</summary>\s*", re.DOTALL)
    assert all(own.fullmatch(token.content) for token in kinds(page, "html_block"))
    assert kinds(page, "html_inline", "link_open", "image", "em_open", "s_open", "hr") == []
    assert len(kinds(page, "heading_open")) == 4  # the title, the implementation, a failure, an error
    # Of two implementations: the name, and the chapters values, masks and causal.
    assert [len(kinds(page, kind)) for kind in ("th_open", "td_open")] == [4, 8]
    words = [token.content for token in kinds(page, "text")]
    assert not [word for word in words if re.search(r"@\w|#\d|:\w+:|www\.|https?:|GH-", word)]


def test_long_text_of_a_candidate_is_cut() -> None:
    assert one_line("x" * 601) == "x" * 599 + "…"
    assert one_line("x" * 600) == "x" * 600
    page = markdown.text(hostile("y" * 100_000))
    assert "y" * 2_001 not in page
    assert len(page) < 20_000


def test_a_page_that_is_too_long_keeps_some_of_each_and_counts_the_rest() -> None:
    names = [f"mine{number}" for number in range(20)]
    clauses = [clause.id for clause in load().values() if clause.level == "MUST"][:40]
    page = markdown.text(run(*(failed(name, clause, message="z" * 500) for name in names for clause in clauses)))
    assert 50_000 < len(page) <= markdown.MOST
    shown = page.count("\n#### `")
    assert f"{20 * 40 - shown} x clause that fails" in page
    for name in names:
        assert f"### `{name}`" in page
    assert "**Left out**" in page
    assert page.count("<details>") == page.count("</details>")


def test_even_a_head_that_is_too_long_is_cut() -> None:
    page = markdown.text(run(*(passed(f"implementation-of-number-{n}", "causal.square") for n in range(2_000))))
    assert len(page) <= markdown.MOST
    left = re.search(r"(\d+) x row of the table", page)
    assert left is not None
    assert page.count("\n| `implementation-of-number-") == 2_000 - int(left[1])


def test_a_run_of_a_part_names_the_selection() -> None:
    part = run(passed("mine", "causal.square"), suite=replace(SUITE, clauses=("causal.*",), dtypes=("float64",)))
    assert "Only a part was selected: `--clause causal.* --dtype float64`." in markdown.text(part)
    assert "Only a part" not in markdown.text(MIXED)
    (selected,) = [p.get("value") for p in parsed(part).iter("property") if p.get("name") == "selected"]
    assert selected == "--clause causal.* --dtype float64"


COUNTS = {"tests", "failures", "errors", "skipped"}
ATTRIBUTES: Mapping[str, set[str]] = {
    "testsuites": set(),
    "testsuite": {"id", "name", "package", "hostname", "timestamp", "time"} | COUNTS,
    "properties": set(),
    "property": {"name", "value"},
    "testcase": {"name", "classname", "time"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"message"},
    "system-out": set(),
    "system-err": set(),
}
"""Of each element: those that the schema of Ant requires and that of Jenkins allows."""
CONTENT: Mapping[str, str] = {
    "testsuites": "(testsuite )*",
    "testsuite": "properties (testcase )*system-out system-err ",
    "properties": "(property )*",
    "testcase": "(skipped |error |failure )?",
}
"""The order of what an element holds, as Ant's schema has it; the others hold text alone."""


def follow(element: ElementTree.Element) -> None:
    """Asserts that an element is one of the schemas' (structure and types)."""
    assert set(element.attrib) == ATTRIBUTES[element.tag]
    held = "".join(f"{child.tag} " for child in element)
    assert re.fullmatch(CONTENT.get(element.tag, ""), held)
    for name, value in element.attrib.items():
        if name in COUNTS or name == "id":
            assert value.isdecimal()
        if name == "time":
            assert re.fullmatch(r"\d+\.\d{3}", value)
        if name in ("name", "classname", "package", "hostname"):
            assert value == " ".join(value.split()) != ""  # a token
        if name == "timestamp":
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", value)
    for child in element:
        follow(child)


def parsed(given: Run) -> ElementTree.Element:
    root = ElementTree.fromstring(junit.text(given).encode())
    follow(root)
    return root


def case_of(root: ElementTree.Element, name: str) -> ElementTree.Element:
    (case,) = [case for case in root.iter("testcase") if case.get("name") == name]
    return case


def test_junit_has_a_case_for_each_clause_and_dtype() -> None:
    root = parsed(MIXED)
    assert [suite.get("name") for suite in root] == ["mine", "theirs"]
    counts = {"tests": "7", "failures": "2", "errors": "1", "skipped": "3"}
    assert {name: root[0].get(name) for name in COUNTS} == counts
    assert root[0].get("time") == "2.125"
    failure = case_of(root, "causal.square[float64]")[0]
    assert (failure.tag, failure.get("message")) == ("failure", "off by 1")
    lines = (failure.text or "").splitlines()
    assert lines[2:] == ["1 of 3 checks fail; the smallest case: B=1 H=1", "query 0 saw key 1", "run again: pytest -x"]
    assert load()["causal.square"].statement in (failure.text or "")
    assert case_of(root, "values.mix[float64]")[0].tag == "error"
    skipped = [case for case in root[0].iter("testcase") if case.find("skipped") is not None]
    assert {case.get("name"): case[0].get("message") for case in skipped} == {
        "numerics.half-range[float16]": "advice (SHOULD) not followed: is nan",
        "masks.bool[float64]": "not claimed: no masks",
        "masks.float[float64]": f"known deviation: reported {LINK}",
    }


def test_junit_of_an_incomplete_run_holds_an_error() -> None:
    root = parsed(CUT)
    assert root[0].get("errors") == "1"
    error = case_of(root, "the run is complete")[0]
    assert error.tag == "error"
    assert error.get("message") == "the run is not complete: the run was interrupted"
    assert [suite.get("id") for suite in root] == ["0", "1", "2"]
    assert not [case for case in parsed(MIXED).iter("testcase") if case.get("name") == "the run is complete"]


def test_junit_is_xml_with_any_text_of_a_candidate() -> None:
    every = "".join(map(chr, [*range(0x3000), *range(0xD7F0, 0xE010), *range(0xFFF0, 0x10010), 0x10FFFF]))
    for text in (HOSTILE, every):
        root = parsed(hostile(text))
        assert len(root) == 3
        assert len(list(root.iter("testcase"))) == 7
    failure = next(parsed(hostile("a]]>b\x00c\ud800d")).iter("failure"))
    assert "a]]>b\ufffdc\ufffdd" in (failure.text or "").splitlines()


@pytest.mark.parametrize("given", [MIXED, CUT, hostile(HOSTILE.replace("\ud800", ""))], ids=["mixed", "cut", "hostile"])
def test_a_log_makes_the_same_views(given: Run, tmp_path: Path) -> None:
    write_log(tmp_path, given)
    again = replay(tmp_path)
    for name, view in VIEWS.items():
        assert view(again) == view(given), name


@pytest.mark.parametrize("text", ["bad \ud800 end", "\udfff"])
def test_half_a_character_ends_no_run(text: str, tmp_path: Path) -> None:
    recorder = Recorder([subject("mine")], SUITE, tmp_path, planned=1)
    recorder.begin()
    recorder.add(failed("mine", "causal.square", message=text))
    recorder.judged()
    recorder.close()
    again = replay(tmp_path)
    assert again == recorder.run
    assert "\ufffd" in (tmp_path / FILE).read_text(encoding="utf-8")
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == markdown.text(again)


def broken(shown: Run) -> str:
    raise ZeroDivisionError("by\nzero \ud800")


def test_a_view_that_fails_leaves_the_others(tmp_path: Path) -> None:
    failures = write(MIXED, tmp_path, {**VIEWS, "report.html": broken, "report.md": broken})
    assert failures == dict.fromkeys(("report.html", "report.md"), "ZeroDivisionError: by zero \ufffd")
    assert {path.name for path in tmp_path.iterdir()} == {*VIEWS, ERRORS} - set(failures)
    assert "in broken" in (tmp_path / ERRORS).read_text(encoding="utf-8")
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
