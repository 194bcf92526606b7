"""Hypotheses: what a failing candidate may be doing, each as a function that answers a problem."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import Implementation, Result
from attention_conformance.implementations.defects import Defect, catalogue
from attention_conformance.reference.pipeline import Pipeline
from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.conventions import Conventions, values_of
from attention_conformance.spec.features import NOTHING, Scope
from attention_conformance.spec.premises import NO_PREMISES, Premises
from attention_conformance.spec.problem import DTYPES, Problem
from attention_conformance.tests.harness.explain.diagnosis.causes import INTENDED, Hypothesis, answering, causes

CONVENTIONS = (
    *("causal-alignment", "empty-row", "softmax-precision", "group-order", "window-count", "rotary-pairing"),
    *("returned-weights", "log-sum-exp-base", "default-scale", "padded-positions"),
    *("empty-row-bool", "empty-row-float", "empty-row-padding", "empty-row-causal"),
)
"""Conventions of which each answer is tried."""


def hypotheses(scope: Scope, claimed: Conventions) -> Iterator[Hypothesis]:
    """Conventions other than the claimed ones, every defect that can answer at this level, and other causes."""
    yield from _of_conventions(claimed)
    yield from _of_premises(claimed)
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


PREMISES = (
    *("causal", "softcap=10", "softcap=20", "softcap=30", "softcap=50", "rotary=10000", "rotary=500000"),
    *("scale=0.125", "scale=0.0883883476483184", "window=1:0", "window=2:0", "window=4:0", "window=8:0"),
)
"""What is most often always done; others are detected before a run."""


def _of_premises(claimed: Conventions) -> Iterator[Hypothesis]:
    """What an implementation may always do, whether it is an option or not."""
    for setting in PREMISES:
        premises = NO_PREMISES.assuming((setting,))
        repair = f"If it always does this, it is no mistake: add --premise {setting}."
        answer: Callable[[Problem], Result] = lambda problem, p=premises: answering(claimed)(_under(p, problem))  # type: ignore[misc]  # noqa: E731
        yield Hypothesis(f"premise {setting}", repair, answer, rank=0, options=("--premise", setting))


def following(implementation: Implementation, convention: Hypothesis) -> Implementation:
    """The implementation as one that claims a convention."""
    key, value = convention.name.split("=")
    claims = implementation.claims
    return replace(implementation, claims=replace(claims, conventions=claims.conventions.claiming({key: value})))


def _under(premises: Premises, problem: Problem) -> Problem:
    """The problem with what is always done."""
    names = ("window_left", "window_right", "softcap", "rotary_base")
    always = {name: getattr(premises, name) for name in names if getattr(premises, name) is not None}
    scale = problem.scale if premises.scale is None else premises.scale
    extension = replace(problem.extension, **always)
    return problem.but(causal=problem.causal or premises.causal, scale=scale, extension=extension)


RATHER_MISTAKES = ("default-scale",)
"""Conventions that few implementations document and many have by mistake: the catalogue names the mistake."""


def _of_conventions(claimed: Conventions) -> Iterator[Hypothesis]:
    for key, value in ((name, str(value)) for name in CONVENTIONS for value in values_of(name)):
        conventions = claimed.claiming({key: value})
        if conventions != claimed:
            rank = 2 if key in RATHER_MISTAKES else 0
            setting, answer = f"{key}={value}", answering(conventions)
            options, affects = ("--convention", setting), partial(_affects, key, conventions)
            yield Hypothesis(setting, f"{INTENDED}{setting}.", answer, rank=rank, affects=affects, options=options)
    name = f"bool-mask={next(p for p in type(claimed.bool_mask) if p is not claimed.bool_mask)}"
    repair = f"If True means this in its masks, add --convention {name}; otherwise invert its boolean masks."
    inverted: Callable[[Problem], Result] = lambda problem: answering(claimed)(_inverted(problem))  # noqa: E731
    yield Hypothesis(name, repair, inverted, rank=0, options=("--convention", name))


def _affects(key: str, conventions: Conventions, problem: Problem) -> bool:
    """Whether a convention may change the answer to a problem: where it cannot, nothing need be solved."""
    if key.startswith("empty-row"):
        return not bool(allowed_keys(problem, conventions).any(-1).all())
    return key not in AFFECTED or AFFECTED[key](problem)


AFFECTED: dict[str, Callable[[Problem], bool]] = {
    "causal-alignment": lambda problem: problem.causal or problem.extension != NOTHING,
    "group-order": lambda problem: problem.num_kv_heads != problem.num_heads,
    "default-scale": lambda problem: problem.scale is None,
}
"""Where a convention may change an answer; that of others is always solved."""


def _inverted(problem: Problem) -> Problem:
    masks = {n: ~a for n, a in problem.arrays().items() if n.endswith("_mask") and a.dtype.kind == "b"}
    return problem.with_arrays(masks)
