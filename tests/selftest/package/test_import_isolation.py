"""A candidate's project may have packages named as the suite's folders are: it gets its own."""

import sys
from pathlib import Path

import pytest

from attention_conformance.implementations.api.contract import Claims
from attention_conformance.implementations.discovery.targets.loading import TargetError, load_target
from attention_conformance.spec.cases import Case
from attention_conformance.tests.selftest.discovery.making import forgotten, write

NAMES = ("spec", "reference", "implementations", "tests")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a package named as each folder of the suite, as the current folder."""
    for name in NAMES:
        write(tmp_path, f"{name}/__init__.py", f"OWNER = 'project, {name}'\n")
        write(tmp_path, f"{name}/part.py", f"from {name} import OWNER\n\ndef call():\n    return OWNER\n")
    imports = "".join(f"from {name}.part import call as {name}\n" for name in NAMES)
    write(tmp_path, "mine.py", f"{imports}\ncalled = [f() for f in ({', '.join(NAMES)})]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("target", ["mine.py:called", "mine:called"])
def test_a_target_gets_the_packages_of_its_project(project: Path, target: str) -> None:
    with forgotten("mine", *NAMES):
        assert load_target(target) == [f"project, {name}" for name in NAMES]


def test_a_target_in_a_package_of_such_a_name(project: Path) -> None:
    with forgotten(*NAMES):
        result = load_target("implementations.part:call")
        assert callable(result)
        assert result() == "project, implementations"


def test_two_projects_each_get_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path, f"{name}/tests/__init__.py", f"OWNER = {name!r}\n")
        write(tmp_path, f"{name}/mine.py", "from tests import OWNER\n")
        write(tmp_path, f"{name}/other.py", "from tests import OWNER\n")
    targets = ("a/mine.py", "b/mine.py", "a/other.py", "b/other.py")
    with forgotten(*NAMES):
        assert [load_target(f"{tmp_path / target}:OWNER") for target in targets] == ["a", "b", "a", "b"]


def test_an_adapter_gets_the_suites_contract_and_its_own_helpers(tmp_path: Path) -> None:
    write(tmp_path, "tests/__init__.py", "OWNER = 'project'\n")
    names = "from attention_conformance.implementations.api.contract import Claims\n"
    names += "from attention_conformance.spec.cases import Case\nfrom tests import OWNER\n"
    write(tmp_path, "adapter.py", f"{names}\nnames = (Claims, Case, OWNER)\n")
    with forgotten(*NAMES):
        assert load_target(f"{tmp_path / 'adapter.py'}:names") == (Claims, Case, "project")


def test_a_package_without_init_file(tmp_path: Path) -> None:
    write(tmp_path, "tests/helper.py", "OWNER = 'project'\n")
    write(tmp_path, "mine.py", "from tests.helper import OWNER\n")
    with forgotten(*NAMES):
        assert load_target(f"{tmp_path / 'mine.py'}:OWNER") == "project"


def test_the_failure_of_an_import_names_the_line(project: Path) -> None:
    write(project, "failing.py", "from spec.part import call\n\nraise ValueError(call())\n")
    with forgotten(*NAMES), pytest.raises(TargetError, match=r"ValueError: project, spec \(failing.py, line 3\)"):
        load_target("failing.py:f")


def test_sessions_in_this_process_drop_what_is_theirs_and_no_library(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, theirs = "torch.utils.benchmark", "module_of_the_session"
    monkeypatch.delitem(sys.modules, library, raising=False)
    text = f"import {theirs}\nimport {library}\n\ndef test_it(): pass\n"
    pytester.makepyfile(**{theirs: "", "test_of_session": text})
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    assert [name in sys.modules for name in (library, theirs)] == [True, False]
