"""How a wrong implementation is written down: the mistake, the clauses that must fail, and what still holds."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, TypeVar

from implementations.contract import Claims, Implementation
from implementations.ops import torch_op
from implementations.torch_ops import SDPA_FEATURES
from spec.features import Feature, Scope
from tests.selftest.steps import Steps

Mistake = TypeVar("Mistake", bound=Callable[..., Any])

OP = SDPA_FEATURES | {Feature.KEY_PADDING}
EXTRAS = {"weights": Feature.WEIGHTS, "averaged_weights": Feature.AVERAGED_WEIGHTS, "log_sum_exp": Feature.LOG_SUM_EXP}
NONE: frozenset[Feature] = frozenset()


@dataclass(frozen=True)
class Wrong:
    """An implementation with one mistake.

    Attributes:
        fails: clauses that must fail.
        holds: neighbouring clauses that must pass, so that the mistake is told apart from others.
        dtype: the dtype in which it is asked.
        raises: it may fail by an exception, and not only by its numbers.
    """

    implementation: Implementation
    fails: tuple[str, ...]
    holds: tuple[str, ...] = ()
    dtype: str = "float64"
    raises: bool = False

    def __str__(self) -> str:
        return self.implementation.name


REGISTRY: list[Wrong] = []


def breaks(
    *fails: str,
    step: str = "",
    holds: tuple[str, ...] = (),
    dtype: str = "float64",
    raises: bool = False,
    claims: Set[Feature] = NONE,
    without: Set[Feature] = NONE,
    extras: tuple[str, ...] = (),
) -> Callable[[Mistake], Mistake]:
    """Registers a function that makes a mistake.

    Args:
        fails: see `Wrong`.
        holds: see `Wrong`.
        dtype: see `Wrong`.
        raises: see `Wrong`.
        step: the step of `Steps` that it stands for; without one, it is a whole scaled_dot_product_attention.
        claims: features beyond those of `OP` and of the extras.
        without: features of `OP` that it does not claim.
        extras: what a whole one returns after the output.
    """

    def register(mistake: Mistake) -> Mistake:
        whole = Steps(**{step: mistake}).answer if step else mistake  # type: ignore[arg-type]  # each has its own
        returned = ("weights", "log_sum_exp") if step else extras
        features = (OP | claims | {EXTRAS[extra] for extra in returned}) - without
        implementation = Implementation(
            mistake.__name__.replace("_", "-"), Claims(Scope.OP, features), torch_op(whole, extras=returned)
        )
        REGISTRY.append(Wrong(implementation, fails, holds, dtype, raises))
        return mistake

    return register
