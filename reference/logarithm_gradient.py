"""The gradients of a loss that has the log-sum-exp in it, too: equation 18.5 of the specification."""

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.gradients import STORED
from attention_conformance.reference.bounds.precision import precision
from attention_conformance.reference.expected import Expected, Solution, solve
from attention_conformance.spec.conventions import Conventions, LogBase
from attention_conformance.spec.problem import Array, Problem


def with_logarithm(problem: Problem, conventions: Conventions) -> dict[str, Expected]:
    """Gradients by `gradients.NAME` of the output times its cotangent and the log-sum-exp times its first component.

    The latter gives products with the weights: an answer with the keys as values, and its gradient of these.
    The bounds are derived in section 9 of `bounds/bounds.md`.

    Args:
        problem: with a cotangent, and query, key and value at most in `needs`; without extensions.
        conventions: the answers where the field disagrees, and the base of the log-sum-exp.
    """
    assert problem.cotangent is not None
    whole = solve(problem, conventions)
    base = np.log(2.0) if conventions.log_sum_exp_base is LogBase.TWO else 1.0
    factor = whole.trace.scale / base * problem.cotangent[..., :1].astype(np.float64)
    moved = _of_keys(problem, conventions, problem.key, factor * problem.query)
    sizes = _of_keys(problem, conventions, np.abs(problem.key), np.abs(factor * problem.query))
    unit = precision(problem.dtype, conventions.softmax_precision, conventions.product_precision).widest
    expected = {f"gradients.{name}": whole.parts[f"gradients.{name}"] for name in problem.needs}
    for name, times, part in (("gradients.query", factor, "output"), ("gradients.key", 1.0, "gradients.value")):
        if name in expected:
            alone, more, size = expected[name], moved.parts[part], np.abs(times) * sizes.parts[part].value
            stored = unit * (np.abs(alone.value) + 2.0 * STORED * size)
            bound = alone.bound + np.abs(times) * more.bound + stored
            expected[name] = Expected(alone.value + times * more.value, bound)
    return expected


def _of_keys(problem: Problem, conventions: Conventions, values: Array | Floats, cotangent: Floats) -> Solution:
    """The answer with these keys as values, and its gradient of them."""
    return solve(problem.but(value=values, cotangent=cotangent, needs=("value",)), conventions)
