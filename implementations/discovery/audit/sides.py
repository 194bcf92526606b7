"""Sides: what comes with the output, in training, and on inputs at the edge of what is usual."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.discovery.audit.findings import (
    ABSENT,
    IGNORED,
    NOT_RETURNED,
    OFFERED,
    Facts,
    Finding,
    undetermined,
)
from attention_conformance.implementations.discovery.audit.masks import MASKED_OUT, full, lengths
from attention_conformance.implementations.discovery.audit.posing import (
    HALF,
    Asked,
    Floats,
    Reply,
    Seen,
    Subject,
    near,
    revealed,
    rounded,
)
from attention_conformance.reference.encodings import alibi_slopes, sinusoids
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Layout, Sharing
from attention_conformance.spec.extensions import Extension
from attention_conformance.spec.features import AlibiRule, Conventions, LogBase, Scope, SinusoidOrder
from attention_conformance.spec.problem import Array

DROPPING = Extension(dropout=0.5, draw=1)


def returned(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Weights and log-sum-exps beside the output."""
    problem = subject.problem(Asked())
    reply = subject.reply(problem)
    seen, result = revealed(reply, problem), reply.result
    if result is None or seen.error:
        return
    for question, got, expected in (
        ("weights of each head", result.weights, seen.weights),
        ("averaged weights", result.averaged_weights, seen.weights.mean(1)),
    ):
        if got is None:
            yield Finding(question, ABSENT, NOT_RETURNED)
        elif near(got.astype(np.float64), expected, subject.dtype):
            yield Finding(question, OFFERED, f"shape {got.shape}, equal to the weights that made the output")
        else:
            yield undetermined(question, f"shape {got.shape}, not the weights that made the output")
    yield _log_sum_exp(subject, result.log_sum_exp)


def _log_sum_exp(subject: Subject, got: Array | None) -> Finding:
    question = "log-sum-exp"
    if got is None:
        return Finding(question, ABSENT, NOT_RETURNED)
    problem = subject.problem(Asked())
    for base in LogBase:
        expected = solve(problem, Conventions(log_sum_exp_base=base)).parts["log_sum_exp"].value
        if near(got.astype(np.float64), expected, "float32"):
            return Finding(question, f"base {base}", f"first row: {got.reshape(-1)[0]:.5g}")
    return undetermined(question, f"first row: {got.reshape(-1)[0]:.5g}, neither to base e nor to base 2")


