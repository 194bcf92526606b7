"""The pages of the matrix in a browser: no flaw in narrow and dark, filters, and an address for what they show."""

from pathlib import Path

import pytest

from attention_conformance.tests.report.views.matrix_pages import PAGES, Entry, write
from attention_conformance.tests.report.views.matrix_state import standings
from attention_conformance.tests.selftest.report.browser import Browser, browser, visiting
from attention_conformance.tests.selftest.report.page_runs import BAD, KNOWN, RIGHT, WRONG, invented

__all__ = ["browser"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    names = (RIGHT, KNOWN, WRONG, BAD)
    entries = [
        Entry(name, f"package{n}==1.{n}", f"package{n}.attention", finding="It is off.", run=invented(names=(name,)))
        for n, name in enumerate(names)
    ]
    entries.append(Entry("gone", "gone==1", "gone.attention", note="no such version"))
    write(entries, standings(entries), folder)
    return folder


@pytest.mark.parametrize("name", PAGES)
def test_no_page_has_a_flaw(browser: Browser, site: Path, name: str) -> None:
    with visiting(browser, site / name, 390, "dark") as visit:
        assert visit.complaints() == []


def test_what_is_filtered_has_an_address(browser: Browser, site: Path) -> None:
    shown = "#matrix tbody tr:visible"
    with visiting(browser, site / "index.html") as visit:
        page = visit.page
        assert page.locator(shown).count() == 5
        page.get_by_label("search").fill("package2")
        assert page.locator(shown).count() == 1
        page.get_by_label("verdict").select_option("fails")
        assert page.url.endswith("?search=package2&verdict=fails")
        page.reload()
        assert page.locator(shown).count() == 1
        assert page.get_by_label("search").input_value() == "package2"
        page.get_by_role("button", name="show all").click()
        page.wait_for_function("document.getElementById('count').value.startsWith('5 of')")
        assert page.url.endswith("index.html")
