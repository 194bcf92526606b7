"""The documentation: it is built without a warning, every link of it leads somewhere, and a browser shows it."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urldefrag

import pytest

from attention_conformance.docs.linking import chapter_page, with_links_moved, with_names_linked
from attention_conformance.docs.mathml import displayed
from attention_conformance.implementations.defects import catalogue
from attention_conformance.spec.clauses import load
from attention_conformance.tests.selftest.report.browser import Browser, Elements, Scheme, browser, pictured, visiting
from attention_conformance.tests.selftest.sessions import ROOT

__all__ = ["browser"]

TARGETS = {"causal.square": "spec/causal.md#causalsquare", "no-scale": "defects.md#no-scale"}
DISPLAYED = re.compile(r"\$\$.+?\$\$", re.DOTALL)
EQUATIONS = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$", re.DOTALL)
LOOKED_AT = ("index", "spec/gradients")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "docs.build", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Elements]:
    return {page.resolve(): Elements(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}


def test_every_link_between_pages_leads_somewhere(pages: dict[Path, Elements]) -> None:
    for page, elements in pages.items():
        for link in elements.links:
            assert re.match("https?:", link) or leads(page, link, pages), f"{page.name}: {link}"


def leads(page: Path, link: str, pages: dict[Path, Elements]) -> bool:
    path, anchor = urldefrag(unquote(link))
    target = (page.parent / path).resolve() if path else page
    return not anchor or anchor in pages[target].ids if target in pages else target.is_file()


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Elements]) -> None:
    for page, elements in pages.items():
        for source in elements.sources:
            assert not re.match("(https?:)?//", source), f"{page.name}: {source}"


def test_every_clause_and_every_equation_has_an_address(site: Path, pages: dict[Path, Elements]) -> None:
    for clause in load().values():
        page = (site / "spec" / f"{clause.chapter}.html").resolve()
        assert clause.id.replace(".", "-") in pages[page].ids
        if clause.equation:
            assert f"equation-{clause.equation.replace('.', '-')}" in set().union(*(p.ids for p in pages.values()))


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing is logged."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_nothing_to_complain_of(
    browser: Browser, address: str, name: str, width: int, scheme: Scheme, pytestconfig: pytest.Config
) -> None:
    with visiting(browser, f"{address}{name}.html", width, scheme) as visit:
        pictured(visit, pytestconfig, f"docs-{name.replace('/', '-')}-{width}-{scheme}")
        assert [each for each in visit.complaints() if not each.startswith(f"request: {address}")] == []


def test_equations_are_seen(browser: Browser, address: str) -> None:
    with visiting(browser, f"{address}spec/gradients.html", 360) as visit:
        boxes = [each.bounding_box() for each in visit.page.locator(".equation math").all()]
        assert len(boxes) == len(DISPLAYED.findall((ROOT / "spec/chapters/gradients.md").read_text()))
        assert all(box and box["height"] > 10 and box["width"] > 20 for box in boxes)
        visit.page.get_by_role("link", name="(11.3)").click()
        assert visit.page.url.endswith("#equation-11-3")


def test_the_search_needs_no_server(browser: Browser, site: Path) -> None:
    with visiting(browser, f"{site.as_uri()}/search.html?q=causal.square", 360) as visit:
        result = visit.page.locator("ul.search li").get_by_text("causal.square").first
        result.wait_for()
        result.click()
        visit.page.wait_for_url("**/causal.html*")
        assert [each for each in visit.noted if not each.startswith(f"request: {site.as_uri()}/")] == []


def equations(file: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", file.read_text(encoding="utf-8"))
    return [display or inline for display, inline in EQUATIONS.findall(text)]


@pytest.mark.parametrize(
    "file", [*sorted(ROOT.glob("spec/chapters/*.md")), *sorted(ROOT.glob("reference/bounds/*.md"))], ids=str
)
def test_every_equation_can_be_written(file: Path) -> None:
    for latex in equations(file):
        assert "<math" in displayed(latex)


def test_an_unknown_command_is_named() -> None:
    with pytest.raises(ValueError, match=r"^\\nonsense is unknown in the equation"):
        displayed(r"a \nonsense b")


@pytest.mark.parametrize(
    ("text", "linked"),
    [
        ("see `causal.square`.", "see [`causal.square`](../spec/causal.md#causalsquare)."),
        ("| causal.square | 3 |", "| [causal.square](../spec/causal.md#causalsquare) | 3 |"),
        ("`no-scale`, `unknown`", "[`no-scale`](../defects.md#no-scale), `unknown`"),
        ("## `no-scale`", "## `no-scale`"),
        ("```console\n`no-scale`\n```", "```console\n`no-scale`\n```"),
        ("[`no-scale`](elsewhere.md)", "[`no-scale`](elsewhere.md)"),
    ],
)
def test_names_become_links(text: str, linked: str) -> None:
    assert with_names_linked(text, "folder/page.md", TARGETS) == linked


def test_links_between_files_follow_them() -> None:
    places = {PurePosixPath("docs/a.md"): "a.md", PurePosixPath("spec/chapters/b.md"): "spec/b.md"}
    text = "[b](../spec/chapters/b.md#c), [web](https://a.md), [file](../setup.py)"
    moved = with_links_moved(text, PurePosixPath("docs/a.md"), places)
    assert moved == "[b](spec/b.md#c), [web](https://a.md), [file](../setup.py)"
    assert with_links_moved("[a](../../docs/a.md)", PurePosixPath("spec/chapters/b.md"), places) == "[a](../a.md)"


def test_a_chapter_names_the_defects_that_break_its_clauses() -> None:
    text = "# Chapter 8: causal\n\n## causal.square\n\n- level: MUST\n- equation: 8.1\n\nOf chapter 7.\n"
    page = chapter_page(text, catalogue())
    assert "{.facts}\n- level: MUST" in page
    assert '- equation: <a href="causal.html#equation-8-1">8.1</a>' in page
    assert "[chapter 7](masks.md)" in page
    assert re.search(r"Broken by: .*`next-position-seen`", page)


def test_links_of_the_readme_lead_to_files() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([^)#:]+)[^)]*\)", readme)
    assert len(linked) > 10
    assert [name for name in linked if not (ROOT / name).is_file()] == []
