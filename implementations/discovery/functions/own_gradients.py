"""Own gradients: what a function of NumPy returns for a gradient of its output, or the backward pass next to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from attention_conformance.implementations.adapters.native import Native
from attention_conformance.implementations.adapters.numpy_op import NumpyOp
from attention_conformance.implementations.api.contract import Implementation, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import repeatable, safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN
from attention_conformance.implementations.discovery.extras import Chosen
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall
from attention_conformance.implementations.discovery.functions.needed_tables import GRADIENTS, NeededTables
from attention_conformance.implementations.discovery.signatures import is_variadic, positional, required, signature_of
from attention_conformance.implementations.discovery.vocabulary import INPUTS
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.optional import optional
from attention_conformance.spec.problem import Array, Problem

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.functions.laid_out import LaidOut

SHARED = {Sharing.SELF: INPUTS, Sharing.KEY_VALUE: INPUTS[1:], Sharing.QUERY_KEY: INPUTS[:2]}
"""The roles of one array, whose gradient is the sum of theirs."""
SAVED = {"cache", "ctx", "context", "saved", "residuals", "memory", "p", "probs", "weights", "attn", "lse", "stats"}
"""Names of what the forward pass returns after its output."""
OUTPUTS = {"o", "out", "output"}
PASSES = (("forward", "backward"), ("fwd", "bwd"), ("", "_backward"), ("", "_bwd"), ("", "_grad"))
"""What the name of a forward pass has, or nothing, and that of its backward pass in its place."""
Pass: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any], Array], tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class OwnGradients:
    """A `run` whose gradients are those that the function itself returns.

    Attributes:
        op: the run without gradients.
        both: the answer and the gradients for inputs, options and the gradient of the output.
        order: of what the gradients belong to.
    """

    op: NumpyOp
    both: Pass
    order: tuple[str, ...] = INPUTS

    def __call__(self, problem: Problem, device: str) -> Result:
        """Answers the problem, with the gradients that it needs."""
        if problem.cotangent is None:
            return self.op(problem, device)
        result, found = self.computed(problem, device)
        by_role = dict(zip(self.order, found, strict=False))
        roles = SHARED.get(problem.sharing, ())
        if by_role and len(roles) > 1:
            by_role[roles[0]] = np.sum([by_role[role] for role in roles], axis=0)
        return replace(result, gradients={name: each for name, each in by_role.items() if name in problem.needs})

    def computed(self, problem: Problem, device: str) -> tuple[Result, list[Array]]:
        """The answer, and the arrays that are gradients."""
        layout, cotangent = _layout(self.op), np.asarray(problem.cotangent)
        both = _Both(self.both, [cotangent] if layout is None else layout.cotangents(cotangent))
        result = replace(self.op, function=_inside(self.op, both))(problem.forward_only(), device)
        if layout is None:
            return result, both.found[0]
        arrays = [getattr(problem, name) for name in self.order]
        of_calls = zip(self.order, arrays, zip(*both.found, strict=True), strict=True)
        return result, [layout.gradients([*found], array.shape, role) for role, array, found in of_calls]

    def native(self, problem: Problem, device: str) -> Native:
        """The function's own call."""
        return self.op.native(problem, device)


@dataclass(eq=False)
class _Both:
    """A function that keeps the gradients that come with its answer."""

    both: Pass
    cotangents: list[Array]
    found: list[list[Array]] = field(default_factory=list)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        answer, gradients = self.both(inputs, options, self.cotangents[len(self.found)].copy())
        self.found.append([each for each in _flat(gradients) if isinstance(each, np.ndarray)])
        return answer


def _flat(parts: Any) -> Iterator[Any]:
    if isinstance(parts, tuple | list):
        for part in parts:
            yield from _flat(part)
    else:
        yield parts


def _inside(op: NumpyOp, function: Callable[..., Any]) -> Chosen:
    """The chain of a run's function with another one at its end."""
    assert isinstance(op.function, Chosen)
    assert isinstance(op.function.function, RenamedCall)
    layout = _layout(op)
    inner = function if layout is None else replace(layout, function=function)
    return replace(op.function, function=replace(op.function.function, function=inner))


def _layout(op: NumpyOp) -> LaidOut | None:
    """The layout through which a run calls its function; None where it is that of the suite."""
    if not optional("torch"):
        return None
    from attention_conformance.implementations.discovery.functions.laid_out import LaidOut  # imports torch

    called = getattr(op.function, "function", None)
    layout = getattr(called, "function", None)
    return layout if isinstance(layout, LaidOut) else None


