"""What the in-house implementations answer to the problems of others."""

from attention_conformance.implementations.adapters.tensors import to_array, to_tensor
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.inhouse import INHOUSE
from attention_conformance.implementations.builtin.inhouse.rotary import rotated_by
from attention_conformance.reference.expected import solve
from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.run.vectors.onnx_cases import (
    ATTENTION,
    OnnxCase,
    attention_problem,
    rotary_problem,
    rotated,
)

OPS = tuple(each for each in INHOUSE if each.claims.scope is Scope.OP)


def inhouse_difference(problem: Problem) -> str | None:
    """How one that claims what the problem has differs from the reference; empty: none does; None: there is none."""
    compared = [_difference(each, problem) for each in OPS if _takes(each, problem)]
    return next(filter(None, compared), "") if compared else None


def inhouse_of(case: OnnxCase) -> str:
    """How they differ from the reference in a case of ONNX; empty if they do not."""
    if case.operator == ATTENTION:
        return inhouse_difference(attention_problem(case)) or ""
    problem, pairing = rotary_problem(case)
    expected, extras = rotated(problem, pairing), {n: to_tensor(x, "cpu") for n, x in problem.extras.items()}
    places = extras.get("query_positions", slice(None))
    cosines, sines = (extras[name][places] for name in ("rotary_cos", "rotary_sin"))
    rows = rotated_by(to_tensor(problem.query, "cpu"), cosines, sines, pairing)
    return compare("output", to_array(rows), expected, problem.dtype).message


def _takes(implementation: Implementation, problem: Problem) -> bool:
    needed = {option.feature for option in CASE_OPTIONS if option.used(problem.extension)}
    return needed <= implementation.claims.features


def _difference(implementation: Implementation, problem: Problem) -> str:
    answer = implementation.run(problem, "cpu")
    parts = solve(problem, implementation.claims.conventions, returned=()).parts
    named = {"output": answer.output, **{f"gradients.{name}": array for name, array in answer.gradients.items()}}
    compared = (compare(name, array, parts[name], problem.dtype).message for name, array in named.items())
    return next((f"{implementation.name}: {message}" for message in compared if message), "")
