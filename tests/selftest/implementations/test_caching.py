"""Sequences in pieces: the adapters, how cases are fitted to them, and the in-house cache."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_conformance.implementations.adapters.cached import Feed, Stream, cached, chunked, pieces
from attention_conformance.implementations.api.contract import Claims, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.inhouse.cached import CachedAttention, Growing, Ring, Static
from attention_conformance.implementations.builtin.stepwise.cache_steps import CacheSteps
from attention_conformance.spec.cases import Case, MaskKind
from attention_conformance.spec.conventions import Conventions, WindowCount
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem

OP = Claims(Scope.OP, frozenset(Feature))
SEVEN = Case(causal=True).sized(query_length=7, key_length=7)


def in_pieces(*chunks: int, room: int = 0) -> Case:
    return SEVEN.extended(chunks=chunks, cache_length=room)


def summed(stream: Stream) -> Feed:
    """Answers the sum of all values so far."""
    values: list[Array] = []

    def feed(query: Array, key: Array, value: Array) -> Array:
        values.append(value)
        return np.broadcast_to(sum(v.sum(-2, keepdims=True) for v in values), (*query.shape[:-1], value.shape[-1]))

    return feed


def whole_numbers(case: Case) -> Problem:
    """The case with values that sum without rounding."""
    problem = build(case, "float64")
    return problem.with_arrays({"value": np.rint(8.0 * problem.value)})


class TestAdapters:
    def test_a_sequence_is_fed_in_its_pieces(self) -> None:
        problem = whole_numbers(in_pieces(5, 1, 1))
        output = cached(summed, arrays=True)(problem, "cpu").output
        expected = [problem.value[:, :, :n].sum(-2) for n in (5, 5, 5, 5, 5, 6, 7)]
        np.testing.assert_array_equal(output, np.stack(expected, -2))

    def test_without_pieces_all_comes_at_once(self) -> None:
        assert pieces(build(Case(), "float32")) == [slice(None)]
        problem = whole_numbers(Case())
        output = cached(summed, arrays=True)(problem, "cpu").output
        np.testing.assert_array_equal(output, np.broadcast_to(problem.value.sum(-2, keepdims=True), output.shape))

    def test_pieces_that_do_not_make_up_the_sequence_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"pieces of \(3, 3\) tokens do not make up \[7\]"):
            pieces(build(in_pieces(3, 3), "float32"))

    def test_each_sequence_has_a_start_of_its_own(self) -> None:
        run, first, second = cached(CacheSteps().open), in_pieces(3, 4), replace(in_pieces(3, 4), seed=1)
        alone = run(build(second, "float64"), "cpu").output
        run(build(first, "float64"), "cpu")
        np.testing.assert_array_equal(run(build(second, "float64"), "cpu").output, alone)

    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
    def test_storage_starts_with_poison(self, dtype: str) -> None:
        plain, rows = (
            _storage(in_pieces(3, 4, room=5).extended(unwritten=unwritten), dtype) for unwritten in (False, True)
        )
        assert rows.shape == plain.shape == (2, 3, 5, 4)
        products, most = plain.double() @ plain.double().mT, torch.finfo(plain.dtype).max
        assert ((most / rows.shape[-1] ** 2 < products) & (products < most)).all()  # as large as they may be
        assert rows[:, :, ::2].isnan().all()
        assert (rows[:, :, 1::2] == torch.finfo(rows.dtype).max).all()
        assert _storage(in_pieces(3, 4), dtype).shape == (2, 3, 0, 4)

    def test_a_piece_comes_with_all_keys_up_to_its_end(self) -> None:
        pieces_given: list[tuple[tuple[int, ...], int | None]] = []

        def run(problem: Problem, device: str) -> Result:
            pieces_given.append((problem.key.shape, problem.extension.query_start))
            return Result(problem.query)

        problem = build(in_pieces(5, 2), "bfloat16")
        output = chunked(run)(problem, "cpu").output
        assert pieces_given == [((2, 3, 5, 4), 0), ((2, 3, 7, 4), 5)]
        np.testing.assert_array_equal(output, problem.query)


def _storage(case: Case, dtype: str) -> torch.Tensor:
    stores: list[torch.Tensor] = []

    def start(stream: Stream) -> Feed:
        stores.append(stream.storage(4))
        return CacheSteps().open(stream)

    cached(start)(build(case, dtype), "cpu")
    return stores[0]


class TestFitting:
    @pytest.mark.parametrize(
        ("length", "chunks"), [(7, (3, 4)), (6, (2, 4)), (5, (1, 4)), (3, (1, 2)), (1, (1,)), (9, (3, 6))]
    )
    def test_pieces_follow_the_length(self, length: int, chunks: tuple[int, ...]) -> None:
        fitted = fit(in_pieces(3, 4).sized(key_length=length), OP)
        assert isinstance(fitted, Case)
        assert (fitted.extension.chunks, fitted.sizes.query_length) == (chunks, length)

    def test_no_mask_but_the_causal_flag(self) -> None:
        for case in (replace(in_pieces(3, 4), causal=False), replace(in_pieces(3, 4), mask=MaskKind.BOOL)):
            assert fit(case, OP) == Unsupported("a sequence that comes in pieces is causal and has no other mask")

    def test_no_room_without_pieces(self) -> None:
        assert fit(in_pieces(room=9), OP) == Unsupported("a cache length needs a sequence that comes in pieces")

    def test_a_ring_is_as_long_as_the_window(self) -> None:
        including = replace(OP, conventions=Conventions(window_count=WindowCount.INCLUDING))
        ring = in_pieces(3, 4, room=3)
        assert isinstance(fit(ring, OP), Unsupported)
        assert isinstance(fit(ring.extended(window_left=3), OP), Unsupported)
        assert isinstance(fit(ring.extended(window_left=2), OP), Case)
        assert isinstance(fit(ring.extended(window_left=3), including), Case)


class TestCachedAttention:
    def test_a_full_buffer_is_reported(self) -> None:
        attend = CachedAttention(Static(torch.empty(1, 1, 3, 2), torch.empty(1, 1, 3, 2)))
        rows = torch.ones(1, 1, 2, 2)
        attend(rows, rows, rows)
        with pytest.raises(ValueError, match="4 tokens do not fit into a cache with room for 3"):
            attend(rows, rows, rows)

    def test_shapes_are_checked(self) -> None:
        x = torch.ones(1, 2, 3, 4)
        for key, value in (
            (x[..., :2], x),
            (x, x[:, :, :2]),
            (x.expand(1, 2, 3, 4).repeat(1, 2, 1, 1)[:, :3], x[:, :1]),
        ):
            with pytest.raises(ValueError, match="key heads divide query heads"):
                CachedAttention(Growing())(x, key, value)

    def test_a_ring_keeps_the_last_tokens(self) -> None:
        ring = Ring(torch.empty(1, 1, 3, 1), torch.empty(1, 1, 3, 1))
        for numbers in ((0.0, 1.0), (2.0,), (3.0, 4.0, 5.0, 6.0), (7.0,)):
            rows = torch.tensor(numbers)[None, None, :, None]
            ring.append(rows, -rows)
        key, value, positions = ring.stored()
        assert positions.tolist() == key.flatten().tolist() == (-value).flatten().tolist() == [5, 6, 7]
