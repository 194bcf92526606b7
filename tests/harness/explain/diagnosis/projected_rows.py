"""Rows of heads behind the output projection of a module: by which factors they make its output."""

from collections.abc import Sequence

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.precision import unit_roundoff
from attention_conformance.spec.problem import Problem


def digits(dtype: str) -> float:
    """Half of the digits of the type, or of float32, in which constants are often kept."""
    return float(max(unit_roundoff(dtype), unit_roundoff("float32")) ** 0.5)


def projected_factors(problem: Problem, rows: Sequence[Floats], output: Floats) -> Floats | None:
    """(n, B, Lq, H): the factor of each row of each of n (B, H, Lq, d_v), of which the output (B, Lq, out_dim) is made.

    None where it is not made of them, or no number, where one of them has no share, and where a few make any output.
    """
    shown = np.stack([_projected(problem, each) for each in rows])
    columns = np.moveaxis(shown, (0, 2), (-2, -1)).reshape(*output.shape, -1)
    if columns.shape[-1] * 2 > columns.shape[-2]:
        return None
    given = output - np.asarray(problem.parameters.get("b_o", 0.0), dtype=np.float64)
    if not (np.isfinite(columns).all() and np.isfinite(given).all()):
        return None
    factors = (np.linalg.pinv(columns) @ given[..., None])[..., 0]
    left = given - (columns @ factors[..., None])[..., 0]
    off = np.linalg.norm(left, axis=-1) > digits(problem.dtype) * np.linalg.norm(given, axis=-1)
    if off.any() or not (np.abs(factors) > digits(problem.dtype)).all():
        return None
    split: Floats = np.moveaxis(factors.reshape(*factors.shape[:-1], len(rows), -1), -2, 0)
    return split


def _projected(problem: Problem, rows: Floats) -> Floats:
    """(B, H, Lq, out_dim): what each head adds to the output."""
    heads, width = rows.shape[1], rows.shape[-1]
    weight = np.asarray(problem.parameters.get("w_o", np.eye(heads * width)), dtype=np.float64)
    return np.asarray(rows @ weight.reshape(heads, width, -1))
