"""Absent packages: what stands for imports that are not installed, while a file that also has attention is loaded.

A training script imports loggers and data sets that its attention does not use. It is loaded without them: their names
may be imported, inherited from, written in annotations and called as the file is loaded, and give nothing. Used later,
each raises the error of the import, except what draws initial weights in place, which are replaced. So nothing is
computed with what is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from attention_conformance.implementations.api.safe_call import LIBRARIES
from attention_conformance.spec.optional import optional

torch = optional("torch")

Loaded = TypeVar("Loaded")
MOST = 24
"""Modules that a file may be loaded without."""
NEEDED = (LIBRARIES | sys.stdlib_module_names) - {"numba"}
"""Packages without which nothing is loaded: what computes, and what the suite uses itself."""

OF_TORCH = "LightningModule"
"""A base class in several packages that is a torch.nn.Module, and adds what training needs alone."""


@dataclass
class _State:
    """Whether the file is still being loaded."""

    loading: bool = True


def _missing(name: str) -> NoReturn:
    package = name.partition(".")[0]
    raise ModuleNotFoundError(f"No module named {package!r}", name=package)


class AbsentBase:
    """What stands for a base class: an instance cannot be made."""

    def __init__(self, *given: Any, **named: Any) -> None:
        _missing(type(self).absent_name)

    absent_name = ""


class Absent:
    """What stands for a name in a package that is not installed."""

    def __init__(self, name: str, state: _State) -> None:
        self._name, self._state = name, state

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}", self._state)

    def __call__(self, *given: Any, **named: Any) -> Absent:
        draws_weights = self._name.endswith("_")  # as trunc_normal_ does in place: the suite writes its own there
        if not self._state.loading and not draws_weights:
            _missing(self._name)
        return Absent(self._name, self._state)

    def __getitem__(self, key: object) -> Absent:
        return self()

    def __or__(self, other: object) -> Absent:
        return self()

    __ror__ = __or__

    def __bool__(self) -> bool:
        _missing(self._name)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        if torch and self._name.endswith(f".{OF_TORCH}"):
            return (torch.nn.Module,)
        return (type("AbsentBase", (AbsentBase,), {"absent_name": self._name}),)


class AbsentModule(ModuleType):
    """What stands for a module that is not installed."""

    def __init__(self, name: str, state: _State) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._state = state

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}", self._state)


@dataclass
class Absences:
    """The modules that a file is loaded without, by name."""

    names: list[str] = field(default_factory=list)

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that they belong to."""
        return tuple(dict.fromkeys(name.partition(".")[0] for name in self.names))

    def load(self, way: Callable[[], Loaded], is_own: Callable[[str], bool]) -> Loaded:
        """What `way` loads, without the packages that it lacks; `is_own` names those of its project.

        It is tried anew for each module that is missing, so that nothing is loaded without what is there.
        """
        while True:
            try:
                with self._standing_in():
                    return way()
            except Exception as error:
                name = _lacking(error)
                if not name or name in self.names or len(self.names) == MOST or is_own(name):
                    raise
                self.names.append(name)

    @contextmanager
    def _standing_in(self) -> Iterator[None]:
        state = _State()
        modules = {name: AbsentModule(name, state) for name in self.names}
        sys.modules.update(modules)
        try:
            yield
        finally:
            state.loading = False
            for name, module in modules.items():
                if sys.modules.get(name) is module:
                    del sys.modules[name]


def _lacking(error: BaseException) -> str:
    """The module whose import raised this: of a package that is not installed, or a part that is not in it.

    Nothing for any other error.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    name = (cause.name or "") if isinstance(cause, ModuleNotFoundError) else ""
    package = name.partition(".")[0]
    if not package or (package in NEEDED and name == package):
        return ""
    return name if name != package or not _is_installed(package) else ""


def _is_installed(package: str) -> bool:
    try:
        return package in sys.modules or find_spec(package) is not None
    except (ImportError, ValueError, AttributeError):
        return True
