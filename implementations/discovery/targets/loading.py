"""Loading: the object that a target on the command line names, or one line that states why there is none."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import sys
import tokenize
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import product
from pathlib import Path
from types import ModuleType

from attention_conformance.implementations.api.safe_call import LIBRARIES, error_line
from attention_conformance.implementations.discovery.targets.absent import Absences, Absent, AbsentBase
from attention_conformance.implementations.discovery.targets.definitions import (
    define_the_rest,
    failed_line,
    is_needed,
)

SYNTAX = "write FILE.py:NAME or package.module:NAME"
SUITE = Path(__file__).resolve().parents[3]
LISTED = 12
"""The most names that a message lists."""

_helpers: dict[str, str] = {}
"""Modules imported from a target's own folder, by name: the next target may have its own module of that name."""
_lacked: dict[str, TargetError] = {}
"""By name, the modules that were loaded in part, and the error of loading them as a whole."""


class TargetError(ValueError):
    """A target that cannot be used; the message is one line that states what is wrong and what to do."""

    without: tuple[str, ...] = ()
    """What the target was loaded without all the same: packages that are not installed."""
    failed: FailedLine | None = None
    """The statement of the file that it was loaded without all the same."""


@dataclass(frozen=True)
class FailedLine:
    """A statement that raised as its file was loaded, by its line; `absent`: for want of a file, such as data."""

    path: Path
    line: int
    raised: str
    absent: bool

    @property
    def name(self) -> str:
        """As a finding."""
        return f"line {self.line}"


