"""Badges: their words and colours, and that they can be read."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attention_conformance.tests.report.model import Run
from attention_conformance.tests.report.views import badge
from attention_conformance.tests.selftest.report.browser import Browser, browser, pictured, visiting
from attention_conformance.tests.selftest.report.run_builders import (
    SUITE,
    failed,
    known,
    passed,
    run,
    subject,
    unclaimed,
    unjudged,
)

__all__ = ["browser"]

ONE = passed("mine", "causal.square")
CAUSAL = replace(SUITE, clauses=("causal.*",))
BADGES = [
    (run(ONE, passed("mine", "causal.square", "float32"), passed("mine", "scores.dot-product")), "conforms · 2/2 hold"),
    (run(ONE), "conforms · 1/1 hold"),
    (run(ONE, failed("mine", "causal.square", "float32"), failed("mine", "causal.alignment")), "fails · 0/2 hold"),
    (run(ONE, failed("mine", "causal.any-scale", level="SHOULD"), known("mine", "masks.bool")), "conforms · 1/3 hold"),
    (run(ONE, unjudged("mine", "masks.bool")), "error · 1/2 hold"),
    (run(ONE, reason="the run was interrupted"), "incomplete"),
    (run(subjects=[subject("mine")]), "nothing judged"),
    (run(unclaimed("mine", "masks.bool")), "nothing judged"),
    (run(ONE, passed("b", "causal.square"), subjects=[subject(n) for n in ("mine", "b")]), "2 of 2 conform"),
    (run(ONE, failed("b", "causal.square"), passed("c", "causal.square")), "2 of 3 conform"),
    (run(ONE, subjects=[subject("mine"), subject("b")]), "1 of 2 conform"),
    (run(failed("mine", "causal.square"), reason="cut"), "incomplete"),
    (run(ONE, suite=CAUSAL), "conforms in part · 1/1 hold"),
    (run(ONE, suite=replace(SUITE, dtypes=("float64",))), "conforms in part · 1/1 hold"),
    (run(ONE, passed("b", "causal.square"), suite=CAUSAL), "2 of 2 conform in part"),
    (run(failed("mine", "causal.square"), suite=CAUSAL), "fails · 0/1 hold"),
]


@pytest.mark.parametrize(("given", "context"), BADGES)
def test_badges_state_the_result(given: Run, context: str) -> None:
    data = json.loads(badge.endpoint(given))
    assert (data["schemaVersion"], data["label"], data["message"]) == (1, "attention", context)
    assert (data["color"] == "brightgreen") == context.startswith(("conforms", "2 of 2"))
    picture = ElementTree.fromstring(badge.svg(given))
    space = "{http://www.w3.org/2000/svg}"
    assert picture.get("role") == "img"
    assert picture.get("aria-label") == picture.findtext(f"{space}title") == f"attention: {context}"
    texts = list(picture.iter(f"{space}text"))
    assert [text.text for text in texts] == ["attention", context]
    last = texts[-1]
    assert int(last.get("x", "")) + int(last.get("textLength", "")) + badge.PADDING == int(picture.get("width", ""))


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", [badge.LEFT, *badge.FILLS.values()])
def test_badges_can_be_read(colour: str) -> None:
    assert 1.05 / (luminance(colour) + 0.05) >= 4.5


def test_badges_as_a_browser_draws_them(browser: Browser, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    page = tmp_path / "badges.html"
    data = {context: badge.svg(given) for given, context in BADGES}
    # Each picture once: identifiers within it would meet on one page
    images = "".join(f"<p>{picture.replace('round', f'round{n}')}</p>" for n, picture in enumerate(data.values()))
    page.write_text(f"<!doctype html><html lang=en><title>badges</title><main><h1>Badges</h1>{images}</main>")
    with visiting(browser, page, width=360) as visit:
        natural = visit.page.evaluate(
            """() => [...document.querySelectorAll("text")].map((each) => {
              const length = each.textLength.baseVal.value;
              each.removeAttribute("textLength");
              return each.getComputedTextLength() / length;
            })"""
        )
        assert len(natural) == 2 * len(data)
        assert all(0.85 < ratio < 1.15 for ratio in natural), natural
        visit.page.reload()
        pictured(visit, pytestconfig, "badges")
        assert visit.noted == []
