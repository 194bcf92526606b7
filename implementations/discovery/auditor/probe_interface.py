"""Probes of the interface: the level, heads, inputs and parameters at which an implementation answers."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from attention_conformance.implementations.discovery.auditor.findings import Facts, Finding
from attention_conformance.implementations.discovery.probe import (
    EVEN_HEADS,
    HALF,
    HEADS,
    WIDTHS,
    Interface,
    Oracle,
    Reply,
    Run,
    Setup,
    Subject,
    revealed,
    spans,
)
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import DTYPES, Problem

SQUARE = Setup(query_length=5, key_length=5)
"""Sizes that self-attention takes, too."""
ORDER = ("float32", "float64", "bfloat16", "float16")
"""The dtypes in which an implementation is probed: the first in which it answers."""
PARAMETERS = {Feature.BIAS: "b_v", Feature.OUTPUT_PROJECTION: "w_o", Feature.OUTPUT_BIAS: "b_o"}
"""The parameters that a module may have, and the array that shows whether they are used."""


def find_subject(run: Run, device: str, oracle: Oracle) -> tuple[Subject | None, list[Finding]]:
    """The implementation with an interface at which it answers, and findings on that; or the reasons for none."""
    errors: dict[str, str] = {}
    for dtype in ORDER:
        for interface in _interfaces():
            subject = Subject(run, interface, dtype, device, oracle)
            problem = subject.problem(SQUARE)
            reply = subject.reply(problem)
            if reply.error:
                errors.setdefault(str(interface.scope), reply.error)
            elif _right_shape(reply, problem) and _uses_inputs(subject):
                settled = _with_heads(_without_unused(subject))
                return settled, list(_findings(settled))
    why = "; ".join(f"probed at the {scope} level: {error}" for scope, error in errors.items())
    return None, [Finding.undetermined("level", why or "its output has no known shape")]


def _interfaces() -> Iterator[Interface]:
    for heads, width in product((HEADS, 1), WIDTHS):
        yield Interface(num_heads=heads, width=width)
    for heads, sharing in product((HEADS, EVEN_HEADS, 1), (Sharing.NONE, Sharing.KEY_VALUE, Sharing.SELF)):
        for bias, output_projection, output_bias in product((True, False), repeat=3):
            yield Interface(Scope.MODULE, heads, sharing, bias, output_projection, output_bias)


def _right_shape(reply: Reply, problem: Problem) -> bool:
    heads, width = problem.num_heads, problem.value.shape[-1]
    expected: tuple[int, ...] = (*problem.query.shape[:-1], width)
    if problem.scope is Scope.MODULE:
        expected = (*problem.query.shape[:2], problem.parameters["w_v"].shape[1])
    return reply.output.shape == expected or (heads == 1 and reply.output.size == int(np.prod(expected)))


def _depends_on(subject: Subject, problem: Problem, name: str) -> bool:
    """Whether the answer depends on an array."""
    array = problem.arrays()[name]
    other = problem.with_arrays({name: (array[..., ::-1] + np.asarray(0.5, array.dtype)).astype(array.dtype)})
    before, after = subject.reply(problem), subject.reply(other)
    return before.error != after.error or not subject.near(after.output, before.output)


def _uses_inputs(subject: Subject) -> bool:
    """Whether the answer of a module depends on each input that the interface gives it."""
    if subject.interface.scope is Scope.OP:
        return True
    problem = subject.problem(replace(SQUARE, units=False))
    inputs = {Sharing.NONE: ("key", "value"), Sharing.KEY_VALUE: ("key",), Sharing.SELF: ()}
    return all(_depends_on(subject, problem, name) for name in inputs[subject.interface.sharing])


def _without_unused(subject: Subject) -> Subject:
    """The interface without parameters that change nothing."""
    interface, problem = subject.interface, subject.problem(replace(SQUARE, units=False))
    if interface.scope is Scope.OP:
        return subject
    names = {feature: feature.replace("-", "_") for feature in PARAMETERS}
    used: dict[str, Any] = {
        names[f]: getattr(interface, names[f]) and _depends_on(subject, problem, a) for f, a in PARAMETERS.items()
    }
    return replace(subject, interface=replace(interface, **used))


def _with_heads(subject: Subject) -> Subject:
    """One head where the answer is that of one head as wide as all."""
    if subject.interface.scope is Scope.OP or subject.interface.num_heads == 1:
        return subject
    problem = subject.problem(SQUARE)
    output = subject.reply(problem).output
    if subject.near(output, subject.expected(problem)):
        return subject
    one_head = subject.near(output, subject.expected(replace(problem, num_heads=1)))
    return replace(subject, interface=replace(subject.interface, num_heads=1)) if one_head else subject


def _findings(subject: Subject) -> Iterator[Finding]:
    interface = subject.interface
    if interface.scope is Scope.OP:
        yield Finding("level", "op", "it answered query, key and value of shape (B, H, L, d)")
    else:
        inputs = {Sharing.NONE: "query, key and value", Sharing.KEY_VALUE: "query and context", Sharing.SELF: "x"}
        yield Finding("level", "module", f"it answered {inputs[interface.sharing]} of shape (B, L, width)")
        has = (interface.bias, interface.output_projection, interface.output_bias)
        names = ", ".join(n for n, h in zip(PARAMETERS, has, strict=True) if h)
        yield Finding("parameters", names or "no more than w_q, w_k and w_v")
    yield _heads(subject)


def _heads(subject: Subject) -> Finding:
    """Which heads of the output depend on one head of the query."""
    if subject.interface.num_heads == 1:
        return Finding("heads", "one", "its answer is that of one head")
    problem = subject.problem(SQUARE)
    before, after = (revealed(subject.reply(each), problem) for each in (problem, _with_head_negated(problem)))
    if error := before.error or after.error:
        return Finding.undetermined("heads", error)
    changed = np.flatnonzero((np.abs(after.weights - before.weights) > HALF).any((0, 2, 3)))
    evidence = f"a change of head 0 of the query changed heads {spans(changed)} of {subject.interface.num_heads}"
    return Finding("heads", "many", evidence) if list(changed) == [0] else Finding.undetermined("heads", evidence)


def _with_head_negated(problem: Problem) -> Problem:
    """The problem with head 0 of the query negated."""
    name = "query" if problem.scope is Scope.OP else "w_q"
    changed = problem.arrays()[name].copy()
    if problem.scope is Scope.OP:
        changed[:, 0] *= -1
    else:
        changed[:, : changed.shape[1] // problem.num_heads] *= -1
    return problem.with_arrays({name: changed})


def dtypes(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """The dtypes in which it takes arrays and answers."""
    refused = {dtype: _why_not(replace(subject, dtype=dtype)) for dtype in DTYPES}
    answered = [dtype for dtype, why in refused.items() if not why]
    yield Finding("dtypes", ", ".join(answered), "; ".join(f"{dtype}: {why}" for dtype, why in refused.items() if why))


def _why_not(subject: Subject) -> str:
    reply = subject.reply(subject.problem(SQUARE))
    if reply.result is None:
        return reply.error
    name = reply.result.output.dtype.name
    return "" if name == subject.dtype else f"it answers in {name}"
