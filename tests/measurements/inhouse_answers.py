"""What the in-house implementations answer to the problems of others."""

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.inhouse import INHOUSE
from attention_conformance.reference.expected import solve
from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.comparison import compare

OPS = tuple(each for each in INHOUSE if each.claims.scope is Scope.OP)


def inhouse_difference(problem: Problem) -> str | None:
    """How one that claims what the problem has differs from the reference; empty: none does; None: there is none."""
    compared = [_difference(each, problem) for each in OPS if _takes(each, problem)]
    return next(filter(None, compared), "") if compared else None


def _takes(implementation: Implementation, problem: Problem) -> bool:
    needed = {option.feature for option in CASE_OPTIONS if option.used(problem.extension)}
    return needed <= implementation.claims.features


def _difference(implementation: Implementation, problem: Problem) -> str:
    answer = implementation.run(problem, "cpu")
    parts = solve(problem, implementation.claims.conventions, returned=()).parts
    named = {"output": answer.output, **{f"gradients.{name}": array for name, array in answer.gradients.items()}}
    compared = (compare(name, array, parts[name], problem.dtype).message for name, array in named.items())
    return next((f"{implementation.name}: {message}" for message in compared if message), "")
