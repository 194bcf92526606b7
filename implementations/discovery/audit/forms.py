"""Forms: at which level an implementation can be asked, with which heads, inputs and parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from attention_conformance.implementations.discovery.audit.findings import Facts, Finding, spans, undetermined
from attention_conformance.implementations.discovery.audit.posing import (
    HALF,
    HEADS,
    WIDTHS,
    Asked,
    Form,
    Reply,
    Run,
    Subject,
    near,
    revealed,
)
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import DTYPES, Problem

SQUARE = Asked(query_length=5, key_length=5)
"""Sizes that self-attention can be asked, too."""
ORDER = ("float32", "float64", "bfloat16", "float16")
"""The dtypes in which an implementation is asked, the first that answers."""
PARAMETERS = {"bias": "b_v", "output_projection": "w_o", "output_bias": "b_o"}
"""What a form may have, and the array that shows whether it is used."""


def find_subject(run: Run, device: str) -> tuple[Subject | None, list[Finding]]:
    """The implementation in a form in which it answers, and what that shows; or the reasons why there is none."""
    errors: dict[str, str] = {}
    for dtype in ORDER:
        for form in _forms():
            subject = Subject(run, form, dtype, device)
            problem = subject.problem(SQUARE)
            reply = subject.reply(problem)
            if reply.error:
                errors.setdefault(str(form.scope), reply.error)
            elif _shaped(reply, problem) and _used(subject):
                settled = _with_heads(_without_unused(subject))
                return settled, list(_told(settled))
    why = "; ".join(f"asked at the {scope} level: {error}" for scope, error in errors.items())
    return None, [undetermined("level", why or "its output has no known shape")]


def _forms() -> Iterator[Form]:
    for heads, width in product((HEADS, 1), WIDTHS):
        yield Form(num_heads=heads, width=width)
    for heads, sharing in product((HEADS, 1), (Sharing.NONE, Sharing.KEY_VALUE, Sharing.SELF)):
        for bias, projected, shifted in product((True, False), repeat=3):
            yield Form(Scope.MODULE, heads, sharing, bias, projected, shifted)


def _shaped(reply: Reply, problem: Problem) -> bool:
    heads, width = problem.num_heads, problem.value.shape[-1]
    wanted: tuple[int, ...] = (*problem.query.shape[:-1], width)
    if problem.scope is Scope.MODULE:
        wanted = (*problem.query.shape[:2], problem.parameters["w_v"].shape[1])
    return reply.output.shape == wanted or (heads == 1 and reply.output.size == int(np.prod(wanted)))


def _moved(subject: Subject, problem: Problem, name: str) -> bool:
    """Whether the answer depends on an array."""
    array = problem.arrays()[name]
    other = problem.with_arrays({name: (array[..., ::-1] + np.asarray(0.5, array.dtype)).astype(array.dtype)})
    before, after = subject.reply(problem), subject.reply(other)
    return before.error != after.error or not near(after.output, before.output, subject.dtype)


def _used(subject: Subject) -> bool:
    """Whether each input of a module that is taken for one of its own has a part in the answer."""
    if subject.form.scope is Scope.OP:
        return True
    problem = subject.problem(replace(SQUARE, units=False))
    inputs = {Sharing.NONE: ("key", "value"), Sharing.KEY_VALUE: ("key",), Sharing.SELF: ()}[subject.form.sharing]
    return all(_moved(subject, problem, name) for name in inputs)


def _without_unused(subject: Subject) -> Subject:
    """The form without parameters that change nothing."""
    form, problem = subject.form, subject.problem(replace(SQUARE, units=False))
    if form.scope is Scope.OP:
        return subject
    used = {name: getattr(form, name) and _moved(subject, problem, array) for name, array in PARAMETERS.items()}
    bias, projected, shifted = used.values()
    return replace(subject, form=replace(form, bias=bias, output_projection=projected, output_bias=shifted))


def _with_heads(subject: Subject) -> Subject:
    """One head where the answer is that of one head as wide as all."""
    form = subject.form
    if form.scope is Scope.OP or form.num_heads == 1:
        return subject
    problem = subject.problem(SQUARE)
    reply = subject.reply(problem)
    whole = replace(problem, num_heads=1)
    if near(reply.output, subject.expected(problem), subject.dtype):
        return subject
    alone = near(reply.output, subject.expected(whole), subject.dtype)
    return replace(subject, form=replace(form, num_heads=1)) if alone else subject


def _told(subject: Subject) -> Iterator[Finding]:
    form = subject.form
    if form.scope is Scope.OP:
        yield Finding("level", "op", "it answered query, key and value of shape (B, H, L, d)")
    else:
        inputs = {Sharing.NONE: "query, key and value", Sharing.KEY_VALUE: "query and context", Sharing.SELF: "x"}
        yield Finding("level", "module", f"it answered {inputs[form.sharing]} of shape (B, L, width)")
        named = {"biases": form.bias, "output projection": form.output_projection, "output bias": form.output_bias}
        yield Finding("parameters", ", ".join(n for n, has in named.items() if has) or "no more than w_q, w_k and w_v")
    yield _heads(subject)


def dtypes(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """The dtypes in which it answers in kind."""
    refused = {dtype: _why_not(subject, dtype) for dtype in DTYPES}
    answered = [dtype for dtype, why in refused.items() if not why]
    yield Finding("dtypes", ", ".join(answered), "; ".join(f"{dtype}: {why}" for dtype, why in refused.items() if why))


def _heads(subject: Subject) -> Finding:
    """Which heads of the output see a change of one head of the query."""
    form = subject.form
    if form.num_heads == 1:
        return Finding("heads", "one", "its answer is that of one head")
    problem = subject.problem(SQUARE)
    before, after = (revealed(subject.reply(each), problem) for each in (problem, _other_head(problem)))
    if before.error or after.error:
        return undetermined("heads", before.error or after.error)
    moved = np.flatnonzero((np.abs(after.weights - before.weights) > HALF).any((0, 2, 3)))
    evidence = f"a change of head 0 of the query moved heads {spans(moved)} of {form.num_heads}"
    return Finding("heads", "many", evidence) if list(moved) == [0] else undetermined("heads", evidence)


def _other_head(problem: Problem) -> Problem:
    """The problem with head 0 of the query negated."""
    name = "query" if problem.scope is Scope.OP else "w_q"
    changed = problem.arrays()[name].copy()
    if problem.scope is Scope.OP:
        changed[:, 0] *= -1
    else:
        changed[:, : changed.shape[1] // problem.num_heads] *= -1
    return problem.with_arrays({name: changed})


def _why_not(subject: Subject, dtype: str) -> str:
    asked = replace(subject, dtype=dtype)
    reply = asked.reply(asked.problem(SQUARE))
    if reply.result is None:
        return reply.error
    name = reply.result.output.dtype.name
    return "" if name == dtype else f"it answers in {name}"
