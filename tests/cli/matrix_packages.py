"""Packages of the matrix: what each file of `implementations/packages` needs, and the environment it is loaded in."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from attention_conformance.tests.cli.matrix_basis import code_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "implementations" / "packages"
CACHE = Path.home() / ".cache" / "attention-conformance" / "environments"
METADATA = re.compile(r"(?ms)^(?P<mark>#|//) /// script$\s(?P<lines>(^(?P=mark)(| .*)$\s)+)^(?P=mark) ///$")
"""Inline metadata, as PEP 723 defines it; a program in JavaScript has them in its own comments."""
WORKER = ".js"
"""The suffix of a package of npm: its file is no adapter but a worker, which Node runs."""
TABLE = "attention-conformance"
READY = "ready.txt"
"""The file that states that an environment is complete: the versions of all that is installed there."""
INSTALLING = 1800.0
"""Seconds in which an environment has to be installed."""


class PackageError(ValueError):
    """A package that cannot be used; the message is one line."""


@dataclass(frozen=True)
class Package:
    """A file of implementations.

    Attributes:
        name: of the file, without suffix.
        dependencies: requirements, pinned.
        implementations: the names of those that it defines, or of classes and functions that are presented as they are.
        conventions: what they claim, where that is not written in the file.
        findings: what fails in words, and where it is reported, by the name of the implementation.
    """

    name: str
    file: Path
    dependencies: tuple[str, ...]
    implementations: tuple[str, ...]
    conventions: Mapping[str, str] = field(default_factory=dict)
    findings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, file: Path) -> Package:
        """The package of a file.

        Raises:
            PackageError: its metadata lack something.
        """
        found = METADATA.search(file.read_text(encoding="utf-8"))
        if found is None:
            raise PackageError(f"{file} has no inline metadata (PEP 723)")
        lines = (line.removeprefix(found["mark"]).removeprefix(" ") for line in found["lines"].splitlines())
        try:
            given = tomllib.loads("\n".join(lines))
            own = given["tool"][TABLE]
            names, conventions = tuple(own["implementations"]), dict(own.get("conventions", {}))
            findings = dict(own.get("findings", {}))
            return cls(file.stem, file, tuple(given["dependencies"]), names, conventions, findings)
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise PackageError(f"the metadata of {file} cannot be used: {type(error).__name__} {error}") from None

    @property
    def requirement(self) -> str:
        """What it is about: its first dependency, such as "keras==3.15.1"."""
        return self.dependencies[0]

    @property
    def is_worker(self) -> bool:
        """Whether Node runs it."""
        return self.file.suffix == WORKER

    def target(self, name: str, installed: Path) -> list[str]:
        """How `check` is given an implementation of it. `installed`: what `environment` returned."""
        if self.is_worker:
            return ["--command", shlex.join(["node", str(self.file), str(installed)])]
        return [f"{self.file}:{name}", "--python", str(installed)]

    @property
    def code(self) -> str:
        """The digest of its file, and of the suite's modules that it imports; comments change nothing."""
        text = self.file.read_text(encoding="utf-8")
        if self.is_worker:
            return sha256(text.encode()).hexdigest()[:16]
        files = [ROOT / f"{name.replace('.', '/')}.py" for name in sorted(_modules(text))]
        texts = [text, *(file.read_text(encoding="utf-8") for file in files if file.is_file())]
        return sha256("\0".join(map(code_of, texts)).encode()).hexdigest()[:16]

    @property
    def digest(self) -> str:
        """Of all that an environment depends on."""
        return sha256("\n".join((sys.version, *self.dependencies)).encode()).hexdigest()[:12]


def packages(folder: Path = FOLDER) -> Iterator[Package]:
    """Those of a folder, by name."""
    for file in sorted(folder.iterdir()):
        if file.suffix in (".py", WORKER) and not file.name.startswith("_"):
            yield Package.of(file)


def environment(package: Package, cache: Path, constraints: Path | None = None) -> Path:
    """The interpreter of a package's environment, which is made once; for one of npm, the folder it is installed in.

    Raises:
        PackageError: it cannot be installed.
    """
    folder = cache / f"{package.name}-{package.digest}"
    python = folder / "bin" / "python"
    module = folder / "node_modules" / package.requirement.partition("==")[0]
    if not (folder / READY).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        listed = _node(package, folder) if package.is_worker else _python(package, folder, python, constraints)
        (folder / READY).write_text(listed, encoding="utf-8")
    return module if package.is_worker else python


def _node(package: Package, folder: Path) -> str:
    """Installs what Node needs, and lists it."""
    for program in ("node", "npm"):
        if not shutil.which(program):
            raise PackageError(f"{package.name} needs {program}, which is not installed")
    wanted = [each.replace("==", "@") for each in package.dependencies]
    _run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder), *wanted], package)
    lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    each = {name.rpartition("node_modules/")[2]: entry["version"] for name, entry in lock.items() if name}
    return "\n".join(f"{name}=={version}" for name, version in each.items())


def _python(package: Package, folder: Path, python: Path, constraints: Path | None) -> str:
    """Makes an environment of Python, and lists what is installed there."""
    install = ["install", *(["--constraint", str(constraints)] if constraints else []), *package.dependencies]
    uv = _uv()
    if uv:
        _run([*uv, "venv", "--quiet", "--python", sys.executable, str(folder)], package)
        _run([*uv, "pip", *install, "--quiet", "--python", str(python)], package)
        listed = _run([*uv, "pip", "freeze", "--python", str(python)], package)
    else:
        _run([sys.executable, "-m", "venv", str(folder)], package)
        _run([str(python), "-m", "pip", *install, "--quiet", "--disable-pip-version-check"], package)
        listed = _run([str(python), "-m", "pip", "freeze"], package)
    return listed


def _modules(text: str) -> set[str]:
    """The suite's own modules that a program imports from, without the name of the suite."""
    imported = (node.module or "" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom))
    return {name.partition(".")[2] for name in imported if name.startswith("attention_conformance.")}


def versions(installed: Path) -> list[str]:
    """All that is in a package's environment, such as "numpy==2.4.6". `installed`: what `environment` returned."""
    folder = next(each for each in installed.parents if (each / READY).is_file())  # names of npm may have two parts
    return (folder / READY).read_text(encoding="utf-8").split()


def _uv() -> list[str]:
    """The command of uv; empty where it is not installed."""
    if program := shutil.which("uv"):
        return [program]
    return [sys.executable, "-m", "uv"] if find_spec("uv") else []


def _run(command: Sequence[str], package: Package) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALLING)
    except subprocess.TimeoutExpired:
        raise PackageError(f"{package.name} was not installed within {INSTALLING:g} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise PackageError(f"{package.name} cannot be installed: {last.strip()[:300]}")
    return done.stdout
