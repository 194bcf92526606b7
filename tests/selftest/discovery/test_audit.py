"""The auditor: its findings on callables that are known, on anonymous implementations, and on wrong ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.implementations.builtin.catalogue import BUILTIN, NAMED
from attention_conformance.implementations.builtin.compositions import eager
from attention_conformance.implementations.defects import catalogue
from attention_conformance.implementations.defects.defect import Severity
from attention_conformance.implementations.discovery.auditor.audit import all_findings, audit, findings_of, in_own_terms
from attention_conformance.implementations.discovery.auditor.claims import features, settings
from attention_conformance.implementations.discovery.auditor.findings import ABSENT, MAY_ATTEND, Facts, Finding, table
from attention_conformance.implementations.discovery.auditor.probe_interface import find_subject
from attention_conformance.implementations.discovery.probe import (
    HALF,
    Interface,
    Reply,
    Setup,
    Subject,
    revealed,
    spans,
    tiny_problem,
)
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Sharing
from attention_conformance.spec.conventions import Alignment, Conventions, GroupOrder
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import NO_PREMISES
from attention_conformance.tests.cli.audit_command import ORACLE
from attention_conformance.tests.measurements.audit_compared import DETECTED, WRONG, scores
from attention_conformance.tests.measurements.audit_score import anonymous, known_scores
from attention_conformance.tests.measurements.audit_targets import TARGETS, wrong_axis, wrong_scale

BUILT_IN = {each.name: each for each in (*BUILTIN, *NAMED)}
LONG = ("inhouse.", "torch.")
"""The targets with many options take a while, and are measured by `make audit-score`; two of them are probed here."""
QUICK = [name for name in TARGETS if not name.startswith(LONG)] + ["torch.nn.MultiheadAttention"]


@pytest.mark.parametrize("name", QUICK)
def test_that_known_conventions_of_a_callable_are_found(name: str) -> None:
    listed = list(known_scores(*TARGETS[name]))
    assert listed
    assert [score for score in listed if score.outcome != DETECTED] == []


@pytest.mark.parametrize(
    "name",
    [
        *(
            "source.a",
            "source.b.columns",
            "source.d",
            "source.e.cross",
            "torch.sdpa",
            "torch.mha.weights",
            "compose.numpy",
        ),
        *("inhouse.positions.other", "inhouse.latent"),
    ],
)
def test_that_no_claim_of_an_anonymous_implementation_is_found_to_be_otherwise(name: str) -> None:
    implementation = BUILT_IN[name]
    listed = list(scores(implementation, anonymous(implementation)))
    assert [score for score in listed if score.outcome == WRONG] == []
    assert sum(score.outcome == DETECTED for score in listed) > len(listed) / 2


def test_that_false_claims_are_found_to_be_otherwise() -> None:
    conventions = Conventions(causal_alignment=Alignment.BOTTOM_RIGHT, group_order=GroupOrder.TILED)
    honest = BUILT_IN["compose.eager"]
    altered = replace(honest, claims=replace(honest.claims, conventions=conventions, dtypes=("float64",)))
    wrong = {score.claim: score.answer for score in scores(altered, anonymous(altered)) if score.outcome == WRONG}
    assert wrong["which causal-alignment"] == "top-left"
    assert wrong["which group-order"] == "consecutive"
    assert "which empty-row-bool" in wrong  # the false claims say zeros, and it is NaN


def test_that_the_claims_of_an_implementation_are_not_used() -> None:
    honest = BUILT_IN["compose.eager"]
    claims = Claims(Scope.MODULE, frozenset({Feature.CORE}), dtypes=("float16",))
    first, second = (audit(each, ORACLE)[1] for each in (honest, replace(honest, name="other", claims=claims)))
    assert first == second


def facts_of(target: object) -> Facts:
    return Facts.of(audit(target, ORACLE)[1])


def test_a_wrong_scale_is_named_and_does_not_hide_what_masks_do() -> None:
    facts = facts_of(wrong_scale)
    assert not facts.findings["plain answer"].determined
    assert facts.answer("default scale") == "1/d_k"
    assert facts.answer("bool-mask") == MAY_ATTEND
    assert facts.answer("empty-row-bool") == "nan"


def test_a_scale_that_is_none_of_the_known() -> None:
    def odd(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return eager(query, key, value, scale=0.31)

    finding = facts_of(odd).findings["default scale"]
    assert not finding.determined
    assert "q . k is multiplied by 0.31" in finding.evidence


def test_a_softmax_over_the_queries_is_detected() -> None:
    facts = facts_of(wrong_axis)
    assert facts.findings["plain answer"].evidence == "the weights of a key sum to 1 over the queries"
    assert not facts.findings["layout"].determined


def test_a_causal_flag_that_hides_the_query_itself_is_none_of_the_known() -> None:
    def strict(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
        later = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(0) if is_causal else None
        return eager(query, key, value, None if later is None else ~later)

    facts = facts_of(strict)
    assert not facts.findings["causal"].determined
    assert "query 2 used keys 0..1" in facts.evidence("causal")
    assert Feature.CAUSAL in features(facts), "it has the flag, and the suite has to report what is wrong with it"


def test_that_a_masked_row_of_other_numbers_is_undetermined() -> None:
    def halves(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        output = eager(query, key, value, attn_mask)
        return torch.nan_to_num(output, nan=0.5)

    facts = facts_of(halves)
    assert not facts.findings["empty-row-bool"].determined
    assert "empty-row-bool" not in settings(facts)


@pytest.mark.parametrize("number", range(0, len(catalogue()), 60))
def test_that_no_wrong_implementation_stops_the_auditor(number: int) -> None:
    # What always has slopes takes them from a problem that states so, which a probe does not; some raise in all calls.
    usual = [each for each in catalogue()[number:] if each.severity is not Severity.CRASH]
    probed = [each for each in usual if each.implementation.claims.premises == NO_PREMISES]
    subject, first = find_subject(probed[0].implementation.run, "cpu", ORACLE)
    assert subject is not None, first
    findings = all_findings(subject, first)
    assert not [finding for finding in findings if "could not be read" in finding.evidence]


def test_that_an_option_without_effect_is_reported_and_claimed() -> None:
    facts = facts_of(wrong_scale)
    assert facts.answer("causal") == "ignored"
    assert Feature.CAUSAL in features(facts)
    adapter = replace(audit(wrong_scale, ORACLE)[0], named=frozenset({"window", "softcap"}))
    findings = [Finding.ignored("window"), Finding.refused("softcap", "no")]
    assert [each.answer for each in in_own_terms(findings, adapter)] == ["ignored", ABSENT]


@pytest.mark.parametrize(
    ("target", "context"),
    [
        (3, "an object of type int"),
        (int, "no torch.nn.Module"),
        (torch.nn.Linear(2, 2), "an instance of Linear"),
        (lambda query, key: query, "it needs three inputs"),
        (lambda query, key, value: None, "answers tensors with NoneType"),
        (lambda query, key, value: torch.rand_like(query), "other numbers each time"),
        (lambda query, key, value: query[:1], "its output has shape"),
        (torch.nn.Linear, "does not know its parameter"),
    ],
)
def test_that_a_target_that_cannot_be_called_is_refused_in_a_line(target: object, context: str) -> None:
    with pytest.raises(TargetError, match=context) as raised:
        audit(target, ORACLE)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("sharing", [Sharing.NONE, Sharing.KEY_VALUE, Sharing.SELF])
@pytest.mark.parametrize("heads", [3, 1])
def test_that_a_module_gets_the_very_numbers_of_the_op(sharing: Sharing, heads: int) -> None:
    module = Interface(Scope.MODULE, heads, sharing, bias=True, output_projection=True, output_bias=True)
    weights, bounds = [], []
    for interface in (Interface(num_heads=heads), module):
        problem = tiny_problem(interface, Setup(query_length=5, key_length=5), "float64")
        output = solve(problem, Conventions()).parts["output"]
        weights.append(revealed(Reply(Result(output.value)), problem).weights)
        bounds.append(revealed(Reply(Result(output.bound)), problem).weights)
    assert (np.abs(weights[0] - weights[1]) <= bounds[0] + bounds[1]).all()
    assert (np.abs(weights[0].sum(-1) - 1.0) <= bounds[0].sum(-1)).all()


def test_a_row_beyond_a_window_is_probed_where_windows_are_offered() -> None:
    subject, findings = Subject(BUILT_IN["inhouse.tiled"].run, oracle=ORACLE), [Finding("level", "op")]
    for probe in ("causal", "window", "empty-row-causal"):
        findings += findings_of(probe, subject, findings)
    facts = Facts.of(findings)
    assert facts.answer("window-count") == "excluding"
    assert facts.answer("empty-row-causal") == "zeros"
    assert facts.evidence("empty-row-causal").startswith("causal with a window of 1 to the left")


def test_that_every_key_of_a_plain_row_counts_as_used() -> None:
    for dtype in ("float32", "bfloat16"):
        observed = Subject(torch_op(eager), dtype=dtype).weights()
        assert observed.used().all()
        assert observed.weights.min() > 2.0 * HALF, "the smallest is well above the limit of what counts"


def test_that_features_of_a_process_that_was_lost_are_not_claimed() -> None:
    facts = Facts.of(
        [Finding("level", "op"), Finding("window", "no answer", "killed"), Finding.undetermined("softcap", "odd")]
    )
    assert features(facts) & {Feature.WINDOW, Feature.SOFTCAP} == {Feature.SOFTCAP}


def test_the_table() -> None:
    rows = [Finding("window", ABSENT, "ignored"), Finding("level", "op", "seen"), Finding("sinks", ABSENT, "ignored")]
    lines = table(rows).splitlines()
    assert lines[1].split() == ["level", "op", "seen"]
    assert lines[-1].endswith("window, sinks")
    assert (spans([0, 1, 2, 5]), spans([]), spans([4])) == ("0..2, 5", "none", "4")


def test_an_implementation_that_refuses_everything() -> None:
    def refusing(*inputs: Tensor) -> Tensor:
        raise RuntimeError("never")

    implementation = Implementation("never", Claims(Scope.OP, frozenset({Feature.CORE})), torch_op(refusing))
    assert "never" in facts_of(implementation).evidence("level")
