"""Numbers: what plain attention computes, by what its scores are multiplied, and in which precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.discovery.audit.findings import (
    ABSENT,
    IGNORED,
    OFFERED,
    Facts,
    Finding,
    undetermined,
)
from attention_conformance.implementations.discovery.audit.masks import lengths, unchanged
from attention_conformance.implementations.discovery.audit.posing import (
    HALF,
    Asked,
    Floats,
    Seen,
    Subject,
    near,
    padded,
    revealed,
)
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.features import Conventions, GroupOrder, Scope, SoftmaxPrecision
from attention_conformance.spec.problem import Problem

RIGHT = "softmax(Q K^T / sqrt(d_k)) V"
GIVEN = 0.3
"""A scale that is no default of anyone's."""


def plain(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """The plain answer, and what the scores are multiplied by where nothing is said of it."""
    problem = subject.problem(Asked())
    reply, seen = subject.reply(problem), subject.seen(Asked())
    if seen.error:
        yield undetermined("plain answer", seen.error)
        return
    sums = seen.weights.sum(-1)
    told = f"rows of the weights sum to {sums.min():.4g}" + ("" if np.ptp(sums) < HALF else f" .. {sums.max():.4g}")
    right = near(reply.output, subject.expected(problem), subject.dtype)
    yield Finding("plain answer", RIGHT, told) if right else undetermined("plain answer", _described(seen, told))
    factor, why = slope(seen, problem)
    yield _named_scale(factor, why, subject)


def _described(seen: Seen, told: str) -> str:
    columns = seen.weights.sum(-2)
    if np.abs(columns - 1.0).max() < HALF:
        return "the weights of a key sum to 1 over the queries"
    return f"another answer: {told}"


def slope(seen: Seen, problem: Problem) -> tuple[float, str]:
    """By what q . k is multiplied before the exponential; or why no one number is it."""
    query, key = _heads(problem)
    products = query @ key.swapaxes(-1, -2)
    visible = seen.weights > np.finfo(np.float32).tiny
    if not visible.all():
        return 0.0, "some weights are zero, negative or NaN"
    logs = np.log(seen.weights)
    got, wanted = (x - x.mean(-1, keepdims=True) for x in (logs, products))
    factor = float((got * wanted).sum() / (wanted**2).sum())
    off = float(np.abs(got - factor * wanted).max())
    return factor, "" if off <= 64 * HALF else f"scores are no multiple of q . k: off by up to {off:.2g}"


def _heads(problem: Problem) -> tuple[Floats, Floats]:
    if problem.scope is Scope.OP:
        return problem.query.astype(np.float64), problem.key.astype(np.float64)
    tables = [problem.parameters[name].astype(np.float64) for name in ("w_q", "w_k")]
    inputs = [x.astype(np.float64) for x in (problem.query, problem.key)]
    found = [x @ w for x, w in zip(inputs, tables, strict=True)]
    return tuple(x.reshape(*x.shape[:2], problem.num_heads, -1).swapaxes(1, 2) for x in found)  # type: ignore[return-value]


def _named_scale(factor: float, why: str, subject: Subject) -> Finding:
    if why:
        return undetermined("default scale", f"none of the known: {why}")
    heads, width = subject.form.num_heads, subject.form.width
    known: Mapping[str, float] = {
        "1/sqrt(d_k)": width**-0.5,
        "1": 1.0,
        "1/d_k": 1.0 / width,
        "sqrt(d_k)": width**0.5,
        "1/sqrt(H d_k)": (heads * width) ** -0.5,
        "1/sqrt(Lk)": lengths(subject)[1] ** -0.5,
    }
    told = f"d_k {width}: q . k is multiplied by {factor:.4g}"
    fits = [name for name, value in known.items() if abs(factor - value) <= 16 * HALF * value]
    return (
        Finding("default scale", fits[0], told) if fits else undetermined("default scale", f"none of the known: {told}")
    )


def scale(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Whether a given scale is used."""
    asked = Asked().given(scale=GIVEN)
    seen = subject.seen(asked)
    if seen.error:
        yield Finding("given scale", ABSENT, f"refused: {seen.error}")
        return
    if unchanged(subject, seen):
        yield Finding("given scale", ABSENT, IGNORED)
        return
    factor, why = slope(seen, subject.problem(asked))
    told = why or f"scale {GIVEN}: q . k is multiplied by {factor:.4g}"
    known = {"used": GIVEN, "used beside the default": GIVEN * subject.form.width**-0.5, "divides": 1.0 / GIVEN}
    fits = [name for name, value in known.items() if not why and abs(factor - value) <= 16 * HALF * value]
    yield Finding("given scale", fits[0], told) if fits else undetermined("given scale", told)


def widths(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Whether Lq may differ from Lk, d_v from d_k, and key from value."""
    own = {Sharing.NONE: OFFERED, Sharing.KEY_VALUE: ABSENT, Sharing.SELF: ABSENT}[subject.form.sharing]
    yield Finding("key and value apart", own, "they are inputs of their own" if own == OFFERED else "one input")
    if lengths(subject)[0] == lengths(subject)[1]:
        yield Finding("Lq other than Lk", ABSENT, "one input for queries and keys")
    else:
        seen = subject.seen(Asked())
        yield _relation("Lq other than Lk", seen, subject.seen(replace(Asked(), query_length=3)), slice(0, 3))
    yield _value_width(subject)
    if subject.form.scope is Scope.MODULE:
        yield from _input_widths(subject)


def _value_width(subject: Subject) -> Finding:
    """Asked with an output as wide as all heads together, and then with one as wide as the query."""
    problem = subject.problem(replace(Asked(), d_v=11))
    reply = subject.reply(problem)
    if reply.error and "w_o" in problem.parameters:
        gap = problem.query.shape[-1] - problem.parameters["w_o"].shape[1]
        other = subject.reply(padded(problem, output=gap))
        reply = reply if other.error else other
    return _relation("d_v other than d_k", subject.seen(Asked()), revealed(reply, problem), slice(None))


def _input_widths(subject: Subject) -> Iterator[Finding]:
    """Whether the inputs of a module may be wider than its heads, and different from each other."""
    asked = {"width of the model": (5, 5, 5)}
    if subject.form.sharing is not Sharing.SELF:
        asked["widths of the inputs"] = (0, 3, 7 if subject.form.sharing is Sharing.NONE else 3)
    problem = subject.problem(Asked())
    plain = subject.reply(problem)
    for question, more in asked.items():
        told = f"query, key and value wider than the heads by {', '.join(map(str, more))}"
        replies = {output: subject.reply(padded(problem, *more, output)) for output in dict.fromkeys((more[0], 0))}
        answered = {output: reply for output, reply in replies.items() if not reply.error}
        if not answered:
            yield Finding(question, ABSENT, f"refused: {replies[more[0]].error}")
            continue
        output, reply = next(iter(answered.items()))
        right = near(reply.output[..., : plain.output.shape[-1]], plain.output, subject.dtype)
        yield Finding(question, OFFERED, told) if right else undetermined(question, f"another answer to {told}")
        if question == "width of the model" and "w_o" in problem.parameters:
            yield Finding("width of the output", "that of the query" if output else "that of the heads", told)


def _relation(question: str, whole: Seen, part: Seen, rows: slice) -> Finding:
    """Offered where an answer comes, in the shape that was asked for."""
    if part.error:
        return Finding(question, ABSENT, f"refused: {part.error}")
    if whole.error:
        return undetermined(question, whole.error)
    if part.weights.shape == whole.weights[:, :, rows].shape:
        return Finding(question, OFFERED, "answered")
    return undetermined(question, f"its output shows weights of shape {part.weights.shape}")


def groups(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Fewer key heads than query heads, and which query head uses which."""
    if subject.form.num_heads == 1:
        return
    count = subject.form.num_heads
    asked = Asked(groups=2)
    problem = subject.problem(asked)
    reply = subject.reply(problem)
    if reply.error:
        yield Finding("grouped heads", ABSENT, f"refused: {reply.error}")
        return
    answers = {str(o): subject.expected(problem, Conventions(group_order=o)) for o in GroupOrder}
    fits = [order for order, expected in answers.items() if near(reply.output, expected, subject.dtype)]
    shares = _shares(subject, problem)
    if len(fits) == 1:
        used = shares or f"each of {count} key heads served 2 query heads"
        yield Finding("grouped heads", OFFERED, f"{2 * count} query heads, {count} key heads")
        yield Finding("group order", fits[0], used)
    else:
        yield undetermined("grouped heads", shares or "its output fits no known order of heads")


def _shares(subject: Subject, problem: Problem) -> str:
    """Which key head each query head took its values from: the values of key head g are multiplied by g + 1."""
    if problem.scope is not Scope.OP:
        return ""
    heads = np.arange(1, problem.num_kv_heads + 1, dtype=problem.value.dtype)[:, None, None]
    reply = subject.reply(problem.with_arrays({"value": problem.value * heads}))
    if reply.error or reply.output.ndim != 4:
        return ""
    used = np.rint(np.nan_to_num(reply.output.sum(-1).mean((0, 2)))) - 1
    return f"query heads 0..{len(used) - 1} used the values of key heads {', '.join(str(int(g)) for g in used)}"


def precision(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """In which precision float64 is worked out."""
    question = "softmax of float64"
    if "float64" not in facts.answer("dtypes") or facts.answer("plain answer") != RIGHT:
        lacking = "it does not take float64" if facts.answer("plain answer") == RIGHT else "its plain answer is another"
        yield undetermined(question, lacking)
        return
    wide = replace(subject, dtype="float64")
    problem = wide.problem(replace(Asked(), units=False, score_std=1.7))
    reply = wide.reply(problem)
    if reply.error:
        yield undetermined(question, reply.error)
        return
    for known in SoftmaxPrecision:
        expected = solve(problem.forward_only(), Conventions(softmax_precision=known)).parts["output"]
        if (worst := _ratio(reply.output, expected)) <= 1.0:
            off = float(np.abs(reply.output - expected.value).max())
            yield Finding(question, str(known), f"float64 answers are off by up to {off:.2g}, {worst:.2g} of the bound")
            return
    yield undetermined(question, f"its error is {worst:.3g} times what float32 inside may leave")


def _ratio(got: Floats, expected: Expected) -> float:
    if got.shape != expected.value.shape or not np.isfinite(got).all():
        return np.inf
    return float((np.abs(got - expected.value) / expected.bound).max())
