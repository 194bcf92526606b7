"""Targets that cannot be used, in a run of several: errors of their own, while the others are judged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attention_conformance.implementations.api.contract import Claims, Implementation, PathError, Result
from attention_conformance.implementations.discovery.targets.loading import Target, TargetError
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem

Load = Callable[[str], Implementation]


@dataclass(frozen=True)
class Unusable:
    """The `run` of a target that cannot be used: nothing of it can be judged."""

    reason: str

    def __call__(self, problem: Problem, device: str) -> Result:
        """Gives the reason, as a `PathError`."""
        raise PathError(self.reason)


def loaded_or_error(load: Load, targets: Sequence[str]) -> Load:
    """What loads one of several targets, or makes an implementation of it whose every clause is an error.

    Raises:
        TargetError: there is one target only, or no such file: a name that was mistyped ends the run at once.
    """

    def loaded(target: str) -> Implementation:
        parsed = Target.parse(target)
        try:
            return load(target)
        except TargetError as error:
            if len(targets) == 1 or (parsed.is_file and not Path(parsed.place).exists()):
                raise
            claims = Claims(Scope.OP, frozenset({Feature.CORE}))
            return Implementation(parsed.parts[-1], claims, Unusable(str(error)))

    return loaded


def require_usable(implementations: Sequence[Implementation]) -> None:
    """Checks that at least one implementation can be used.

    Raises:
        TargetError: the reason of the first one.
    """
    reasons = [each.run.reason for each in implementations if isinstance(each.run, Unusable)]
    if reasons and len(reasons) == len(implementations):
        raise TargetError(reasons[0])
