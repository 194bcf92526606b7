"""Fitting: the nearest case that claims allow, and the reason where there is none."""

from dataclasses import replace

import pytest

from attention_conformance.implementations.api.contract import Claims, Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.catalogue import BUILTIN
from attention_conformance.spec.cases import (
    Case,
    Embedding,
    Layout,
    MaskKind,
    ModuleForm,
    Padding,
    Poison,
    Scores,
    Sharing,
    Values,
)
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.covering import combinations
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build

EVERYTHING = frozenset(Feature)
OP, MODULE = Claims(Scope.OP, EVERYTHING), Claims(Scope.MODULE, EVERYTHING)
CORE = Claims(Scope.OP, frozenset({Feature.CORE}))


def without(claims: Claims, *features: Feature) -> Claims:
    return replace(claims, features=claims.features - set(features))


def fitted(case: Case, claims: Claims) -> Case:
    nearest = fit(case, claims)
    assert isinstance(nearest, Case)
    return nearest


def form_of(case: Case, claims: Claims) -> ModuleForm:
    form = fitted(case, claims).module
    assert form is not None
    return form


def test_a_case_is_not_changed_if_everything_is_claimed() -> None:
    case = Case(causal=True, mask=MaskKind.FLOAT, scale=0.3, layout=Layout.SLICED, padding=Padding.LENGTHS)
    assert fit(case, OP) == case
    assert replace(fitted(case, MODULE), module=None) == case


def test_sizes_follow_the_claims() -> None:
    s = fitted(Case(), CORE).sizes
    assert (s.num_heads, s.d_v, s.query_length) == (1, s.d_k, s.key_length)
    assert (s.batch, s.d_k, s.key_length) == (2, 4, 7)


@pytest.mark.parametrize(
    ("case", "feature"),
    [
        (Case(scale=0.0), Feature.SCALE),
        (Case(mask=MaskKind.BOOL), Feature.BOOL_MASK),
        (Case(mask=MaskKind.FLOAT), Feature.FLOAT_MASK),
        (Case(mask=MaskKind.INFINITE), Feature.FLOAT_MASK),
        (Case(padding=Padding.LEFT), Feature.KEY_PADDING),
        (Case(padding=Padding.LENGTHS), Feature.VALID_LENS),
        (Case(padding=Padding.QUERY_LENGTHS), Feature.VALID_LENS),
        (Case(causal=True), Feature.CAUSAL),
        (Case(layout=Layout.OFFSET), Feature.VIEWS),
        (Case(poison=Poison.NAN), Feature.CONTAINMENT),
    ],
)
def test_unclaimed_features_are_not_checked(case: Case, feature: Feature) -> None:
    assert fit(case, without(OP, feature)) == Unsupported(f"does not claim {feature}")


def test_the_fit_of_an_implementation_comes_last() -> None:
    assert fit(Case(), replace(OP, fit=lambda case: Unsupported("closed"))) == Unsupported("closed")
    assert fitted(Case(), replace(OP, fit=lambda case: case.sized(d_k=8))).sizes.d_k == 8


@pytest.mark.parametrize(
    ("missing", "sharing"),
    [((), Sharing.NONE), ((Feature.KEY_VALUE,), Sharing.KEY_VALUE), ((Feature.CROSS,), Sharing.SELF)],
)
def test_inputs_are_shared_as_claimed(missing: tuple[Feature, ...], sharing: Sharing) -> None:
    form = form_of(Case(), without(MODULE, *missing))
    assert form.sharing is sharing
    widths = {Sharing.NONE: 3, Sharing.KEY_VALUE: 2, Sharing.SELF: 1}
    assert len({form.query_dim, form.key_dim, form.value_dim}) == widths[sharing]


@pytest.mark.parametrize("sharing", list(Sharing))
def test_inputs_that_a_case_shares_stay_shared(sharing: Sharing) -> None:
    nearest = fitted(replace(Case(), module=replace(form_of(Case(), MODULE), sharing=sharing)), MODULE)
    assert nearest.module is not None
    assert nearest.module.sharing is sharing
    assert (nearest.sizes.query_length == nearest.sizes.key_length) is sharing.key_is_query
    assert fitted(nearest.sized(key_length=9), MODULE).module == nearest.module


def test_widths_follow_the_claims() -> None:
    tied = without(MODULE, Feature.MODEL_WIDTH, Feature.INPUT_WIDTHS)
    form = form_of(Case(), tied)
    assert form.query_dim == form.key_dim == form.value_dim == form.out_dim == 3 * 4
    form = form_of(Case(), without(MODULE, Feature.INPUT_WIDTHS))
    assert form.query_dim == form.key_dim == form.value_dim != 3 * 4
    form = form_of(Case(), without(MODULE, Feature.OUTPUT_PROJECTION, Feature.OUTPUT_BIAS, Feature.BIAS))
    assert (form.out_dim, form.output_projection, form.output_bias, form.bias) == (3 * 3, False, False, False)


def test_chosen_scores_are_laid_into_the_inputs() -> None:
    for case in (Case(scores=Scores.RISING), Case(values=Values.CONSTANT), Case(poison=Poison.LARGE)):
        assert form_of(case, MODULE).embedding is Embedding.SELECT
    assert form_of(Case(mask=MaskKind.BOOL), MODULE).embedding is Embedding.RANDOM


def test_tied_widths_bear_chosen_scores_of_few_tokens() -> None:
    tied = without(MODULE, Feature.MODEL_WIDTH, Feature.CROSS)
    assert form_of(Case(scores=Scores.RISING), tied).embedding is Embedding.TOKENS
    for case in (Case(scores=Scores.RISING).sized(query_length=50, key_length=50), Case(poison=Poison.LARGE)):
        assert fit(case, tied) == Unsupported("its widths are tied, so that no inputs give the scores of the case")


@pytest.mark.parametrize("implementation", BUILTIN, ids=lambda i: i.name)
def test_what_fits_can_be_built_and_fits_again(implementation: Implementation) -> None:
    claims = implementation.claims
    drawn = combinations(lambda case: isinstance(fit(case, claims), Case), claims.conventions)
    cases = [case for each in drawn if isinstance(case := fit(each, claims), Case)]
    assert cases
    for case in cases:
        problem = build(case, "float32")
        assert problem.scope is claims.scope
        assert fit(case, claims) == case
    assert {case.causal for case in cases} == {False, Feature.CAUSAL in claims}


def test_conventions_do_not_change_the_fit() -> None:
    other = replace(OP, conventions=Conventions().claiming({"empty-row": "nan"}))
    assert fit(Case(causal=True), other) == Case(causal=True)
