"""Hypotheses: what a failing candidate may be doing, each as a function that answers a problem."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.defects import Defect, catalogue
from attention_conformance.reference.pipeline import Pipeline
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.conventions import Conventions, values_of
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import DTYPES, Problem
from attention_conformance.tests.harness.explain.causes import Hypothesis, answering, causes

CONVENTIONS = (
    *("causal-alignment", "empty-row", "softmax-precision", "group-order", "window-count", "rotary-pairing"),
    *("returned-weights", "log-sum-exp-base", "default-scale"),
)
"""Conventions of which each answer is tried."""


def hypotheses(scope: Scope, claimed: Conventions) -> Iterator[Hypothesis]:
    """Conventions other than the claimed ones, every defect that can answer at this level, and other causes."""
    yield from _of_conventions(claimed)
    for defect in catalogue():
        if answer := _answer_of(defect, scope):
            yield Hypothesis(defect.id, defect.text.repair, answer, defect)
    yield from causes(claimed)


def _answer_of(defect: Defect, scope: Scope) -> Callable[[Problem], Result] | None:
    claims, run = defect.implementation.claims, defect.implementation.run
    if claims.scope is scope:
        return lambda problem: run(problem.fresh(), "cpu")
    return (lambda problem: _lifted(defect, problem)) if scope is Scope.MODULE else None


def _lifted(defect: Defect, problem: Problem) -> Result:
    """A defect of the op between right projections; outputs only."""
    inputs = Pipeline().run(problem.forward_only(), Conventions()).inputs
    heads = {n: getattr(inputs, n).astype(DTYPES[problem.dtype]) for n in ("query", "key", "value")}
    op = replace(problem.forward_only(), scope=Scope.OP, parameters={}, sharing=Sharing.NONE, **heads)
    result = defect.implementation.run(op.fresh(), "cpu")
    output = Pipeline().project_out(problem.widened(), result.output.astype(np.float64))
    averaged = None if result.weights is None else result.weights.astype(np.float64).mean(1)
    return replace(result, output=output, averaged_weights=averaged, gradients={})


RATHER_MISTAKES = ("default-scale",)
"""Conventions that few implementations document and many have by mistake: the catalogue names the mistake."""


def _of_conventions(claimed: Conventions) -> Iterator[Hypothesis]:
    for key, value in ((name, str(value)) for name in CONVENTIONS for value in values_of(name)):
        conventions, repair = claimed.claiming({key: value}), "If this is intended, it is no mistake: add --convention"
        if conventions != claimed:
            rank = 2 if key in RATHER_MISTAKES else 0
            yield Hypothesis(f"{key}={value}", f"{repair} {key}={value}.", answering(conventions), rank=rank)
    name = f"bool-mask={next(p for p in type(claimed.bool_mask) if p is not claimed.bool_mask)}"
    repair = f"If True means this in its masks, add --convention {name}; otherwise invert its boolean masks."
    yield Hypothesis(name, repair, lambda problem: answering(claimed)(_inverted(problem)), rank=0)


def _inverted(problem: Problem) -> Problem:
    masks = {n: ~a for n, a in problem.arrays().items() if n.endswith("_mask") and a.dtype.kind == "b"}
    return problem.with_arrays(masks)
