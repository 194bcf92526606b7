"""Neighbours: a candidate's project has its own `tests` and `spec`, the suite keeps its own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import implementations
import spec.cases
import tests.harness.suite
from implementations import contract
from implementations.loading import TargetError, load_target
from implementations.neighbours import NAMES

SUITE = {name: sys.modules[name] for name in ("implementations", "spec", "spec.cases", "tests", "tests.harness.suite")}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a package of every name that the suite uses, as the current folder."""
    for name in NAMES:
        _write(tmp_path, f"{name}/__init__.py", f"OWNER = 'project, {name}'\n")
        _write(tmp_path, f"{name}/part.py", f"from {name} import OWNER\n\ndef call():\n    return OWNER\n")
    imports = "".join(f"from {name}.part import call as {name}\n" for name in NAMES)
    _write(tmp_path, "mine.py", f"{imports}\ncalled = [f() for f in ({', '.join(NAMES)})]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def suite_is_untouched() -> bool:
    names = all(sys.modules[name] is module for name, module in SUITE.items())
    again = (
        importlib.import_module("spec.cases") is spec.cases and importlib.import_module("tests") is sys.modules["tests"]
    )
    return names and again and not hasattr(implementations, "OWNER") and tests.harness.suite.__name__ in sys.modules


@pytest.mark.parametrize("target", ["mine.py:called", "mine:called"])
def test_a_target_gets_the_packages_of_its_project(project: Path, target: str) -> None:
    sys.modules.pop("mine", None)
    assert load_target(target) == [f"project, {name}" for name in NAMES]
    assert suite_is_untouched()
    assert not [name for name in NAMES if f"{name}.part" in sys.modules]


def test_a_target_in_a_package_of_such_a_name(project: Path) -> None:
    found = load_target("implementations.part:call")
    assert callable(found)
    assert found() == "project, implementations"
    assert load_target("implementations.part:call") is found
    assert suite_is_untouched()


def test_two_projects_each_get_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _write(tmp_path, f"{name}/tests/__init__.py", f"OWNER = {name!r}\n")
        _write(tmp_path, f"{name}/mine.py", "from tests import OWNER\n")
        _write(tmp_path, f"{name}/other.py", "from tests import OWNER\n")
    targets = ("a/mine.py", "b/mine.py", "a/other.py", "b/other.py")
    assert [load_target(f"{tmp_path / target}:OWNER") for target in targets] == ["a", "b", "a", "b"]
    assert suite_is_untouched()


def test_an_adapter_gets_the_suites_contract_where_its_folder_has_none(tmp_path: Path) -> None:
    _write(tmp_path, "tests/__init__.py", "OWNER = 'project'\n")
    adapter = "from implementations.contract import Claims\nfrom spec.cases import Case\nfrom tests import OWNER\n"
    _write(tmp_path, "adapter.py", f"{adapter}\nfound = (Claims, Case, OWNER)\n")
    assert load_target(f"{tmp_path / 'adapter.py'}:found") == (contract.Claims, spec.cases.Case, "project")
    assert suite_is_untouched()


@pytest.mark.parametrize("content", ["spec/readme.md", "tests/data/numbers.txt"])
def test_a_folder_without_python_files_is_no_package(tmp_path: Path, content: str) -> None:
    _write(tmp_path, content, "")
    _write(tmp_path, "adapter.py", "from spec.cases import Case\nimport tests.harness\n")
    assert load_target(f"{tmp_path / 'adapter.py'}:Case") is spec.cases.Case


def test_a_package_without_init_file(tmp_path: Path) -> None:
    _write(tmp_path, "tests/helper.py", "OWNER = 'project'\n")
    _write(tmp_path, "mine.py", "from tests.helper import OWNER\n")
    assert load_target(f"{tmp_path / 'mine.py'}:OWNER") == "project"
    assert suite_is_untouched()


def test_the_suite_keeps_its_own_when_the_import_fails(project: Path) -> None:
    _write(project, "failing.py", "from spec.part import call\n\nraise ValueError(call())\n")
    with pytest.raises(TargetError, match=r"ValueError: project, spec \(failing.py, line 3\)"):
        load_target("failing.py:f")
    assert suite_is_untouched()
