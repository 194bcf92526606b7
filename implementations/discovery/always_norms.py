"""Norms of queries and keys without gains that a candidate always applies, fitted to the weights that it reveals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from attention_conformance.implementations.discovery.probe import Floats
from attention_conformance.spec.conventions import NormDefault, NormKind
from attention_conformance.spec.problem import HALF

EPSILONS = (1e-6, 1e-5, 1e-8, 1e-12, 1e-7, 1e-3, 1e-4, 1e-10, 1e-9, 0.0)
"""As published code adds them, and the spacing of the dtype in addition."""
SIZES = (1e-2, 1e-3, 1e-5, 1e-8, 1e-11, 1e-13)
"""Of rows beside which they show, one after the other."""


@dataclass(frozen=True)
class BareNorm:
    """A norm over each head, without gains.

    Attributes:
        kind: by what it divides.
        epsilon: as in `FoundNorm`.
    """

    kind: NormKind
    epsilon: float | None = 0.0

    @property
    def default(self) -> NormDefault:
        """What its epsilon claims."""
        return NormDefault.SPACING if self.epsilon is None else NormDefault.FIXED

    def applied(self, rows: Floats, dtype: str) -> Floats:
        """The rows (B, H, L, d), normalised."""
        epsilon = float(np.finfo(np.float32 if dtype in HALF else dtype).eps) if self.epsilon is None else self.epsilon
        if self.kind is NormKind.LAYER:
            rows = rows - rows.mean(-1, keepdims=True)
        square = np.square(rows).sum(-1, keepdims=True)
        if self.kind is NormKind.L2:
            return np.asarray(rows / np.maximum(np.sqrt(square), max(epsilon, 1e-300)))
        return np.asarray(rows / np.sqrt(square / rows.shape[-1] + epsilon))


def kinds() -> Iterator[BareNorm]:
    """Norms whose epsilon is nothing beside ordinary rows."""
    yield from (BareNorm(kind) for kind in (NormKind.RMS, NormKind.L2, NormKind.LAYER))


def with_epsilon(norm: BareNorm, fits: Callable[[BareNorm, float], bool]) -> BareNorm | None:
    """The norm with the epsilon that explains the weights of small rows, if there is one: (norm, size) -> fits."""
    for epsilon in (*EPSILONS, None):
        each = BareNorm(norm.kind, epsilon)
        if all(fits(each, size) for size in SIZES):
            return each
    return None
