"""Wheels: the project built as it is installed elsewhere, and an environment of its own that has it."""

from __future__ import annotations

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
FILES = ("__init__.py", "conftest.py", "py.typed", "setup.py", "pyproject.toml", "README.md", "LICENSE")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def build(scratch: Path) -> Path:
    """The wheel of the clone, built from a copy of it: setuptools leaves things behind where it builds."""
    for part in PARTS:
        shutil.copytree(ROOT / part, scratch / "clone" / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy(ROOT / file, scratch / "clone" / file)
    _run([sys.executable, "-c", BUILD, str(scratch)], scratch / "clone")
    (wheel,) = scratch.glob("*.whl")
    return wheel


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
    """A virtual environment that has the wheel, and sees what is installed beside the clone, but not the clone."""

    folder: Path

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        (found,) = (self.folder / "lib").glob("python*/site-packages")
        return found

    def run(self, program: str, *arguments: str, at: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs in a folder."""
        command = [str(self.folder / "bin" / program), *arguments]
        return subprocess.run(command, cwd=at, env=_outside() | variables, capture_output=True, text=True, timeout=120)


def install(wheel: Path, folder: Path) -> Environment:
    """Makes an environment at the folder and installs the wheel into it, without its dependencies."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder.parent)
    made = Environment(folder)
    # Folders that a .pth names are searched, but their own .pth files, of the editable clone among them, are not read.
    (made.packages / "beside.pth").write_text("\n".join(site.getsitepackages()))
    python = str(folder / "bin" / "python")
    _run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", str(wheel)], folder)
    return made


def _run(command: list[str], at: Path) -> None:
    done = subprocess.run(command, cwd=at, env=_outside(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def _outside() -> dict[str, str]:
    """The environment's variables, without those that tell Python or pytest of this very run."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "COV_"))}
