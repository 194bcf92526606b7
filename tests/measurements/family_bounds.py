"""How tight the bounds of the attention family are: worst error in bounds, of correct styles and of wrong ones.

`make bounds` prints two Markdown tables and fails where a requirement is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice

from attention_conformance.implementations.api.contract import Result
from attention_conformance.reference.expected import Solution, solve
from attention_conformance.spec.cases import Case
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.measurements.bounds import TEETH, Ratios, ratio, usual
from attention_conformance.tests.selftest.family_draws import drawn_family_case
from attention_conformance.tests.selftest.family_styles import RIGHT, WRONG, Wrong, factors_of, implementation

CASES = 200
"""Drawn cases for each dtype; each style meets those that have its option."""
SEEDS = 4
"""Versions of the case on which a wrong style has to show."""


def cases() -> Iterator[Case]:
    """Drawn cases without rows that see nothing: their answers are conventions."""
    for number in count():
        case = drawn_family_case(number)
        if solve(build(case, "float64").forward_only()).trace.seen.allowed.any(-1).all():
            yield case


def ratios_of(dtype: str) -> dict[str, Ratios]:
    """The largest errors in bounds of each correct style and case."""
    found = {name: Ratios([], []) for name in RIGHT}
    for case in islice(cases(), CASES):
        problem = build(case, dtype)
        solution = solve(problem, kept=factors_of(problem))
        for name, style in RIGHT.items():
            if style.concerns(case):
                result = implementation(name, style.answer).run(problem.fresh(), "cpu")
                found[name].forward.append(forward_ratio(result, solution))
                gradients = (ratio(a, solution.parts[f"gradients.{n}"]) for n, a in result.gradients.items())
                found[name].gradients.append(max(gradients))
    return found


def forward_ratio(result: Result, solution: Solution) -> float:
    """The largest error in bounds of output, weights and log-sum-exp."""
    parts = {"output": result.output, "weights": result.weights, "log_sum_exp": result.log_sum_exp}
    return max(ratio(array, solution.parts[name]) for name, array in parts.items() if array is not None)


def wrong_ratio(wrong: Wrong, dtype: str) -> float:
    """The largest error in bounds over the versions of its case."""
    found = []
    for seed in range(SEEDS):
        problem = build(replace(wrong.case, seed=seed), dtype).forward_only()
        solution = solve(problem, kept=factors_of(problem))
        found.append(forward_ratio(wrong.implementation(dtype).run(problem.fresh(), "cpu"), solution))
    return max(found)


def print_correct() -> bool:
    """The first table; whether all of it is within the limits."""
    columns = {dtype: ratios_of(dtype) for dtype in DTYPES}
    print("| style | dtype | cases | forward: worst | 99 % below | gradients: worst | 99 % below |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in RIGHT:
        for dtype, column in columns.items():
            found = column[name]
            cells = [f(r) for r in (found.forward, found.gradients) for f in (max, usual)]
            print(f"| {name} | {dtype} | {len(found.forward)} | " + " | ".join(f"{c:.2f}" for c in cells) + " |")
    return all(found.within for column in columns.values() for found in column.values())


def print_wrong() -> bool:
    """The second table; whether every wrong style that has to is refused."""
    print("| wrong style |" + "".join(f" {dtype} |" for dtype in DTYPES))
    print("| --- |" + " --- |" * len(DTYPES))
    good = True
    for name, wrong in WRONG.items():
        found = {dtype: wrong_ratio(wrong, dtype) for dtype in DTYPES}
        print(f"| {name} |" + "".join(f" {x:.2g} |" for x in found.values()))
        good &= all(x >= TEETH for dtype, x in found.items() if wrong.shows_in(dtype))
    return good


def main() -> int:
    """Prints both tables; 0 if every requirement is met."""
    good = print_correct()
    print()
    good &= print_wrong()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
