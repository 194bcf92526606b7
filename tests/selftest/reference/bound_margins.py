"""How tight the rounding bounds are: worst errors of correct and wrong answers, in units of their bounds.

`make bounds` prints four Markdown tables, two of the core and two of the attention family, and fails if a requirement
is not met.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count, islice, product
from typing import Any

import numpy as np
import torch

from attention_conformance.implementations.api.contract import Claims, Implementation, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.compositions import COMPOSITIONS
from attention_conformance.implementations.builtin.mha import TORCH_MODULES
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS
from attention_conformance.reference.expected import RETURNED, Expected, Solution, solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape
from attention_conformance.spec.conventions import CausalWithMask
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Problem
from attention_conformance.tests.measurements.pages import table
from attention_conformance.tests.selftest.reference import family_styles, styles
from attention_conformance.tests.selftest.reference.agreement import ratio
from attention_conformance.tests.selftest.reference.family_styles import factors_of
from attention_conformance.tests.selftest.reference.styles import LOST_DIGITS
from attention_conformance.tests.selftest.spec.draws import POINTED, drawn_case, drawn_family_case

CORE_CASES, FAMILY_CASES = 500, 200
"""Cases for each implementation and dtype; a style of the family gets those that have its option."""
SEEDS = 4
"""Versions of the case on which a wrong style of the family has to be detected."""
MEASURED = (
    "torch.sdpa.math",
    "torch.sdpa.flash",
    "torch.mha",
    "torch.mha.weights",
    "torch.mha.averaged",
    "compose.eager",
)
MAY_BE_REFUSED = (MaskShape.HEADS_ONLY, MaskShape.KEYS_ONLY)
"""Shapes of masks that an implementation may refuse."""
LIMIT, USUAL_LIMIT, DETECTED = 1.0, 0.7, 3.0
"""Correct answers are below the first in all cases and below the second in 99 of 100; wrong ones reach the third."""


@dataclass(frozen=True)
class Ratios:
    """The largest error of each case, in units of its bound."""

    forward: list[float] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)

    @property
    def within(self) -> bool:
        """True if both are below the limits."""
        return all(max(r) < LIMIT and usual(r) < USUAL_LIMIT for r in (self.forward, self.gradients))

    def add(self, result: Result, solution: Solution) -> None:
        """Adds the errors of a case."""
        ratios = part_ratios(result, solution)
        gradients = {name for name in ratios if name.startswith("gradients.")}
        self.gradients.append(max(ratios[name] for name in gradients))
        self.forward.append(max(ratios[name] for name in ratios.keys() - gradients))

    def cells(self) -> list[str]:
        """Worst error and usual error, forward and of gradients."""
        return [f"{figure(r):.2f}" for r in (self.forward, self.gradients) for figure in (max, usual)]


def usual(ratios: Sequence[float]) -> float:
    """The value below which 99 of 100 ratios are."""
    return float(np.quantile(ratios, 0.99))


def part_ratios(result: Result, solution: Solution) -> dict[str, float]:
    """The largest error of each part that was returned, in units of its bound."""
    arrays = {name: getattr(result, name) for name in ("output", *RETURNED)}
    arrays |= {f"gradients.{name}": array for name, array in result.gradients.items()}
    return {name: ratio(array, solution.parts[name]) for name, array in arrays.items() if array is not None}


@lru_cache(maxsize=2 * CORE_CASES)
def solved(case: Case, dtype: str) -> tuple[Problem, Solution]:
    """The case's problem with its solution, given the weights that the styles drop."""
    problem = build(case, dtype)
    return problem, solve(problem, kept=factors_of(problem))


def no_row_is_empty(solution: Solution) -> bool:
    """True if each row sees a key: the answers of other rows are conventions."""
    return bool(solution.trace.seen.allowed.any(-1).all())


def core_cases(claims: Claims) -> Iterator[Case]:
    """Drawn cases without empty rows that these claims allow."""
    both_refused = claims.conventions.causal_with_mask is not CausalWithMask.INTERSECT
    for number in count():
        case = fit(drawn_case(number), claims)
        if isinstance(case, Unsupported) or case.mask_shape in MAY_BE_REFUSED:
            continue
        if both_refused and case.causal and case.mask is not MaskKind.NONE:
            continue
        if no_row_is_empty(solved(case, "float64")[1]):
            yield case


def family_cases() -> Iterator[Case]:
    """Drawn cases of the family without empty rows."""
    for number in count():
        case = drawn_family_case(number)
        if no_row_is_empty(solve(build(case, "float64").forward_only())):
            yield case


def core_ratios(implementation: Implementation, dtype: str) -> Ratios:
    """Runs an implementation on the cases that are drawn for it."""
    claims, ratios = implementation.claims, Ratios()
    without = () if Feature.MASK_GRADIENT in claims else ("attn_mask",)
    for case in islice(core_cases(claims), CORE_CASES):
        problem, solution = solved(case, dtype)
        problem = replace(problem, needs=tuple(n for n in problem.needs if n not in without))
        ratios.add(implementation.run(problem.fresh(), "cpu"), solution)
    return ratios


