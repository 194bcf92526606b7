"""The wheel: everything that runs is in it, it disturbs no other project, and its command judges from any folder."""

import re
import shutil
import sys
import tarfile
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from attention_conformance.implementations.builtin.inhouse import ring_entries
from attention_conformance.implementations.worker.ranks import MODULE
from attention_conformance.tests.measurements import wheels
from attention_conformance.tests.measurements.wheels import PARTS, ROOT, Environment
from attention_conformance.tests.selftest.discovery.making import write
from attention_conformance.tests.selftest.package.test_house import imports
from attention_conformance.tests.selftest.sessions import unfolded
from attention_conformance.tests.selftest.thorough import thorough

SUITE = "attention_conformance/"
LEFT = ("tests/selftest/", "tests/measurements/")
"""Parts of the clone that only its own development needs."""
MATRIX = f"{SUITE}implementations/packages/"
"""Files that are loaded in environments of their own, for which they state what they need."""
OPTIONAL = {"jax", "onnx", "triton", "vl_convert"}
"""Used where installed: for candidates written in it, for its test cases, and for the page of benchmarks."""
NEEDED_BY = {"markupsafe": "jinja2", "pydantic_core": "pydantic"}
"""Packages that come with a required one."""
CANDIDATES = """
from tests.scaling import factor
from torch.nn.functional import scaled_dot_product_attention

def attention(query, key, value):
    return scaled_dot_product_attention(query, key, value)

def wrong(query, key, value):
    return factor() * attention(query, key, value)
"""
CONFLICTING = """
def pytest_addoption(parser):
    parser.addoption("--report", action="store_true")
    parser.addoption("--candidate", help="mine")
"""
ONE = ("--clause", "scores.dot-product", "--dtype", "float64")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clone's wheel."""
    return wheels.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment that has it."""
    return wheels.install(str(wheel), folder=tmp_path_factory.mktemp("environments") / "other")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody's project: with tests of its own, a configuration and a plugin whose options are named as ours."""
    write(tmp_path, "tests/__init__.py", "")
    write(tmp_path, "tests/scaling.py", "def factor():\n    return 2\n")
    write(tmp_path, "tests/test_own.py", "def test_own(request):\n    assert request.config.option.report\n")
    write(tmp_path, "conftest.py", CONFLICTING)
    write(tmp_path, "pytest.ini", "[pytest]\naddopts = --report\n")
    write(tmp_path, "mine.py", CANDIDATES)
    return tmp_path


