"""Tally: the counts of the checks of one clause, which can be added, and their record, which judges share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from attention_conformance.tests.report.verdict import Failure

UNSPECIFIED = "what it claims of padded tokens or empty rows leaves every answer open"


@dataclass(frozen=True)
class Tally:
    """What a number of checks amounts to.

    Attributes:
        checks, inconclusive, worst: see `Verdict`.
        squares, compared: the sum of the squares of relative errors of outputs, in units of u, and their number.
        failures: every failed check, in the order of the checks.
    """

    checks: int = 0
    inconclusive: int = 0
    worst: float | None = None
    squares: float = 0.0
    compared: int = 0
    failures: tuple[Failure, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        """The counts of both."""
        worst = [each for each in (self.worst, other.worst) if each is not None]
        return Tally(
            self.checks + other.checks,
            self.inconclusive + other.inconclusive,
            max(0.0, *worst) if worst else None,
            self.squares + other.squares,
            self.compared + other.compared,
            self.failures + other.failures,
        )

    @property
    def failed(self) -> int:
        """How many of the checks did not hold."""
        return len(self.failures)

    @property
    def rms(self) -> float | None:
        """See `Verdict`."""
        return math.sqrt(self.squares / self.compared) if self.compared else None

    def without_failures(self) -> Tally:
        """The counts of the checks that held; nothing is known of their worst where one failed."""
        worst = None if self.failures else self.worst
        return replace(self, checks=self.checks - self.failed, worst=worst, failures=())


@dataclass
class Counts:
    """The record of the checks of one clause: a judge and its copies count in the same one.

    Attributes:
        tally: the checks so far.
        unsupported: why cases could not be run.
        left_out: why others, which the claims allow, decided nothing; see `Verdict`.
        waiting: checks whose calls have begun, in their order.
        settling: whether one of them is being made.
    """

    tally: Tally = Tally()
    unsupported: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    waiting: list[Callable[[], None]] = field(default_factory=list)
    settling: bool = False

    def add_inconclusive(self, unspecified: bool) -> None:
        """Counts a comparison that proves nothing; where anything is right, it is as if nothing were claimed."""
        if unspecified:
            self.unsupported.append(UNSPECIFIED)
        else:
            self.tally += Tally(inconclusive=1)

    def settle(self, ahead: int = 0) -> None:
        """Makes the checks that wait, but for so many of the last. One that raises is the last that is made."""
        if self.settling:
            return
        self.settling = True
        try:
            while len(self.waiting) > ahead:
                self.waiting.pop(0)()
        except BaseException:
            self.waiting.clear()
            raise
        finally:
            self.settling = False
