"""Tensor cores: whether an accelerator reads fewer bits of float32 inputs, seen without the right answer."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck, output_of
from attention_conformance.implementations.discovery.probe import Floats
from attention_conformance.implementations.discovery.read_bits import moved_in_cells, same_in_cells
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import ProductPrecision
from attention_conformance.spec.features import Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.optional import imported
from attention_conformance.spec.problem import Problem

PARTS = 2.0**-20
"""How far a value may be from itself where it is the sum of two that tensor cores read: twice the unit roundoff."""
SIZES = (PLAIN, PLAIN.sized(query_length=64, key_length=64, d_k=64, d_v=64))
"""Libraries choose tensor cores by size."""
ONE_KEY = PLAIN.sized(query_length=1, key_length=1)


def is_accelerated(check: ClaimCheck) -> bool:
    """Whether it computes on something else than the processor."""
    jax = imported("jax")
    return not check.device.startswith("cpu") or (jax is not None and jax.default_backend() != "cpu")


def products_on_tensor_cores(check: ClaimCheck) -> ProductPrecision:
    """The precision of its products of float32 inputs, where an accelerator computes them; as the dtype, elsewhere."""
    if not is_accelerated(check) or check.claims.scope is not Scope.OP:
        return ProductPrecision.WORKING
    if any(reads_tf32(check, case) for case in SIZES):
        return ProductPrecision.TF32
    return ProductPrecision.TF32X3 if _reads_two_parts(check) else ProductPrecision.WORKING


def reads_tf32(check: ClaimCheck, case: Case) -> bool:
    """Whether keys and values that differ only in bits which TF32 leaves out give the very same answer."""
    fitted = fit(case, check.claims)
    if isinstance(fitted, Unsupported):
        return False
    problems = moved_in_cells(build(fitted, "float32").forward_only())
    return same_in_cells([safe_call(partial(_output, check, each)).value for each in problems])


def _reads_two_parts(check: ClaimCheck) -> bool:
    """Whether the answer for one key is its value but for the last bits.

    The query is 0: where a score is rounded before the exponential, the weight of other ones is not quite 1.
    """
    fitted = fit(ONE_KEY, check.claims)
    if isinstance(fitted, Unsupported) or fitted.sizes.key_length != 1:
        return False
    problem = build(fitted, "float32").forward_only()
    value = np.random.default_rng(0).uniform(1.0, 2.0, problem.value.shape).astype(np.float32)
    given = problem.with_arrays({"query": np.zeros_like(problem.query), "value": value})
    got = safe_call(partial(_output, check, given)).value
    if got is None or got.shape != problem.query.shape[:-1] + value.shape[-1:]:
        return False
    heads = got.shape[1] // value.shape[1]
    off = float(np.abs(got / np.repeat(value, heads, axis=1) - 1.0).max())
    return 0.0 < off <= PARTS


def _output(check: ClaimCheck, problem: Problem) -> Floats:
    return output_of(check.answer(problem))
