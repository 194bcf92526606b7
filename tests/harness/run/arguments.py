"""Arguments: what callers of `check` and `parametrize_with_clauses` give, checked and brought into one form."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeAlias

from attention_conformance.implementations.api.amended import AS_CLAIMED, Amendments
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.candidates import wrapped
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.worker.limits import CALL
from attention_conformance.implementations.worker.resources import size_of
from attention_conformance.spec.clauses import load
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.clause_tests import Selection
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.plan.expected_failures import expecting
from attention_conformance.tests.harness.run.plan.selection import (
    expanded_dtypes,
    hushed,
    require_deadline,
    require_device,
    require_known,
    require_tier,
)

Target: TypeAlias = str | Implementation | Callable[..., Any]
"""FILE.py:NAME or package.module:NAME, an adapter, a function of query, key and value, or a module class."""
Names: TypeAlias = str | Iterable[str]
"""One name or pattern, or several."""


@dataclass(frozen=True)
class Arguments:
    """What is checked, and how.

    Attributes:
        settings: with the target as the only candidate, where it was given as a string.
        notes: entries of the file of expected failures that have expired.
    """

    implementation: Implementation
    settings: RunSettings
    notes: tuple[str, ...]

    @property
    def selection(self) -> Selection:
        """What is checked."""
        return Selection((self.implementation,), self.settings.clauses, self.settings.dtypes)


def arguments(
    target: Target,
    clauses: Names,
    dtypes: Names,
    tier: str,
    device: str,
    conventions: Mapping[str, str] | Conventions,
    deadline: float | None = None,
    memory: str | int | None = None,
    amendments: Amendments = AS_CLAIMED,
) -> Arguments:
    """The arguments, checked; the target is loaded, and called a few times where it is no adapter.

    Raises:
        TypeError: an argument is of a type that cannot be used.
        ValueError: a name that selects nothing, a device that is not there, a target that cannot be used.
    """
    patterns, in_dtypes = names("clauses", clauses), names("dtypes", dtypes)
    require_known("clauses", patterns, list(load()))
    require_known("dtypes", in_dtypes, list(DTYPES))
    require_tier("tier", *names("tier", tier))
    require_device("device", device)
    _require_limits(target, deadline, memory)
    settings = RunSettings(
        candidates=(target,) if isinstance(target, str) else (),
        clauses=patterns,
        dtypes=expanded_dtypes(in_dtypes),
        conventions={key: str(value) for key, value in conventions.items()},
        amendments=amendments,
        device=device,
        tier=tier,
        deadline=CALL if deadline is None else deadline,
        memory=None if memory is None else size_of(str(memory)),
    )
    implementation, notes = _implementation(target, settings)
    return Arguments(implementation, settings, notes)


def _require_limits(target: Target, deadline: float | None, memory: str | int | None) -> None:
    if deadline is not None:
        require_deadline("deadline", deadline)
    if not isinstance(target, str) and (deadline, memory) != (None, None):
        raise ValueError(
            "deadline and memory limit a process of its own, and an object is called in this one: "
            "give the target as FILE.py:NAME or package.module:NAME"
        )


def names(argument: str, given: Names) -> tuple[str, ...]:
    """One name or several, as a tuple.

    Raises:
        TypeError: one is no string.
    """
    several = (given,) if isinstance(given, str) else tuple(given)
    for name in several:
        if not isinstance(name, str):
            raise TypeError(f"{argument}: {name!r} is of type {type(name).__name__}; give strings")
    return several


def _implementation(target: Target, settings: RunSettings) -> tuple[Implementation, tuple[str, ...]]:
    with hushed():
        if isinstance(target, str):
            loaded = settings.amendments.of(settings.loader()(target))
            (implementation,), notes = expecting((loaded,), (target,), None, date.today())
            return implementation, notes
        if not isinstance(target, Implementation) and not callable(target):
            raise TypeError(
                f"target: {target!r} is of type {type(target).__name__}; give FILE.py:NAME, package.module:NAME, "
                "an Implementation, a function of query, key and value, or a module class"
            )
        name = getattr(target, "__name__", type(target).__name__)
        try:
            loaded = wrapped(name, target, settings.conventions, settings.device, settings.amendments.premises)
            return settings.amendments.of(loaded), ()
        except TargetError as error:
            raise TargetError(f"{name}: {error}") from error
