"""Premises: how they are written, what they make of a case, and which clauses they exclude."""

from dataclasses import replace

import pytest

from attention_conformance.implementations.api.amended import Amendments
from attention_conformance.implementations.api.contract import Claims, Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.catalogue import BUILTIN
from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import load
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import NO_PREMISES, Premise, Premises
from attention_conformance.tests.harness.judge.clause_tests import claimed, clause_tests
from attention_conformance.tests.harness.judge.judge import Judge

EVERY = (
    "causal",
    "window=8:",
    "softcap=30",
    "rotary=10000",
    "qk-norm=1e-05",
    "relative-bias=4",
    "alibi",
    "scale=-0.5",
    "length=16",
    "block=8",
)
CORE = Claims(Scope.OP, frozenset({Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.VALUE_WIDTH}))


PARTIAL = "rotary=500:2"


@pytest.mark.parametrize("setting", [*EVERY, "window=:3", "window=2:0", "alibi=interleaved", PARTIAL])
def test_what_is_written_is_read_back(setting: str) -> None:
    premises = NO_PREMISES.assuming([setting])
    assert premises.settings() == (setting,)
    assert premises.names == {setting.partition("=")[0]}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("casual", "did you mean 'causal'?"),
        ("alibi=1", "premise alibi takes no value, not '1'"),
        ("causal=1", "premise causal takes no value, not '1'"),
        ("softcap", "premise softcap cannot be '': give a positive number"),
        ("softcap=-3", "give a positive number"),
        ("length=2.5", "give a positive number"),
        ("rotary=inf", "give a positive number"),
        ("rotary=10000:3", "or 10000:32 where an even number of components is rotated"),
        ("window=3", "premise window cannot be '3': give 8:0, or 8: without a limit to the right"),
        ("window=:", "give 8:0"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(setting: str, words: str) -> None:
    with pytest.raises(ValueError, match="premise") as caught:
        NO_PREMISES.assuming([setting])
    assert words in str(caught.value)


@pytest.mark.parametrize("setting", [*EVERY, PARTIAL])
def test_a_case_under_a_premise_stays_as_it_is(setting: str) -> None:
    premises = NO_PREMISES.assuming([setting])
    under = premises.under(Case())
    assert under != Case()
    assert premises.under(under) == under


def test_only_what_is_always_done_needs_no_claim() -> None:
    always = replace(CORE, premises=Premises(causal=True))
    assert fit(Case(), CORE) == Case()
    assert fit(Case(), always) == replace(Case(), causal=True)
    assert isinstance(fit(replace(Case(), causal=True), CORE), Unsupported)
    assert isinstance(fit(replace(Case(), scale=0.3), always), Unsupported)


def test_a_part_that_is_always_rotated_needs_no_claim() -> None:
    fitted = fit(Case().sized(d_k=5), replace(CORE, premises=NO_PREMISES.assuming([PARTIAL])))
    assert fitted == Case().sized(d_k=5).extended(rotary_base=500.0, rotary_dim=2)


def test_a_clause_is_run_where_it_presumes_nothing_else() -> None:
    always = replace(CORE, premises=Premises(causal=True))
    permuting = load()["relations.permute-keys"]
    assert claimed(permuting, CORE) == ""
    assert claimed(permuting, always) == "has the premise causal, without which alone it holds"
    assert claimed(load()["causal.square"], CORE) == "does not claim causal"
    assert claimed(load()["causal.square"], always) == ""


@pytest.mark.parametrize("setting", EVERY[:7])
def test_every_clause_that_is_run_holds_of_a_right_implementation_under_a_premise(setting: str) -> None:
    """The clauses with a statement of their own: those that compare with the reference have it under the premise."""
    right = next(each for each in BUILTIN if each.name == "inhouse.numpy")
    claims = replace(right.claims, features=CORE.features, premises=NO_PREMISES.assuming([setting]))
    always = replace(right, claims=claims, expected_failures=(), alternatives={}, modes={}, functions={})
    for name, test in clause_tests().items():
        own = name.partition(".")[0] in ("scores", "relations", "numerics") and "float32" in test.dtypes
        if own and not claimed(load()[name], claims):
            judge = Judge(always, "float32")
            test(judge)
            assert not judge.tally.failures, judge.tally.failures[0].message
            assert judge.tally.checks or judge.tally.inconclusive or judge.unsupported


def test_clauses_name_premises_that_exist() -> None:
    presumed = {name for clause in load().values() for name in clause.presumes}
    assert {Premise.CAUSAL, Premise.WINDOW, Premise.ROTARY, Premise.RELATIVE_BIAS} <= presumed


class TestAmendments:
    ADAPTER = Implementation("mine", CORE, lambda problem, device: pytest.fail("it is not called"))

    def test_claims_change(self) -> None:
        changed = Amendments(("float-mask",), ("cross",), ("causal",)).of(self.ADAPTER).claims
        assert changed.features == (CORE.features | {Feature.FLOAT_MASK}) - {Feature.CROSS}
        assert changed.premises == Premises(causal=True)

    @pytest.mark.parametrize(
        ("amendments", "words"),
        [
            (Amendments(claim=("flaot-mask",)), "no feature is named 'flaot-mask'; did you mean 'float-mask'?"),
            (Amendments(claim=("saved",)), "saved needs a run of its own, which an adapter brings"),
            (Amendments(without=("core",)), "core cannot be left out"),
        ],
    )
    def test_what_cannot_be_claimed_is_refused(self, amendments: Amendments, words: str) -> None:
        with pytest.raises(ValueError, match=words.replace("?", r"\?")):
            amendments.of(self.ADAPTER)
