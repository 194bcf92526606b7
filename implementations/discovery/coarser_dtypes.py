"""Coarser dtypes: whether a candidate computes in float32 whatever its input is, seen without the right answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import Claims, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck, output_of
from attention_conformance.implementations.discovery.probe import Floats
from attention_conformance.spec.conventions import ProductPrecision
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem

STEP = 1e-8
"""Between inputs: what float64 bends there is its square, and float32 has a rounding error of several steps."""
BENDING, ROUNDING = 1e-10, 1e-5
"""Second differences between which float32 is seen, as shares of the output: float64 bends less."""
KEY = "product-precision"


def with_precision(check: ClaimCheck, claims: Claims, settings: Mapping[str, str]) -> tuple[Claims, tuple[str, ...]]:
    """The claims with `product-precision=float32` where that is seen in float64 and nothing is stated, and a note."""
    if KEY in settings or "float64" not in claims.dtypes or not _in_float32(check):
        return claims, ()
    conventions = claims.conventions.claiming({KEY: str(ProductPrecision.FLOAT32)})
    note = f"computes in float32 for inputs in float64 ({KEY}={ProductPrecision.FLOAT32})"
    return replace(claims, conventions=conventions), (note,)


def _in_float32(check: ClaimCheck) -> bool:
    """Whether the answer in float64 is rough at the scale of float32: its second difference along one direction."""
    fitted = fit(PLAIN, check.claims)
    if isinstance(fitted, Unsupported):
        return False
    problem = build(fitted, "float64").forward_only()
    along = np.random.default_rng(0).standard_normal(problem.query.shape) * STEP
    before, here, after = (
        safe_call(partial(_output, check, problem.with_arrays({"query": problem.query + times * along}))).value
        for times in (-1.0, 0.0, 1.0)
    )
    if before is None or here is None or after is None:
        return False
    size = float(np.abs(here).max(initial=0.0))
    bend = float(np.abs(before - 2.0 * here + after).max(initial=0.0))
    return BENDING * size < bend < ROUNDING * size


def _output(check: ClaimCheck, problem: Problem) -> Floats:
    return output_of(check.answer(problem))
