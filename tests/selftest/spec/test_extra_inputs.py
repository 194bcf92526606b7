"""The extra arrays of a case: drawn where an option needs them, informative, and independent of all others."""

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.spec.cases import Case, ModuleForm, Padding, Sharing, Sizes
from attention_conformance.spec.extra_inputs import extra_arrays, extra_parameters
from attention_conformance.spec.features import Packing, PositionIds
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES

NEEDED = {
    "sinks": Case().extended(sinks=True),
    "alibi_slopes": Case().extended(alibi=True),
    "relative_bias": Case().extended(relative_bias=4),
    "head_gates": Case().extended(head_gates=True),
}
SHAPES = {"sinks": (3,), "alibi_slopes": (3,), "relative_bias": (3, 9), "head_gates": (3,)}
FORM = ModuleForm(Sharing.NONE, 5, 4, 6, 7, bias=True, output_projection=True)
PACKED = [packing for packing in Packing if packing is not Packing.NONE]
THREE = [packing for packing in PACKED if packing is not Packing.IDLE_DOCUMENTS]
EMPTIED = (Packing.EMPTY_SEGMENT, Packing.EMPTY_DOCUMENT)
LENGTHS = ((3, 3), (5, 7), (9, 9), (9, 4), (31, 64))


def documents(packing: Packing, query_length: int, key_length: int, batch: int = 3) -> list[list[list[int]]]:
    """For each sample the counts of each document's queries, then of its keys."""
    case = Case().sized(batch=batch, query_length=query_length, key_length=key_length).extended(packing=packing)
    arrays = extra_arrays(case)
    if case.extension.has_lengths:
        return [[arrays["query_lengths"].tolist(), arrays["key_lengths"].tolist()]] * batch
    ids = [arrays["query_segments"], arrays["key_segments"]]
    return [[np.bincount(array[b], minlength=3).tolist() for array in ids] for b in range(batch)]


def test_nothing_is_drawn_without_an_option() -> None:
    assert extra_arrays(Case()) == {}
    assert extra_parameters(Case()) == {}


@pytest.mark.parametrize("name", NEEDED)
def test_an_option_has_its_array(name: str) -> None:
    arrays = extra_arrays(NEEDED[name])
    assert set(arrays) == {name}
    assert arrays[name].shape == SHAPES[name]
    # No two alike, and none that a wrong sum or product would leave as it is.
    assert len(np.unique(arrays[name])) == arrays[name].size
    assert not np.isin(arrays[name], (0.0, 1.0)).any()


def test_slopes_are_positive_and_gates_of_both_signs() -> None:
    assert (extra_arrays(NEEDED["alibi_slopes"])["alibi_slopes"] > 0.0).all()
    assert set(np.sign(extra_arrays(NEEDED["head_gates"])["head_gates"])) == {-1.0, 1.0}


def test_samples_have_slopes_and_numbers_of_queries_of_their_own() -> None:
    arrays = extra_arrays(
        Case().sized(batch=5, query_length=3).extended(alibi=True, alibi_samples=True, query_lens=True)
    )
    assert arrays["alibi_slopes"].shape == (5, 3)
    assert len(np.unique(arrays["alibi_slopes"])) == 15
    assert arrays["query_lens"].tolist() == [2, 1, 0, 3, 2]


