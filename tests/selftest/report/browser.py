"""Browser: shows a page in headless Chromium, and lists its flaws."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright

__all__ = ["Browser", "Elements", "Scheme", "Visit", "browser", "executable", "pictured", "visiting"]

Scheme: TypeAlias = Literal["light", "dark"]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
MISSING = "pages were not looked at: there is no Chromium here; apt-get install chromium, or put one into PATH"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LEGIBLE = 11
"""Pixels of the smallest letters."""
TIME_LIMIT = 60_000
"""Milliseconds that a page may take for anything."""
OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  return document.documentElement.scrollWidth > width ? [`wider than its window of ${width} px`] : [];
}"""
SMALL = """(least) => [...document.querySelectorAll("body *")].filter((each) => each.checkVisibility()
  && [...each.childNodes].some((child) => child.nodeType === 3 && child.data.trim())
  && parseFloat(getComputedStyle(each).fontSize) < least).map((each) => `small letters: ${each.textContent.trim()}`)"""
LOOKS = """(mark) => {
  const written = (each) => each.checkVisibility()
    && [...each.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  const grounds = (each) => each ? ["backgroundColor", "backgroundImage", "opacity"].map((name) =>
    getComputedStyle(each)[name]).concat(grounds(each.parentElement)) : [];
  const look = (each) => ["color", "fontSize", "fontWeight"].map((name) =>
    getComputedStyle(each)[name]).concat(grounds(each)).join();
  const firsts = new Map([...document.querySelectorAll("body *")].filter(written).reverse()
    .map((each) => [look(each), each]));
  firsts.forEach((each) => each.setAttribute(mark, ""));
}"""
"""Marks the first text of each look: its letters, and the grounds behind it, decide upon its contrast."""
MARK = "data-first-of-its-look"
OVERLAPS = """() => [...document.querySelectorAll("svg")].flatMap((svg) => {
  const shown = [...svg.querySelectorAll("text")].filter((each) => each.textContent.trim()
    && each.checkVisibility({ checkOpacity: true }) && each.getAttribute("opacity") !== "0");
  const boxes = shown.map((each) => [each.getBoundingClientRect(), each.textContent]);
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  return boxes.flatMap(([a, one], at) => boxes.slice(at + 1).filter(([b]) => meet(a, b))
    .map(([, other]) => `labels overlap: ${one} | ${other}`));
})"""


class Elements(HTMLParser):
    """All ids of a page, the targets of its links, and the files that it loads."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes["href"]] if "href" in attributes and tag != "link" else []
        stylesheet = tag == "link" and attributes.get("rel") == "stylesheet"
        self.sources += [attributes[name] for name in ("href" if stylesheet else "src",) if name in attributes]


@dataclass
class Visit:
    """A page that is open, and what was noted since."""

    page: Page
    noted: list[str] = field(default_factory=list)

    def complaints(self) -> list[str]:
        """The notes, and the visible flaws: overflow, small or overlapping letters, rules of accessibility."""
        seen = [*self.page.evaluate(OVERFLOW), *self.page.evaluate(SMALL, LEGIBLE), *self.page.evaluate(OVERLAPS)]
        self.page.evaluate(LOOKS, MARK)
        contrast = self._broken({"runOnly": ["color-contrast"]}, {"include": [[f"[{MARK}]"]]})
        return [*self.noted, *seen, *contrast, *self._broken({"rules": {"color-contrast": {"enabled": False}}})]

    def _broken(self, rules: dict[str, Any], part: dict[str, Any] | None = None) -> list[str]:
        """The rules of accessibility that the page, or this part of it, breaks."""
        broken = Axe().run(self.page, part, {**rules, "resultTypes": ["violations"]}).response["violations"]
        return [f"{each['id']}: {each['help']} ({each['nodes'][0]['html'][:200]})" for each in broken]

    def refuses_scripts(self) -> bool:
        """Whether a script that is put into the page now is not run, and the page's security policy states why."""
        script = "Object.assign(document.createElement('script'), {text: 'window.slipped = 1'})"
        self.page.evaluate(f"() => document.body.append({script})")
        ran = self.page.evaluate("window.slipped") is not None
        return not ran and any("Content Security Policy" in each for each in self.noted)

    def listen(self, own: str) -> None:
        """Notes errors, dialogs, and requests for anything but the page's own address."""

        def console(message: ConsoleMessage) -> None:
            if message.type == "error":
                self.noted.append(f"console: {message.text}")

        def request(sent: Request) -> None:
            if sent.url != own and not sent.url.startswith("data:"):
                self.noted.append(f"request: {sent.url[:200]}")

        def dialog(opened: Dialog) -> None:
            self.noted.append(f"dialog: {opened.message}")
            opened.dismiss()

        self.page.on("console", console)
        self.page.on("request", request)
        self.page.on("dialog", dialog)
        self.page.on("pageerror", lambda error: self.noted.append(f"error: {error.message}"))


def executable() -> str | None:
    """The installed Chromium, or a relative of it; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium of its own, with a new profile; the test is skipped where none is installed."""
    path = executable()
    if path is None:
        pytest.skip(MISSING)
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


@contextmanager
def visiting(
    browser: Browser, file: Path | str, width: int = 1280, scheme: Scheme = "light", ready: str = "body"
) -> Iterator[Visit]:
    """The page of a file or an address in a window of this width, once the selector `ready` matches."""
    address = file if isinstance(file, str) else file.as_uri()
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.set_default_timeout(TIME_LIMIT)
    visit = Visit(page)
    visit.listen(address)
    try:
        page.goto(address)
        page.wait_for_selector(ready, state="attached")
        yield visit
    finally:
        page.close()


def pictured(visit: Visit, config: pytest.Config, name: str) -> None:
    """Takes a picture of the whole page if `--screenshots` names a folder."""
    if folder := config.getoption("screenshots", None):
        visit.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
