"""The arrays and sizes with which a function answers query, key and value: tensors, NumPy arrays, or arrays of JAX."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_programs import Compiled, can_be_traced
from attention_conformance.implementations.api.contract import Claims, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import CallOutcome
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    MASKED,
    PLAIN,
    PROBED,
    ClaimCheck,
    no_gradients,
    output_of,
    parts,
)
from attention_conformance.implementations.discovery.functions.function_calls import (
    JAX,
    NUMPY,
    ArrayKind,
    RenamedCall,
    tensors_kind,
)
from attention_conformance.implementations.discovery.functions.libraries import may_be_of_jax
from attention_conformance.implementations.discovery.functions.size_limits import claims_to_try
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.optional import optional

torch = optional("torch")
ARRAYS_LACK = "'numpy.ndarray' object has no attribute"
"""The error of a function that does not work on NumPy arrays; its error for tensors is more useful."""


def suited_in_size(
    function: RenamedCall, claims: Claims, device: str
) -> tuple[ClaimCheck, ArrayKind, CallOutcome[Any]]:
    """See `_suited`; with the first mask in place of none, or at the first sizes at which it answers."""
    try:
        return _suited(function, claims, device)
    except TargetError:
        for of_keys, filling in product((False, True), (True, False, 0.0)) if function.mask_name else ():
            with suppress(TargetError):
                found = _suited(replace(function, unmasked=filling, unmasked_keys=of_keys), claims, device)
                if _reads_keys(found[0]):
                    return found
        for sized in claims_to_try(claims):
            with suppress(TargetError):
                return _suited(function, sized, device)
        raise


def _reads_keys(check: ClaimCheck) -> bool:
    """Whether its last queries depend on the first and the last key: it has been given a mask that hides none.

    Others need not, where it is always causal.
    """
    fitted = fit(PLAIN, check.claims)
    if isinstance(fitted, Unsupported):
        return False
    problem = build(fitted, check.dtype).forward_only()
    first, last = (problem.key.copy() for _ in range(2))
    first[..., 0, :] *= -1
    last[..., -1, :] *= -1
    outcomes = [check.answer(each) for each in (problem, *(problem.but(key=key) for key in (first, last)))]
    if any(each.error for each in outcomes):
        return False
    plain, *changed = map(output_of, outcomes)
    felt = ((plain != other)[..., -1, :].any(-1).all() for other in changed)
    return bool(np.isfinite(plain).all()) and all(felt)


def _suited(function: RenamedCall, claims: Claims, device: str) -> tuple[ClaimCheck, ArrayKind, CallOutcome[Any]]:
    """The arrays that it takes, in the first dtype in which it answers; an error is that in the first of all."""
    refused: TargetError | None = None
    for dtype in PROBED:
        try:
            return _suited_in(dtype, function, claims, device)
        except TargetError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _suited_in(
    dtype: str, function: RenamedCall, claims: Claims, device: str
) -> tuple[ClaimCheck, ArrayKind, CallOutcome[Any]]:
    """Tensors or NumPy arrays: those with which more of its calls answer in kind; else perhaps arrays of JAX.

    NumPy functions take tensors for arrays up to a point, and then raise or change the type; they never have
    gradients.
    """
    forward = replace(claims, features=claims.features - {Feature.GRADIENTS, Feature.MASK_GRADIENT})
    arrays = NUMPY.check(function, forward, device, dtype)
    masks = [(Feature.BOOL_MASK, MASKED), (Feature.FLOAT_MASK, BIASED)]
    cases = [PLAIN, *(case for feature, case in masks if feature in claims)]
    of_arrays = [arrays.run(case) for case in cases]
    if not torch:
        return arrays, NUMPY, _plain_answer({NUMPY.arrays: of_arrays[0]})
    kind = tensors_kind()
    tensors = kind.check(function, claims, device, dtype)
    of_tensors = [tensors.run(case) for case in cases]
    tensor_answers, array_answers = _in_kind(of_tensors, kind), _in_kind(of_arrays, NUMPY)
    if array_answers >= max(1, tensor_answers + (not no_gradients(tensors))):
        return arrays, NUMPY, of_arrays[0]
    if not tensor_answers and may_be_of_jax(function.function):
        # What observes a call stands outside of the program, and sees the answer and no trace.
        traced = replace(function, function=Compiled(function.function)) if can_be_traced(function) else function
        jax = JAX.check(traced, claims, device, dtype)
        if _in_kind([plain := jax.run(PLAIN)], JAX):
            return jax, JAX, plain
    return tensors, kind, _plain_answer({kind.arrays: of_tensors[0], NUMPY.arrays: of_arrays[0]})


def _plain_answer(outcomes: Mapping[str, CallOutcome[Any]]) -> CallOutcome[Any]:
    """The first that is no error, by the names of their arrays."""
    answers = [each for each in outcomes.values() if not each.error]
    if answers:
        return answers[0]
    arrays = {each.error: name for name, each in outcomes.items()}
    line, *others = arrays
    if others and ARRAYS_LACK not in others[0]:
        line = "; ".join(f"{error} ({name})" for error, name in arrays.items())
    raise TargetError(f"it cannot be called with query, key and value of shape (B, H, L, d): {line}")


def _in_kind(outcomes: list[CallOutcome[Any]], kind: ArrayKind) -> int:
    """How many answers are of the kind; none count if the first, the plain one, is not."""
    fits = [bool(parts(outcome)) and kind.is_kind(parts(outcome)[0]) for outcome in outcomes]
    return sum(fits) if fits[0] else 0
