"""The difference of two reports: it lists what got worse, ignores what was not selected, and hides nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from attention_conformance.tests.report.diff import (
    Change,
    ChangeKind,
    Diff,
    IncomparableError,
    compared,
    diff,
    markdown,
    text,
)
from attention_conformance.tests.report.log import FILE
from attention_conformance.tests.report.verdict import Verdict
from attention_conformance.tests.selftest.report.run_builders import (
    FEATURES,
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

ANCHOR = passed("mine", "scores.dot-product")
"""In all runs, so that they can be compared."""
CLAUSE = ("mine", "causal.square")
PASS, FAIL, KNOWN = passed(*CLAUSE), failed(*CLAUSE, message="off"), known(*CLAUSE)
ADVICE = failed(*CLAUSE, message="off", level="SHOULD")
UNCLAIMED, ERROR = unclaimed(*CLAUSE), unjudged(*CLAUSE)
STALE = unjudged(*CLAUSE, reason="passes, but is expected to fail", checks=3)
REPORTED = f"reported {LINK}"
WITHOUT_CAUSAL = subject("mine", features=tuple(f for f in FEATURES if f != "causal"))


def between(old: list[Verdict], new: list[Verdict]) -> Diff:
    return compared(run(ANCHOR, *old), run(ANCHOR, *new))


def only(diff: Diff) -> Change:
    (change,) = diff.changes
    return change


@pytest.mark.parametrize(
    ("old", "new", "kind", "worse", "context"),
    [
        (PASS, FAIL, ChangeKind.FAILING, True, "off"),
        (PASS, ADVICE, ChangeKind.FAILING, True, "off"),
        (KNOWN, FAIL, ChangeKind.FAILING, True, "off"),
        (ERROR, FAIL, ChangeKind.FAILING, True, "off"),
        (UNCLAIMED, FAIL, ChangeKind.FAILING, True, "off"),
        (PASS, KNOWN, ChangeKind.FAILING, True, REPORTED),
        (PASS, ERROR, ChangeKind.UNJUDGED, True, "too wide"),
        (PASS, STALE, ChangeKind.UNJUDGED, True, "passes, but is expected to fail"),
        (KNOWN, ERROR, ChangeKind.UNJUDGED, True, "too wide"),
        (FAIL, ERROR, ChangeKind.UNJUDGED, True, "too wide"),
        (PASS, UNCLAIMED, ChangeKind.UNCLAIMED, True, "no masks"),
        (FAIL, UNCLAIMED, ChangeKind.UNCLAIMED, False, "no masks"),
        (KNOWN, UNCLAIMED, ChangeKind.UNCLAIMED, False, "no masks"),
        (FAIL, PASS, ChangeKind.PASSING, False, ""),
        (ERROR, PASS, ChangeKind.PASSING, False, ""),
        (KNOWN, PASS, ChangeKind.MENDED, False, ""),
        (KNOWN, STALE, ChangeKind.MENDED, False, "passes, but is expected to fail"),
        (FAIL, KNOWN, ChangeKind.KNOWN, False, REPORTED),
        (UNCLAIMED, KNOWN, ChangeKind.KNOWN, False, REPORTED),
        (UNCLAIMED, PASS, ChangeKind.CLAIMED, False, ""),
    ],
)
def test_the_change_of_a_verdict(old: Verdict, new: Verdict, kind: ChangeKind, worse: bool, context: str) -> None:
    diff = between([old], [new])
    change = only(diff)
    assert (change.kind, change.worse, change.reason) == (kind, worse, context)
    assert (change.implementation, change.clause, change.dtype) == ("mine", "causal.square", "float64")
    assert diff.worse is worse


@pytest.mark.parametrize("same", [PASS, FAIL, KNOWN, UNCLAIMED, ERROR])
def test_an_equal_verdict_is_no_change(same: Verdict) -> None:
    diff = between([same], [same])
    assert (diff.changes, diff.compared, diff.worse) == ((), 2, False)
    assert list(text(diff)) == ["2 verdicts compared, 0 changed", "nothing got worse"]


@pytest.mark.parametrize(
    ("before", "after", "noted"),
    [(0.2, 0.6, True), (0.2, 0.5, False), (0.3, 0.6, False), (0.01, 0.4, False), (None, 0.9, False), (0.6, 0.2, False)],
)
def test_an_error_that_grows_is_noted(before: float | None, after: float, noted: bool) -> None:
    diff = between([passed(*CLAUSE, worst=before)], [passed(*CLAUSE, worst=after)])
    assert [change.kind for change in diff.changes] == [ChangeKind.GROWN] * noted
    assert not diff.worse


@pytest.mark.parametrize(("lost", "worse"), [([PASS], True), ([FAIL], False), ([KNOWN], False), ([UNCLAIMED], None)])
def test_a_feature_that_is_not_claimed_any_more(lost: list[Verdict], worse: bool | None) -> None:
    diff = compared(run(ANCHOR, *lost), run(ANCHOR, subjects=[WITHOUT_CAUSAL]))
    assert [(c.kind, c.worse) for c in diff.changes] == ([] if worse is None else [(ChangeKind.UNCLAIMED, worse)])
    assert [c.reason for c in diff.changes] == ["does not claim causal"] * len(diff.changes)
    assert diff.only_old == 0


def test_a_dtype_that_is_not_claimed_any_more() -> None:
    narrow = subject("mine", dtypes=("float64",))
    diff = compared(run(ANCHOR, passed(*CLAUSE, "float32")), run(ANCHOR, subjects=[narrow]))
    assert (only(diff).kind, only(diff).reason) == (ChangeKind.UNCLAIMED, "does not claim float32")


@pytest.mark.parametrize(
    ("won", "kind"),
    [(PASS, ChangeKind.CLAIMED), (KNOWN, ChangeKind.KNOWN), (FAIL, ChangeKind.FAILING), (ERROR, ChangeKind.UNJUDGED)],
)
def test_a_feature_that_is_claimed_now(won: Verdict, kind: ChangeKind) -> None:
    diff = compared(run(ANCHOR, subjects=[WITHOUT_CAUSAL]), run(ANCHOR, won))
    assert (only(diff).kind, only(diff).worse) == (kind, kind in (ChangeKind.FAILING, ChangeKind.UNJUDGED))


def test_verdicts_of_one_run_alone_are_counted_apart() -> None:
    one_chapter = replace(SUITE, clauses=("scores.*",))
    other = [passed("mine", "scores.scale-default", "float32")]
    diff = compared(run(ANCHOR, PASS, FAIL), run(ANCHOR, *other, suite=one_chapter))
    assert (diff.changes, diff.compared, diff.only_old, diff.only_new) == ((), 1, 1, 1)
    assert "1 verdicts compared, 0 changed; 1 that only the old run has; 1 that only the new run has" in text(diff)
    assert "the runs differ in clauses: all, then scores.*" in text(diff)
    narrow = compared(run(ANCHOR, PASS), run(ANCHOR, subjects=[WITHOUT_CAUSAL], suite=one_chapter))
    assert (narrow.changes, narrow.only_old) == ((), 1)  # the new run does not select the clause


def test_a_dtype_that_was_not_selected_is_not_unclaimed() -> None:
    wide, narrow = replace(SUITE, dtypes=("float64",)), subject("mine", dtypes=("float64",))
    diff = compared(run(ANCHOR, passed(*CLAUSE, "float32")), run(ANCHOR, subjects=[narrow], suite=wide))
    assert (diff.changes, diff.only_old) == ((), 1)
    assert "the runs differ in dtypes: all, then float64" in text(diff)


def test_implementations_come_and_go() -> None:
    more = [passed("theirs", "scores.dot-product"), failed("theirs", "causal.square")]
    gone = compared(run(ANCHOR, *more), run(ANCHOR))
    assert (only(gone).kind, only(gone).old, gone.worse, gone.only_old) == (ChangeKind.GONE, "fails", True, 0)
    new = compared(run(ANCHOR), run(ANCHOR, *more))
    assert (only(new).kind, only(new).new, new.worse, new.only_new) == (ChangeKind.NEW, "fails", False, 0)
    assert "  theirs: fails" in text(new)


def test_a_new_run_that_is_not_complete_is_no_success() -> None:
    diff = compared(run(ANCHOR, PASS), run(ANCHOR, subjects=[subject("mine")], reason="the run was interrupted"))
    assert (diff.changes, diff.only_old, diff.worse) == ((), 1, True)
    first, *_, last = text(diff)
    assert first == "INCOMPLETE: the new run is not complete (the run was interrupted): what it lacks is not compared"
    assert last == "unknown whether something got worse: run the new one to its end"


def test_an_implementation_that_an_incomplete_run_did_not_reach_is_not_gone() -> None:
    both = [subject("mine"), subject("theirs")]
    theirs = passed("theirs", "scores.dot-product")
    diff = compared(run(ANCHOR, theirs), run(ANCHOR, subjects=both, reason="the run was interrupted"))
    assert (diff.changes, diff.only_old) == ((), 1)


def test_an_old_run_that_is_not_complete_is_named() -> None:
    diff = compared(run(ANCHOR, reason="cut"), run(ANCHOR, PASS))
    assert (diff.worse, diff.only_new) == (False, 1)
    assert next(iter(text(diff))).startswith("INCOMPLETE: the old run is not complete (cut)")


def test_differences_of_the_runs_themselves_come_first() -> None:
    other = replace(SUITE, version="0.2.0", tier="full")
    masked_out = subject("mine", conventions={"bool-mask": "masked-out"})
    new = run(ANCHOR, FAIL, suite=other, environment={"torch": "3.0", "jax": "1"}, subjects=[masked_out])
    lines = list(text(compared(run(ANCHOR, PASS), new)))
    assert lines[:6] == [
        "the runs differ in suite: 0.1.0, then 0.2.0",
        "the runs differ in tier: quick, then full",
        "the runs differ in torch: 2.9, then 3.0",
        "the runs differ in convention bool-mask of mine: may-attend, then masked-out",
        "the runs differ in jax: absent, then 1",
        "newly failing:",
    ]


def test_dtypes_of_one_change_are_listed_together_the_widest_first() -> None:
    dtypes = ("bfloat16", "float32", "float64")
    diff = between([passed(*CLAUSE, d) for d in dtypes], [failed(*CLAUSE, d, "off") for d in dtypes])
    assert list(text(diff)) == [
        "newly failing:",
        "  mine  causal.square  [float64, float32, bfloat16]: pass, then fail: off",
        "4 verdicts compared, 3 changed",
        "worse: 3 changes",
    ]


def test_runs_with_nothing_in_common_are_not_compared() -> None:
    message = r"no verdict in common \(old: mine, 1 verdicts; new: other, 1 verdicts"
    with pytest.raises(IncomparableError, match=message):
        compared(run(ANCHOR), run(passed("other", "scores.dot-product")))


def test_text_of_a_candidate_is_never_markup() -> None:
    old = run(ANCHOR, passed(HOSTILE, "causal.square"), environment={"torch": HOSTILE})
    new = run(ANCHOR, failed(HOSTILE, "causal.square", message=HOSTILE), reason=HOSTILE)
    diff = compared(old, new)
    assert not [line for line in text(diff) if not line.isprintable()]
    page = "\n".join(markdown(diff))
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    kinds = [token.type for token in tokens]
    assert (kinds.count("td_open"), kinds.count("html_block"), kinds.count("heading_open")) == (6, 0, 2)
    inline = {child.type for token in tokens for child in token.children or ()}
    assert inline == {"text", "code_inline", "strong_open", "strong_close"}


def test_a_comment_stays_short() -> None:
    clauses = [f"causal.{number}" for number in range(2_000)]
    diff = between([passed("mine", c) for c in clauses], [failed("mine", c, message="x" * 500) for c in clauses])
    page = "\n".join(markdown(diff))
    assert len(page) < 60_000
    assert "... and 1960 more: `--format text` shows them all." in page
    assert len([line for line in text(diff) if line.startswith("  mine")]) == 2_000


def test_the_exit_status_is_one_if_something_got_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write_log(tmp_path / "good", run(ANCHOR, PASS)), write_log(tmp_path / "bad", run(ANCHOR, FAIL))
    assert diff(good, good) == 0
    assert diff(bad, good) == 0
    assert diff(good, bad) == 1
    assert diff(good / FILE, bad / FILE, "markdown") == 1
    assert "## Attention conformance: worse: 1 change\n" in capsys.readouterr().out
    cut = write_log(tmp_path / "cut", run(ANCHOR, PASS, reason="the run was interrupted"))
    assert diff(good, cut) == 1


def test_programs_get_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write_log(tmp_path / "good", run(ANCHOR, PASS)), write_log(tmp_path / "bad", run(ANCHOR, FAIL))
    assert diff(good, bad, "json") == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["worse"], data["compared"]) == ("attention-conformance/diff/2", True, 2)
    assert data["new"] == {"started": "2026-01-02T03:04:05+00:00", "complete": True, "reason": "", "verdicts": 2}
    (change,) = data["changes"]
    assert (change["kind"], change["old"], change["new"], change["worse"]) == ("newly failing", "pass", "fail", True)


@pytest.mark.parametrize(
    ("damage", "context"),
    [
        (lambda folder: folder / "report.json", "report.json is no event log: give the folder of --report, or the"),
        (lambda folder: folder / "nowhere", "cannot be read (No such file or directory): give the folder of --report"),
        (lambda folder: (folder / FILE).write_text("{}\n") and folder, ":1: event is 'None'"),
        (lambda folder: (folder / FILE).write_text("") or folder, "this is not the opening of a log of"),
        (lambda folder: write_log(folder, run(passed("other", "scores.dot-product"))), "no verdict in common"),
    ],
)
def test_a_report_that_cannot_be_used_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], Path], context: str
) -> None:
    good, other = write_log(tmp_path / "good", run(ANCHOR)), write_log(tmp_path / "other", run(ANCHOR))
    (other / "report.json").write_text("{}")
    damaged = damage(other)
    for old, new in ((good, damaged), (damaged, good)):
        assert diff(old, new) == 4
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ERROR: ")
        assert context in line
