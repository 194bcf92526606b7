"""The tiled implementation: one answer whatever the tiles are, and memory linear in the lengths."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attention_conformance.implementations.adapters.tensors import to_array
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.inhouse import INHOUSE, online
from attention_conformance.implementations.builtin.inhouse.call_options import Options
from attention_conformance.implementations.builtin.inhouse.online import Operands, Plan, _blocks, _steady
from attention_conformance.implementations.builtin.inhouse.seeded_dropout import Dropout, drawn_seed
from attention_conformance.implementations.builtin.inhouse.tile_masks import Masks, Tile, within
from attention_conformance.implementations.builtin.inhouse.tiled import tiled_attention
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, MaskKind, Sizes
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.comparison import compare, part_of
from attention_conformance.tests.selftest.reference.test_family import CASES_FOR_TILES, assert_agrees

(ENTRY,) = (each for each in INHOUSE if each.name == "inhouse.tiled")


def in_tiles_of(size: int) -> Implementation:
    return replace(ENTRY, run=torch_op(partial(tiled_attention, tile=size), extras=("log_sum_exp",)))


@pytest.mark.parametrize(("size", "dtype"), [(1, "float64"), (64, "float64"), *((3, dtype) for dtype in DTYPES)])
@pytest.mark.parametrize("name", CASES_FOR_TILES)
def test_agrees(name: str, size: int, dtype: str) -> None:
    assert_agrees(in_tiles_of(size), dtype, CASES_FOR_TILES[name], "output", "log_sum_exp", "gradients")


@pytest.fixture
def rows() -> Callable[..., Tensor]:
    """Random heads of some shape, that require gradients."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    return draw


class TestDropout:
    CASE = Case(sizes=Sizes(num_heads=6, num_kv_heads=3), mask=MaskKind.FLOAT).extended(
        dropout=0.4, sinks=True, head_gates=True, softcap=3.0
    )

    @pytest.mark.parametrize("size", [1, 3, 64])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_forward_and_backward_drop_the_same(self, size: int, dtype: str) -> None:
        problem = build(self.CASE, dtype)
        result = in_tiles_of(size).run(problem.fresh(), "cpu")
        with torch.random.fork_rng():
            torch.manual_seed(self.CASE.extension.dropout_seed)
            dropout = Dropout(0.4, drawn_seed(), (2, 6, 5, 7))
        factors = dropout.factors(Tile(slice(0, 5), slice(0, 7)), torch.device("cpu"), torch.float64)
        expected = solve(problem, kept=np.pad(to_array(factors), [(0, 0)] * 3 + [(0, 1)], constant_values=1.0)).parts
        for part in ("output", "log_sum_exp", *(f"gradients.{name}" for name in problem.needs)):
            comparison = compare(part, part_of(result, part), expected[part], dtype)
            assert not comparison.message, comparison.message

    def test_weights_are_dropped_one_by_one(self) -> None:
        shape = (4, 3, 200, 300)
        factors = Dropout(0.25, 17, shape).factors(
            Tile(slice(0, 200), slice(0, 300)), torch.device("cpu"), torch.float64
        )
        remaining = (factors > 0).double()
        assert set(factors.unique().tolist()) == {0.0, 1.0 / 0.75}
        for axis in range(4):
            rates = remaining.mean([other for other in range(4) if other != axis])
            deviation = (0.25 * 0.75 * shape[axis] / remaining.numel()) ** 0.5
            assert ((rates - 0.75).abs() < 6.0 * deviation).all()
            last = shape[axis] - 1
            products = (remaining.narrow(axis, 1, last) - 0.75) * (remaining.narrow(axis, 0, last) - 0.75)
            assert abs(products.mean()) < 6.0 * 0.25 * 0.75 / products.numel() ** 0.5

    def test_a_tile_is_a_part_of_the_whole(self) -> None:
        dropout, device = Dropout(0.5, 3, (2, 3, 5, 7)), torch.device("cpu")
        whole = dropout.factors(Tile(slice(0, 5), slice(0, 7)), device, torch.float64)
        part = dropout.factors(Tile(slice(1, 4), slice(2, 7)), device, torch.float64)
        assert torch.equal(part, whole[:, :, 1:4, 2:7])

    def test_without_it_no_number_is_drawn(self, rows: Callable[..., Tensor]) -> None:
        x, before = rows(1, 1, 3, 2), torch.get_rng_state()
        tiled_attention(x, x, x, dropout_p=0.0)
        assert torch.equal(torch.get_rng_state(), before)

    def test_all_are_dropped(self, rows: Callable[..., Tensor]) -> None:
        x = rows(1, 1, 3, 2)
        output, _ = tiled_attention(x, x, x, dropout_p=1.0)
        (gradient,) = torch.autograd.grad(output.sum(), x)
        assert not output.any()
        assert not gradient.any()