def with_own_gradients(made: Implementation) -> Implementation:
    """The implementation with the gradients that its function returns, if it is one of NumPy and returns any."""
    op = made.run
    if not isinstance(op, NumpyOp) or not isinstance(op.function, Chosen) or Feature.GRADIENTS in made.claims:
        return made
    call = op.function.function
    fitted = fit(PLAIN, made.claims)
    if not isinstance(call, RenamedCall) or isinstance(fitted, Unsupported):
        return made
    problem = build(fitted, made.claims.dtypes[0])
    layout = _layout(op)
    for how, both in _passes(call.function if layout is None else layout.function):
        run = OwnGradients(op, both)
        order = _order(run, problem)
        if order is not None:
            how = how if order == INPUTS else f"{how}, in the order {', '.join(order)}"
            claims = replace(made.claims, features=made.claims.features | {Feature.GRADIENTS})
            about = "; ".join([made.about, how])
            stated = (*made.stated, how)
            return replace(made, run=replace(run, order=order), claims=claims, about=about, stated=stated)
    return made


def _order(run: OwnGradients, problem: Problem) -> tuple[str, ...] | None:
    """What the three arrays are the gradients of, that of the query first or last; None where they are of nothing.

    Most have one shape; that of the query vanishes where all keys are 0.
    """
    shapes = [array.shape for array in _found(run, problem)]
    orders = [o for o in (INPUTS, INPUTS[::-1]) if shapes == [problem.arrays()[name].shape for name in o]]
    without = _found(run, problem.with_arrays({"key": np.zeros_like(problem.key)})) if orders else []
    vanishing = [at for at, array in enumerate(without) if not array.any()]
    return next((o for o in orders if vanishing == [o.index("query")]), next(iter(orders), None))


def _found(run: OwnGradients, problem: Problem) -> list[Array]:
    outcome = repeatable(lambda: run.computed(problem.fresh(), "cpu")).value
    return [] if outcome is None else outcome[1]


def _passes(function: Any) -> Iterator[tuple[str, Pass]]:
    """The ways in which a function and its file may give gradients, with a note on each."""
    if isinstance(function, NeededTables):
        for name in function.gradients:
            yield f"its gradients are those that it returns for {name!r}", partial(_returned, name, function)
        return
    signature = safe_call(lambda: signature_of(function)).value
    for name in (p for p in (signature.parameters if signature else ()) if p.lower() in GRADIENTS):
        yield f"its gradients are those that it returns for {name!r}", partial(_returned, name, function)
    own, space = getattr(function, "__name__", ""), getattr(function, "__globals__", {})
    names = [own.replace(old, new) if old else own + new for old, new in PASSES if old in own]
    for name in (name for name in names if name != own and inspect.isfunction(space.get(name))):
        yield f"its gradients are those of {name!r}", partial(_next_to, function, space[name])


def _returned(name: str, function: Any, inputs: Sequence[Any], options: Mapping[str, Any], dout: Array) -> Any:
    given: Any = replace(function, gradients=()) if isinstance(function, NeededTables) else function
    answer = given(*inputs, **{**options, name: dout})
    return answer, answer[1:]


def _next_to(forward: Any, backward: Any, inputs: Sequence[Any], options: Mapping[str, Any], dout: Array) -> Any:
    """The answer of the forward pass, and that of the backward pass to what its parameters name."""
    answer = forward(*inputs, **options)
    output, *saved = answer if isinstance(answer, tuple) else (answer,)
    named = dict(zip((p.name for p in positional(signature_of(forward))), inputs, strict=False)) | {**options}
    parameters = [p for p in signature_of(backward).parameters.values() if not is_variadic(p)]
    wanted = [p.name.lower() for p in parameters if p.name.lower() in SAVED and p.name not in named]
    kept = dict(zip(wanted, saved, strict=True)) if len(wanted) == len(saved) else {}  # which of several is unknown
    known = {**dict.fromkeys(GRADIENTS, dout), **kept, **dict.fromkeys(OUTPUTS, output), **named}
    given = {}
    for parameter in parameters:
        name = parameter.name.lower()
        if name not in known and not required(parameter):
            continue
        given[parameter.name] = known[parameter.name] if parameter.name in known else known[name]
    return answer, backward(**given)
