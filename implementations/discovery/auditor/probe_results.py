"""Probes of results: extra results, training, and unusual inputs such as NaN, views and empty arrays."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.auditor.findings import (
    ABSENT,
    NOT_RETURNED,
    OFFERED,
    Facts,
    Finding,
)
from attention_conformance.implementations.discovery.auditor.probe_masks import mask_extents, masks_offered
from attention_conformance.implementations.discovery.extra_options import DROPOUT
from attention_conformance.implementations.discovery.probe import (
    HALF,
    KEYS,
    Floats,
    ObservedWeights,
    Oracle,
    Setup,
    Subject,
    near,
    revealed,
    rounded,
)
from attention_conformance.spec.cases import Layout, Sharing
from attention_conformance.spec.conventions import AlibiRule, Conventions, LogBase, ReturnedWeights, SinusoidOrder
from attention_conformance.spec.problem import Array


def returned(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Weights and log-sum-exps returned in addition to the output."""
    problem = subject.problem()
    reply = subject.reply(problem)
    observed, result = revealed(reply, problem), reply.result
    if result is None or observed.error:
        return
    for topic, got, expected in (
        ("weights", result.weights, observed.weights),
        ("averaged-weights", result.averaged_weights, observed.weights.mean(1)),
    ):
        if got is None:
            yield Finding(topic, ABSENT, NOT_RETURNED)
        else:
            right = subject.near(got.astype(np.float64), expected)
            relation = "equal to" if right else "not"
            yield Finding.offered(topic, right, f"shape {got.shape}, {relation} the weights that made the output")
    yield from _log_sum_exp(subject, result.log_sum_exp)


def _log_sum_exp(subject: Subject, got: Array | None) -> Iterator[Finding]:
    if got is None:
        yield Finding("log-sum-exp", ABSENT, NOT_RETURNED)
        return
    problem = subject.problem()
    known = {
        str(base): subject.solution(problem, Conventions(log_sum_exp_base=base))["log_sum_exp"].value
        for base in LogBase
    }
    fits = [name for name, expected in known.items() if near(got.astype(np.float64), expected)]
    evidence = f"first row: {got.reshape(-1)[0]:.5g}{'' if fits else ', neither to base e nor to base 2'}"
    yield Finding.offered("log-sum-exp", bool(fits), evidence)
    if fits:
        yield Finding("log-sum-exp-base", fits[0], evidence)