class Largest(TorchDispatchMode):
    """The number of elements of the largest new tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(answer) if isinstance(x, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return answer


OPTIONS: Any = {"is_causal": True, "softcap": 5.0, "window_size": (300, -1), "dropout_p": 0.1, "enable_gqa": True}


class TestMemory:
    def test_no_tensor_grows_with_the_square_of_the_length(self, rows: Callable[..., Tensor]) -> None:
        length, width, tile = 512, 8, 16
        query, key = rows(1, 2, length, width), rows(1, 1, length, width)
        with Largest() as largest:
            output, _ = tiled_attention(query, key, key, tile=tile, **OPTIONS)
            output.sum().backward()
        assert largest.elements <= 2 * length * tile

    def test_no_weights_are_kept(self, rows: Callable[..., Tensor]) -> None:
        query, key = rows(1, 2, 100, 8), rows(1, 1, 100, 8)
        saved: list[int] = []

        def count(tensor: Tensor) -> Tensor:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            tiled_attention(query, key, key, **OPTIONS)
        assert sum(saved) == 2 * query.numel() + 2 * key.numel() + 2 * 100


class TestMasks:
    def test_tiles_that_no_query_sees_are_left_out(self) -> None:
        x = torch.zeros(1, 1, 8, 2)
        tiles = Masks.of(Options(is_causal=True, window_size=(2, -1), query_start=3), x[:, :, :3], x).tiles(2)
        assert [(t.rows.start, t.rows.stop, t.keys.start) for t in tiles] == [(0, 1, 0), (0, 3, 2), (1, 3, 4)]

    def test_positions_within_documents(self) -> None:
        ids = torch.tensor([[3, 3, 1, 3, 1], [0, 0, 0, 0, 0]])
        assert within(ids).tolist() == [[0, 1, 0, 2, 1], [0, 1, 2, 3, 4]]

    def test_nan_of_a_later_key_stays_out(self, rows: Callable[..., Tensor]) -> None:
        query, key, value = rows(1, 2, 5, 4), rows(1, 2, 5, 4), rows(1, 2, 5, 3)
        later, seeing_none = torch.arange(5)[:, None] == 3, slice(0, 3)
        answers = []
        for k, v in ((key, value), tuple(torch.where(later, torch.nan, x) for x in (key, value))):
            output, _ = tiled_attention(query, k, v, is_causal=True)
            (gradient,) = torch.autograd.grad(output.sum(), query)
            answers.append((output[:, :, seeing_none], gradient[:, :, seeing_none]))
        torch.testing.assert_close(answers[1], answers[0])


class TestSteady:
    """Small scores need no maximum; what is large does, and answers the same."""

    @pytest.mark.parametrize(
        ("factor", "options", "steady"),
        [
            (1.0, {}, True),
            (30.0, {}, False),
            (math.nan, {}, False),
            (1.0, {"attn_mask": torch.zeros(20, 20)}, False),
            (1.0, {"attn_mask": torch.ones(20, 20, dtype=torch.bool)}, True),
            (1.0, {"alibi_slopes": torch.ones(3)}, False),
        ],
    )
    def test_follows_from_sizes(
        self, rows: Callable[..., Tensor], factor: float, options: dict[str, Any], steady: bool
    ) -> None:
        x = rows(2, 3, 20, 8).detach()
        plan = Plan.of(Masks.of(Options(**options), x, x), x)
        assert _steady(plan, Operands(x * factor, x, x)) is steady
        assert not _steady(plan, Operands(x[:, :, :7], x, x))
        assert not _steady(plan, Operands(x, x, x * 1e13))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_both_agree(self, rows: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
        x = rows(2, 3, 20, 8).detach().to(dtype)
        quick = tiled_attention(x, x, x, is_causal=True, tile=8)
        monkeypatch.setattr(online, "HIGHEST", -1.0)
        for result, expected in zip(quick, tiled_attention(x, x, x, is_causal=True, tile=8), strict=True):
            torch.testing.assert_close(result, expected)


def test_blocks_cover_each_head_once(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, tile = torch.zeros(4, 6, 5, 2), torch.zeros(4, 3, 7, 2), Tile(slice(0, 5), slice(0, 7))
    for scores in (1, 2 * 5 * 7, 2 * 5 * 7 * 2, 2 * 5 * 7 * 6, 10**6):
        monkeypatch.setattr(online, "SCORES", scores)
        counts = torch.zeros(4, 6)
        for samples, heads, keyed in _blocks(query, key, tile):
            counts[samples, heads] += 1
            assert (keyed.start * 2, keyed.stop * 2) == (heads.start, heads.stop)
        assert (counts == 1).all()


def test_the_log_sum_exp_has_a_gradient(rows: Callable[..., Tensor]) -> None:
    query, key = rows(2, 2, 5, 4), rows(2, 2, 7, 4)
    scores = query @ key.mT / 2
    expected = torch.autograd.grad(scores.logsumexp(-1).square().sum(), (query, key))
    _, lse = tiled_attention(query, key, key, tile=3)
    result = torch.autograd.grad(lse.square().sum(), (query, key))
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn_mask": torch.ones(5, 6, dtype=torch.bool)}, r"attn_mask \(5, 6\) does not broadcast to \(2, 4, 5, 7\)"),
        ({"attn_mask": torch.ones(5, 7, dtype=torch.long)}, "boolean or of floats"),
        ({"key_padding_mask": torch.ones(3, 7, dtype=torch.bool)}, r"key_padding_mask \(3, 7\) does not broadcast"),
        ({"enable_gqa": False}, "key heads must be as many"),
        ({"query_segments": torch.zeros(2, 5)}, "query_segments and key_segments need each other"),
        ({"cu_seqlens_q": torch.tensor([0, 5]), "cu_seqlens_k": torch.tensor([0, 6])}, "must rise from 0 to 7"),
        ({"dropout_p": 1.5}, "a probability"),
        ({"softcap": 0.0}, "above 0"),
        ({"rotary_base": 10.0}, "an even width, not 3"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    query, key = torch.zeros(2, 4, 5, 3), torch.zeros(2, 2, 7, 3)
    with pytest.raises(ValueError, match=message):
        tiled_attention(query, key, key, **{"enable_gqa": True, **options})
