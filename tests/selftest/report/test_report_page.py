"""The page of a report: in a browser at two widths, light and dark, without scripts, and with text that is markup."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Locator

from attention_conformance.implementations.builtin.catalogue import BUILTIN
from attention_conformance.spec.clauses import load
from attention_conformance.tests.harness.run.run_records import subject_of
from attention_conformance.tests.report.model import Closing, Run
from attention_conformance.tests.report.views import html
from attention_conformance.tests.report.views.html import slug, text
from attention_conformance.tests.selftest.report.browser import (
    OVERFLOW,
    Browser,
    Elements,
    Scheme,
    Visit,
    browser,
    pictured,
    visiting,
)
from attention_conformance.tests.selftest.report.page_runs import BAD, KNOWN, LINK, MARKUP, RIGHT, WRONG, full, invented
from attention_conformance.tests.selftest.thorough import by_turns

__all__ = ["browser"]

READY = "html[data-ready=yes]"
ROWS = "table.rows tbody tr:not([hidden])"
LARGEST = 2e6
"""Bytes of the page of a full run."""
TOKENS = re.compile(r"--(ground|raised|ink|faint|line|good|bad|focus): (#[0-9a-f]{6})")


def written(run: Run, folder: Path, name: str = "report.html") -> Path:
    path = folder / name
    path.write_text(text(run), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(invented(), tmp_path_factory.mktemp("page"))


@pytest.fixture
def open_page(browser: Browser, file: Path) -> Iterator[Visit]:
    with visiting(browser, file, ready=READY) as visit:
        yield visit


def by_id(visit: Visit, name: str) -> Locator:
    return visit.page.locator(f'[id="{name}"]')


def follow(visit: Visit, address: str) -> None:
    visit.page.evaluate("(address) => { location.hash = address }", address)


def wait_for_focus(visit: Visit, name: str) -> None:
    visit.page.wait_for_function("(id) => document.activeElement.id === id", arg=name)


def unfold(visit: Visit) -> None:
    visit.page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true })")


@pytest.mark.parametrize("look", by_turns([(360, "dark"), (360, "light"), (1280, "light"), (1280, "dark")], 2))
def test_no_complaints(browser: Browser, tmp_path: Path, look: tuple[int, Scheme], pytestconfig: pytest.Config) -> None:
    width, scheme = look
    with visiting(browser, written(invented(names=(WRONG,)), tmp_path), width, scheme, READY) as visit:
        pictured(visit, pytestconfig, f"report-failing-{width}-{scheme}")
        assert visit.complaints() == []


@pytest.mark.parametrize("width", [360, 1280])
def test_a_run_in_which_all_conform(browser: Browser, tmp_path: Path, width: int, pytestconfig: pytest.Config) -> None:
    with visiting(browser, written(invented(names=(RIGHT,)), tmp_path), width, ready=READY) as visit:
        pictured(visit, pytestconfig, f"report-passing-{width}")
        assert visit.page.locator("header .verdict").inner_text() == f"✓{RIGHT} conforms: 6 of 6 clauses hold"
        assert visit.page.locator(".finding").count() == 0
        assert visit.page.evaluate(OVERFLOW) == visit.noted == []


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_no_complaints_with_everything_open(browser: Browser, tmp_path: Path, width: int, scheme: Scheme) -> None:
    file = written(invented(names=(KNOWN, BAD)), tmp_path)
    with visiting(browser, file, width, scheme, READY) as visit:
        unfold(visit)
        assert visit.complaints() == []


@pytest.mark.parametrize("names", [(), (RIGHT,), (RIGHT, KNOWN, WRONG, BAD)], ids=len)
def test_an_incomplete_run_is_marked_at_the_top(browser: Browser, tmp_path: Path, names: tuple[str, ...]) -> None:
    run = invented(complete=False, names=names)
    with visiting(browser, written(run, tmp_path), 360, ready=READY) as visit:
        assert visit.complaints() == []
        words = visit.page.get_by_role("alert").inner_text()
        assert words.upper().startswith("INCOMPLETE RUN")
        assert "nothing on this page is a pass" in words
        assert MARKUP in words
        assert visit.page.title().startswith("INCOMPLETE")
        states = visit.page.locator("header p, header li, .state").all_inner_texts()
        assert not any("conforms" in state for state in states)


def test_a_run_without_verdicts() -> None:
    assert "<b>nothing checked</b>: not checked" in text(replace(invented(names=(RIGHT,)), verdicts=()))
    assert "Nothing was judged" in text(invented(names=()))


def test_a_run_of_a_part_names_the_selection() -> None:
    run = invented(names=(RIGHT,))
    suite = replace(run.opening.suite, clauses=("masks.*",), dtypes=("float64",))
    words = "Only a part was selected: <code>--clause masks.* --dtype float64</code>"
    assert words in text(replace(run, opening=replace(run.opening, suite=suite)))
    assert "Only a part" not in text(run)


@pytest.mark.parametrize(
    ("again", "replay"),
    [
        ("python -m pytest --candidate a.py:check --clause c", "python -m pytest --replay"),
        ("attention-conformance check a.py:f --clause c", "attention-conformance replay"),
    ],
)
def test_a_case_is_run_again_by_the_same_program(again: str, replay: str) -> None:
    run = invented(names=(WRONG,))
    page = text(replace(run, failures=[replace(one, command=again) for one in run.failures]))
    assert f'<pre class="case-again">{replay} <i>REPORT</i>/failures/scores.scale-default--float64.json</pre>' in page


def test_text_of_candidates_is_text(open_page: Visit) -> None:
    unfold(open_page)
    home = by_id(open_page, f"{slug(BAD)}/")
    shown = home.inner_text()
    assert shown.count(MARKUP) >= 4
    assert "onerror=alert(2)" in shown
    assert "{{ 7 * 7 }}" in shown
    assert open_page.page.locator("main img, main script, main style").count() == 0
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in open_page.page.content()
    assert "\N{ZERO WIDTH SPACE}" not in open_page.page.content()
    assert open_page.noted == []


def test_a_script_that_slipped_in_is_not_run(open_page: Visit) -> None:
    assert open_page.refuses_scripts()


def test_links_that_do_not_lead_to_the_web_are_text(tmp_path: Path) -> None:
    run = invented(names=(KNOWN,))
    odd = [replace(v, link="javascript:alert(3)") if v.link else v for v in run.verdicts]
    assert f'href="{LINK.replace("&", "&amp;")}"' in text(run)
    assert 'href="javascript' not in text(replace(run, verdicts=odd))


def test_filters(open_page: Visit) -> None:
    page, rows = open_page.page, open_page.page.locator(ROWS)
    assert rows.count() == 24
    page.get_by_label("failures only").check()
    assert rows.count() == 5
    assert page.locator("#count").inner_text() == "5 of 24 clauses shown, of 3 implementations"
    assert page.locator("#matrix tbody tr:visible").count() == 3
    assert page.locator(".finding:not([hidden])").count() == 5
    page.get_by_role("button", name="show all").click()
    page.locator("select[name=verdict]").select_option("known deviation")
    page.wait_for_function("document.getElementById('count').value.startsWith('1 of')")
    assert rows.get_attribute("id") == f"{KNOWN}/causal.square"
    page.locator("select[name=verdict]").select_option("")
    page.locator("select[name=chapter]").select_option("masks")
    assert rows.count() == 8
    assert page.locator("#matrix thead th.rotated:visible").all_inner_texts() == ["masks"]
    page.locator("select[name=level]").select_option("SHOULD")
    assert rows.count() == 4
    page.locator("select[name=dtype]").select_option("float32")
    assert page.locator(f"{ROWS} td:not(:last-child):not([hidden])").count() == 4
    assert page.locator("#matrix tbody tr:visible").count() == 4
    assert open_page.noted == []


def test_a_dtype_in_which_nothing_was_judged_hides_the_clause(open_page: Visit) -> None:
    open_page.page.locator("select[name=dtype]").select_option("float32")
    open_page.page.locator("select[name=verdict]").select_option("not claimed")
    assert open_page.page.locator(ROWS).count() == 1
    open_page.page.locator("select[name=dtype]").select_option("float64")
    assert open_page.page.locator(ROWS).count() == 0


def test_search(open_page: Visit) -> None:
    box, rows = open_page.page.get_by_label("search"), open_page.page.locator(ROWS)
    box.fill("WRONG.attention")
    assert rows.count() == 6
    box.fill("own position included")
    assert rows.count() == 4
    assert open_page.page.locator(".chapter[open]").count() >= 4
    box.fill("expected 2")
    assert rows.count() == 6
    box.fill("no such thing")
    assert rows.count() == 0
    assert open_page.page.locator("#count").inner_text() == "0 of 24 clauses shown, of 0 implementations"
    assert open_page.noted == []


@pytest.mark.parametrize(
    ("address", "place"),
    [
        (f"{WRONG}/causal.square/float64", f"{WRONG}/causal.square/float64"),
        (f"{WRONG}/causal.square/float32", f"{WRONG}/causal.square/float32"),
        (f"{WRONG}/masks.bool/float32", f"{WRONG}/masks.bool"),
        (f"{RIGHT}/scores.dot-product", f"{RIGHT}/scores.dot-product"),
        (f"{RIGHT}/scores", f"{RIGHT}/scores"),
        (f"{RIGHT}/nothing.of-the-kind", f"{RIGHT}/"),
        (f"{slug(BAD)}/causal.square/float64", f"{slug(BAD)}/causal.square/float64"),
        ("clause:masks.rank", "clause:masks.rank"),
    ],
)
def test_an_address_opens_its_place(open_page: Visit, address: str, place: str) -> None:
    follow(open_page, address)
    wait_for_focus(open_page, place)
    target = by_id(open_page, place)
    assert target.is_visible()
    assert target.evaluate("(each) => each.getBoundingClientRect().top < innerHeight")
    assert open_page.noted == []


def test_an_address_is_found_behind_a_filter_and_in_history(open_page: Visit) -> None:
    page, place = open_page.page, by_id(open_page, f"{RIGHT}/masks.bool")
    page.get_by_label("failures only").check()
    follow(open_page, f"{RIGHT}/masks.bool")
    wait_for_focus(open_page, f"{RIGHT}/masks.bool")
    assert place.is_visible()
    page.locator("#matrix").get_by_role("link", name="clauses hold").first.click()
    wait_for_focus(open_page, f"{RIGHT}/scores")
    page.go_back()
    wait_for_focus(open_page, f"{RIGHT}/masks.bool")
    page.go_forward()
    wait_for_focus(open_page, f"{RIGHT}/scores")
    assert open_page.noted == []


def test_the_keyboard_reaches_and_opens(open_page: Visit) -> None:
    page = open_page.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the matrix"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#matrix"
    head = by_id(open_page, f"{RIGHT}/").locator("> summary")
    head.focus()
    page.keyboard.press("Enter")
    assert by_id(open_page, f"{RIGHT}/").get_attribute("open") is not None
    assert head.evaluate("(each) => getComputedStyle(each).outlineStyle") == "solid"


def test_commands_are_copied(open_page: Visit, file: Path) -> None:
    page, place = open_page.page, f"{WRONG}/scores.scale-default/float64"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    follow(open_page, place)
    by_id(open_page, place).get_by_role("button", name="copy").nth(1).click()
    page.get_by_role("button", name="copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"python -m pytest --replay {file.parent}/failures/scores.scale-default--float64.json"


def test_without_scripts_everything_can_be_read(browser: Browser, file: Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(f"{file.as_uri()}#{WRONG}/causal.square/float64")
    assert page.get_by_role("heading", name="float64: 2 of 7 checks do not hold").last.is_visible()
    assert page.locator("#controls").is_hidden()
    assert page.locator("details[open] > .clause-again:visible").count() >= 1
    context.close()


def test_a_failure_has_all_that_explains_it(open_page: Visit) -> None:
    follow(open_page, f"{WRONG}/causal.square/float64")
    failure = by_id(open_page, f"{WRONG}/causal.square/float64")
    finding = open_page.page.locator(f'[data-row="{WRONG}/causal.square"]')
    assert load()["causal.square"].statement in finding.inner_text()
    assert finding.locator("math").count() >= 1
    assert "Vaswani 2017 3.2.3" in finding.inner_text()
    words = failure.inner_text()
    assert "Smallest case B=1 H=2 Lq=3 Lk=3" in words
    assert failure.locator("table.picture caption").all_inner_texts() == [
        *(f"{what}, sample 0 head {head}" for head in (1, 0) for what in ("expected", "got", "error in bounds")),
        *(f"{what}, head {head}" for head in (0, 1) for what in ("expected", "got")),
        "sample 0 head 0",
        "sample 0 head 1",
        "",
    ]
    assert "key (64, 64) (too large to be shown)" in words
    assert failure.get_by_text("A script that shows the failure without this suite").is_visible()
    scores = open_page.page.locator(f'[data-row="{WRONG}/scores.scale-default"]')
    assert "Erratum (E)" in (scores.text_content() or "")


def test_a_full_run_is_small_and_its_links_lead_somewhere(
    tmp_path: Path, browser: Browser, pytestconfig: pytest.Config
) -> None:
    run = full([subject_of(each) for each in BUILTIN])
    file = written(run, tmp_path)
    elements = Elements(file.read_text(encoding="utf-8"))
    assert len(run.verdicts) > 10_000
    assert file.stat().st_size < LARGEST
    assert len(set(elements.ids)) == len(elements.ids)
    assert {link[1:] for link in elements.links if link.startswith("#")} <= set(elements.ids)
    for width in (360, 1280):
        with visiting(browser, file, width, ready=READY) as visit:
            pictured(visit, pytestconfig, f"report-full-{width}")
            assert visit.page.evaluate(OVERFLOW) == visit.noted == []


def test_the_page_is_one_file_that_needs_no_other(file: Path) -> None:
    page = file.read_text(encoding="utf-8")
    without_programs = re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL)
    assert re.findall(r'\b(?:src|srcset|data)="|@import|url\(', without_programs) == []
    assert "default-src 'none'" in page
    assert page.count("<li>", page.index("How to read"), page.index("</ol>")) == 10


def test_it_looks_like_the_page_of_the_benchmarks() -> None:
    (other,) = Path(html.__file__).parents[2].glob("benchmarks/**/page.css")
    own, other_style = (html.ASSETS / "page.css").read_text(), other.read_text()
    assert TOKENS.findall(own) == TOKENS.findall(other_style)
    assert len(TOKENS.findall(own)) == 16


def test_a_log_of_the_same_clause_twice_has_no_id_twice() -> None:
    run = invented(names=(WRONG,))
    twice = replace(run, verdicts=[*run.verdicts, *run.verdicts], closing=Closing(True, "", 2, 1.0))
    ids = Elements(text(twice)).ids
    assert len(set(ids)) == len(ids)
