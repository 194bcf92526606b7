"""How a defect is written down: the mistake, the clauses it breaks, what hides it, and how it is repaired."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from attention_conformance.implementations.adapters.modes import op_modes
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.sdpa import SDPA_FEATURES
from attention_conformance.implementations.defects.steps import Steps
from attention_conformance.spec.features import Conventions, Feature, Scope

Mistake = TypeVar("Mistake", bound=Callable[..., Any])

OP = SDPA_FEATURES | {Feature.KEY_PADDING}
EXTRAS = {"weights": Feature.WEIGHTS, "averaged_weights": Feature.AVERAGED_WEIGHTS, "log_sum_exp": Feature.LOG_SUM_EXP}
NONE: frozenset[Feature] = frozenset()


class Severity(StrEnum):
    """What a user of the defect gets."""

    WRONG = "wrong"
    """Finite wrong numbers, in silence."""
    LEAK = "leak"
    """What must stay hidden shows: future tokens, padding, another document."""
    NAN = "nan"
    """NaN or infinity."""
    CRASH = "crash"
    """An error where there is an answer, or an answer where there should be an error."""
    GRADIENT = "gradient"
    """Right outputs, wrong gradients: training goes astray."""
    PRECISION = "precision"
    """Digits are lost."""
    STATE = "state"
    """Later calls, or the caller's own data, suffer."""
    COST = "cost"
    """Right answers that take more memory or time than they need."""


@dataclass(frozen=True)
class Defect:
    """An implementation with one mistake.

    Attributes:
        id: stable and unique, in words with hyphens; the name of its implementation.
        does: what it does wrong, one sentence.
        repair: what to do instead, one sentence.
        hides: where it does not show: the inputs with which tests usually miss it.
        matters: who meets it, and what it does to them.
        severity: see `Severity`.
        links: public reports of the same mistake.
        clauses: those that must fail, the one that names the mistake first.
        holds: neighbouring clauses that must pass, so that the mistake is told apart from others.
        dtype: the dtype in which these are asked.
        raises: it may fail by an exception, and not only by its numbers.
        follows: the convention that it keeps to without claiming it, as the command line spells it: a diagnosis names
            that rather than a mistake.
        replaced: the step of `Steps` that is replaced, and by what; empty for a whole function or layer.
    """

    implementation: Implementation
    clauses: tuple[str, ...]
    does: str
    repair: str
    hides: str
    matters: str
    severity: Severity
    links: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    dtype: str = "float64"
    raises: bool = False
    follows: str = ""
    replaced: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.implementation.name

    @property
    def chapter(self) -> str:
        """The chapter of the clause that names the mistake."""
        return self.clauses[0].partition(".")[0]

    def __str__(self) -> str:
        return self.id


REGISTRY: list[Defect] = []


def in_steps(replaced: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Attention with these steps replaced; it answers output, weights and log-sum-exp."""
    return Steps(**replaced).answer  # type: ignore[arg-type]  # each step has a type of its own


def breaks(
    *clauses: str,
    step: str = "",
    claims: Set[Feature] = NONE,
    without: Set[Feature] = NONE,
    extras: tuple[str, ...] = (),
    conventions: Conventions = Conventions(),
    modes: tuple[Feature, ...] = (),
    **told: Any,
) -> Callable[[Mistake], Mistake]:
    """Registers a function that makes a mistake.

    Args:
        clauses: see `Defect`.
        step: the step of `Steps` that it stands for; without one, it is a whole scaled_dot_product_attention.
        claims: features beyond those of `OP` and of the extras.
        without: features of `OP` that it does not claim.
        extras: what a whole one returns after the output.
        conventions: what it claims where the field disagrees.
        modes: those in which a whole one can be asked.
        told: the other fields of `Defect`.
    """

    def register(mistake: Mistake) -> Mistake:
        whole = in_steps({step: mistake}) if step else mistake
        returned = ("weights", "log_sum_exp") if step else extras
        features = (OP | claims | {EXTRAS[extra] for extra in returned} | {*modes}) - without
        implementation = Implementation(
            mistake.__name__.replace("_", "-"),
            Claims(Scope.OP, features, conventions),
            torch_op(whole, extras=returned),
            modes=op_modes(whole, *modes, extras=returned) if modes else {},
        )
        REGISTRY.append(Defect(implementation, clauses, replaced={step: mistake} if step else {}, **told))
        return mistake

    return register
