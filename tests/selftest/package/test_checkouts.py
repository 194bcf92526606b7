"""Checkouts: a clone works under any name of its folder, and two of them side by side each run their own code."""

from pathlib import Path

import pytest

from attention_conformance.tests.measurements.wheels import Environment, copied, install

NAMES = ("attention-conformance", "with space")
CANDIDATE = "torch.nn.functional:scaled_dot_product_attention"
ONE = ("--candidate", CANDIDATE, "--clause", "scores.dot-product", "--dtype", "float64")
WHERE = "import attention_conformance as a, attention_conformance.spec.cases as c; print(a.__version__, c.__file__)"


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two clones whose versions differ."""
    folder = tmp_path_factory.mktemp("clones")
    copies = [copied(folder / name) for name in NAMES]
    for number, clone in enumerate(copies):
        file = clone / "__init__.py"
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace('__version__ = "', f'__version__ = "{number + 7}.'), encoding="utf-8")
    return copies


@pytest.fixture(scope="module")
def environments(clones: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Environment]:
    """An environment for each, with an editable installation."""
    folder = tmp_path_factory.mktemp("environments")
    return [install("--editable", str(clone), folder=folder / str(n)) for n, clone in enumerate(clones)]


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_each_environment_has_the_code_of_its_clone(
    clones: list[Path], environments: list[Environment], number: int, tmp_path: Path
) -> None:
    for folder in (tmp_path, *clones):
        output = environments[number].output("python", "-c", WHERE, at=folder)
        assert output == f"{number + 7}.0.1.0 {clones[number]}/spec/cases.py\n"


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_pytest_and_the_command_judge_in_each_clone(
    clones: list[Path], environments: list[Environment], number: int
) -> None:
    assert "1 passed" in environments[number].output("python", "-m", "pytest", *ONE, at=clones[number])
    environments[number].output("attention-conformance", "check", CANDIDATE, *ONE[2:], at=clones[number])


def test_a_link_is_enough(clones: list[Path], environments: list[Environment], tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "attention_conformance").symlink_to(clones[1])
    links = {"PYTHONPATH": str(tmp_path / "links")}
    assert environments[0].output("python", "-c", WHERE, at=tmp_path, **links).startswith("8.0.1.0 ")
    environments[0].output("python", "-m", "pytest", *ONE, at=clones[1], **links)
