"""Cases: written down as JSON and read back, and combined so that all pairs of options meet."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations as subsets
from itertools import product
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Case, Layout, MaskKind, ModuleForm, Padding, Scores, Sizes
from attention_conformance.spec.conventions import Alignment, CausalWithMask, Conventions
from attention_conformance.spec.covering import FACTORS, STORED, combinations, combined, mended, written
from attention_conformance.spec.features import NOTHING, Extension, Packing
from attention_conformance.spec.inputs import build
from attention_conformance.tests.selftest.thorough import thorough

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def drawn(kind: type[Any], **given: Any) -> st.SearchStrategy[Any]:
    """Any values of all fields of a dataclass; floats are finite, as JSON knows no others."""
    floats = {float: FINITE, float | None: st.none() | FINITE}
    fields = {name: floats.get(hint, ...) for name, hint in get_type_hints(kind).items()}
    return st.builds(kind, **{**fields, **given})


CASES = drawn(Case, sizes=drawn(Sizes), module=st.none() | drawn(ModuleForm), extension=drawn(Extension))
CONVENTIONS = [
    Conventions(),
    Conventions(causal_alignment=Alignment.BOTTOM_RIGHT),
    Conventions(causal_with_mask=CausalWithMask.EITHER),
]


@settings(deadline=None, derandomize=True)
@given(CASES)
def test_json_round_trip(case: Case) -> None:
    assert Case.from_json(case.to_json()) == case


def test_json_may_leave_out_defaults() -> None:
    assert Case.from_json('{"causal": true, "sizes": {"batch": 1}}') == Case(causal=True).sized(batch=1)
    case = Case.from_json('{"extension": {"window_left": 0, "softcap": 30, "chunks": [2, 1], "packing": "lengths"}}')
    assert case == Case().extended(window_left=0, softcap=30, chunks=(2, 1), packing=Packing.LENGTHS)


def test_cases_from_json_can_be_hashed() -> None:
    """A list in a case could not."""
    case = Case().extended(chunks=(2, 1), packing=Packing.SEGMENTS, window_left=3)
    assert {Case.from_json(case.to_json())} == {case}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spraed": 1.0}, "case has no field 'spraed'; it has: sizes, seed, "),
        ({"scores": "loud"}, "case.scores cannot be 'loud'; choose from: normal, one-hot"),
        ({"seed": "7"}, "case.seed cannot be '7'"),
        ({"seed": True}, "case.seed cannot be True"),
        ({"causal": 1}, "case.causal cannot be 1"),
        ({"score_std": None}, "case.score_std cannot be None"),
        ({"sizes": 3}, "case.sizes must be an object, not 3"),
        ({"sizes": {"batch": 1.5}}, "case.sizes.batch cannot be 1.5"),
        ({"sizes": {"d_q": 1}}, "case.sizes has no field 'd_q'"),
        ({"module": {}}, "case.module lacks the field 'sharing'"),
        ({"module": {"sharing": "all"}}, "case.module lacks the field 'query_dim'"),
        ({"extension": None}, "case.extension must be an object, not None"),
        ({"extension": {"window": 3}}, "case.extension has no field 'window'; it has: window_left, window_right, "),
        ({"extension": {"window_left": "2"}}, "case.extension.window_left cannot be '2'"),
        ({"extension": {"window_left": 2.0}}, "case.extension.window_left cannot be 2.0"),
        ({"extension": {"sinks": 1}}, "case.extension.sinks cannot be 1"),
        ({"extension": {"packing": "tight"}}, "case.extension.packing cannot be 'tight'; choose from: none, segments"),
        ({"extension": {"chunks": 3}}, "case.extension.chunks cannot be 3"),
        ({"extension": {"chunks": [3, "1"]}}, "case.extension.chunks cannot be [3, '1']"),
        ({"extension": {"chunks": [True]}}, "case.extension.chunks cannot be [True]"),
    ],
)
def test_wrong_json_is_refused_by_field(change: dict[str, object], message: str) -> None:
    text = json.dumps({**json.loads(Case().to_json()), **change})
    with pytest.raises(ValueError, match=r"^case") as caught:
        Case.from_json(text)
    assert str(caught.value).startswith(message)


def test_text_that_is_no_object_is_refused() -> None:
    for text in ("[]", "3", "not json"):
        with pytest.raises(ValueError, match=r"case must be an object|Expecting value"):
            Case.from_json(text)


def test_the_text_of_a_case_names_what_differs_from_the_default() -> None:
    assert str(Case()) == "B=2 H=3 Lq=5 Lk=7 d_k=4 d_v=3"
    assert str(Case(causal=True, scores=Scores.RISING)).endswith(" scores=rising causal=True")
    grouped = Case(Sizes(num_heads=6, num_kv_heads=2), causal=True).extended(window_left=0, packing=Packing.LENGTHS)
    assert str(grouped) == "B=2 H=6 Hk=2 Lq=5 Lk=7 d_k=4 d_v=3 causal=True window_left=0 packing=lengths"


def level(case: Case, name: str) -> Any:
    """The value of an option, wherever it stands; sizes without groups, which are an option of their own."""
    if name == "sizes":
        return replace(case.sizes, num_kv_heads=0)
    holder = next(part for part in (case, case.extension, case.sizes) if hasattr(part, name))
    return getattr(holder, name)


def anything(case: Case) -> bool:
    return True


def several_heads_without_causal(case: Case) -> bool:
    return not case.causal and case.sizes.num_heads > 1


def little(case: Case) -> bool:
    """What an implementation with few claims allows."""
    odd = case.sizes.d_k % 2 or case.mask is MaskKind.BOOL or case.padding is Padding.RIGHT
    return not odd and replace(case.extension, query_start=None, sinks=False) == NOTHING


@pytest.mark.parametrize("allowed", [anything, little])
@pytest.mark.parametrize("conventions", CONVENTIONS, ids=str)
def test_every_pair_of_options_that_can_meet_does(conventions: Conventions, allowed: Callable[[Case], bool]) -> None:
    cases = combinations(allowed, conventions)
    names = [name for name in FACTORS if name != "num_kv_heads"]
    met = {(a, level(case, a), b, level(case, b)) for case in cases for a, b in subsets(names, 2)}
    for a, b in subsets(names, 2):
        for x, y in product(*([x for x in FACTORS[n] if allowed(combined({n: x}))] for n in (a, b))):
            pair = combined({a: x, b: y})
            assert (a, x, b, y) in met or mended(pair, conventions) != pair, f"{a}={x} never meets {b}={y}"


@thorough
def test_the_stored_pairs_are_those_of_the_library() -> None:
    assert STORED.read_text() == written(), "`make covering` writes them anew"


def test_grouped_heads_meet_every_option() -> None:
    cases = [c for c in combinations(anything, Conventions()) if c.sizes.num_kv_heads]
    for name in FACTORS.keys() - {"num_kv_heads", "sizes"}:
        assert {level(case, name) for case in cases} == set(FACTORS[name]), name


def test_a_case_with_other_sizes_and_options_is_another_case_with_known_fields() -> None:
    case, sizes = Case(seed=3), Sizes(batch=5, d_k=9)
    assert case.sized(batch=5, d_k=9) == replace(case, sizes=sizes)
    assert hash(case.extended(softcap=2.0)) == hash(replace(case, extension=replace(NOTHING, softcap=2.0)))
    assert case == Case(seed=3)
    with pytest.raises(TypeError, match="Sizes has no field 'width'"):
        case.sized(batch=5, width=9)


@pytest.mark.parametrize("conventions", CONVENTIONS, ids=str)
def test_combinations_are_few_and_leave_no_row_empty(conventions: Conventions) -> None:
    cases = combinations(anything, conventions)
    assert len(cases) == len(set(cases)) < 100
    for case in cases:
        assert mended(case, conventions) == case
        assert allowed_keys(build(case, "float64"), conventions).any(-1).all(), case


def test_combinations_keep_to_what_is_allowed() -> None:
    cases = combinations(several_heads_without_causal, Conventions())
    assert all(several_heads_without_causal(case) for case in cases)
    assert cases == combinations(several_heads_without_causal, Conventions())


@thorough
def test_triples_are_more() -> None:
    def allowed(case: Case) -> bool:
        plain = (case.sizes, case.score_std, case.layout) == (Sizes(), Case().score_std, Layout.CONTIGUOUS)
        return plain and case.extension == NOTHING

    assert len(combinations(allowed, Conventions(), 3)) > len(combinations(allowed, Conventions(), 2))
