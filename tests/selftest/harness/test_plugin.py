"""The command line: what is checked, how failures read, and that no candidate gets out of its verdict."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attention_conformance.implementations.builtin.catalogue import ABSENT, BUILTIN, ON_REQUEST
from attention_conformance.implementations.defects import catalogue
from attention_conformance.spec.clauses import load
from attention_conformance.tests.harness.run import clause_items, options
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.plan.selection import answered_dtypes
from attention_conformance.tests.selftest.sessions import ROOT, Sessions, checks_of
from attention_conformance.tests.selftest.thorough import by_turns

MATH = ("--implementation", "torch.sdpa.math")
RIGHT = ("--candidate", "candidates.py:right")


def first_words(result: pytest.RunResult) -> list[str]:
    """The first word of each line of a list."""
    assert result.ret == 0
    return [line.split()[0] for line in result.outlines if line.strip()]


def test_ids_read_like_the_specification(sessions: Sessions) -> None:
    result = sessions.run(*MATH, "--clause", "causal.s*", "--clause", "values.*", "--collect-only")
    ids = [line.partition("::")[2] for line in result.outlines if "::" in line]
    clauses = ("values.weighted-sum", "values.width", "values.single-key", "causal.square")
    dtypes = ("float64", "float32", "bfloat16", "float16")
    assert sorted(ids) == sorted(f"{c}[torch.sdpa.math-{d}]" for c in clauses for d in dtypes)


def test_only_claimed_clauses_become_tests(sessions: Sessions) -> None:
    result = sessions.run(*MATH, "--clause", "softmax.*weights", "--clause", "projections.*", "--collect-only")
    assert not [line for line in result.outlines if "::" in line]


def test_where_no_given_dtype_is_claimed_the_widest_claimed_one_is_checked() -> None:
    wide = replace(BUILTIN[0], name="wide", claims=replace(BUILTIN[0].claims, dtypes=("float64",)))
    assert answered_dtypes((wide,), ("float32",)) == (("float64",), ("checked in float64: wide answers in no float32",))
    assert answered_dtypes((wide, BUILTIN[0]), ("float32",)) == (("float32",), ())
    assert answered_dtypes((wide,), ()) == ((), ())


@pytest.mark.parametrize(
    ("name", "dtype", "count"), [("torch.sdpa*", "float16", 3), ("torch.sdpa.math", "*float16", 2)]
)
def test_selection_by_patterns_of_names_and_dtypes(sessions: Sessions, name: str, dtype: str, count: int) -> None:
    result = sessions.run("--implementation", name, "--clause", "causal.square", "--dtype", dtype)
    assert result.ret == 0
    assert result.parseoutcomes() == {"passed": count}


def test_clauses_are_listed_a_line_each(sessions: Sessions) -> None:
    assert first_words(sessions.run("--list-clauses")) == list(load())


def test_implementations_are_listed_a_line_each(sessions: Sessions) -> None:
    names = [i.name for i in (*BUILTIN, *ON_REQUEST)]
    assert first_words(sessions.run("--list-implementations")) == [*names, *ABSENT]
    assert len(first_words(sessions.run("--list-implementations", "--implementation", "torch.sdpa*"))) == 3


def test_a_costly_implementation_is_checked_where_it_is_named(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    costly = replace(BUILTIN[0], name="costly")
    monkeypatch.setattr("attention_conformance.implementations.builtin.catalogue.ON_REQUEST", (costly,))
    monkeypatch.setattr("attention_conformance.implementations.builtin.catalogue.ABSENT", {"gone": "there is no g++"})
    assert "costly" not in sessions.run("--list-implementations", "--implementation", "*c*").stdout.str()
    assert first_words(sessions.run("--list-implementations", "--implementation", "costly")) == ["costly"]
    whole = sessions.run("--list-implementations").stdout.str()
    assert "costly: --implementation costly checks it" in whole
    assert "gone                     not among them: cannot run here: there is no g++" in whole


def test_defects_are_listed_a_line_each(sessions: Sessions) -> None:
    result = sessions.run("--list-defects")
    assert result.ret == 0
    lines = [line for line in result.outlines if line.strip()]
    assert [line.split()[:3] for line in lines] == [[d.id, d.clauses[0], d.severity] for d in catalogue()]
    assert all(line.endswith(f" {d.text.does}") for line, d in zip(lines, catalogue(), strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--implementation", "gone"), "--implementation 'gone' cannot run here: there is no g++"),
        (("--clause", "causal.sqare"), "--clause 'causal.sqare' selects nothing; there are for example: causal.square"),
        (("--implementation", "torch.spda"), "--implementation 'torch.spda' selects nothing"),
        (("--dtype", "float31"), "--dtype 'float31' selects nothing; there are for example: float32"),
        (("--tier", "quik"), "--tier 'quik' selects nothing; there are for example: quick"),
        (("--device", "cuda:99"), "--device 'cuda:99' "),
        (("--device", "gpu"), "--device 'gpu' "),
        (("--device", "meta"), "--device 'meta' is not available here: Cannot copy out of meta tensor"),
        (("--convention", "empty-row=nan"), "--convention describes a candidate"),
        (("--candidate", "nowhere.py:f"), "nowhere.py"),
        ((*RIGHT, "--convention", "empty-row"), "is not of the form KEY=VALUE"),
        (
            (*RIGHT, "--convention", "empty-rows=nan"),
            "no convention is named 'empty-rows'; did you mean 'empty-row'? There are: empty-row, ",
        ),
        (
            (*RIGHT, "--convention", "empty-row=none"),
            "convention empty-row cannot be 'none'; choose from: zeros, nan, uniform",
        ),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_in_one_line(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr("attention_conformance.implementations.builtin.catalogue.ABSENT", {"gone": "there is no g++"})
    assert message in sessions.refused(*arguments)


def test_a_failure_reads_in_terms_of_the_specification(sessions: Sessions) -> None:
    result = sessions.judge("halved", "--clause", "causal.square")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = result.stdout.str()
    assert "causal.square (MUST): With as many queries as keys, query i MUST attend to the keys 0 to i" in text
    assert "halved in float64: output of sample " in text
    assert " x the bound " in text
    assert "5 of 5 checks fail; the plainest case: B=2 H=3 Lq=7 Lk=7" in text
    again = next(line for line in result.outlines if "again: " in line)
    assert "pytest --candidate" in again
    assert again.endswith(f"--candidate {sessions.file}:halved --clause causal.square --dtype float64")
    assert "Traceback" not in text


def test_a_violated_should_is_no_failure(sessions: Sessions) -> None:
    result = sessions.judge("numbed", "--clause", "numerics.nan-propagates", "--clause", "causal.square")
    assert result.ret == 0
    assert result.parseoutcomes() == {"passed": 1, "xfailed": 1}
    assert "advice (SHOULD)  numerics.nan-propagates" in result.stdout.str()


def test_a_known_deviation_is_no_failure(sessions: Sessions) -> None:
    result = sessions.judge("known", "--clause", "causal.square")
    assert result.ret == 0
    assert result.parseoutcomes() == {"xfailed": 1}
    assert "conforms, 1 known deviation" in result.stdout.str()
    assert "https://example.org/issues/1" in result.stdout.str()


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        ("skips", "raised Skipped: not today"),
        ("exits", "raised SystemExit: 0"),
        ("leaves", "raised Exit: enough"),
        ("fails", "raised ZeroDivisionError: by zero"),
        ("xfails", "raised XFailed: known"),
        ("silent", "returned NoneType, not a Result"),
    ],
)
def test_no_candidate_gets_out_of_its_verdict(sessions: Sessions, candidate: str, message: str) -> None:
    result = sessions.judge(candidate, "--clause", "causal.square", "--clause", "softmax.over-keys")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes() == {"failed": 2}
    assert message in result.stdout.str()


def test_a_claimed_feature_without_a_check_is_an_error(sessions: Sessions) -> None:
    result = sessions.run("--candidate", f"{sessions.file}:shy")
    assert result.ret == ExitStatus.NOTHING_CHECKED
    assert "ERROR  shy claims core, and nothing was checked of it" in result.stdout.str()
    assert result.parseoutcomes()["skipped"] > 100
    assert "passed" not in result.parseoutcomes()


@pytest.mark.parametrize("processes", by_turns([(), ("-n", "2")], 2))
def test_a_path_that_does_not_exist_is_named_by_one_process_and_by_two(
    sessions: Sessions, processes: tuple[str, ...]
) -> None:
    result = sessions.apart("MISSING_PATH", *processes)
    assert result.returncode == ExitStatus.UNUSABLE
    assert "ERROR: file or directory not found: MISSING_PATH" in result.stderr
    assert "nothing was checked" not in result.stdout


def test_two_processes_give_the_verdicts_of_one(sessions: Sessions, tmp_path: Path) -> None:
    chosen = ("--implementation", "torch.sdpa", "--clause", "causal.*", "--clause", "masks.b*")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the processes: other numbers of threads round differently
    sessions.run(*chosen, "--report", str(tmp_path / "one"))
    torch.set_num_threads(threads)
    sessions.apart(*chosen, "--report", str(tmp_path / "two"), "-n", "2")
    verdicts = []
    for folder in ("one", "two"):
        report = json.loads((tmp_path / folder / "report.json").read_text())
        assert report["completion"]["complete"] is True
        (entry,) = report["implementations"]
        verdicts.append(sorted(({**v, "seconds": 0.0} for v in entry["verdicts"]), key=str))
    assert verdicts[0] == verdicts[1]
    (sdpa,) = (i for i in BUILTIN if i.name == "torch.sdpa")
    assert len(verdicts[0]) == len(checks_of(sdpa, "causal.", "masks.b"))


@pytest.mark.parametrize(("judged", "status"), [("", ExitStatus.CONFORMS), ("crash", ExitStatus.SUITE_ERROR)])
def test_settings_of_somebody_else_change_nothing(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, judged: str, status: ExitStatus
) -> None:
    """Those of the folder in which pytest runs: its logs are kept, and files have other names from there."""
    if judged:
        monkeypatch.setattr(clause_items, "judged", judged)
    sessions.pytester.makeini("[pytest]\naddopts = -q\n")
    mine = ("-c", "tox.ini", "--import-mode=importlib", str(ROOT / "tests" / "conformance" / "test_causal.py"))
    chosen = ("--in-process", "--candidate", f"{sessions.file}:right", "--clause", "causal.square", "--report", "own")
    result = sessions.pytester.runpytest_inprocess(*mine, *chosen)
    assert result.ret == status, result.stdout.str()


def test_the_processes_of_a_session_take_no_folder_for_a_place_of_tests(tmp_path: Path) -> None:
    """They read the words again when the folder of the report is there, whose settings would be theirs."""
    given = pytest.Config.InvocationParams(args=("--report", "out", "-n", "2", "t.py"), plugins=None, dir=tmp_path)
    assert options.joined(given).args == ("--report=out", "-n", "2", "t.py")


def test_a_path_in_the_suite_is_enough_for_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Given:
        inipath = tmp_path / "pytest.ini"
        invocation_params = pytest.Config.InvocationParams(args=(), plugins=None, dir=tmp_path)

    assert not options.on_the_suite(Given())  # type: ignore[arg-type]
    words = ("-q", str(ROOT / "tests" / "conformance"))
    Given.invocation_params = pytest.Config.InvocationParams(args=words, plugins=None, dir=tmp_path)
    assert options.on_the_suite(Given())  # type: ignore[arg-type]