def dropout(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Dropout: which weights are dropped, whether the mode matters, and which weights are returned with it."""
    problem = subject.problem(Setup(extension=DROPOUT))
    reply, plain = subject.reply(problem), subject.weights()
    observed = revealed(reply, problem)
    if error := observed.error or plain.error:
        yield Finding.refused("dropout", error)
        return
    if np.allclose(observed.weights, plain.weights, atol=HALF):
        yield Finding.ignored("dropout")
        return
    yield _dropped(observed, plain)
    assert reply.result is not None
    yield from _returned_weights(reply.result)
    yield _evaluation(subject, plain)


def _returned_weights(result: Result) -> Iterator[Finding]:
    weights = result.averaged_weights if result.weights is None else result.weights
    if weights is not None:
        sums = weights.astype(np.float64).sum(-1)
        before = bool(np.abs(sums - 1.0).max() <= HALF)
        answer = ReturnedWeights.BEFORE_DROPOUT if before else ReturnedWeights.AFTER_DROPOUT
        evidence = f"p 0.5: rows of the returned weights sum to {sums.min():.3g} .. {sums.max():.3g}"
        yield Finding("returned-weights", str(answer), evidence)


def _evaluation(subject: Subject, plain: ObservedWeights) -> Finding:
    evaluating = subject.weights(Setup(extension=replace(DROPOUT, evaluation=True)))
    if evaluating.error:
        return Finding.refused("evaluation", evaluating.error)
    same = np.allclose(evaluating.weights, plain.weights, atol=HALF)
    return Finding.offered(
        "evaluation", same, "p 0.5: nothing is dropped" if same else "p 0.5: the answer changes, too"
    )


def _dropped(observed: ObservedWeights, plain: ObservedWeights) -> Finding:
    """Each weight is either dropped or doubled."""
    dropped = np.abs(observed.weights) <= HALF * plain.weights
    doubled = np.abs(observed.weights - 2.0 * plain.weights) <= 8 * HALF * plain.weights
    evidence = f"p 0.5: of {dropped.size} weights {dropped.sum()} were dropped, {doubled.sum()} doubled"
    return Finding.offered("dropout", bool((dropped | doubled).all()) and 0.3 < dropped.mean() < 0.7, evidence)


def gradients(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Gradients of inputs and parameters, and of a float mask."""
    setup = Setup(units=False)
    yield _gradient(subject, "gradients", setup)
    if facts.answer("float-mask") != ABSENT and facts.answer("gradients") != ABSENT:
        mask = np.random.default_rng(11).standard_normal(mask_extents(subject))
        yield _gradient(subject, "mask-gradient", setup.given(attn_mask=mask), "attn_mask")


def _gradient(subject: Subject, topic: str, setup: Setup, only: str = "") -> Finding:
    problem = subject.problem(setup)
    shape = subject.expected(problem).shape
    names = tuple(n for n, a in problem.arrays().items() if a.dtype.kind not in "bi")
    problem = replace(problem, cotangent=np.random.default_rng(10).standard_normal(shape), needs=names)
    problem = rounded(problem, subject.dtype)
    reply = subject.reply(problem)
    if reply.result is None:
        return Finding.refused(topic, reply.error)
    got = reply.result.gradients
    expected = (only,) if only else names
    if missing := [name for name in expected if name not in got]:
        return Finding(topic, ABSENT, f"none was returned for {missing[0]}")
    parts = subject.solution(problem)
    wrong = [n for n in expected if not subject.near(got[n].astype(np.float64), parts[f"gradients.{n}"].value)]
    if wrong:
        return Finding(topic, "given, of other values", f"of {', '.join(wrong)}")
    return Finding(topic, OFFERED, f"right for {', '.join(expected)}")


def containment(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """NaN in keys and values that no query may see, under each kind of mask that is offered."""
    if subject.self_attention:
        return
    row = np.arange(KEYS) != 2
    visible = np.broadcast_to(row, mask_extents(subject))
    names = ("key", "value") if subject.interface.sharing is Sharing.NONE else ("key",)
    answers = {
        f"NaN in {name}s, {kind} mask": _effect_of_nan(subject, setup, name)
        for kind, setup in masks_offered(subject, facts, visible, np.stack([row, row]))
        for name in names
    }
    if answers:
        contained = all(answer == "contained" for answer in answers.values())
        evidence = "; ".join(f"{place}: {answer}" for place, answer in answers.items())
        yield Finding("containment", OFFERED if contained else ABSENT, evidence)


def _effect_of_nan(subject: Subject, setup: Setup, name: str) -> str:
    problem = subject.problem(setup)
    array = problem.arrays()[name].copy()
    array[..., 2, :] = np.nan
    before, after = subject.reply(problem), subject.reply(problem.with_arrays({name: array}))
    if after.error:
        return f"refused: {after.error}"
    return "contained" if subject.near(after.output, before.output) else "NaN in the output"


def views(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Views of arrays."""
    problem = subject.problem(Setup(units=False))
    plain = subject.reply(problem)
    errors = {}
    for layout in Layout:
        if layout not in (Layout.CONTIGUOUS, Layout.BROADCAST, Layout.FORTRAN):
            reply = subject.reply(replace(problem, layout=layout))
            same = subject.near(reply.output, plain.output)
            errors[str(layout)] = reply.error or ("" if same else "another answer")
    wrong = "; ".join(f"{layout}: {why}" for layout, why in errors.items() if why)
    yield Finding("views", ABSENT if wrong else OFFERED, wrong or f"the same answer to {', '.join(errors)} arrays")


def empty_sizes(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """No samples, no queries, no keys."""
    setups = {"no samples": Setup(batch=0), "no queries": Setup(query_length=0), "no keys": Setup(key_length=0)}
    replies = {empty: subject.reply(subject.problem(setup)) for empty, setup in setups.items()}
    evidence = "; ".join(
        f"{empty}: " + (f"refused: {reply.error}" if reply.error else _shown(reply.output))
        for empty, reply in replies.items()
    )
    whole = not replies["no samples"].error and not replies["no keys"].error
    yield Finding("empty-sizes", OFFERED if whole else ABSENT, evidence)


def _shown(output: Floats) -> str:
    if output.size == 0:
        return f"shape {output.shape}"
    return "NaN" if np.isnan(output).any() else "zeros" if not output.any() else "other numbers"


def functions(given: Mapping[str, object], oracle: Oracle) -> Iterator[Finding]:
    """The plain functions of an implementation: the order of sinusoids, the rule of slopes."""
    if "sinusoids" in given:
        known = {str(o): oracle.sinusoids(5, 6, o, "float32").value for o in SinusoidOrder}
        yield _function("sinusoid-order", given["sinusoids"], (5, 6), known)
    if "alibi_slopes" in given:
        known = {str(r): oracle.alibi_slopes(6, r, "float32").value for r in AlibiRule}
        yield _function("alibi-rule", given["alibi_slopes"], (6,), known)


def _function(topic: str, function: object, arguments: tuple[int, ...], known: Mapping[str, Floats]) -> Finding:
    outcome = safe_call(lambda: np.asarray(function(*arguments), np.float64))  # type: ignore[operator]
    if outcome.value is None:
        return Finding.undetermined(topic, outcome.error)
    fits = [name for name, expected in known.items() if near(outcome.value, expected)]
    end = " ".join(f"{x:.4g}" for x in outcome.value.reshape(-1)[-3:])
    return Finding.the_one(topic, fits[:1], f"it ends with {end}" if fits else end)
