"""Rounding bounds of latents, in either form; the derivation is in `bounds.md` next to this file."""

from dataclasses import replace

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.attention import ForwardBounds
from attention_conformance.reference.bounds.extensions import LATENT_STEPS
from attention_conformance.reference.bounds.precision import Precision, gamma, state_roundings
from attention_conformance.reference.gradients import Backward
from attention_conformance.reference.latent import expanded, of_latents
from attention_conformance.reference.pipeline import Inputs, Trace
from attention_conformance.spec.problem import Problem

BACKWARD_STEPS = 8.0
"""Roundings of what stands between a gradient of keys and values and those of latents and matrices, in either form."""


def in_either_form(problem: Problem, forward: ForwardBounds, precision: Precision) -> ForwardBounds:
    """With keys and values as far off as products with them in the backward pass may be, where none are made."""
    if "w_uk" not in problem.extras:
        return forward
    of_key, of_value = (_with_extra_keys(rows, forward.key.shape[-2]) for rows in expanded(problem, sizes=True))
    return replace(
        forward,
        key=forward.key + precision.growth(of_key.shape[-2]) * of_key,
        value=forward.value + precision.growth(of_value.shape[-1]) * of_value,
    )


def _with_extra_keys(rows: Floats, length: int) -> Floats:
    """Zeros follow: extra keys and values are not made of latents."""
    padding = [(0, 0)] * (rows.ndim - 2) + [(0, length - rows.shape[-2]), (0, 0)]
    return np.pad(rows, padding)


def latent_bounds(
    problem: Problem, trace: Trace, step: Backward, errors: Inputs, precision: Precision
) -> dict[str, Floats]:
    """Of rows and matrices, given the errors of the gradients of expanded keys and values."""
    up_key, up_value = problem.extras["w_uk"], problem.extras["w_uv"]
    batch, heads, queries = trace.query.shape[-4:-1]
    tokens, widths = batch * max(queries, trace.key.shape[-2]), up_key.shape[-2] + up_value.shape[-2]
    terms = (heads * widths, heads * queries, up_key.shape[-1], tokens, trace.key.shape[-2])
    stored = BACKWARD_STEPS + LATENT_STEPS + state_roundings(heads) + state_roundings(batch)
    rounding = sum((precision.growth(each) for each in terms), gamma(stored * precision.widest))
    of_key = abs(trace.scale) * np.abs(step.products).swapaxes(-1, -2) @ np.abs(trace.query)
    of_value = np.abs(trace.dropped).swapaxes(-1, -2) @ np.abs(step.heads)
    own = [(errors.key, of_key), (errors.value, of_value)]
    totals = (error + rounding * (size[..., : error.shape[-2], :] + error) for error, size in own)
    return of_latents(_sizes(problem), *totals)


def _sizes(problem: Problem) -> Problem:
    """With the absolute values of rows and matrices."""
    extras = {name: np.abs(array) if name in ("w_uk", "w_uv") else array for name, array in problem.extras.items()}
    rows = np.abs(problem.key)
    return replace(problem, key=rows, value=rows, extras=extras)
