"""The first screen fits a screen, and says each thing once."""

from dataclasses import replace

from attention_conformance.spec.clauses import load
from attention_conformance.tests.harness.run.screen.first_failure import TELLING
from attention_conformance.tests.report.verdict import FailureKind, Status, Verdict
from attention_conformance.tests.report.views import badge, html, junit, markdown, terminal
from attention_conformance.tests.report.views.first_screen import WIDTH, cause, lines
from attention_conformance.tests.selftest.report.run_builders import HOSTILE, failed, passed, run, subject

DTYPES = ("float64", "float32", "bfloat16", "float16")
CASE = ["smallest failing case: B=1", *(f"  array {number} = [1]" for number in range(20)), "  off by 3"]


def raised(clause: str, message: str) -> Verdict:
    verdict = failed("mine", clause, message=message)
    assert verdict.failure is not None
    return replace(verdict, failure=replace(verdict.failure, kind=FailureKind.RAISED))


def test_everything_fits_whatever_fails() -> None:
    verdicts = [failed("mine", clause, dtype, HOSTILE * 9) for clause in load() for dtype in DTYPES]
    shown = list(lines(run(*verdicts, diagnoses={"mine": HOSTILE * 9}), CASE))
    assert len(shown) <= 32  # and eight for the next steps
    assert max(map(len, shown)) <= WIDTH
    assert all(line.isprintable() for line in shown)
    assert "  off by 3" in shown


def test_dtypes_are_merged() -> None:
    verdicts = [failed("mine", "causal.square", dtype, "off") for dtype in DTYPES]
    shown = list(lines(run(*verdicts, passed("mine", "masks.bool"))))
    assert "FAIL  causal.square [all dtypes]: off" in shown
    assert shown[0] == "mine fails: 1 of 2 clauses hold, 1 fails"
    assert shown[-1] == "holds in float64, float32, bfloat16, float16: masks"


def test_one_exception_is_one_finding() -> None:
    same = [raised(clause, "raised TypeError: no") for clause in ("causal.square", "masks.bool", "masks.float")]
    shown = list(lines(run(*same, raised("values.weighted-sum", "raised TypeError: never"))))
    assert [line for line in shown if line.startswith("FAIL")] == [
        "FAIL  values.weighted-sum [float64]: raised TypeError: never",
        "FAIL  masks.bool and 2 more [float64]: raised TypeError: no",
    ]


def test_why_it_was_not_checked_to_the_end_is_the_cause() -> None:
    lost = replace(passed("mine", "causal.square"), status=Status.NOT_FINISHED, checks=0, worst=None, reason="it died")
    shown = list(lines(run(lost)))
    assert shown[1] == "  cause: it died"


def test_what_is_not_judged_stands_in_the_verdict() -> None:
    of_it = subject("mine", findings={"pad": "it hides queries"}, as_seen=("with True in 'mask' as masked out",))
    whole = run(passed("mine", "causal.square"), subjects=(of_it,))
    shown = list(lines(whole))
    assert shown[0] == "mine conforms in part, but for 'pad', with True in 'mask' as masked out: 1 of 1"
    assert "  'pad': it hides queries" in shown
    views = (terminal.lines(whole), [markdown.text(whole)], [html.text(whole)], [badge.endpoint(whole)])
    assert all("conforms in part" in "".join(view) for view in views)
    assert '<testcase name="pad is judged" classname="mine"' in junit.text(whole)
    assert 'errors="1"' in junit.text(whole)


def test_what_is_not_claimed_is_listed_and_no_other_note() -> None:
    notes = ("views not claimed: ValueError: no", "float16 not claimed: it raises")
    of_it = subject(
        "mine", about="; ".join(("a function", "its 'scale' is not claimed by anyone", *notes)), unclaimed=notes
    )
    whole = run(passed("mine", "causal.square"), subjects=(of_it,))
    for view in (lines(whole), terminal.lines(whole)):
        assert [line.strip() for line in view if " claimed" in line and not line.startswith("cells:")] == [*notes]


def test_a_right_one_takes_few_lines() -> None:
    assert len(list(lines(run(passed("mine", "causal.square"))))) == 3


def test_the_cause_comes_in_lines() -> None:
    assert list(cause("mine", "matches `no-scale`")) == ["mine fails; matches `no-scale`"]


def test_telling_clauses_are_clauses() -> None:
    assert set(TELLING) <= set(load())
    assert len(set(TELLING)) == len(TELLING)
