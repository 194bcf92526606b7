"""Further options: windows, caps, positions, sinks and documents, each held against the answers that are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from attention_conformance.implementations.discovery.audit.findings import (
    ABSENT,
    IGNORED,
    OFFERED,
    Facts,
    Finding,
    spans,
    undetermined,
)
from attention_conformance.implementations.discovery.audit.masks import empty
from attention_conformance.implementations.discovery.audit.posing import (
    KEYS,
    Asked,
    Floats,
    Subject,
    near,
    revealed,
    rounded,
)
from attention_conformance.reference.expected import solve
from attention_conformance.spec.extensions import Extension, Packing
from attention_conformance.spec.features import Conventions, RotaryPairing, Scope, WindowCount
from attention_conformance.spec.problem import Array, Problem

SQUARE = replace(Asked(), query_length=KEYS)


@dataclass(frozen=True)
class Option:
    """One thing beyond the core.

    Attributes:
        name: the question.
        extension: what asks it, with the flag `causal`.
        arrays: its arrays in float64, by the number of heads; those of a module that are parameters are told apart.
        meanings: the conventions under which the reference gives the answers that are known, by their names.
    """

    name: str
    extension: Extension
    arrays: Callable[[int], Mapping[str, Array]] = lambda heads: {}
    meanings: Mapping[str, Conventions] = field(default_factory=lambda: {OFFERED: Conventions()})
    causal: bool = False
    module_only: bool = False


def _drawn(heads: int, *shape: int) -> Array:
    return np.random.default_rng(8).uniform(0.3, 1.4, (heads, *shape))


def _segments(heads: int) -> Mapping[str, Array]:
    ids = np.array([[0] * 3 + [1] * (KEYS - 3), [0] * 4 + [1] * (KEYS - 4)])
    return {"query_segments": ids, "key_segments": ids.copy()}


def _documents(heads: int) -> Mapping[str, Array]:
    return {name: np.array([3, KEYS - 3]) for name in ("query_lengths", "key_lengths")}


OPTIONS = (
    Option(
        "window",
        Extension(left=2, right=1),
        meanings={str(each): Conventions(window_count=each) for each in WindowCount},
    ),
    Option("softcap", Extension(softcap=1.5)),
    Option(
        "rotary embedding",
        Extension(rotary_base=50.0),
        meanings={str(each): Conventions(rotary_pairing=each) for each in RotaryPairing},
    ),
    Option("query start", Extension(query_start=2), causal=True),
    Option("ALiBi", Extension(alibi=True), lambda heads: {"alibi_slopes": _drawn(heads)}),
    Option("relative bias", Extension(relative_bias=2), lambda heads: {"relative_bias": _drawn(heads, 5)}),
    Option("sinks", Extension(sinks=True), lambda heads: {"sinks": _drawn(heads)}),
    Option("key of zeros", Extension(zero_attn=True)),
    Option("learned key and value", Extension(bias_kv=True), module_only=True),
    Option("head gates", Extension(head_gates=True), lambda heads: {"head_gates": _drawn(heads)}),
    Option("segments", Extension(packing=Packing.SEGMENTS), _segments),
    Option("cumulative lengths", Extension(packing=Packing.LENGTHS), _documents),
)
BY_NAME = {option.name: option for option in OPTIONS}


def asking(option: Option) -> Callable[[Subject, Facts], Iterator[Finding]]:
    """The probe of one option."""

    def probe(subject: Subject, facts: Facts) -> Iterator[Finding]:
        if not option.module_only or subject.form.scope is Scope.MODULE:
            yield _asked(subject, option)

    return probe


def posed(subject: Subject, option: Option) -> Problem:
    """The problem that asks for an option."""
    asked = replace(SQUARE, extension=option.extension, batch=1 if option.extension.packing is Packing.LENGTHS else 2)
    asked = replace(asked, query_length=5) if option.extension.query_start else asked
    problem = subject.problem(asked.given(causal=option.causal))
    arrays = option.arrays(problem.num_heads)
    problem = replace(problem, extras=arrays)
    if option.extension.bias_kv:
        width = problem.parameters["w_k"].shape[1]
        learned = {"bias_k": _drawn(width), "bias_v": _drawn(width) * np.resize([1.0, -1.0, 2.0], width)}
        problem = replace(problem, parameters={**problem.parameters, **learned})
    return rounded(problem, subject.dtype)


def _asked(subject: Subject, option: Option) -> Finding:
    problem = posed(subject, option)
    reply = subject.reply(problem)
    if reply.error:
        return Finding(option.name, ABSENT, f"refused: {reply.error}")
    parameters = {n: a for n, a in problem.parameters.items() if not n.startswith("bias_")}
    bare = replace(problem, extension=Extension(), extras={}, parameters=parameters)
    if near(reply.output, subject.reply(bare).output, subject.dtype):
        return Finding(option.name, ABSENT, IGNORED)
    expected = {name: subject.expected(problem, meant) for name, meant in option.meanings.items()}
    fits = [name for name, each in expected.items() if near(reply.output, each, subject.dtype)]
    seen = revealed(reply, problem)
    told = "" if seen.error else f"query 4 used keys {spans(np.flatnonzero(seen.used()[0, 0, 4]))}"
    told = told if option.name in ("window", "segments", "cumulative lengths") else ""
    if len(fits) != 1:
        return undetermined(option.name, f"it changes the answer, to none that is known. {told}".strip())
    return Finding(option.name, fits[0], told)


def beyond_window(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """A query that a window leaves no key, which is answered as one that the causal flag leaves none."""
    if facts.answer("causal alignment") != "top-left" or not facts.answer("window") or facts.absent("window"):
        return
    asked = replace(Asked(), query_length=6, key_length=3, extension=Extension(left=1)).given(causal=True)
    finding = empty(subject, "row emptied by the causal flag", asked, (slice(None), 5))
    if finding.determined and finding.answer not in ("refused", "as if unmasked"):
        yield replace(
            finding, evidence=f"causal with a window of 1 to the left, Lq 6, Lk 3, query 5: {finding.evidence}"
        )


def cap_order(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Whether scores are capped before a float mask is added."""
    if facts.answer("softcap") != OFFERED or facts.answer("float mask") != "added":
        return
    mask = np.random.default_rng(9).standard_normal((KEYS, KEYS)) * 2.0
    cap = Option("softcap", Extension(softcap=1.5))
    problem = replace(posed(subject, cap), attn_mask=mask)
    problem = rounded(problem, subject.dtype)
    reply = subject.reply(problem)
    plain = subject.expected(replace(problem, extension=Extension()))
    before = subject.expected(problem)
    after = _capped_after(subject, problem, plain)
    known = {"cap before mask": before, "mask before cap": after}
    fits = [name for name, each in known.items() if near(reply.output, each, subject.dtype)]
    evidence = "float mask of up to 4, cap 1.5"
    yield Finding("softcap order", fits[0], evidence) if len(fits) == 1 else undetermined("softcap order", evidence)


def _capped_after(subject: Subject, problem: Problem, plain: Floats) -> Floats:
    """The answer where mask and scores are capped together: the softmax of cap(scores + mask)."""
    cap = problem.extension.softcap
    assert cap is not None
    bare = replace(problem, extension=Extension())
    scores = solve(bare.forward_only()).trace.scores
    capped = cap * np.tanh(scores / cap)
    weights = np.exp(capped - capped.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    output = np.zeros((*weights.shape[:3], subject.form.width))
    output[..., : weights.shape[-1]] = weights
    if problem.scope is Scope.MODULE:
        return output.swapaxes(1, 2).reshape(plain.shape)
    return output
