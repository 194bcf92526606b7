"""The benchmark page: in a browser at two widths, light and dark; and what it does with bad input."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.tests.benchmarks import html_page
from attention_conformance.tests.benchmarks.benchmark_run import KEY, Speed, run_of
from attention_conformance.tests.benchmarks.html_page import UNUSABLE, main, page
from attention_conformance.tests.selftest.benchmarks import benchmark_data
from attention_conformance.tests.selftest.report.browser import Browser, Scheme, Visit, browser, pictured, visiting
from attention_conformance.tests.selftest.thorough import by_turns

__all__ = ["browser"]

READY = "html[data-drawn=yes]"
ROWS = "#results tbody tr:not([hidden])"
LARGEST = 1.5e6
"""Bytes of a page that is sent by mail or opened on a telephone."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "bench.html"
    path.write_text(page(benchmark_data.invented()), encoding="utf-8")
    return path


@pytest.fixture
def open_page(browser: Browser, file: Path) -> Iterator[Visit]:
    with visiting(browser, file, ready=READY) as visit:
        yield visit


def column(visit: Visit, number: int) -> list[str]:
    cells = visit.page.locator(f"{ROWS} > :nth-child({number})").all()
    return [cell.get_attribute("data-value") or "" for cell in cells]


@pytest.mark.parametrize("look", by_turns([(360, "dark"), (360, "light"), (1280, "light"), (1280, "dark")], 2))
def test_nothing_to_complain_of(
    browser: Browser, file: Path, look: tuple[int, Scheme], pytestconfig: pytest.Config
) -> None:
    width, scheme = look
    with visiting(browser, file, width, scheme, READY) as visit:
        pictured(visit, pytestconfig, f"bench-{width}-{scheme}")
        assert visit.complaints() == []
        for name in ("ratios", "roofline", "time", "memory"):
            assert visit.page.locator(f"#{name} svg path").count() > 10


