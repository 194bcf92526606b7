"""Probes of plain attention: what it computes, by what its scores are multiplied, and in which precision."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.discovery.auditor.findings import ABSENT, OFFERED, Facts, Finding
from attention_conformance.implementations.discovery.auditor.probe_masks import without_effect
from attention_conformance.implementations.discovery.probe import (
    HALF,
    KEYS,
    PLAIN_SETUP,
    Bounded,
    Floats,
    ObservedWeights,
    Setup,
    Subject,
    padded,
    revealed,
)
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.conventions import Conventions, GroupOrder, SoftmaxPrecision
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Problem

RIGHT = "softmax(Q K^T / sqrt(d_k)) V"
GIVEN = 0.3
"""A scale that is nobody's default."""


def plain(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """The plain answer, and what the scores are multiplied by where no scale is given."""
    problem = subject.problem()
    reply = subject.reply(problem)
    observed = revealed(reply, problem)
    if observed.error:
        yield Finding.undetermined("plain answer", observed.error)
        return
    sums = observed.weights.sum(-1)
    evidence = f"rows of the weights sum to {sums.min():.4g}" + ("" if np.ptp(sums) < HALF else f" .. {sums.max():.4g}")
    if subject.near(reply.output, subject.expected(problem)):
        yield Finding("plain answer", RIGHT, evidence)
    elif np.abs(observed.weights.sum(-2) - 1.0).max() < HALF:
        yield Finding.undetermined("plain answer", "the weights of a key sum to 1 over the queries")
    else:
        yield Finding.undetermined("plain answer", f"another answer: {evidence}")
    yield _default_scale(*score_factor(observed, problem), subject)


def score_factor(observed: ObservedWeights, problem: Problem) -> tuple[float, str]:
    """By what q . k is multiplied before the exponential; or why there is no such number."""
    if not (observed.weights > np.finfo(np.float32).tiny).all():
        return 0.0, "some weights are zero, negative or NaN"
    scores, products = (x - x.mean(-1, keepdims=True) for x in (np.log(observed.weights), key_products(problem)))
    factor = float((scores * products).sum() / (products**2).sum())
    off = float(np.abs(scores - factor * products).max())
    return factor, "" if off <= 64 * HALF else f"scores are no multiple of q . k: off by up to {off:.2g}"


def key_products(problem: Problem) -> Floats:
    """(B, H, Lq, Lk): q . k of a problem with as many key heads as query heads."""
    if problem.scope is Scope.OP:
        query, key = problem.query.astype(np.float64), problem.key.astype(np.float64)
    else:
        query, key = (_projected(problem, name) for name in ("query", "key"))
    return np.asarray(query @ key.swapaxes(-1, -2))


def _projected(problem: Problem, name: str) -> Floats:
    """(B, H, L, d_k): an input of a module after its projection."""
    inputs, table = getattr(problem, name).astype(np.float64), problem.parameters[f"w_{name[0]}"].astype(np.float64)
    return np.asarray((inputs @ table).reshape(*inputs.shape[:2], problem.num_heads, -1).swapaxes(1, 2))


def _default_scale(factor: float, why: str, subject: Subject) -> Finding:
    if why:
        return Finding.undetermined("default scale", f"none of the known: {why}")
    heads, width = subject.interface.num_heads, subject.interface.width
    known: Mapping[str, float] = {
        "1/sqrt(d_k)": width**-0.5,
        "1": 1.0,
        "1/d_k": 1.0 / width,
        "sqrt(d_k)": width**0.5,
        "1/sqrt(H d_k)": (heads * width) ** -0.5,
        "1/sqrt(Lk)": KEYS**-0.5,
    }
    evidence = f"d_k {width}: q . k is multiplied by {factor:.4g}"
    if fits := _equal_factors(factor, known):
        return Finding("default scale", fits[0], evidence)
    return Finding.undetermined("default scale", f"none of the known: {evidence}")


def _equal_factors(factor: float, known: Mapping[str, float]) -> list[str]:
    return [name for name, value in known.items() if abs(factor - value) <= 16 * HALF * value]


def scale(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Whether a given scale is used."""
    setup = PLAIN_SETUP.given(scale=GIVEN)
    observed = subject.weights(setup)
    if absent := without_effect(subject, "scale", observed):
        yield absent
        return
    factor, why = score_factor(observed, subject.problem(setup))
    known = {
        "used": GIVEN,
        "used in addition to the default": GIVEN * subject.interface.width**-0.5,
        "divides": 1.0 / GIVEN,
    }
    fits = [] if why else _equal_factors(factor, known)
    yield Finding.the_one("scale", fits[:1], why or f"scale {GIVEN}: q . k is multiplied by {factor:.4g}")


def widths(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Whether Lq may differ from Lk, d_v from d_k, and key from value."""
    separate = subject.interface.scope is Scope.OP or subject.interface.sharing is Sharing.NONE
    evidence = "they are separate inputs" if separate else "one input"
    yield Finding("key-value", OFFERED if separate else ABSENT, evidence)
    plain = subject.weights()
    if subject.self_attention:
        yield Finding("cross", ABSENT, "one input for queries and keys")
    else:
        yield _shape_finding("cross", plain, subject.weights(Setup(query_length=3)), slice(0, 3))
    yield _value_width(subject, plain)
    if subject.interface.scope is Scope.MODULE:
        yield from _input_widths(subject)


def _value_width(subject: Subject, plain: ObservedWeights) -> Finding:
    """Probed with an output as wide as all heads together, and then with one as wide as the query."""
    problem = subject.problem(Setup(d_v=11))
    reply = subject.reply(problem)
    if reply.error and "w_o" in problem.parameters:
        gap = problem.query.shape[-1] - problem.parameters["w_o"].shape[1]
        other = subject.reply(padded(problem, output=gap))
        reply = reply if other.error else other
    return _shape_finding("value-width", plain, revealed(reply, problem), slice(None))


def _input_widths(subject: Subject) -> Iterator[Finding]:
    """Whether the inputs of a module may be wider than its heads, and different from each other."""
    extra_columns = {"model-width": (5, 5, 5)}
    if not subject.self_attention:
        extra_columns["input-widths"] = (0, 3, 7 if subject.interface.sharing is Sharing.NONE else 3)
    problem = subject.problem()
    plain = subject.reply(problem)
    for topic, more in extra_columns.items():
        evidence = f"query, key and value wider than the heads by {', '.join(map(str, more))}"
        replies = {output: subject.reply(padded(problem, *more, output)) for output in dict.fromkeys((more[0], 0))}
        answered = {output: reply for output, reply in replies.items() if not reply.error}
        if not answered:
            yield Finding.refused(topic, replies[more[0]].error)
            continue
        output, reply = next(iter(answered.items()))
        right = subject.near(reply.output[..., : plain.output.shape[-1]], plain.output)
        yield Finding.offered(topic, right, evidence if right else f"another answer to {evidence}")
        if topic == "model-width" and "w_o" in problem.parameters:
            yield Finding("width of the output", "that of the query" if output else "that of the heads", evidence)


def _shape_finding(topic: str, plain: ObservedWeights, part: ObservedWeights, rows: slice) -> Finding:
    """Offered where an answer of the right shape comes."""
    if part.error:
        return Finding.refused(topic, part.error)
    if plain.error:
        return Finding.undetermined(topic, plain.error)
    right = part.weights.shape == plain.weights[:, :, rows].shape
    return Finding.offered(
        topic, right, "answered" if right else f"its output shows weights of shape {part.weights.shape}"
    )


def groups(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Fewer key heads than query heads, and which query head uses which."""
    count = subject.interface.num_heads
    if count == 1:
        return
    problem = subject.problem(Setup(groups=2))
    reply = subject.reply(problem)
    if reply.error:
        yield Finding.refused("grouped", reply.error)
        return
    answers = {str(o): subject.expected(problem, Conventions(group_order=o)) for o in GroupOrder}
    fits = [order for order, expected in answers.items() if subject.near(reply.output, expected)]
    used = _key_heads_used(subject, problem)
    if len(fits) == 1:
        yield Finding("grouped", OFFERED, f"{2 * count} query heads, {count} key heads")
        yield Finding("group-order", fits[0], used or f"each of {count} key heads served 2 query heads")
    else:
        yield Finding.undetermined("grouped", used or "its output fits no known order of heads")


def _key_heads_used(subject: Subject, problem: Problem) -> str:
    """Which key head gave each query head its values: the values of key head g are multiplied by g + 1."""
    if problem.scope is not Scope.OP:
        return ""
    factors = np.arange(1, problem.num_kv_heads + 1, dtype=problem.value.dtype)[:, None, None]
    reply = subject.reply(problem.with_arrays({"value": problem.value * factors}))
    if reply.error or reply.output.ndim != 4:
        return ""
    used = np.rint(np.nan_to_num(reply.output.sum(-1).mean((0, 2)))) - 1
    return f"query heads 0..{len(used) - 1} used the values of key heads {', '.join(str(int(g)) for g in used)}"


def precision(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """In which precision float64 is computed."""
    topic, right = "softmax-precision", facts.answer("plain answer") == RIGHT
    if "float64" not in facts.answer("dtypes") or not right:
        yield Finding.undetermined(topic, "it does not take float64" if right else "its plain answer is another")
        return
    wide = replace(subject, dtype="float64")
    problem = wide.problem(Setup(units=False, score_std=1.7))
    reply = wide.reply(problem)
    if reply.error:
        yield Finding.undetermined(topic, reply.error)
        return
    for known in SoftmaxPrecision:
        expected = wide.solution(problem.forward_only(), Conventions(softmax_precision=known))["output"]
        if (worst := _ratio(reply.output, expected)) <= 1.0:
            off = float(np.abs(reply.output - expected.value).max())
            yield Finding(topic, str(known), f"float64 answers are off by up to {off:.2g}, {worst:.2g} of the bound")
            return
    yield Finding.undetermined(topic, f"its error is {worst:.3g} times what float32 inside may leave")


def _ratio(got: Floats, expected: Bounded) -> float:
    if got.shape != expected.value.shape or not np.isfinite(got).all():
        return np.inf
    return float((np.abs(got - expected.value) / expected.bound).max())
