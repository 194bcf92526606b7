"""Routes: what queries and keys go through between the projections and their product, and back again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.reference.arrays import Floats, Integers
from attention_conformance.reference.norms import Norm, norm
from attention_conformance.reference.positions import Positions, rotated_at
from attention_conformance.reference.stages import Rotation, given_rotation, rotation
from attention_conformance.spec.conventions import Conventions, NormOrder
from attention_conformance.spec.features import RotaryTables
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
    steps = (norm(problem, conventions, role, rows.shape[-3]), _rotation(problem, conventions, rows, places))
    ordered = steps if conventions.norm_order is NormOrder.FIRST else steps[::-1]
    return tuple(step for step in ordered if step is not None)


def _rotation(problem: Problem, conventions: Conventions, rows: Floats, places: Integers) -> Rotation | None:
    extension, pairing = problem.extension, conventions.rotary_pairing
    if extension.rotary_tables is not RotaryTables.NONE:
        cosines, sines = (problem.extras[name].astype(np.float64) for name in ("rotary_cos", "rotary_sin"))
        return given_rotation((cosines, sines), extension.rotary_tables, places, pairing)
    if extension.rotary_base is None:
        return None
    return rotation(places, extension.rotary_dim or rows.shape[-1], extension.rotary_base, pairing)
