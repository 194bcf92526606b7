"""Routes: what queries and keys go through between the projections and their product, and back again."""

from __future__ import annotations

from dataclasses import dataclass

from attention_conformance.reference.arrays import Floats, Integers
from attention_conformance.reference.norms import Norm, norm
from attention_conformance.reference.positions import Positions, rotated_at
from attention_conformance.reference.stages import Rotation, rotation
from attention_conformance.spec.conventions import Conventions, NormOrder
from attention_conformance.spec.problem import Problem


@dataclass(frozen=True, eq=False)
class Route:
    """The steps that rows (B, H, L, d) go through.

    Attributes:
        steps: norm and rotation, as far as there are any, in their order.
        given: the rows that each step is given.
        result: the rows as they are multiplied.
    """

    steps: tuple[Norm | Rotation, ...]
    given: tuple[Floats, ...]
    result: Floats

    @classmethod
    def of(cls, rows: Floats, steps: tuple[Norm | Rotation, ...]) -> Route:
        """That of these rows through these steps."""
        given = []
        for step in steps:
            given.append(rows)
            rows = step.forward(rows)
        return cls(steps, tuple(given), rows)

    def back(self, gradient: Floats) -> Floats:
        """d loss / d rows as they come, given d loss / d result."""
        for step, rows in zip(self.steps[::-1], self.given[::-1], strict=True):
            gradient = step.back(rows, gradient)
        return gradient

    def at_norm(self, gradient: Floats) -> tuple[Norm, Floats, Floats]:
        """The norm, the rows that it is given, and d loss / d its result.

        Raises:
            LookupError: there is no norm.
        """
        for step, rows in zip(self.steps[::-1], self.given[::-1], strict=True):
            if isinstance(step, Norm):
                return step, rows, gradient
            gradient = step.back(rows, gradient)
        raise LookupError("no norm")


@dataclass(frozen=True, eq=False)
class Routes:
    """Those of queries and keys."""

    query: Route
    key: Route

    @property
    def direct(self) -> bool:
        """Whether rows are multiplied as they come."""
        return not self.query.steps


def routes(problem: Problem, conventions: Conventions, query: Floats, key: Floats, places: Positions) -> Routes:
    """Those of query and key rows."""
    at = rotated_at(problem, places)
    parts = (
        _steps(problem, conventions, role, rows, there)
        for role, rows, there in zip(("query", "key"), (query, key), at, strict=True)
    )
    return Routes(*(Route.of(rows, steps) for rows, steps in zip((query, key), parts, strict=True)))


def _steps(
    problem: Problem, conventions: Conventions, role: str, rows: Floats, places: Integers
) -> tuple[Norm | Rotation, ...]:
    base, pairing = problem.extension.rotary_base, conventions.rotary_pairing
    width = problem.extension.rotary_dim or rows.shape[-1]
    normed = norm(problem, conventions, role, rows.shape[-3])
    steps = (normed, None if base is None else rotation(places, width, base, pairing))
    ordered = steps if conventions.norm_order is NormOrder.FIRST else steps[::-1]
    return tuple(step for step in ordered if step is not None)