def dropout(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Dropout: what is dropped, whether the mode counts, and which weights are returned then."""
    asked = replace(Asked(), extension=DROPPING)
    problem = subject.problem(asked)
    reply, plain = subject.reply(problem), subject.seen(Asked())
    seen = revealed(reply, problem)
    if seen.error or plain.error:
        yield Finding("dropout", ABSENT, f"refused: {seen.error or plain.error}")
        return
    if np.allclose(seen.weights, plain.weights, atol=HALF):
        yield Finding("dropout", ABSENT, IGNORED)
        return
    yield _dropped(seen, plain)
    if reply.result is not None and (weights := _returned(reply)) is not None:
        sums = weights.astype(np.float64).sum(-1)
        whole = bool(np.abs(sums - 1.0).max() <= HALF)
        told = f"p 0.5: rows of the returned weights sum to {sums.min():.3g} .. {sums.max():.3g}"
        yield Finding("returned weights", "before-dropout" if whole else "after-dropout", told)
    quiet = subject.seen(replace(asked, extension=replace(DROPPING, evaluating=True)))
    if quiet.error:
        yield Finding("evaluation mode", ABSENT, f"refused: {quiet.error}")
    elif np.allclose(quiet.weights, plain.weights, atol=HALF):
        yield Finding("evaluation mode", OFFERED, "p 0.5: nothing is dropped in it")
    else:
        yield undetermined("evaluation mode", "p 0.5: the answer changes in it, too")


def _returned(reply: Reply) -> Array | None:
    assert reply.result is not None
    return reply.result.weights if reply.result.weights is not None else reply.result.averaged_weights


def _dropped(seen: Seen, plain: Seen) -> Finding:
    """Each weight is either gone or doubled."""
    gone = np.abs(seen.weights) <= HALF * plain.weights
    kept = np.abs(seen.weights - 2.0 * plain.weights) <= 8 * HALF * plain.weights
    told = f"p 0.5: of {gone.size} weights {gone.sum()} were dropped, {kept.sum()} doubled"
    likely = 0.3 < gone.mean() < 0.7
    if bool((gone | kept).all()) and likely:
        return Finding("dropout", OFFERED, told)
    return undetermined("dropout", told)


def gradients(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Gradients of inputs and parameters, and of a float mask."""
    asked = replace(Asked(), units=False)
    yield _gradient(subject, "gradients", asked)
    if facts.answer("float mask") != ABSENT and facts.answer("gradients") != ABSENT:
        mask = np.random.default_rng(11).standard_normal(full(subject).shape)
        yield _gradient(subject, "gradient of a float mask", asked.given(attn_mask=mask), "attn_mask")


def _gradient(subject: Subject, question: str, asked: Asked, only: str = "") -> Finding:
    problem = subject.problem(asked)
    shape = subject.expected(problem).shape
    names = tuple(n for n, a in problem.arrays().items() if a.dtype.kind not in "bi")
    problem = replace(problem, cotangent=np.random.default_rng(10).standard_normal(shape), needs=names)
    problem = rounded(problem, subject.dtype)
    reply = subject.reply(problem)
    if reply.result is None:
        return Finding(question, ABSENT, f"refused: {reply.error}")
    got = reply.result.gradients
    wanted = (only,) if only else names
    if missing := [name for name in wanted if name not in got]:
        return Finding(question, ABSENT, f"none came for {missing[0]}")
    parts = solve(problem).parts
    wrong = [n for n in wanted if not near(got[n].astype(np.float64), parts[f"gradients.{n}"].value, subject.dtype)]
    if wrong:
        return Finding(question, "given, of other values", f"of {', '.join(wrong)}")
    return Finding(question, OFFERED, f"right for {', '.join(wanted)}")


def containment(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """NaN in keys and values that no query may see, under each kind of mask that it knows."""
    if subject.form.scope is Scope.MODULE and subject.form.sharing is Sharing.SELF:
        return
    masked = dict(_hidden(subject, facts))
    names = ("key", "value") if subject.form.sharing is Sharing.NONE else ("key",)
    told = {
        f"NaN in {name}s masked by {kind}": _spoilt(subject, asked, name)
        for kind, asked in masked.items()
        for name in names
    }
    if told:
        whole = all(answer == "contained" for answer in told.values())
        evidence = "; ".join(f"{what}: {answer}" for what, answer in told.items())
        yield Finding("containment of NaN", OFFERED if whole else ABSENT, evidence)


def _hidden(subject: Subject, facts: Facts) -> Iterator[tuple[str, Asked]]:
    """Problems in which no query may see key 2, by the kind of mask."""
    keys = lengths(subject)[1]
    keep = np.broadcast_to(np.arange(keys) != 2, full(subject).shape)
    if (polarity := facts.answer("boolean mask")).startswith("True"):
        yield "a boolean mask", Asked().given(attn_mask=~keep if polarity == MASKED_OUT else keep.copy())
    if facts.answer("minus infinity in a float mask") == "masks":
        yield "minus infinity", Asked().given(attn_mask=np.where(keep, 0.0, -np.inf))
    if (polarity := facts.answer("key padding")).startswith("True"):
        real = np.broadcast_to(np.arange(keys) != 2, (2, keys)).copy()
        yield "padding", Asked().given(key_padding_mask=~real if polarity == MASKED_OUT else real)


def _spoilt(subject: Subject, asked: Asked, name: str) -> str:
    problem = subject.problem(asked)
    array = problem.arrays()[name].copy()
    array[..., 2, :] = np.nan
    before, after = subject.reply(problem), subject.reply(problem.with_arrays({name: array}))
    if after.error:
        return f"refused: {after.error}"
    return "contained" if near(after.output, before.output, subject.dtype) else "NaN in the output"


def views(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Views of arrays."""
    problem = subject.problem(replace(Asked(), units=False))
    plain = subject.reply(problem)
    others = {}
    for layout in Layout:
        if layout not in (Layout.CONTIGUOUS, Layout.BROADCAST):
            reply = subject.reply(replace(problem, layout=layout))
            same = near(reply.output, plain.output, subject.dtype)
            others[f"{layout}"] = reply.error or ("" if same else "another answer")
    wrong = "; ".join(f"{layout}: {why}" for layout, why in others.items() if why)
    yield Finding("views", ABSENT if wrong else OFFERED, wrong or f"the same answer to {', '.join(others)} arrays")


def empty_sizes(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """No samples, no queries, no keys."""
    told = {}
    for what, asked in (
        ("no samples", replace(Asked(), batch=0)),
        ("no queries", replace(Asked(), query_length=0)),
        ("no keys", replace(Asked(), key_length=0)),
    ):
        problem = subject.problem(asked)
        reply = subject.reply(problem)
        told[what] = f"refused: {reply.error}" if reply.error else _empty_told(subject, reply.output, problem.key.size)
    whole = not any(told[what].startswith("refused") for what in ("no samples", "no keys"))
    yield Finding("empty sizes", OFFERED if whole else ABSENT, "; ".join(f"{w}: {a}" for w, a in told.items()))


def _empty_told(subject: Subject, output: Floats, keys: int) -> str:
    if output.size == 0:
        return f"shape {output.shape}"
    return "NaN" if np.isnan(output).any() else "zeros" if not output.any() else "other numbers"


def functions(given: Mapping[str, object]) -> Iterator[Finding]:
    """The plain functions beside the attention: the order of sinusoids, the rule of slopes."""
    if "sinusoids" in given:
        known = {str(o): sinusoids(5, 6, o, "float32").value for o in SinusoidOrder}
        yield _function("sinusoid order", given["sinusoids"], (5, 6), known)
    if "alibi_slopes" in given:
        known = {str(r): alibi_slopes(6, r, "float32").value for r in AlibiRule}
        yield _function("ALiBi slopes of 6 heads", given["alibi_slopes"], (6,), known)


def _function(question: str, function: object, arguments: tuple[int, ...], known: Mapping[str, Floats]) -> Finding:
    try:
        got = np.asarray(function(*arguments), np.float64)  # type: ignore[operator]
    except Exception as error:
        return undetermined(question, f"{type(error).__name__}: {error}")
    fits = [name for name, expected in known.items() if near(got, expected)]
    told = " ".join(f"{x:.4g}" for x in got.reshape(-1)[-3:])
    return Finding(question, fits[0], f"it ends with {told}") if fits else undetermined(question, told)
