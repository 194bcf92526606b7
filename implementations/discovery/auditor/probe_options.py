"""Probes of extra options: windows, caps, positions, sinks and documents, each compared with the known answers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.discovery.auditor.claims import convention_topic
from attention_conformance.implementations.discovery.auditor.findings import OFFERED, Facts, Finding
from attention_conformance.implementations.discovery.auditor.probe_masks import empty_row
from attention_conformance.implementations.discovery.auditor.probe_scores import key_products
from attention_conformance.implementations.discovery.extra_options import (
    CAUSAL_ONLY,
    EXTRA_OPTIONS,
    drawn,
    extra_arrays,
    meanings,
)
from attention_conformance.implementations.discovery.probe import KEYS, Floats, Setup, Subject, revealed, rounded
from attention_conformance.spec.case_options import CaseOption
from attention_conformance.spec.conventions import TableForm
from attention_conformance.spec.features import Extension, Feature, Packing, RotaryTables, Scope
from attention_conformance.spec.problem import Problem

TABLES = {
    RotaryTables.POSITIONS: TableForm.POSITIONS,
    RotaryTables.TOKENS: TableForm.TOKENS,
    RotaryTables.DOUBLED: TableForm.DOUBLED,
    RotaryTables.REPEATED: TableForm.DOUBLED,
}
SHOWN_IN_WEIGHTS = (Feature.WINDOW, Feature.SEGMENTS, Feature.CUMULATIVE_LENGTHS)


def probe_of(option: CaseOption) -> Callable[[Subject, Facts], Iterator[Finding]]:
    """The probe of one option."""

    def probe(subject: Subject, facts: Facts) -> Iterator[Finding]:
        if option.keywords or subject.interface.scope is Scope.MODULE:
            yield from _findings(subject, option)

    return probe


def examples(option: CaseOption) -> Mapping[str, Extension]:
    """What shows an option, by the form of its arrays where there are several."""
    if option.feature is not Feature.ROTARY_TABLES:
        return {"": option.example}
    return {str(rows): replace(option.example, rotary_tables=rows) for rows in TABLES}


def problem_with(subject: Subject, option: CaseOption, form: str = "") -> Problem:
    """The problem that uses an option."""
    extension = examples(option).get(form, option.example)
    option = replace(option, example=extension)
    setup = Setup(
        query_length=5 if option.feature in CAUSAL_ONLY else KEYS,
        batch=1 if extension.packing is Packing.LENGTHS else 2,
        extension=extension,
    )
    problem = subject.problem(setup.given(causal=option.feature in CAUSAL_ONLY))
    problem = replace(problem, extras=extra_arrays(option, problem.num_heads, KEYS, _width(problem)))
    if extension.bias_kv:
        width = problem.parameters["w_k"].shape[1]
        learned = {"bias_k": drawn(width), "bias_v": drawn(width) * np.resize([1.0, -1.0, 2.0], width)}
        problem = replace(problem, parameters={**problem.parameters, **learned})
    return rounded(problem, subject.dtype)


def _width(problem: Problem) -> int:
    """d_k."""
    width = problem.query.shape[-1] if problem.scope is Scope.OP else problem.parameters["w_q"].shape[1]
    return int(width if problem.scope is Scope.OP else width // problem.num_heads)


def _findings(subject: Subject, option: CaseOption) -> Iterator[Finding]:
    found = {form: list(_of_form(subject, option, form)) for form in examples(option)}
    right = next((form for form, each in found.items() if each[0].answer == OFFERED), next(iter(found)))
    yield from found[right]
    if right and found[right][0].answer == OFFERED:
        yield Finding(convention_topic(str(option.feature)), TABLES[RotaryTables(right)], found[right][0].evidence)


def _of_form(subject: Subject, option: CaseOption, form: str) -> Iterator[Finding]:
    topic = str(option.feature)
    problem = problem_with(subject, option, form)
    reply = subject.reply(problem)
    if reply.error:
        yield Finding.refused(topic, reply.error)
        return
    parameters = {n: a for n, a in problem.parameters.items() if not n.startswith("bias_")}
    kept = {name for each in EXTRA_OPTIONS if each.used(option.presumed) for name in each.keywords}
    extras = {name: array for name, array in problem.extras.items() if name in kept}
    without = replace(problem, extension=option.presumed, extras=extras, parameters=parameters)
    if subject.near(reply.output, subject.reply(without).output):
        yield Finding.ignored(topic)
        return
    expected = {name: subject.expected(problem, conventions) for name, conventions in meanings(option).items()}
    fits = [name for name, each in expected.items() if subject.near(reply.output, each)]
    observed, evidence = revealed(reply, problem), ""
    if option.feature in SHOWN_IN_WEIGHTS and not observed.error:
        evidence = f"query 4 used keys {observed.keys_of((0, 0, 4))}"
    if len({expected[name].tobytes() for name in fits}) != 1:  # meanings that do not differ here are one
        yield Finding.undetermined(topic, f"it changes the answer, to none that is known. {evidence}".strip())
        return
    yield Finding(topic, OFFERED, evidence)
    if option.convention:
        yield Finding(option.convention.replace("_", "-"), fits[0], evidence)


def row_beyond_window(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """A query that a window leaves no key, which is answered as one that the causal flag leaves none."""
    if facts.answer("causal-alignment") != "top-left" or facts.answer("window") != OFFERED:
        return
    setup = Setup(query_length=6, key_length=3, extension=Extension(window_left=1)).given(causal=True)
    finding = empty_row(subject, "empty-row-causal", setup, (slice(None), 5))
    if finding.determined and finding.answer not in ("refused", "as if unmasked"):
        evidence = f"causal with a window of 1 to the left, Lq 6, Lk 3, query 5: {finding.evidence}"
        yield replace(finding, evidence=evidence)


def softcap_order(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Whether scores are capped before a float mask is added."""
    if facts.answer("softcap") != OFFERED or facts.answer("float-mask") != "added":
        return
    mask = np.random.default_rng(9).standard_normal((KEYS, KEYS)) * 2.0
    softcap = next(option for option in EXTRA_OPTIONS if option.feature is Feature.SOFTCAP)
    problem = rounded(replace(problem_with(subject, softcap), attn_mask=mask), subject.dtype)
    output = subject.reply(problem).output
    known = {"cap before mask": subject.expected(problem), "mask before cap": _capped_after(subject, problem)}
    fits = [name for name, each in known.items() if subject.near(output, each)]
    evidence = f"float mask of up to 4, cap {problem.extension.softcap}"
    yield Finding.the_one("softcap order", fits, evidence)


def _capped_after(subject: Subject, problem: Problem) -> Floats:
    """The answer where mask and scores are capped together: the softmax of cap(scores + mask)."""
    cap, mask = problem.extension.softcap, problem.attn_mask
    assert cap is not None
    assert mask is not None
    scores = key_products(problem) * subject.interface.width**-0.5 + mask.astype(np.float64)
    capped = cap * np.tanh(scores / cap)
    weights = np.exp(capped - capped.max(-1, keepdims=True))
    output = np.zeros((*weights.shape[:3], subject.interface.width))
    output[..., : weights.shape[-1]] = weights / weights.sum(-1, keepdims=True)
    if problem.scope is Scope.MODULE:
        return output.swapaxes(1, 2).reshape(*output.shape[:1], output.shape[2], -1)
    return output
