"""The matrix: packages are read, judged apart, kept while nothing changes, and compared when something does."""

import json
import re
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attention_conformance.tests.cli import matrix_basis, matrix_command
from attention_conformance.tests.cli.matrix_basis import DECIDING, SUITE, code_of, reasons, suite_digests
from attention_conformance.tests.cli.matrix_command import STATE, TABLE, matrix
from attention_conformance.tests.cli.matrix_packages import (
    FOLDER,
    Package,
    PackageError,
    environment,
    packages,
    versions,
)
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.report.verdict import Verdict
from attention_conformance.tests.report.views.matrix_feed import FEED, feed
from attention_conformance.tests.report.views.matrix_state import FILE, Standing, changes, read_state, remembering
from attention_conformance.tests.selftest.package.test_house import NAME, imports
from attention_conformance.tests.selftest.report.run_builders import failed, passed, run, write_log

# Another test may have imported JAX into this process, which warns of each fork; here a program follows at once.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
CALLED = {"paddle", "haiku"}
"""Modules whose distribution has another name: paddlepaddle, dm-haiku."""

FRESH = "not judged before, and fails: masks.bool"

METADATA = """# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy==2.4.6"]
#
# [tool.attention-conformance]
# implementations = ["plain"]
# conventions = { default-scale = "one" }
# ///
"""
PLAIN = """
import numpy as np
from attention_conformance import Claims, Feature, Implementation, Scope, numpy_op

def attention(query, key, value):
    scores = query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** 0.0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value

plain = Implementation("plain", Claims(Scope.OP, frozenset({Feature.CORE}), dtypes=("float32",)), numpy_op(attention))
"""

