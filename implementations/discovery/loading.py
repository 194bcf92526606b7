"""Loading: the object that a target on the command line names, or one line that says why there is none."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

FORMS = "write FILE.py:NAME or package.module:NAME"
LISTED = 12
"""So many names at most are listed in a message."""

_helpers: dict[str, str] = {}
"""Modules that came out of a target's own folder, by name: the next target may have its own of that name."""


class TargetError(ValueError):
    """A target that cannot be used; the message is one line that says what is wrong and what to do."""


def _defined(place: str) -> str:
    """What a file defines that could be meant."""
    try:
        body = ast.parse(Path(place).read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return ""
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = [each.name for each in body if isinstance(each, kinds) and not each.name.startswith("_")]
    return f"; it defines {', '.join(names[:LISTED])}" if names else ""


@dataclass(frozen=True)
class Target:
    """What stands left and right of the colon: a file or module, and a dotted name in it."""

    place: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """The parts of FILE.py:NAME or package.module:NAME.

        Raises:
            TargetError: one of them is missing.
        """
        place, colon, name = text.rpartition(":")
        if not colon:
            raise TargetError(f"target {text!r} has no colon: {FORMS}{_defined(text)}")
        if not place or not name:
            missing = "NAME" if place else "file or module"
            raise TargetError(f"target {text!r} has no {missing}: {FORMS}")
        return cls(place, name)

    @property
    def is_file(self) -> bool:
        """Whether the place is a path, and not the name of a module."""
        return self.place.endswith(".py") or bool({"/", "\\"} & {*self.place}) or Path(self.place).is_file()

    @property
    def parts(self) -> tuple[str, ...]:
        """Folders and file without suffix, or packages and module, then the name: equal for one target."""
        place = Path(self.place).resolve().with_suffix("").parts if self.is_file else self.place.split(".")
        return (*place, *self.name.split("."))


def load_target(target: str) -> object:
    """What `FILE.py:NAME` or `package.module:NAME` names; NAME may be dotted.

    A file is imported once, under a private name, with its own folder importable meanwhile; a module is
    looked for in the current folder too. What a function imports when it is called is not. Where the folder has
    packages named as the suite's are, it is these that the target gets.

    Raises:
        TargetError: there is no such file, module or name, or importing it failed.
    """
    parsed = Target.parse(target)
    module = _from_file(parsed.place) if parsed.is_file else _from_module(parsed.place)
    found: object = module
    for name in parsed.name.split("."):
        found = _attribute(found, name, parsed)
    return found


def told(error: BaseException) -> str:
    """An exception in one line: its type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _from_file(place: str) -> ModuleType:
    path = Path(place)
    if path.is_dir() or (path.exists() and path.suffix != ".py"):
        raise TargetError(f"{place!r} is {'a folder' if path.is_dir() else 'no .py file'}: {FORMS}")
    if not path.exists():
        raise TargetError(f"there is no file {place!r}{_nearest(path)}: give a path from the current folder")
    resolved = path.resolve()
    private = f"_candidate_{path.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}"
    return sys.modules.get(private) or _imported(private, resolved, place)


def _nearest(path: Path) -> str:
    others = [p.stem for p in path.parent.glob("*.py")]
    close = difflib.get_close_matches(path.stem, others, n=1)
    return f", but there is {str(path.parent / close[0]) + '.py'!r}" if close else ""


def _imported(private: str, path: Path, place: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(private, path)
    assert spec is not None  # a .py file always has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module
    try:
        with _importable(str(path.parent)), _helpers_of(path.parent):
            spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        del sys.modules[private]
        raise TargetError(_failed(place, error, str(path))) from error
    return module


def _from_module(name: str) -> ModuleType:
    try:
        with _importable(str(Path.cwd())):
            return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        lost = error.name if isinstance(error, ModuleNotFoundError) else None
        if lost and f"{name}.".startswith(f"{lost}."):
            remedy = f"install it, run from the folder that holds it, or {FORMS}"
            raise TargetError(f"there is no module {lost!r}: {remedy}") from error
        raise TargetError(_failed(name, error)) from error


def _failed(place: str, error: BaseException, file: str | None = None) -> str:
    if isinstance(error, SystemExit):
        return (
            f"importing {place!r} ended with sys.exit({error.code!r}){_line(error, file)}: "
            'put what runs it under if __name__ == "__main__"'
        )
    remedy = "make the import work, then run again"
    if isinstance(error, ModuleNotFoundError):
        remedy = f"install {error.name!r}, or put it beside the file"
    if "relative import" in str(error):
        remedy = "name it as package.module:NAME"
    return f"importing {place!r} raised {told(error)}{_line(error, file)}: {remedy}"


def _line(error: BaseException, file: str | None) -> str:
    """Where in the target's own file, if it is one, the import failed."""
    if isinstance(error, SyntaxError) and error.lineno:
        return ""  # its message names file and line
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    last = own[-1] if own else frames[-1]
    return f" ({Path(last.filename).name}, line {last.lineno})"


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        with warnings.catch_warnings():
            # Where warnings count as errors, as in pytest here, that is not meant for what a target imports.
            warnings.simplefilter("ignore")
            yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


@contextmanager
def _helpers_of(folder: Path) -> Iterator[None]:
    """Two targets may each have a helpers.py beside them: each gets its own."""
    mine = {p.stem if p.suffix == ".py" else p.name for p in folder.iterdir()}
    for name, owner in list(_helpers.items()):
        if name.partition(".")[0] in mine and owner != str(folder):
            sys.modules.pop(name, None)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and folder in Path(file).parents:
            _helpers[name] = str(folder)


def _attribute(owner: object, name: str, target: Target) -> object:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise TargetError(_absent(owner, name, target)) from None
    except Exception as error:
        raise TargetError(f"{target.place!r} has {name!r}, but reading it raised {told(error)}") from error


def _absent(owner: object, name: str, target: Target) -> str:
    held: dict[str, object] = dict(getattr(owner, "__dict__", {}))
    names = [n for n, thing in held.items() if callable(thing) and not n.startswith("_")]
    own = [n for n in names if getattr(held[n], "__module__", None) == getattr(owner, "__name__", "")]
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else "."
    listed = sorted(own or names)[:LISTED]
    there = f"It has: {', '.join(listed)}" if listed else "It has nothing that can be called"
    where = target.place if isinstance(owner, ModuleType) else target.name.rpartition(f".{name}")[0]
    return f"{where!r} has no name {name!r}{meant} {there}"