def everything(folder: Path) -> dict[str, int]:
    """The files below a folder, by when they were written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


def left_by_tools(name: str) -> bool:
    """Whether caches and builds, which nobody keeps, go by this name."""
    return name.startswith(".") or name.endswith(".egg-info") or name == "__pycache__"


def test_the_wheel_has_every_file_that_runs(wheel: Path) -> None:
    files = [path.relative_to(ROOT) for part in PARTS for path in (ROOT / part).rglob("*") if path.is_file()]
    running = {
        str(file) for file in files if not str(file).startswith(LEFT) and not any(map(left_by_tools, file.parts))
    }
    packed = {name.removeprefix(SUITE) for name in wheels.contents(wheel) if name.startswith(SUITE)}
    assert packed == running | {"__init__.py", "__main__.py", "conftest.py", "py.typed", "pyproject.toml"}


def test_every_data_file_is_of_a_known_kind(wheel: Path) -> None:
    kinds = {Path(name).suffix for name in wheels.contents(wheel) if name.startswith(SUITE)}
    assert kinds == {".py", ".typed", ".toml", ".md", ".json", ".css", ".js", ".html"}


def test_a_wheel_of_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    archive = wheels.built(wheels.copied(tmp_path / "clone"), tmp_path, "build_sdist", "*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    (tmp_path / "again").mkdir()
    again = wheels.built(unpacked, tmp_path / "again", "build_wheel", "*.whl")
    assert wheels.contents(again) == wheels.contents(wheel)
    assert again.name == wheel.name


def test_one_name_is_installed(environment: Environment) -> None:
    installed = {path.name for path in environment.packages.iterdir()} - {"packages.pth", "__pycache__"}
    assert {name.partition("-")[0] for name in installed} == {"attention_conformance"}


def test_nothing_generic_can_be_imported(environment: Environment, tmp_path: Path) -> None:
    for name in (*PARTS, "conftest"):
        assert "ModuleNotFoundError" in environment.run("python", "-c", f"import {name}", at=tmp_path).stderr


def test_other_projects_are_left_alone(environment: Environment, project: Path) -> None:
    help_text = environment.output("python", "-m", "pytest", "--help", at=project)
    assert "--candidate=CANDIDATE" in help_text
    assert "--implementation" not in help_text
    assert "--list-clauses" not in help_text
    assert "1 passed" in environment.output("python", "-m", "pytest", "--report", at=project)


def test_it_judges_from_an_empty_folder(
    environment: Environment, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    empty = tmp_path_factory.mktemp("empty")
    before = everything(environment.packages), everything(project)
    output = environment.output("attention-conformance", "check", f"{project / 'mine.py'}:attention", *ONE, at=empty)
    assert "attention conforms: 1 of 1 clause holds" in output
    assert before == (everything(environment.packages), everything(project))
    assert list(empty.iterdir()) == []


def test_it_judges_within_a_project(environment: Environment, project: Path) -> None:
    before = everything(project)
    done = environment.run("attention-conformance", "check", "mine:wrong", *ONE, at=project, PYTEST_ADDOPTS="--version")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL  scores.dot-product [float64]" in done.stdout
    again = f"{environment.folder}/bin/attention-conformance check mine:wrong --clause scores.dot-product"
    assert again in unfolded(done.stdout)
    assert str(environment.packages) not in done.stdout
    assert before == everything(project)


def test_processes_of_an_implementation_find_the_suite(environment: Environment, tmp_path: Path) -> None:
    command = f"{environment.folder}/bin/python -m {MODULE} --processes 2 {ring_entries.__name__}:RING"
    given = ("--command", command, "--clause", "scores.dot-product", "--dtype", "float32")
    environment.output("python", "-m", "attention_conformance", "check", *given, at=tmp_path)


def test_everything_that_runs_is_installed_with_it(wheel: Path) -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    required = {re.split(r"[^a-z0-9-]", need)[0] for need in needed}
    files = [file for file in wheels.contents(wheel) if file.endswith(".py") and not file.startswith(MATRIX)]
    sources = [wheels.content(wheel, file) for file in files]
    names = {name.partition(".")[0] for source in sources for name in imports(source)}
    foreign = names - set(sys.stdlib_module_names) - {*PARTS, "attention_conformance"}
    owners = {name: {NEEDED_BY.get(name, plain(o)) for o in each} for name, each in packages_distributions().items()}
    assert {name for name in foreign if not required & owners.get(name, {name})} == OPTIONAL


def plain(distribution: str) -> str:
    """The name as it is compared: ML_dtypes is ml-dtypes."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_it_audits(environment: Environment, project: Path) -> None:
    target = (str(project / "mine.py:attention"), "--write", "adapter.py")
    output = environment.output("attention-conformance", "audit", *target, at=project)
    assert "query, key, value" in output
    assert "judge it with: attention-conformance check adapter.py:adapter" in output
    environment.output("attention-conformance", "check", "adapter.py:adapter", *ONE, at=project)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The example project of the documentation, outside of the clone."""
    return Path(shutil.copytree(ROOT / "docs" / "examples" / "project", tmp_path / "project"))


def test_the_example_project_passes_its_own_tests(environment: Environment, example: Path) -> None:
    output = environment.output("python", "-m", "pytest", "-p", "no:cacheprovider", "-k", "float32 or axes", at=example)
    assert "warning" not in output
    listed = environment.run("python", "-m", "pytest", "--collect-only", "-q", at=example).stdout
    assert "tests/test_attention.py::test_clauses[masks.bool-float32]" in listed


@thorough
def test_the_example_project_passes_its_own_check_of_types(environment: Environment, example: Path) -> None:
    """Beside it stands a copy of its tests with one mistake, which is all that is found."""
    tests = example / "tests" / "test_attention.py"
    (example / "tests" / "wrong.py").write_text(tests.read_text().replace("(adapter)", "(adapter, tier=5)"))
    (found, summary) = environment.run("python", "-m", "mypy", at=example).stdout.splitlines()
    assert found.startswith("tests/wrong.py")
    assert 'Argument "tier" to "parametrize_with_clauses" has incompatible type "int"' in found
    assert summary.startswith("Found 1 error in 1 file")


def test_the_example_project_is_judged_by_the_command(environment: Environment, example: Path) -> None:
    output = environment.output("attention-conformance", "check", "tests.adapter:adapter", *ONE, at=example)
    assert "my.attention" in output


def test_a_script_judges_from_any_folder(environment: Environment, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from torch.nn.functional import scaled_dot_product_attention\n"
        "from attention_conformance import check\n"
        "report = check(scaled_dot_product_attention, clauses='scores.dot-product', dtypes='float64')\n"
        "print(report.verdict)\n"
    )
    assert environment.run("python", str(script), at=tmp_path).stdout == "conforms\n"
