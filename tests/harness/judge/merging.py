"""Merging: the answers over two parts of the keys joined through their log-sum-exps, with the bounds of the result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.expected import Expected, Solution
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import LogBase
from attention_conformance.spec.problem import Array
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import take_keys

Floats: TypeAlias = NDArray[np.float64]

OWN_ROUNDINGS = 16.0 * np.finfo(np.float64).eps
"""Relative error of the suite's own arithmetic, a dozen operations in float64, on numbers of the size of 1."""


@dataclass(frozen=True, eq=False)
class Part:
    """A candidate's answer over some of the keys, in float64 and natural logarithms, and its bounds.

    Attributes:
        output: (B, H, Lq, d_v); 0 where the row sees nothing.
        log: (B, H, Lq).
        right: the reference's output.
        output_error, log_error: bounds.
    """

    output: Floats
    log: Floats
    right: Floats
    output_error: Floats
    log_error: Floats


def assert_merges(judge: Judge, case: Case, split: int) -> None:
    """The candidate's answers over the keys before and from `split` on make up the reference's answer over all."""
    lengths = (split, case.sizes.key_length - split)
    if not all(judge.allows(case.sized(key_length=length)) for length in lengths):
        return
    problem, keys = judge.problem(case).forward_only(), np.arange(case.sizes.key_length)
    halves = [take_keys(problem, keys[part]) for part in (slice(0, split), slice(split, None))]
    try:
        answers = [judge.run(half) for half in halves]
    except CandidateError as error:
        judge.record_error(case, error)
        return
    parts = [_part(judge, judge.solve(half), answer) for half, answer in zip(halves, answers, strict=True)]
    complete = [part for part in parts if part is not None]
    if len(complete) < len(parts):
        judge.assert_that(case, False, "a part of the keys gives no log_sum_exp, or an answer of another shape")
        return
    output, log = merged(complete)
    whole, right = judge.expected(case), natural(judge.expected(case)["log_sum_exp"].value, judge)
    right = np.where(np.isfinite(right), right, -np.inf)
    # The merged parts do not have the claimed answer for a row without keys.
    values = np.where(np.isneginf(right)[..., None], 0.0, whole["output"].value)
    for name, got, value in (("output", output, values), ("log_sum_exp", log, right)):
        compared = compare(name, got.value, Expected(value, got.bound), "float64")
        judge.record(case, compared, f"keys 0 to {split - 1} and the others, merged")


def merged(parts: Sequence[Part]) -> tuple[Expected, Expected]:
    """Output and natural log-sum-exp over two parts of the keys.

    o = sum w_k o_k with w = softmax of the logarithms. A shift of their difference by d moves w_1, and w_2 the other
    way, by at most d / 4, the largest slope of the logistic function, and so the output by that times the distance
    of o_1 and o_2. A log-sum-exp of two numbers moves by no more than the larger of their errors.
    """
    logs = np.stack([part.log for part in parts])
    top = logs.max(0)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sums = np.exp(logs - top)
        log = np.log(sums.sum(0)) + top
        shares = np.where(np.isneginf(logs), 0.0, np.exp(logs - log))
    outputs = np.stack([part.output for part in parts])
    both = np.isfinite(logs).all(0)
    errors = np.stack([part.log_error for part in parts])
    moved = np.where(both, errors.sum(0) / 4.0, 0.0)[..., None] * np.abs(parts[0].right - parts[1].right)
    own = OWN_ROUNDINGS * (1.0 + np.abs(top))
    sizes = (shares[..., None] * np.abs(outputs)).sum(0)
    inherited = (shares[..., None] * np.stack([part.output_error for part in parts])).sum(0)
    output = Expected((shares[..., None] * outputs).sum(0), inherited + moved + own[..., None] * sizes)
    return output, Expected(log, np.where(np.isfinite(log), errors.max(0), 0.0) + own)


def natural(logs: Array, judge: Judge) -> Floats:
    """Log-sum-exps, or their bounds, from the claimed base to e."""
    factor = np.log(2.0) if judge.conventions.log_sum_exp_base is LogBase.TWO else 1.0
    return np.asarray(logs.astype(np.float64) * factor)


def _part(judge: Judge, solution: Solution, answer: Result) -> Part | None:
    right, log, returned = solution.parts["output"], solution.parts["log_sum_exp"], answer.log_sum_exp
    if returned is None or returned.shape != log.value.shape or answer.output.shape != right.value.shape:
        return None
    logs, empty = natural(returned, judge), ~np.isfinite(log.value)
    # What is claimed for a row without keys is no number of the merge; anything else counts as it is.
    claimed = (logs == log.value) | (logs <= (-np.inf if log.ceiling is None else log.ceiling))
    logs = np.where(empty & claimed, -np.inf, logs)
    sees = ~(np.isneginf(logs) | empty)[..., None]
    output = np.where(sees, answer.output.astype(np.float64), 0.0)
    value, bound = (np.where(sees, array, 0.0) for array in (right.value, right.bound))
    return Part(output, logs, value, bound, np.where(empty, 0.0, natural(log.bound, judge)))