def family_ratios(dtype: str) -> dict[str, Ratios]:
    """Runs each correct style on the cases that have its option."""
    ratios = {name: Ratios() for name in family_styles.RIGHT}
    for case in islice(family_cases(), FAMILY_CASES):
        problem, solution = solved(case, dtype)
        for name, style in family_styles.RIGHT.items():
            if style.concerns(case):
                implementation = family_styles.implementation(name, style.answer)
                ratios[name].add(implementation.run(problem.fresh(), "cpu"), solution)
    return ratios


def wrong_core_ratios(dtype: str) -> dict[str, float]:
    """The largest error of each wrong answer, over drawn and chosen cases."""
    largest: dict[str, float] = {}

    def note(name: str, array: Any, expected: Expected) -> None:
        largest[name] = max(largest.get(name, 0.0), ratio(array, expected))

    for case in (*POINTED, *(drawn_case(number) for number in range(CORE_CASES))):
        problem, solution = solved(case, dtype)
        parts, seen = solution.parts, solution.trace.seen.allowed.any(-1)
        output = Expected(parts["output"].value[seen], parts["output"].bound[seen])
        for name, style in {**styles.WRONG, **LOST_DIGITS}.items():
            note(name, styles.output_of(style, problem)[seen], output)
        gradients = styles.backward(problem, "nothing")
        for role in ("query", "key"):
            expected = parts[f"gradients.{role}"]
            note("gradients without D", gradients[role], expected)
            note("gradients of zero", np.zeros_like(expected.value), expected)
    return largest


def wrong_family_ratio(wrong: family_styles.Wrong, dtype: str) -> float:
    """The largest error over the versions of its case."""
    ratios: list[float] = []
    for seed in range(SEEDS):
        problem, solution = solved(replace(wrong.case, seed=seed), dtype)
        ratios += part_ratios(wrong.implementation(dtype).run(problem.forward_only().fresh(), "cpu"), solution).values()
    return max(ratios)


def report_correct(title: str, ratios: Iterable[tuple[str, str, Ratios]]) -> bool:
    """Prints a table of correct answers; True if all of it is within the limits."""
    by_row = list(ratios)
    header = (title, "dtype", "cases", "forward: worst", "99 % below", "gradients: worst", "99 % below")
    rows = [(name, dtype, str(len(each.forward)), *each.cells()) for name, dtype, each in by_row]
    print(table(header, rows), end="\n\n", flush=True)
    return all(each.within for _, _, each in by_row)


def report_wrong(title: str, ratios: Mapping[str, Mapping[str, float]]) -> None:
    """Prints a table of wrong answers: the largest error by name and dtype."""
    rows = [(name, *(f"{each:.2g}" for each in by_dtype.values())) for name, by_dtype in ratios.items()]
    print(table((title, *DTYPES), rows), end="\n\n", flush=True)


def core() -> bool:
    """Prints the tables of the core; True if every requirement is met."""
    known = {each.name: each for each in (*TORCH_OPS, *TORCH_MODULES, *COMPOSITIONS)}
    correct = ((name, dtype, core_ratios(known[name], dtype)) for name in MEASURED for dtype in DTYPES)
    good = report_correct("implementation", correct)
    columns = {dtype: wrong_core_ratios(dtype) for dtype in DTYPES}
    wrong = {name: {dtype: column[name] for dtype, column in columns.items()} for name in columns["float64"]}
    report_wrong("wrong answer", wrong)
    required = [r for name, by_dtype in wrong.items() if name not in LOST_DIGITS for r in by_dtype.values()]
    lost = [wrong[name]["float64"] for name in LOST_DIGITS] + [wrong["weights in bfloat16"]["float32"]]
    return good and min(required + lost) >= DETECTED


def family() -> bool:
    """Prints the tables of the family; True if every requirement is met."""
    columns = {dtype: family_ratios(dtype) for dtype in DTYPES}
    correct = ((name, dtype, column[name]) for name in family_styles.RIGHT for dtype, column in columns.items())
    good = report_correct("style", correct)
    wrong = {name: {d: wrong_family_ratio(each, d) for d in DTYPES} for name, each in family_styles.WRONG.items()}
    report_wrong("wrong style", wrong)
    styles_and_dtypes = product(family_styles.WRONG.items(), DTYPES)
    visible = [wrong[name][dtype] for (name, each), dtype in styles_and_dtypes if each.shows_in(dtype)]
    return good and min(visible) >= DETECTED


def main() -> int:
    """Prints all tables; 0 if every requirement is met."""
    torch.manual_seed(0)
    return 0 if all([core(), family()]) else 1


if __name__ == "__main__":
    sys.exit(main())