def _defined(place: str) -> str:
    """The names that a file defines, for a message."""
    try:
        body = ast.parse(Path(place).read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return ""
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = [each.name for each in body if isinstance(each, kinds) and not each.name.startswith("_")]
    return f"; it defines {', '.join(names[:LISTED])}" if names else ""


@dataclass(frozen=True)
class Target:
    """The two sides of the colon: a file or module, and a dotted name in it."""

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
            raise TargetError(f"target {text!r} has no colon: {SYNTAX}{_defined(text)}")
        if not place or not name:
            missing = "NAME" if place else "file or module"
            raise TargetError(f"target {text!r} has no {missing}: {SYNTAX}")
        return cls(place, name)

    @property
    def is_file(self) -> bool:
        """Whether the place is a path, and not the name of a module."""
        return self.place.endswith(".py") or bool({"/", "\\"} & {*self.place}) or Path(self.place).is_file()

    @property
    def absolute(self) -> str:
        """The target, so that it can be found from any folder."""
        return f"{Path(self.place).resolve() if self.is_file else self.place}:{self.name}"

    @property
    def parts(self) -> tuple[str, ...]:
        """Folders and file without suffix, or packages and module, then the name: equal for one target."""
        place = Path(self.place).resolve().with_suffix("").parts if self.is_file else self.place.split(".")
        return (*place, *self.name.split("."))


def load_target(target: str) -> object:
    """What `FILE.py:NAME` or `package.module:NAME` names; NAME may be dotted.

    A file is imported once, under a private name. During its import its own folder is importable, but not later, when
    a function imports something as it is called. A module is looked for in the current folder too.

    Raises:
        TargetError: there is no such file, module or name, or importing it failed.
    """
    parsed = Target.parse(target)
    module = _from_file(parsed.place) if parsed.is_file else _from_module(parsed.place)
    loaded: object = module
    try:
        for name in parsed.name.split("."):
            loaded = _attribute(loaded, name, parsed)
    except TargetError:
        _refuse_lacking(module)
        raise
    if isinstance(loaded, Absent) or (isinstance(loaded, type) and issubclass(loaded, AbsentBase)):
        _refuse_lacking(module)
    return loaded


def _refuse_lacking(module: ModuleType) -> None:
    """Raises the error of loading a module that was loaded in part."""
    if (lacked := _lacked.get(module.__name__)) is not None:
        sys.modules.pop(module.__name__, None)
        raise lacked


def loaded_without(loaded: object, target: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """What the file of this object was loaded without, and as findings, what no user of it is without.

    A package or a file that is absent here may be elsewhere, and a demonstration comes after what it shows. But who
    imports the file needs each statement before the target, and each plain definition after it.
    """
    parsed = Target.parse(target)
    modules = (str(getattr(loaded, "__module__", "")), _private(Path(parsed.place).resolve()))
    lacked = next((_lacked[name] for name in modules if name in _lacked), None)
    if lacked is None:
        return (), {}
    if (failed := lacked.failed) is None:
        return lacked.without, {}
    if not failed.absent and is_needed(failed.path, failed.line, parsed.name.partition(".")[0]):
        why = f"raises {failed.raised} as the file is imported: it was loaded without it, and cannot be imported"
        return lacked.without, {failed.name: why}
    return (*lacked.without, f"its {failed.name}, which raised {failed.raised}"), {}


def _private(path: Path) -> str:
    """The name of the module of a file."""
    return f"_candidate_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"


def _from_file(place: str) -> ModuleType:
    path = Path(place)
    if path.is_dir() or (path.exists() and path.suffix != ".py"):
        raise TargetError(f"{place!r} is {'a folder' if path.is_dir() else 'no .py file'}: {SYNTAX}")
    if not path.exists():
        raise TargetError(f"there is no file {place!r}{_nearest(path)}: give a path from the current folder")
    resolved = path.resolve()
    private = _private(resolved)
    if private in sys.modules:
        return sys.modules[private]
    _require_text(resolved, place)
    try:
        return _without_absent(resolved, partial(_imported, private, resolved, place))
    except TargetError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        for folder, whole in product(_roots(resolved, error.__cause__), (True, False)):
            with suppress(Exception, SystemExit):
                return _without_absent(resolved, partial(_as_part_of_a_project, resolved, folder, whole))
        raise


def _require_text(path: Path, place: str) -> None:
    """Checks that a file can be decoded, as Python does where it runs one: an import passes over comments."""
    data, encoding = path.read_bytes(), "utf-8"
    with suppress(SyntaxError):  # which importing it raises, too
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        line, found = data.count(b"\n", 0, error.start) + 1, data[error.start]
        raise TargetError(
            f"{place!r} is no text in {encoding}: byte {found:#04x} in line {line} is none, which is a SyntaxError: "
            f"save it in UTF-8, or declare its encoding in the first line"
        ) from None


def _without_absent(path: Path, way: Callable[[], ModuleType]) -> ModuleType:
    """The module that one way of loading gives, without packages that are not installed if it needs any."""
    absences, first = Absences(), TargetError()

    def tried() -> ModuleType:
        nonlocal first
        try:
            return way()
        except TargetError as error:
            first = error if not absences.names else first
            raise

    module = absences.load(tried, lambda name: bool(_holders(path, name)))
    if absences.names:
        first.failed = _lacked.get(module.__name__, TargetError()).failed
        first.without = tuple(f"{package!r}, which is not installed" for package in absences.packages)
        _lacked[module.__name__] = first
    return module


def _holders(path: Path, name: str) -> list[Path]:
    """The folders above a file in which a module of this name begins."""
    package = name.partition(".")[0]
    return [folder for folder in path.parents if any((folder / each).exists() for each in (package, f"{package}.py"))]


def _roots(path: Path, error: ImportError) -> Iterator[Path]:
    """Folders above a file from which its imports may start: up to the current one, or of the package that it is in."""
    above = [folder for folder in path.parents if folder == Path.cwd() or Path.cwd() in folder.parents]
    packages = [folder.parent for folder in path.parents if (folder / "__init__.py").exists()]
    named = _holders(path, error.name) if error.name else list(path.parents[1:4])
    for folder in dict.fromkeys([*above[::-1], *packages[::-1], *named]):
        parts = path.relative_to(folder).with_suffix("").parts
        # What is imported anew below the name of a library would be there twice, next to objects of the first one.
        if all(part.isidentifier() for part in parts) and parts[0] not in LIBRARIES | sys.stdlib_module_names:
            yield folder


def _as_part_of_a_project(path: Path, folder: Path, whole: bool) -> ModuleType:
    """The file under the name that it has from a folder above it; or if not `whole`, without running its packages.

    What a package does as it is imported may fail though the file alone works: it asks for its installed version, say.
    """
    name = ".".join(path.relative_to(folder).with_suffix("").parts)
    with _importable(str(folder)), _shadowing(name):
        for package in () if whole else [parent for parent in path.parents if folder in parent.parents][::-1]:
            bare = ModuleType(".".join(package.relative_to(folder).parts))
            bare.__path__ = [str(package)]
            sys.modules[bare.__name__] = bare
        try:
            return importlib.import_module(name.removesuffix(".__init__"))
        except ImportError as error:
            raise TargetError(_failed(str(path), error, str(path))) from error


@contextmanager
def _shadowing(name: str) -> Iterator[None]:
    """While a module of this name is imported, others of its package's name are not in its way."""
    package = name.partition(".")[0]
    before = {each: module for each, module in sys.modules.items() if each.partition(".")[0] == package}
    for each in before:
        del sys.modules[each]
    try:
        yield
    except BaseException:
        sys.modules.update(before)
        raise


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
        refused = TargetError(_failed(place, error, str(path)))
        line = 0 if isinstance(error, ImportError) else failed_line(error, path)
        if not line:
            del sys.modules[private]
            raise refused from error
        with _importable(str(path.parent)), _helpers_of(path.parent):
            define_the_rest(module, path, line)
        refused.failed = FailedLine(path, line, error_line(error), isinstance(error, FileNotFoundError))
        refused.__cause__ = error
        _lacked[private] = refused
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
            remedy = f"install it, run from the folder that holds it, or {SYNTAX}"
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
        remedy = f"install {error.name!r}, or put it next to the file"
    if "relative import" in str(error):
        remedy = "name it as package.module:NAME"
    return f"importing {place!r} raised {error_line(error)}{_line(error, file)}: {remedy}"


def _line(error: BaseException, file: str | None) -> str:
    """Where the import failed: in the target's own file, if its target is a file."""
    if isinstance(error, SyntaxError) and error.lineno:
        return ""  # its message names file and line
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    last = own[-1] if own else frames[-1]
    return f" ({Path(last.filename).name}, line {last.lineno})"


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    """Puts a folder first on the path, and the suite's own off it: its rooms have names that many projects use."""
    own = [place for place in sys.path if Path(place).resolve() == SUITE]
    sys.path[:] = [folder, *(place for place in sys.path if place not in own)]
    importlib.invalidate_caches()
    try:
        with warnings.catch_warnings():
            # pytest here turns warnings into errors: not those of a target's imports.
            warnings.simplefilter("ignore")
            yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path[:0] = own


@contextmanager
def _helpers_of(folder: Path) -> Iterator[None]:
    """Two targets may each have a helpers.py in their folders: each gets its own."""
    own_names = {p.stem if p.suffix == ".py" else p.name for p in folder.iterdir()}
    for name, owner in list(_helpers.items()):
        if name.partition(".")[0] in own_names and owner != str(folder):
            sys.modules.pop(name, None)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if any(folder in Path(place).parents for place in _places(sys.modules[name])):
            _helpers[name] = str(folder)


def _places(module: ModuleType) -> list[str]:
    """The file of a module; the first file that a package without __init__.py would have, which has no file."""
    file = getattr(module, "__file__", None)
    return [file] if file else [str(Path(folder) / "__init__.py") for folder in getattr(module, "__path__", ())]


def _attribute(owner: object, name: str, target: Target) -> object:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise TargetError(_absent(owner, name, target)) from None
    except Exception as error:
        raise TargetError(f"{target.place!r} has {name!r}, but reading it raised {error_line(error)}") from error


def _absent(owner: object, name: str, target: Target) -> str:
    attributes: dict[str, object] = dict(getattr(owner, "__dict__", {}))
    names = [n for n, value in attributes.items() if callable(value) and not n.startswith("_")]
    own = [n for n in names if getattr(attributes[n], "__module__", None) == getattr(owner, "__name__", "")]
    near = difflib.get_close_matches(name, names, n=1)
    suggestion = f"; did you mean {near[0]!r}?" if near else "."
    listed = sorted(own or names)[:LISTED]
    available = f"It has: {', '.join(listed)}" if listed else "It has nothing that can be called"
    where = target.place if isinstance(owner, ModuleType) else target.name.rpartition(f".{name}")[0]
    return f"{where!r} has no name {name!r}{suggestion} {available}"
