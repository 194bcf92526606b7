"""Neighbours: a project may have packages named as the suite's are; a candidate gets its own while it is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("spec", "reference", "implementations", "tests", "conftest")
"""Names of the suite that a project may have, too."""

_theirs: dict[Path, dict[str, ModuleType]] = {}
"""Modules that were imported from a folder under such a name, for the next target from there."""


@dataclass(frozen=True)
class _Finder:
    """Finds a few names in one folder, and nowhere else."""

    names: frozenset[str]
    folder: Path

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(self.folder)]) if fullname in self.names else None


@contextmanager
def own_names(folder: Path) -> Iterator[None]:
    """Lets imports find the folder's own `tests`, `spec`, ... where it has them; the suite keeps its own afterwards.

    What a function imports when it is called is imported later, and gets the suite's.
    """
    names = frozenset(name for name in NAMES if _holds(folder, name))
    ours, finder = _taken(names), _Finder(names, folder)
    sys.modules.update(_theirs.get(folder, {}))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _theirs[folder] = _taken(names)
        sys.modules.update(ours)


def _holds(folder: Path, name: str) -> bool:
    """Whether a name can be imported from the folder, and is not the suite's. A folder without Python files is none."""
    if folder.resolve() == ROOT:
        return False
    return (folder / f"{name}.py").is_file() or next((folder / name).glob("*.py"), None) is not None


def _taken(names: frozenset[str]) -> dict[str, ModuleType]:
    """Takes the modules of these names, and all below them, out of those that count as imported."""
    found = [name for name in sys.modules if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in found}