NPM = """
import json, sys
from pathlib import Path
given = sys.argv[1:]
folder = Path(given[given.index("--prefix") + 1])
name, _, version = given[-1].rpartition("@")
folder.mkdir()
installed = {"": {}, f"node_modules/{name}": {"version": version}, "node_modules/long": {"version": "5.3.2"}}
(folder / "package-lock.json").write_text(json.dumps({"packages": installed}))
"""
"""An npm that installs nothing, and lists what it was given."""


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """A matrix of one package, whose environment is this one."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "mine.py").write_text(METADATA + PLAIN)
    monkeypatch.setattr(matrix_command, "packages", lambda: packages(tmp_path / "packages"))
    monkeypatch.setattr(matrix_command, "environment", lambda *_: Path(sys.executable))
    monkeypatch.setattr(matrix_command, "versions", lambda _: ["numpy==2.4.6"])
    monkeypatch.setattr(matrix_basis, "suite_digests", lambda: {"clauses": "1", "judge": "1"})
    return Namespace(
        pattern=[],
        clause=["scores.dot-product"],
        dtype=["float32"],
        report=tmp_path / "report",
        jobs=1,
        tier="quick",
        environments=tmp_path,
        constraint=None,
        since=None,
        scheduler="",
    )


def test_an_interrupted_run_says_that_it_can_go_on(
    given: Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(matrix_command, "executor", interrupted)
    assert matrix(given) == ExitStatus.INTERRUPTED
    assert "the same command goes on from there" in capsys.readouterr().err


def test_what_changed_is_judged_again_and_compared(
    given: Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert matrix(given) == ExitStatus.CONFORMS
    shown = capsys.readouterr().out
    assert "| plain | mine | conforms | " in shown
    assert (given.report / TABLE).read_text() == shown
    assert 'href="mine.plain/report.html#plain/scores"' in (given.report / "index.html").read_text()
    assert 'id="clause:scores.dot-product" data-verdict="holds"' in (given.report / "clauses.html").read_text()
    assert ">numpy.plain</a>" in (given.report / "index.html").read_text()
    assert "<b>one</b>" in (given.report / "conventions.html").read_text()
    state = given.report / "mine.plain" / STATE
    first = state.stat().st_mtime_ns
    assert matrix(given) == ExitStatus.CONFORMS
    assert "as before" in capsys.readouterr().out
    assert state.stat().st_mtime_ns == first
    file = given.report.parent / "packages" / "mine.py"
    file.write_text(file.read_text().replace("** 0.0", "** 0.1"))
    monkeypatch.setattr(matrix_basis, "suite_digests", lambda: {"clauses": "2", "judge": "1"})
    given.since = given.report.parent / FILE
    given.since.write_bytes((given.report / FILE).read_bytes())
    assert matrix(given) == ExitStatus.FAILS
    shown = capsys.readouterr().out
    assert "| plain | mine | fails | " in shown
    assert "clauses.html#clause:scores.dot-product" in (given.report / "index.html").read_text()
    assert "| clauses changed; its adapter changed; worse than before: scores.dot-product" in shown
    assert "\nnumpy.plain of numpy==2.4.6: fails; before: conforms\n" in shown
    assert "\nnumpy.plain of numpy==2.4.6: fails now: scores." in shown
    assert "<li>numpy.plain of numpy==2.4.6: fails; before: conforms</li>" in (given.report / "index.html").read_text()
    assert 'href="feed.xml"' in (given.report / "index.html").read_text()
    shown = (given.report / FEED).read_text()  # of one day, the latest first
    assert 0 < shown.index("fails; before: conforms") < shown.index("is new: conforms")
    assert [each.verdict for each in read_state(given.report / FILE)["mine.plain"].versions] == ["conforms", "fails"]
    assert read_state(given.report / FILE)["mine.plain"].answers == {"default-scale": "one"}
    assert json.loads(state.read_text())["installed"] == ["numpy==2.4.6"]


def test_the_reason_names_what_was_updated() -> None:
    before = {"suite": "1", "judge": "1", "dtypes": [], "installed": ["jax==1", "keras==3", "numpy==2"]}
    now = {"suite": "1", "judge": "2", "dtypes": ["float32"], "installed": ["jax==1", "keras==4"]}
    assert reasons(before, now, "keras[torch]==4") == [
        "package updated: keras 3 -> 4",
        "environment changed: numpy 2 -> absent",
        "the judge changed",
        "another selection",
    ]
    assert reasons(now, now, "keras==4") == []


def test_digests_are_those_of_the_code_that_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all((SUITE / folder).is_dir() for folders in DECIDING.values() for folder in folders)
    monkeypatch.setattr(matrix_basis, "SUITE", tmp_path)
    monkeypatch.setattr(matrix_basis, "load", dict)
    (tmp_path / "judge").mkdir()
    monkeypatch.setattr(matrix_basis, "DECIDING", {"clauses": ("judge",)})
    digests = []
    for text in ("x = 1", "# why\nx = 1", "x = 2"):
        (tmp_path / "judge" / "a.py").write_text(text)
        digests.append(suite_digests.__wrapped__())
    assert digests[0] == digests[1] != digests[2]


def test_comments_and_docstrings_are_no_code() -> None:
    assert code_of("def f():\n    'text'\n") == code_of("def f():\n    'other'  # text\n") != code_of("def f(): 1 / 0")


def test_changes_name_what_came_went_and_was_updated() -> None:
    old = Standing("keras.sdpa", "keras==3.15.0", "fails", failing=("grouped.order",))
    new = Standing("keras.sdpa", "keras==3.15.1", "conforms", answers={"empty-row-bool": "uniform"})
    assert list(changes({"k": old, "gone": old}, {"k": new, "new": new})) == [
        "keras.sdpa of keras==3.15.0 is gone",
        "keras.sdpa: keras==3.15.0 was judged before, keras==3.15.1 now",
        "keras.sdpa of keras==3.15.1: conforms; before: fails",
        "keras.sdpa of keras==3.15.1: does not fail any more: grouped.order",
        "keras.sdpa of keras==3.15.1 claims other answers where the field disagrees",
        "keras.sdpa of keras==3.15.1 is new: conforms",
    ]


def test_versions_are_kept_over_time_and_fed() -> None:
    first = Standing("keras.sdpa", "keras==1", "fails", judged_on="2026-01-01", failing=("grouped.order",))
    second = replace(first, package="keras==2", judged_on="2026-02-01")
    third = replace(second, judged_on="2026-03-01")  # judged again, with the same outcome
    fourth = replace(third, verdict="conforms", failing=(), judged_on="2026-04-01")
    state: dict[str, Standing] = {}
    for each in (first, second, third, fourth):
        state = remembering({"k": each}, state)
    assert [each.judged_on for each in state["k"].versions] == ["2026-01-01", "2026-03-01", "2026-04-01"]
    assert [each.first_day for each in state["k"].versions] == ["2026-01-01", "2026-02-01", "2026-04-01"]
    root = ElementTree.fromstring(feed(state))
    name = "{http://www.w3.org/2005/Atom}"
    assert [each.findtext(f"{name}title") for each in root.iter(f"{name}entry")] == [
        "keras.sdpa of keras==2: conforms; before: fails",
        "keras.sdpa: keras==1 was judged before, keras==2 now",
        "keras.sdpa of keras==1 is new: fails",
    ]
    assert [each.text for each in root.iter(f"{name}updated")][:2] == ["2026-04-01T00:00:00Z"] * 2
    assert len({each.text for each in root.iter(f"{name}id")}) == 4
    assert feed(state) == feed(state)
    assert b"1970" in feed({})


def test_a_package_that_cannot_be_installed_is_one_row(
    given: Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> Path:
        raise PackageError("mine cannot be installed: no such version")

    monkeypatch.setattr(matrix_command, "environment", refused)
    assert matrix(given) == ExitStatus.INTERRUPTED
    assert "| mine | mine | not judged |  |  | mine cannot be installed: no such version |" in capsys.readouterr().out
    assert "mine cannot be installed: no such version" in (given.report / "index.html").read_text()


def test_an_adapter_that_cannot_be_loaded_is_one_row(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    (given.report.parent / "packages" / "mine.py").write_text(METADATA + "import absent_package\n")
    assert matrix(given) == ExitStatus.INTERRUPTED
    assert "not judged |  |  | exit status 4: " in capsys.readouterr().out


def test_a_name_that_no_package_has_is_refused(given: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    given.pattern = ["other*"]
    assert matrix(given) == ExitStatus.UNUSABLE
    assert capsys.readouterr().err == "matrix: no package is called other*; there are: mine\n"


@pytest.mark.parametrize("text", [None, "", "[]"])
def test_a_file_without_a_state_is_refused(
    text: str | None, given: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    given.since = given.report.parent / FILE
    if text is not None:
        given.since.write_text(text)
    assert matrix(given) == ExitStatus.UNUSABLE
    assert "matrix.json is no state of a matrix: " in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", METADATA.replace("implementations", "targets"), METADATA.replace("[", "", 1)])
def test_a_file_without_usable_metadata_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(PackageError, match=r"mine\.py"):
        Package.of(tmp_path / "mine.py")


def test_what_cannot_be_installed_states_why(tmp_path: Path) -> None:
    package = Package("mine", tmp_path / "mine.py", ("absent-package-of-no-index @ file:///absent",), ())
    with pytest.raises(PackageError, match=r"^mine cannot be installed: "):
        environment(package, tmp_path)


def test_a_package_of_npm_is_a_worker_and_one_row_without_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package,) = (each for each in packages() if each.is_worker)
    assert package.dependencies == ("onnxruntime-web==1.30.0",)
    assert package.target("attention", tmp_path) == ["--command", f"node {package.file} {tmp_path}"]
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(PackageError, match=r"^onnxruntime_in_node needs node, which is not installed$"):
        environment(package, tmp_path)
    for name, program in (("node", ""), ("npm", NPM)):
        (programs / name).write_text(f"#!{sys.executable}\n{program}")
        (programs / name).chmod(0o755)
    module = environment(package, tmp_path)
    assert module.name == "onnxruntime-web"
    assert versions(module) == ["onnxruntime-web==1.30.0", "long==5.3.2"]
    (programs / "npm").unlink()
    assert environment(package, tmp_path) == module


def test_every_package_imports_what_its_environment_has() -> None:
    for package in (each for each in packages() if not each.is_worker):
        used = {name.partition(".")[0] for name in imports(package.file.read_text())}
        stated = {re.split(r"[=<>\[]", each)[0].replace("-", "_") for each in package.dependencies}
        assert used <= stated | CALLED | set(sys.stdlib_module_names) | {NAME}, package.name


def test_every_package_pins_what_it_is_about_and_has_another_name() -> None:
    for package in packages():
        assert "==" in package.dependencies[0]
        assert package.name != package.dependencies[0].partition("==")[0].partition("[")[0]
        text = package.file.read_text()
        listed = text.partition("__all__ = ")[2]
        assert package.is_worker or all(
            f"\n{name} = Implementation(" in text or f'"{name}"' in listed for name in package.implementations
        )
    assert FOLDER.is_dir()


@pytest.mark.parametrize(
    ("before", "note"),
    [
        (
            [passed("mine", "scores.dot-product")],
            f"0 changes, none for the worse; {FRESH}",
        ),
        ([passed("mine", "values.width")], FRESH),
    ],
    ids=["more", "others"],
)
def test_what_fails_without_having_been_judged_before_is_named(
    before: list[Verdict], note: str, tmp_path: Path
) -> None:
    old = write_log(tmp_path / "old", run(*before))
    new = write_log(tmp_path / "new", run(passed("mine", "scores.dot-product"), failed("mine", "masks.bool")))
    assert matrix_command._compared(old, new) == (note, False)
