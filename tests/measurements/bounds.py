"""How tight the rounding bounds are: worst error in bounds, of correct implementations and of wrong answers.

`make bounds` prints two Markdown tables and fails where a requirement is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, islice
from typing import Any

import numpy as np
import torch

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.mha import TORCH_MODULES
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS
from attention_conformance.reference.expected import Expected, Solution, solve
from attention_conformance.spec.cases import Case, MaskKind
from attention_conformance.spec.features import CausalWithMask, Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Array, Problem
from attention_conformance.tests.selftest.draws import POINTED, drawn_case
from attention_conformance.tests.selftest.styles import LOST_DIGITS, WRONG, backward, output_of

CASES = 500
"""Cases for each implementation and dtype."""
MEASURED = ("torch.sdpa.math", "torch.sdpa.flash", "torch.mha", "torch.mha.weights", "torch.mha.averaged")
LIMIT, USUAL_LIMIT, TEETH = 1.0, 0.7, 3.0
"""Below the first in all cases, below the second in 99 of 100; wrong answers at least the third in some."""


@dataclass(frozen=True)
class Ratios:
    """The largest error in bounds of each case."""

    forward: list[float]
    gradients: list[float]

    @property
    def within(self) -> bool:
        """Whether both keep to the limits."""
        return all(max(r) < LIMIT and np.quantile(r, 0.99) < USUAL_LIMIT for r in (self.forward, self.gradients))


def eager(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """The textbook's composition in torch, every intermediate in the working dtype."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        boolean = attn_mask.dtype is torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if boolean else scores + attn_mask
    return scores.softmax(-1) @ value


def measured() -> list[Implementation]:
    """The implementations of the first table."""
    known = {i.name: i for i in (*TORCH_OPS, *TORCH_MODULES)}
    composed = Implementation("eager torch", known["torch.sdpa.math"].claims, torch_op(eager))
    return [*(known[name] for name in MEASURED), composed]


@lru_cache(maxsize=2 * CASES)
def solved(case: Case, dtype: str) -> tuple[Problem, Solution]:
    """The case's problem with its solution."""
    problem = build(case, dtype)
    return problem, solve(problem)


def cases_for(claims: Claims) -> Iterator[Case]:
    """Drawn cases that these claims allow, rows without keys left out: their answers are conventions."""
    both_refused = claims.conventions.causal_with_mask is not CausalWithMask.INTERSECT
    for number in count():
        case = fit(drawn_case(number), claims)
        if isinstance(case, Unsupported) or (both_refused and case.causal and case.mask is not MaskKind.NONE):
            continue
        if solved(case, "float64")[1].trace.seen.allowed.any(-1).all():
            yield case


def ratio(found: Array, expected: Expected) -> float:
    """The largest error in bounds, infinite for NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(found.astype(np.float64) - expected.value)
        ratios = np.where(error == 0.0, 0.0, error / expected.bound)
    return float(np.nan_to_num(ratios, nan=np.inf).max(initial=0.0))


def ratios_of(implementation: Implementation, dtype: str) -> Ratios:
    """Runs an implementation on the cases drawn for it."""
    claims, found = implementation.claims, Ratios([], [])
    without = () if Feature.MASK_GRADIENT in claims else ("attn_mask",)
    for case in islice(cases_for(claims), CASES):
        problem, solution = solved(case, dtype)
        problem = replace(problem, needs=tuple(n for n in problem.needs if n not in without))
        result = implementation.run(problem.fresh(), "cpu")
        parts: dict[str, Array | None] = {
            "output": result.output,
            "weights": result.weights,
            "averaged_weights": result.averaged_weights,
        }
        present = [ratio(a, solution.parts[n]) for n, a in parts.items() if a is not None]
        found.forward.append(max(present))
        gradients = [ratio(a, solution.parts[f"gradients.{n}"]) for n, a in result.gradients.items()]
        found.gradients.append(max(gradients))
    return found


def wrong_ratios(dtype: str) -> dict[str, float]:
    """The largest error in bounds of each wrong answer, over drawn and chosen cases."""
    found: dict[str, float] = {}

    def note(name: str, array: Any, expected: Expected) -> None:
        found[name] = max(found.get(name, 0.0), ratio(array, expected))

    for case in (*POINTED, *(drawn_case(number) for number in range(CASES))):
        problem, solution = solved(case, dtype)
        parts, seen = solution.parts, solution.trace.seen.allowed.any(-1)
        output = Expected(parts["output"].value[seen], parts["output"].bound[seen])
        for name, style in {**WRONG, **LOST_DIGITS}.items():
            note(name, output_of(style, problem)[seen], output)
        gradients = backward(problem, "nothing")
        for role in ("query", "key"):
            expected = parts[f"gradients.{role}"]
            note("gradients without D", gradients[role], expected)
            note("gradients of zero", np.zeros_like(expected.value), expected)
    return found


def print_correct() -> bool:
    """The first table; whether all of it is within the limits."""
    print("| implementation | dtype | forward: worst | 99 % below | gradients: worst | 99 % below |")
    print("| --- | --- | --- | --- | --- | --- |")
    good = True
    for implementation in measured():
        for dtype in DTYPES:
            found = ratios_of(implementation, dtype)
            good &= found.within
            cells = [f(r) for r in (found.forward, found.gradients) for f in (max, usual)]
            print(f"| {implementation.name} | {dtype} | " + " | ".join(f"{c:.2f}" for c in cells) + " |")
    return good


def usual(ratios: list[float]) -> float:
    """The value below which 99 of 100 lie."""
    return float(np.quantile(ratios, 0.99))


def print_wrong() -> bool:
    """The second table; whether every wrong answer that has to is refused."""
    columns = {dtype: wrong_ratios(dtype) for dtype in DTYPES}
    print("| wrong answer |" + "".join(f" {dtype} |" for dtype in columns))
    print("| --- |" + " --- |" * len(columns))
    for name in columns["float64"]:
        print(f"| {name} |" + "".join(f" {column[name]:.2g} |" for column in columns.values()))
    required = [(name, column) for name in columns["float64"] for column in columns.values() if name not in LOST_DIGITS]
    lost = [columns["float64"][name] for name in LOST_DIGITS] + [columns["float32"]["weights in bfloat16"]]
    return min([column[name] for name, column in required] + lost) >= TEETH


def main() -> int:
    """Prints both tables; 0 if every requirement is met."""
    torch.manual_seed(0)
    good = print_correct()
    print()
    good &= print_wrong()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