@pytest.mark.parametrize("width", by_turns([360, 1280], 2))
def test_a_run_with_almost_nothing(browser: Browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "empty.html"
    run = benchmark_data.invented(complete=False)
    for measurements in ((), run.measurements[1:2], run.measurements[-1:]):
        path.write_text(page(replace(run, measurements=measurements, growths=(), imports={})), encoding="utf-8")
        with visiting(browser, path, width, ready=READY) as visit:
            assert visit.complaints() == []
            assert visit.page.get_by_text("No growth of time was measured").is_visible()
            assert "Incomplete" in visit.page.get_by_role("alert").inner_text()


def test_names_are_text(open_page: Visit) -> None:
    rows = open_page.page.locator("#results")
    assert benchmark_data.MARKUP in rows.inner_text()
    assert benchmark_data.LONG in rows.inner_text()
    assert open_page.page.locator("main script, main img").count() == 0
    open_page.page.locator("#ratios svg text").get_by_text("candidate.py").first.hover()
    assert "<script>" in open_page.page.locator("#vg-tooltip-element").inner_text()
    assert open_page.noted == []


def test_a_script_that_slipped_in_is_not_run(open_page: Visit) -> None:
    assert open_page.refuses_scripts()


def test_filters(open_page: Visit) -> None:
    rows, each = open_page.page.locator(ROWS), len(benchmark_data.IMPLEMENTATIONS)
    assert rows.count() == len(benchmark_data.WORKLOADS) * each
    assert not open_page.page.get_by_text("Nothing was measured").first.is_visible()
    open_page.page.locator("select[name=passes]").select_option("")
    assert rows.count() == 2 * len(benchmark_data.WORKLOADS) * each
    open_page.page.locator("select[name=workload]").select_option("vit-b16")
    assert rows.count() == 2 * each
    open_page.page.get_by_role("checkbox", name="flex").uncheck()
    assert rows.count() == 2 * (each - 1)
    open_page.page.get_by_label("search").fill("IMPOSSIBLE")
    assert rows.count() == 2
    assert open_page.page.locator(".count").all_inner_texts() == [f"2 of {16 * each} rows shown"] * 2
    open_page.page.get_by_role("button", name="none").click()
    assert rows.count() == 0
    assert open_page.page.get_by_text("Nothing was measured for this choice").locator("visible=true").count() == 4
    assert open_page.noted == []


def test_plots_follow_the_filters(open_page: Visit) -> None:
    marks = open_page.page.locator("#roofline svg .mark-symbol path")
    before = marks.count()
    open_page.page.locator("select[name=workload]").select_option("long-8192")
    open_page.page.wait_for_function(
        "(least) => document.querySelectorAll('#roofline svg .mark-symbol path').length < least", arg=before
    )
    assert marks.count() == before / len(benchmark_data.WORKLOADS)
    assert open_page.noted == []


def test_sorting_by_mouse_and_by_keyboard(open_page: Visit) -> None:
    head = open_page.page.locator("#results thead").get_by_role("button", name="time")
    head.click()
    rising = [each for each in column(open_page, 3) if each]
    assert rising == sorted(rising, key=float)
    assert column(open_page, 3)[len(rising) :] == [""] * 16
    head.focus()
    open_page.page.keyboard.press("Enter")
    assert [each for each in column(open_page, 3) if each] == rising[::-1]
    assert column(open_page, 3)[-1] == ""
    assert open_page.page.locator("#results th[aria-sort]").get_attribute("aria-sort") == "descending"
    open_page.page.locator("#results thead").get_by_role("button", name="verdict").click()
    verdicts = [each.split("\n")[0] for each in open_page.page.locator(f"{ROWS} > :nth-child(9)").all_inner_texts()]
    assert verdicts == sorted(verdicts)
    assert open_page.noted == []


def test_colours_follow_the_scheme(open_page: Visit) -> None:
    ground = open_page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    colour = open_page.page.locator("#time svg .mark-symbol path").first.get_attribute("fill")
    open_page.page.emulate_media(color_scheme="dark")
    open_page.page.wait_for_function(
        "(old) => document.querySelector('#time svg .mark-symbol path')?.getAttribute('fill') !== old", arg=colour
    )
    assert open_page.page.evaluate("getComputedStyle(document.body).backgroundColor") != ground


def test_the_page_is_one_small_file(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST
    assert re.findall(r'\b(?:src|href)="(?!#)', text.split("<main>")[0]) == []
    assert text.count("<li>", text.index("How to read"), text.index("</details>")) == 10


def test_no_time_without_a_verdict_of_speed() -> None:
    for each in benchmark_data.invented().measurements:
        row = html_page._row(each)
        counts = each.verdict in (Speed.FASTER, Speed.SLOWER, Speed.SAME, Speed.BASELINE)
        assert (row["cells"][0][0] is not None) == counts
        assert counts or [texts for _, *texts in row["cells"][:5]] == [["-", ""]] * 5


def test_bad_input_is_one_line_and_status_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.html"
    odd = tmp_path / "odd.json"
    for text in ("", "{", "[1]", "{}", '{"schema": 99}', '{"schema": 2}', '{"schema": 2, "machine": {"a": 1}}'):
        odd.write_text(text)
        assert main([str(odd), str(out)]) == UNUSABLE
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert str(odd) in message
    assert main([str(tmp_path / "none.json"), str(out)]) == UNUSABLE
    assert "none.json" in capsys.readouterr().err
    assert not out.exists()
    assert main([str(benchmark_data.written(tmp_path)), str(tmp_path / "no" / "folder.html")]) == UNUSABLE
    assert "folder.html" in capsys.readouterr().err


def test_both_kinds_of_files_are_read(tmp_path: Path) -> None:
    plain, within = benchmark_data.written(tmp_path), tmp_path / "within.json"
    within.write_text(json.dumps({"machine_info": {}, "benchmarks": [], KEY: json.loads(plain.read_text())}))
    assert run_of(plain) == run_of(within) == benchmark_data.invented()


def test_it_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.html"
    assert main([str(benchmark_data.written(tmp_path)), str(out)]) == 0
    assert re.search(r"out.html \(1\.\d\d MB\)", capsys.readouterr().out)
    assert out.stat().st_size > 1e5