def test_extra_keys_are_as_wide_as_the_key_heads() -> None:
    sizes = Sizes(num_heads=6, num_kv_heads=2, d_k=4, d_v=3)
    arrays = extra_parameters(Case(sizes=sizes).extended(bias_kv=True))
    assert {name: array.shape for name, array in arrays.items()} == {"bias_k": (8,), "bias_v": (6,)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_option_changes_nothing_else(dtype: str) -> None:
    plain = Case(module=FORM)
    extended = plain.extended(sinks=True, head_gates=True, relative_bias=1, bias_kv=True, alibi=True)
    before, after = build(plain, dtype).arrays(), build(extended, dtype).arrays()
    assert set(after) - set(before) == {"sinks", "head_gates", "relative_bias", "alibi_slopes", "bias_k", "bias_v"}
    assert all(np.array_equal(array, after[name]) for name, array in before.items())


def test_another_seed_draws_other_numbers() -> None:
    for name, case in NEEDED.items():
        assert not np.isin(extra_arrays(case)[name], extra_arrays(replace(case, seed=1))[name]).any()


def test_learned_arrays_need_gradients() -> None:
    everything = {"sinks": True, "head_gates": True, "relative_bias": 1, "alibi": True}
    case = Case().extended(packing=Packing.SEGMENTS, **everything)
    assert set(build(case, "float64").needs) == {"query", "key", "value", "sinks", "head_gates", "relative_bias"}
    learned = {"bias_k", "bias_v"}
    assert learned <= set(build(Case(module=FORM).extended(bias_kv=True), "float64").needs)


def test_documents_are_integers_in_every_dtype() -> None:
    for packing in PACKED:
        for dtype in DTYPES:
            extras = build(Case().extended(packing=packing), dtype).extras
            assert {array.dtype for array in extras.values()} == {np.dtype(np.int64)}


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("packing", THREE)
def test_documents_make_up_the_sequence(packing: Packing, lengths: tuple[int, int]) -> None:
    for queries, keys in documents(packing, *lengths):
        assert (sum(queries), sum(keys)) == lengths
        assert len(queries) == len(keys) == 3
        assert min(queries) > 0
        assert (0 in keys) is (packing in EMPTIED)
        # More than one document has something to see, and so something to hide from the others.
        assert sum(count > 0 for count in keys) >= 2


@pytest.mark.parametrize("packing", [Packing.SEGMENTS, Packing.EMPTY_SEGMENT])
def test_samples_are_packed_differently(packing: Packing) -> None:
    first, second, _ = documents(packing, 9, 9)
    assert first != second


@pytest.mark.parametrize("packing", [Packing.SEGMENTS, Packing.LENGTHS])
def test_documents_of_self_attention_have_as_many_queries_as_keys(packing: Packing) -> None:
    assert all(queries == keys for queries, keys in documents(packing, 9, 9))
    assert all(queries != keys for queries, keys in documents(packing, 9, 14))


@pytest.mark.parametrize("lengths", [(2, 7), *LENGTHS], ids=str)
def test_documents_without_queries_have_keys_or_none(lengths: tuple[int, int]) -> None:
    ((queries, keys),) = documents(Packing.IDLE_DOCUMENTS, *lengths, batch=1)
    assert (sum(queries), sum(keys)) == lengths
    assert [bool(count) for count in queries] == [False, True, False, min(lengths) > 2, False]
    assert [bool(count) for count in keys] == [False, True, *[min(lengths) > 2] * 2, False]


@pytest.mark.parametrize("packing", THREE)
def test_short_sequences_are_one_document(packing: Packing) -> None:
    for queries, keys in documents(packing, 2, 7):
        assert (queries[0], keys[0]) == (2, 7)


@pytest.mark.parametrize("packing", PACKED)
def test_an_empty_batch_has_documents_too(packing: Packing) -> None:
    case = Case().sized(batch=0).extended(packing=packing)
    assert all(len(array) == 0 for array in extra_arrays(case).values())


@pytest.mark.parametrize("kind", [kind for kind in PositionIds if kind is not PositionIds.NONE])
def test_position_ids_differ_between_samples_and_from_their_indices(kind: PositionIds) -> None:
    case = Case().sized(query_length=7).extended(rotary_base=10.0, position_ids=kind)
    query, key = (extra_arrays(case)[name] for name in ("query_positions", "key_positions"))
    assert query.shape == (2, 7)
    assert (query == key).all()
    assert (query[0] != query[1]).any()
    assert (query != np.arange(7)).any(-1).all()
    shorter = extra_arrays(case.sized(query_length=4))["query_positions"]
    assert shorter.shape == (2, 4)


def test_ids_count_behind_the_padding() -> None:
    case = Case(padding=Padding.LEFT).extended(rotary_base=10.0, position_ids=PositionIds.LEFT_PADDED)
    problem = build(case, "float64")
    assert problem.key_padding_mask is not None
    counted = np.maximum(problem.key_padding_mask.cumsum(-1) - 1, 0)
    assert (problem.extras["key_positions"] == counted).all()


@pytest.mark.parametrize("padding", [Padding.NONE, Padding.RIGHT, Padding.LENGTHS])
def test_each_sample_has_a_start_of_its_own(padding: Padding) -> None:
    case = Case(padding=padding).sized(batch=3, query_length=3, key_length=11).extended(query_starts=True)
    problem = build(case, "float64")
    starts = problem.extras["query_starts"]
    assert len(set(starts.tolist())) == 3
    if problem.valid_lens is not None:
        assert (starts + 3 == problem.valid_lens).all()
