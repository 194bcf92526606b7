"""Wheels: the project built and installed as elsewhere, in environments of their own."""

import os
import shutil
import site
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("spec", "reference", "implementations", "tests")
FILES = (
    *("__init__.py", "__main__.py", "conftest.py", "py.typed"),
    *("setup.py", "pyproject.toml", "README.md", "LICENSE"),
)
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def copied(folder: Path) -> Path:
    """A copy of what the clone tracks, apart from documentation, at the folder."""
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy(ROOT / file, folder / file)
    return folder


def build(scratch: Path) -> Path:
    """The wheel of the clone, built from a copy of it: setuptools leaves things behind where it builds."""
    return built(copied(scratch / "clone"), scratch, "build_wheel", "*.whl")


def built(project: Path, scratch: Path, kind: str, pattern: str) -> Path:
    """The file that setuptools builds of a project by one of its functions, such as `build_sdist`."""
    run([sys.executable, "-c", BUILD, kind, str(scratch)], project)
    (file,) = scratch.glob(pattern)
    return file


def contents(wheel: Path) -> set[str]:
    """The names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def content(wheel: Path, name: str) -> str:
    """The text of one of them."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode()


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees the packages installed next to the clone's, but not the clone."""

    folder: Path

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        (packages,) = (self.folder / "lib").glob("python*/site-packages")
        return packages

    def run(self, program: str, *arguments: str, at: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs in a folder."""
        command = [str(self.folder / "bin" / program), *arguments]
        return subprocess.run(command, cwd=at, env=_outside() | variables, capture_output=True, text=True, timeout=240)

    def output(self, program: str, *arguments: str, at: Path, **variables: str) -> str:
        """The output of one of its programs, which has to succeed."""
        done = self.run(program, *arguments, at=at, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def install(*what: str, folder: Path) -> Environment:
    """Makes an environment at the folder and installs what pip is given into it, without dependencies."""
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder.parent)
    environment = Environment(folder)
    # Folders that a .pth names are searched, but their own .pth files, of the editable clone among them, are not read.
    (environment.packages / "packages.pth").write_text("\n".join(site.getsitepackages()))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    run([*pip, "--no-deps", "--no-build-isolation", *what], folder)
    return environment


def run(command: list[str], at: Path) -> None:
    """Runs a command that has to succeed, without the variables of this process that Python and pytest read."""
    done = subprocess.run(command, cwd=at, env=_outside(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def _outside() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "COV_"))}
