"""Builds the documentation: `python -m docs.build site` collects the pages, and Sphinx makes HTML of them."""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from sphinx.cmd.build import build_main

from attention_conformance.docs.linking import chapter_page, targets, with_links_moved, with_names_linked
from attention_conformance.implementations.defects import SCORE, Defect, catalogue
from attention_conformance.spec.clauses import load
from attention_conformance.tests.measurements.diagnosis_score import DIAGNOSIS, KINDS
from attention_conformance.tests.measurements.pages import rendered
from attention_conformance.tests.measurements.reach.score import REACH
from attention_conformance.tests.report.counts import HELD
from attention_conformance.tests.report.views.matrix_state import read_state

ROOT = Path(__file__).parents[1]
Scores: TypeAlias = Mapping[str, Any]
"""What a measurement has stored."""
PACKAGES = ROOT / "implementations" / "packages"
JUDGED, AUDITED = PACKAGES / "judged.json", PACKAGES / "audited.json"
FOLDERS = ("assets", "pictures", "examples")
LABELS = {
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="This page">',
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper ': '<div tabindex="0" class="table-wrapper ',
}
"""Attributes that the theme omits for readers with a keyboard or a screen reader."""
NONE = "-"
"""In the place of a score of a chapter without any defect in the sample."""
STRICT = ("-W", "--keep-going", "-n", "-q")


def page_names() -> dict[PurePosixPath, str]:
    """The files of the repository that become pages, and the name of each page."""
    names = {f"docs/{each.name}": each.name for each in sorted((ROOT / "docs").glob("*.md"))}
    names |= {f"spec/chapters/{each.name}": f"spec/{each.name}" for each in sorted(ROOT.glob("spec/chapters/*.md"))}
    names |= {"reference/bounds/bounds.md": "rounding.md", "reference/bounds/aligned.md": "aligned.md"}
    names |= {"CHANGELOG.md": "changelog.md"}
    return {PurePosixPath(file): page for file, page in names.items()}


def generated() -> dict[str, str]:
    """The pages of the catalogue of defects, and of the results that programs of minutes have stored."""
    defects = catalogue()
    score, reach, diagnosis = (json.loads(path.read_text(encoding="utf-8")) for path in (SCORE, REACH, DIAGNOSIS))
    chapters = {name: [d for d in defects if d.chapter == name] for name in dict.fromkeys(d.chapter for d in defects)}
    chosen = [clause for clause in score["of clauses"] if clause in score["smallest set"]]
    by_chapter = [list(names) for _, names in groupby(chosen, key=lambda clause: clause.partition(".")[0])]
    totals = {kind: sum(row[kind] for row in diagnosis["chapters"].values()) for kind in KINDS}
    counts = {"totals": totals, "counted": sum(totals.values())}
    rows = list(scores_by_chapter(chapters, score, reach, diagnosis))
    return {
        "defects.md": rendered("defects.md", defects=defects, chapters=chapters),
        "scores.md": rendered("scores.md", rows=rows, defects=len(defects), mutation=score, reach=reach, **counts),
        "mutation.md": rendered("mutation.md", defects=defects, score=score, chosen=by_chapter),
        "reach.md": rendered("reach.md", score=reach),
        "diagnosis.md": rendered("diagnosis.md", score=diagnosis, **counts),
        "packages.md": _packages(),
    }


def scores_by_chapter(
    chapters: Mapping[str, Sequence[Defect]], score: Scores, reach: Scores, diagnosis: Scores
) -> Iterator[tuple[str, ...]]:
    """For each chapter what the three measurements of the suite found of its defects; a dash where they tried none."""
    for chapter, defects in chapters.items():
        judged = {defect.id: score["of defects"][defect.id] for defect in defects if defect.id in score["of defects"]}
        killed = sum(row["clauses"] > 0 for row in judged.values())
        named = sum(row["diagnosis"] == name for name, row in judged.items())
        pairs = reach["chapters"].get(chapter)
        shares = (NONE,) * 2 if pairs is None else (_share(*pairs["one condition"]), _share(*pairs["two options"]))
        kinds = diagnosis["chapters"].get(chapter)
        unknown = (
            (NONE,) * 3 if kinds is None else (*(str(kinds[kind]) for kind in KINDS[:2]), str(sum(kinds.values())))
        )
        yield chapter, str(len(judged)), str(killed), str(named), *shares, *unknown


def _share(reached: int, holes: int) -> str:
    return f"{reached / max(reached + holes, 1):.0%}"


def _packages() -> str:
    """The page of the last published state of the matrix, and of what the auditor finds without adapters."""
    standings = list(read_state(JUDGED).values())
    audited = json.loads(AUDITED.read_text(encoding="utf-8"))
    return rendered(
        "packages.md",
        standings=standings,
        packages={each.package for each in standings},
        conforming=[each for each in standings if each.verdict in HELD],
        failing=[each for each in standings if each.verdict == "fails"],
        costly=[each.name for each in standings if ".*" in each.part],
        audited=audited,
        **{way: _found(each[way] for each in audited.values()) for way in ("audit", "check")},
    )


def _found(ways: Iterable[Scores]) -> dict[str, int]:
    """How much was found of all that could be looked at."""
    every = [each for each in ways if each]
    seen = [each for each in every if not each["refused"]]
    agree, differ = sum(each["agree"] for each in seen), sum(len(each["differ"]) for each in seen)
    claims = agree + differ + sum(len(each["unseen"]) for each in seen)
    return {"all": len(every), "seen": len(seen), "agree": agree, "differ": differ, "claims": claims}


def assemble(folder: Path) -> None:
    """Writes all pages into a folder, with their links; the repository's own files stay as they are."""
    moved = page_names()
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in moved}
    pages = {page: with_links_moved(texts[file], file, moved) for file, page in moved.items()}
    pages |= generated()
    named = {name: page for file, page in moved.items() for name in (str(file), page)}
    named |= targets(load(), catalogue())
    for page, text in pages.items():
        out = folder / page
        out.parent.mkdir(parents=True, exist_ok=True)
        text = chapter_page(text, catalogue()) if page.startswith("spec/") else text
        out.write_text(with_names_linked(text, page, named), encoding="utf-8")
    for name in FOLDERS:
        if (ROOT / "docs" / name).is_dir():
            shutil.copytree(ROOT / "docs" / name, folder / name)


def build(out: Path, builder: str = "html") -> int:
    """Runs a builder of Sphinx on the pages; 0 without a warning."""
    with tempfile.TemporaryDirectory() as scratch:
        pages = Path(scratch, "pages")
        assemble(pages)
        doctrees = str(Path(scratch, "doctrees"))
        settings = ("-c", str(ROOT / "docs"), "-d", doctrees, "-b", builder)
        status = build_main([*STRICT, *settings, str(pages), str(out)])
    if status == 0 and builder == "html":
        label(out)
    return status


def label(folder: Path) -> None:
    """Makes everything that scrolls reachable by the keyboard, and names the parts of each page."""
    for page in folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for bare, labelled in LABELS.items():
            text = text.replace(bare, labelled)
        page.write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Builds; the exit status is that of Sphinx."""
    parser = argparse.ArgumentParser(prog="python -m docs.build", description=__doc__)
    parser.add_argument("out", type=Path, metavar="DIR", help="where the pages go")
    parser.add_argument("--builder", default="html", help="linkcheck requests every address on the web (default: html)")
    options = parser.parse_args(arguments)
    status = build(options.out, options.builder)
    if status == 0 and options.builder == "html":
        print(f"written: {options.out / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
