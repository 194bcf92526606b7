"""Expected failures: what a file may hold, what it excuses, and that a proposal with its links is such a file."""

import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from attention_conformance.implementations.api.contract import ExpectedFailure
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS
from attention_conformance.tests.harness.run.plan.expected_failures import (
    FILE,
    ExpectingError,
    expecting,
    next_to,
    read,
)
from attention_conformance.tests.selftest.sessions import Sessions

MATH = next(i for i in TORCH_OPS if i.name == "torch.sdpa.math")
TODAY = date(2026, 5, 1)
GOOD = '[[expected]]\nclause = "causal.square"\nreason = "halved"\nlink = "https://example.org/1"\n'
CLAUSE = ("--clause", "causal.square")


def written(folder: Path, text: str) -> Path:
    path = folder / FILE
    path.write_text(text)
    return path


def test_an_entry_is_an_expected_failure(tmp_path: Path) -> None:
    (entry,) = read(written(tmp_path, f'{GOOD}dtypes = ["float32"]\ncandidate = "mine"\nexpires = 2027-01-31\n'))
    assert entry.failure == ExpectedFailure("causal.square", "halved", "https://example.org/1", ("float32",))
    assert (entry.candidate, entry.expires) == ("mine", date(2027, 1, 31))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "is no TOML: "),
        (GOOD.replace("[[expected]]", "[[expcted]]"), "no table is named 'expcted'; did you mean 'expected'?"),
        (GOOD.replace("[[expected]]", "[expected]"), "write each entry below a line [[expected]]"),
        (GOOD.replace("clause", "claus"), "entry 1: no key is named 'claus'; did you mean 'clause'?"),
        (GOOD + GOOD.replace("square", "sqare"), "entry 2: no clause is named 'causal.sqare'; did you mean 'causal.sq"),
        (f'{GOOD}dtypes = ["float31"]', "entry 1: no dtype is named 'float31'; did you mean 'float32'?"),
        (f'{GOOD}dtypes = "float32"', "dtypes is a list of strings"),
        (GOOD.replace('"halved"', "3"), "reason, link and candidate are strings"),
        (GOOD.replace('reason = "halved"', ""), "entry 1 lacks 'reason': an entry has clause, reason, link"),
        (GOOD.replace("halved", ""), "entry 1: the expected failure of causal.square needs a reason"),
        (
            GOOD.replace("https://example.org/1", ""),
            "entry 1: the expected failure of causal.square needs a public https",
        ),
        (
            f'{GOOD}expires = "2027-01-31"',
            "expires is '2027-01-31', and has to be a date, such as 2027-01-31, unquoted",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ExpectingError) as caught:
        read(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_the_file_is_looked_for_next_to_the_candidate(tmp_path: Path) -> None:
    assert next_to(f"{tmp_path}/mine.py:f") == tmp_path / FILE
    assert next_to("package.module:f") == Path(FILE)


def test_entries_reach_the_candidates_that_they_name(tmp_path: Path) -> None:
    written(tmp_path, f'{GOOD}candidate = "b"\n\n{GOOD.replace("square", "no-future")}')
    a, b = (replace(MATH, name=name) for name in "ab")
    targets = [f"{tmp_path}/mine.py:{name}" for name in "ab"]
    (first, second), notes = expecting((a, b), targets, None, TODAY)
    assert [e.clause for e in first.expected_failures] == ["causal.no-future", *(e.clause for e in a.expected_failures)]
    assert [e.clause for e in second.expected_failures][:2] == ["causal.square", "causal.no-future"]
    assert notes == ()


@pytest.mark.parametrize(("day", "excuses"), [(2, False), (1, True)])
def test_an_expired_entry_excuses_nothing_and_is_noted(tmp_path: Path, day: int, excuses: bool) -> None:
    path = written(tmp_path, f"{GOOD}expires = {TODAY}\n")
    (candidate,), notes = expecting((MATH,), ["mine:f"], path, TODAY.replace(day=day))
    assert ("causal.square" in {e.clause for e in candidate.expected_failures}) is excuses
    note = f"{path}, entry 1 expired on 2026-05-01, and no longer excuses causal.square"
    assert notes == (() if excuses else (note,))


def test_an_entry_for_an_unchecked_clause_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace("causal.square", "window.extent"))
    with pytest.raises(ExpectingError, match=r"window.extent is not checked, as torch.sdpa.math .*: remove it"):
        expecting((MATH,), ["mine:f"], path, TODAY)


def test_a_known_deviation_is_no_failure(sessions: Sessions) -> None:
    written(sessions.file.parent, GOOD)
    result = sessions.judge("halved", *CLAUSE)
    assert result.ret == 0
    assert "halved https://example.org/1" in result.stdout.str()


def test_it_is_an_error_when_it_is_gone(sessions: Sessions) -> None:
    path = written(sessions.file.parent, GOOD).rename(sessions.file.parent / "named.toml")
    result = sessions.judge("right", *CLAUSE, "--expected-failures", str(path))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "passes, but is expected to fail (halved): remove the entry" in result.stdout.str()


def test_an_expired_one_is_a_failure_again(sessions: Sessions) -> None:
    written(sessions.file.parent, f"{GOOD}expires = 2020-01-01\n")
    result = sessions.judge("halved", *CLAUSE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "expired on 2020-01-01, and no longer excuses causal.square" in result.stdout.str()


def test_mistakes_in_the_file_are_refused_in_one_line(sessions: Sessions) -> None:
    path = written(sessions.file.parent, GOOD.replace("square", "sqare"))
    error_line = sessions.refused("--candidate", f"{sessions.file}:halved", *CLAUSE)
    assert error_line == f"ERROR: {path}, entry 1: no clause is named 'causal.sqare'; did you mean 'causal.square'?"


def test_nothing_is_proposed_where_nothing_fails(sessions: Sessions) -> None:
    output = sessions.judge("right", *CLAUSE, "--propose-expected-failures").stdout.str()
    assert f"# nothing fails that MUST hold: {FILE} needs no entry" in output
    assert "[[" not in output


def test_a_file_is_for_candidates(sessions: Sessions) -> None:
    error_line = sessions.refused("--implementation", "torch.sdpa.math", "--propose-expected-failures")
    assert (
        error_line
        == "ERROR: --propose-expected-failures describes a candidate: give --candidate TARGET or --command too"
    )


def test_a_proposal_excuses_what_fails_once_its_links_are_filled_in(sessions: Sessions) -> None:
    chosen = ("--clause", "causal.s*", "--clause", "scores.dot*")
    first = sessions.judge("halved", *chosen, "--propose-expected-failures")
    assert first.ret == pytest.ExitCode.TESTS_FAILED
    proposal = re.search(r"^# expected_failures.toml.*^# end of", first.stdout.str(), re.DOTALL | re.MULTILINE)
    assert proposal is not None
    assert 'reason = "output is not within its bound"' in proposal[0]
    path = written(sessions.file.parent, proposal[0])
    assert "needs a public https link" in sessions.refused("--candidate", f"{sessions.file}:halved", *chosen)
    path.write_text(proposal[0].replace('link = ""', 'link = "https://example.org/2"'))
    again = sessions.judge("halved", *chosen)
    assert again.ret == 0
    assert again.parseoutcomes() == {"xfailed": 2}
