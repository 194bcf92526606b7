"""The browser's checks: each flaw of a page is reported, and a clean page has none."""

from pathlib import Path

import pytest

from attention_conformance.tests.selftest.report.browser import Browser, browser, executable, visiting

__all__ = ["browser"]

CLEAN = "<h1>A page</h1><p>Nothing to complain of.</p>"
WORDS = '<text x="10" y="{y}" font-size="12">label</text>'


def complaints(browser: Browser, folder: Path, body: str, width: int = 360) -> list[str]:
    file = folder / "page.html"
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>A page</title>'
    file.write_text(f'<!doctype html><html lang="en"><head>{head}</head><body><main>{body}</main></body></html>')
    with visiting(browser, file, width) as visit:
        visit.page.wait_for_load_state("networkidle")
        return visit.complaints()


def test_a_clean_page(browser: Browser, tmp_path: Path) -> None:
    apart = WORDS.format(y=20) + WORDS.format(y=60)
    assert complaints(browser, tmp_path, f'{CLEAN}<svg aria-hidden="true">{apart}</svg>') == []


@pytest.mark.parametrize(
    ("body", "context"),
    [
        ("<script>console.error('oh')</script>", "console: oh"),
        ("<script>throw new Error('ah')</script>", "error: ah"),
        ("<script>alert('eh')</script>", "dialog: eh"),
        ('<img alt="" src="http://127.0.0.1:9/x.png">', "request: http://127.0.0.1:9/x.png"),
        ('<div style="width: 400px">wide</div>', "wider than its window of 360 px"),
        ('<p style="font-size: 9px">fine print</p>', "small letters: fine print"),
        (f'<svg aria-hidden="true">{WORDS.format(y=20)}{WORDS.format(y=22)}</svg>', "labels overlap: label | label"),
        ('<p style="color: #ddd">pale</p>', "color-contrast"),
        ("<input>", "label: Form elements must have labels"),
    ],
)
def test_a_page_with_one_flaw(browser: Browser, tmp_path: Path, body: str, context: str) -> None:
    reported = complaints(browser, tmp_path, CLEAN + body)
    assert any(each.startswith(context) for each in reported), reported


def test_a_machine_without_chromium(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert executable() is None


def test_what_was_not_run_is_named(pytester: pytest.Pytester) -> None:
    folder = pytester.mkpydir("tests") / "selftest"
    folder.mkdir()
    (folder / "conftest.py").write_text(Path(__file__).parents[1].joinpath("conftest.py").read_text())
    (folder / "test_one.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n): pytest.skip('for want of wings')\n"
    )
    result = pytester.runpytest(str(folder), "--rootdir", str(pytester.path))
    result.stdout.fnmatch_lines(["NOT RUN: 2 of tests/selftest/test_one.py: for want of wings"])
