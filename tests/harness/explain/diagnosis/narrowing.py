"""Narrowing: whether a candidate computes in a narrower dtype than its inputs have."""

from collections.abc import Sequence

import numpy as np

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.safe_call import answer
from attention_conformance.implementations.discovery.read_bits import moved_in_cells, same_in_cells
from attention_conformance.reference.arrays import Floats
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.explain.diagnosis.observation import Observation, answered

BITS = {"bfloat16": 8, "float16": 11, "float32": 24}
"""Binary digits of a number."""
SAME = 0.95
"""Share of the elements of an answer that may not change, where the change of the inputs is rounded away."""


def narrower(implementation: Implementation, failing: Sequence[Observation], device: str) -> str:
    """The dtype to which inputs are rounded, of those narrower than the problem's; empty if to none.

    Numbers of the narrower dtype are changed by less than half of its last digit. Who rounds them back gives the same
    answer, bit by bit; nobody else does. And most errors are as small as that dtype's roundings.
    """
    each = next((each for each in failing if each.got is not None), None)
    if each is None:
        return ""
    for name, bits in BITS.items():
        own = BITS.get(each.problem.dtype, 53)
        if name in DTYPES and bits < own and _small(failing, bits) and _rounds(implementation, each, name, device):
            return name
    return ""


def reads_tf32(implementation: Implementation, failing: Sequence[Observation], device: str) -> bool:
    """Whether keys and values are read as tensor cores read float32."""
    each = next((each for each in failing if each.problem.dtype == "float32" and each.got is not None), None)
    if each is None:
        return False
    outputs: list[Floats | None] = []
    for moved in moved_in_cells(each.problem.forward_only()):
        result, _ = answered(lambda moved=moved: answer(implementation.run, moved.fresh(), device))  # type: ignore[misc]
        outputs.append(None if result is None else result.output)
    return same_in_cells(outputs)


def _small(failing: Sequence[Observation], bits: int) -> bool:
    sizes = [_relative(each) for each in failing if each.expected["output"].value.size]
    return bool(sizes) and float(np.median(sizes)) <= 2.0 ** (4 - bits)


def _relative(each: Observation) -> float:
    """The root mean square of the errors, relative to that of what is expected; infinite without comparable numbers."""
    expected = each.expected["output"].value
    if each.got is None or each.got.output.shape != expected.shape or not np.isfinite(each.got.output).all():
        return np.inf
    errors = each.got.output.astype(np.float64) - np.nan_to_num(expected)
    return float(np.sqrt(np.mean(errors**2) / max(float(np.mean(np.nan_to_num(expected) ** 2)), 1e-300)))


def _rounds(implementation: Implementation, each: Observation, dtype: str, device: str) -> bool:
    problem = each.problem.forward_only()
    floats = {n: a.astype(DTYPES[dtype]).astype(a.dtype) for n, a in problem.arrays().items() if n in INPUTS}
    answers = []
    for step in (0.0, 0.8 * 2.0 ** -(BITS[dtype] + 1), 8.0 * 2.0 ** -BITS[dtype]):
        moved = problem.with_arrays({n: _moved(a, step) for n, a in floats.items()})
        result, _ = answered(lambda moved=moved: answer(implementation.run, moved.fresh(), device))  # type: ignore[misc]
        answers.append(None if result is None else result.output.astype(np.float64))
    first, near, far = answers
    if first is None or near is None or far is None or first.size == 0:
        return False
    return float(np.mean(first == near)) >= SAME > float(np.mean(first == far)) + 0.2


INPUTS = ("query", "key", "value")


def _moved(array: Floats, step: float) -> Floats:
    """The numbers, each made larger or smaller by this part of itself."""
    signs = np.where(np.arange(array.size).reshape(array.shape) % 3 == 0, -1.0, 1.0)
    return (array.astype(np.float64) * (1.0 + step * signs)).astype(array.dtype)
