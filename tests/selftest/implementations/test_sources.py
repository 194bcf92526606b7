"""The corrected code of the five sources: their interfaces, worked examples, errors and repaired defects."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attention_conformance.implementations.builtin.sources import a, b, c, d, e
from attention_conformance.implementations.builtin.sources.softmax import masked_softmax
from attention_conformance.tests.selftest.implementations.source_equations import (
    assert_within,
    expected_of,
    normal,
    seeded,
)

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


# Every torch module with a call of it on tokens of width 6; H does not equal B, nor any length.
CALLS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Tensor], Tensor]]] = {
    "A": (lambda: a.MultiHeadSelfAttention(6, 12, 9, num_heads=3), lambda module, x: module(x)),
    "B": (lambda: b.Self_Attention(6, 4, 5), lambda module, x: module(x)),
    "C": (lambda: c.MultiHeadAttention(6, 3, 12), lambda module, x: module(x)[0]),
    "D": (
        lambda: d.MultiHeadAttention(12, 3, query_size=6, key_size=6, value_size=6),
        lambda module, x: module(x, x, x),
    ),
    "E": (lambda: e.MultiHeadAttention(6, 4, 5, 3), lambda module, x: module(x)),
    "E-cross": (lambda: e.CrossAttention(6, 6, 4, 5, 3), lambda module, x: module(x, x)),
}
every_module = pytest.mark.parametrize(("make", "call"), CALLS.values(), ids=CALLS)


class TestEveryModule:
    @every_module
    @pytest.mark.parametrize("shape", [(0, 7, 6), (2, 0, 6), (1, 1, 6)], ids=str)
    def test_takes_empty_and_single_inputs(self, make: Any, call: Any, shape: tuple[int, ...]) -> None:
        assert call(seeded(make()), normal(*shape)).shape[:2] == shape[:2]

    @every_module
    def test_float16_scores_may_exceed_its_range_before_the_scaling(self, make: Any, call: Any) -> None:
        module = seeded(make()).half()
        with torch.no_grad():
            for linear in [child for child in module.children() if isinstance(child, nn.Linear)][:2]:
                linear.weight.fill_(1.0)  # of query and key
        # 4 channels of 168 a head: q . k = 112896 exceeds 65504, the largest float16; half of it does not.
        x = torch.full((1, 3, 6), 28.0, dtype=torch.float16)
        assert torch.isfinite(call(module, x)).all()

    @every_module
    @pytest.mark.parametrize("shape", [(7, 6), (2, 7, 5), (2, 1, 7, 6)], ids=str)
    def test_rejects_an_input_of_another_shape(self, make: Any, call: Any, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"must have shape \(B, n, 6\), got \(.*\)"):
            call(seeded(make()), normal(*shape))


class TestConstructors:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: a.MultiHeadSelfAttention(5, 12, 9, 4), r"dim_v \(9\) .* num_heads \(4\)"),
            (lambda: a.MultiHeadSelfAttention(5, 10, 8, 4), r"dim_k \(10\) .* num_heads \(4\)"),
            (lambda: a.MultiHeadSelfAttention(5, 12, 12, 0), "num_heads must be at least 1, got 0"),
            (lambda: a.MultiHeadSelfAttention(5, 12, 12, -4), "num_heads must be at least 1, got -4"),
            (lambda: a.MultiHeadSelfAttention(5, 0, 12, 4), "dim_k must be at least 1, got 0"),
            (lambda: b.Self_Attention(2, 0, 5), "dim_k must be at least 1, got 0"),
            (lambda: c.MultiHeadAttention(4, 3, 8), r"attention_head_size \(8\) .* num_heads \(3\)"),
            (lambda: c.MultiHeadAttention(4, 0, 8), "num_heads must be at least 1, got 0"),
            (lambda: d.MultiHeadAttention(100, 7), r"num_hiddens \(100\) .* num_heads \(7\)"),
            (lambda: d.MultiHeadAttention(100, 5, key_size=0), "key_size must be at least 1, got 0"),
            (lambda: e.MultiHeadAttention(6, 4, 5, 0), "num_heads must be at least 1, got 0"),
            (lambda: e.CrossAttention(6, 0, 4, 5, 3), "in_dim2 must be at least 1, got 0"),
        ],
    )
    def test_bad_sizes_are_named(self, make: Callable[[], nn.Module], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make()

    def test_parameters_have_the_names_and_biases_of_the_sources(self) -> None:
        def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
            return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}

        assert shapes(a.MultiHeadSelfAttention(6, 16, 24)) == {
            "linear_q.weight": (16, 6), "linear_k.weight": (16, 6), "linear_v.weight": (24, 6),
        }  # fmt: skip
        assert shapes(b.Self_Attention(2, 4, 5)) == {
            "q.weight": (4, 2), "q.bias": (4,), "k.weight": (4, 2), "k.bias": (4,),
            "v.weight": (5, 2), "v.bias": (5,),
        }  # fmt: skip
        assert shapes(c.MultiHeadAttention(4, 2, 6)) == {
            "W_query.weight": (6, 4), "W_query.bias": (6,), "W_key.weight": (6, 4), "W_key.bias": (6,),
            "W_value.weight": (6, 4), "W_value.bias": (6,),
        }  # fmt: skip
        assert shapes(d.MultiHeadAttention(6, 2, query_size=3, key_size=4, value_size=5)) == {
            "W_q.weight": (6, 3), "W_k.weight": (6, 4), "W_v.weight": (6, 5), "W_o.weight": (6, 6),
        }  # fmt: skip
        assert "W_o.bias" in shapes(d.MultiHeadAttention(6, 2, bias=True))
        assert shapes(e.MultiHeadAttention(6, 4, 5, 3)) == {
            "proj_q.weight": (12, 6), "proj_k.weight": (12, 6), "proj_v.weight": (15, 6),
            "proj_o.weight": (6, 15), "proj_o.bias": (6,),
        }  # fmt: skip
        assert shapes(e.CrossAttention(6, 7, 4, 5, 3)) == {
            "proj_q1.weight": (12, 6), "proj_k2.weight": (12, 7), "proj_v2.weight": (15, 7),
            "proj_o.weight": (6, 15), "proj_o.bias": (6,),
        }  # fmt: skip


class TestSourceA:
    def test_eight_heads_are_the_default(self) -> None:
        assert a.MultiHeadSelfAttention(5, 16, 24)(torch.ones(2, 3, 5)).shape == (2, 3, 24)
        with pytest.raises(ValueError, match=r"num_heads \(8\)"):
            a.MultiHeadSelfAttention(5, 12, 24)


class TestSourceB:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
    def test_columns_keep_the_dtype_and_the_input(self, dtype: type[np.floating[Any]]) -> None:
        arrays = [normal(*shape).numpy().astype(dtype) for shape in ((5, 7), (4, 5), (4, 5), (3, 5))]
        for array in arrays:
            array.flags.writeable = False
        output = b.column_self_attention(*arrays)
        assert output.shape == (3, 7)
        assert output.dtype == np.dtype(dtype)

    def test_float16_weights_over_many_keys_sum_to_one(self) -> None:
        assert (b.column_softmax(np.zeros((4096, 2), np.float16)) == 2.0**-12).all()

    def test_no_tokens(self) -> None:
        assert b.column_self_attention(np.ones((5, 0)), np.eye(5), np.eye(5), np.ones((3, 5))).shape == (3, 0)

    @pytest.mark.parametrize(
        ("shapes", "message"),
        [
            ([(2, 5, 7), (4, 5), (4, 5), (3, 5)], r"x must have shape \(d, n\) .* got \(2, 5, 7\)"),
            ([(5, 7), (4, 5), (4, 5), (3, 7)], r"w_v must have shape \(rows, 5\) .* got \(3, 7\)"),
            ([(5, 7), (0, 5), (0, 5), (3, 5)], r"w_q must have shape .* got \(0, 5\)"),
            ([(5, 7), (4, 5), (3, 5), (3, 5)], "w_q and w_k must have equally many rows, got 4 and 3"),
        ],
    )
    def test_unfit_columns_are_named(self, shapes: list[tuple[int, ...]], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            b.column_self_attention(*map(np.ones, shapes))


class TestSourceD:
    def test_a_query_without_keys_gives_zeros_and_no_gradient(self) -> None:
        module = seeded(d.MultiHeadAttention(12, 3))
        x, y = normal(2, 4, 12).requires_grad_(), normal(2, 6, 12, seed=1).requires_grad_()
        valid_lens = torch.tensor([[1, 0, 6, 3], [0, 0, 0, 0]])
        output = module(x, y, y, valid_lens)
        assert (output[0, 1] == 0).all()
        assert (output[1] == 0).all()
        assert (module.attention_weights(x, y, valid_lens)[3:] == 0).all()
        output.backward(normal(*output.shape, seed=2))
        assert x.grad is not None
        assert y.grad is not None
        for gradient in (x.grad[0, 1], x.grad[1], y.grad[1]):
            assert (gradient == 0).all()
        for parameter in module.parameters():
            assert parameter.grad is not None
            assert torch.isfinite(parameter.grad).all()
            assert parameter.grad.any()

    def test_dropout_acts_on_the_weights_in_training_only(self) -> None:
        module = seeded(d.MultiHeadAttention(4, 1, dropout=0.5))
        with torch.no_grad():
            module.W_v.weight.copy_(torch.eye(4))
            module.W_o.weight.copy_(torch.eye(4))
        x, y = torch.ones(1, 50, 4).double(), torch.ones(1, 2, 4).double()  # two equal weights of 1/2
        torch.manual_seed(0)
        output = module(x, y, y)
        assert set(output.unique().tolist()) == {0.0, 1.0, 2.0}
        assert (output == output[..., :1]).all()
        assert (module.eval()(x, y, y) == 1.0).all()

    @pytest.mark.parametrize(
        ("shapes", "valid_shape", "message"),
        [
            ([(2, 4, 6), (2, 7, 6), (2, 5, 6)], None, r"keys and values .* got \(2, 7, 6\) and \(2, 5, 6\)"),
            ([(3, 4, 6), (2, 7, 6), (2, 7, 6)], None, "queries and keys must agree in B, got 3 and 2"),
            ([(2, 4, 6), (2, 7, 6), (2, 7, 6)], (3,), r"valid_lens .* \(2,\) or \(2, 4\), got \(3,\)"),
            ([(2, 4, 6), (2, 7, 6), (2, 7, 6)], (2, 7), r"valid_lens .* got \(2, 7\)"),
        ],
    )
    def test_unfit_inputs_are_named(
        self, shapes: list[tuple[int, ...]], valid_shape: tuple[int, ...] | None, message: str
    ) -> None:
        valid_lens = None if valid_shape is None else torch.ones(valid_shape, dtype=torch.int64)
        with pytest.raises(ValueError, match=message):
            d.MultiHeadAttention(6, 3)(*map(torch.ones, shapes), valid_lens)


class TestSourceE:
    @staticmethod
    def cross() -> tuple[e.CrossAttention, Tensor, Tensor]:
        return seeded(e.CrossAttention(6, 8, 4, 3, 2)), normal(2, 5, 6), normal(2, 7, 8, seed=1)

    @pytest.mark.parametrize(
        "index",
        [
            pytest.param(np.s_[:, 0, 0], id="(B, Lk)"),
            pytest.param(np.s_[:, 0, :1], id="(B, 1, Lk)"),
            pytest.param(np.s_[:, 0], id="(B, Lq, Lk)"),
            pytest.param(np.s_[:, :], id="(B, H, Lq, Lk)"),
            pytest.param(np.s_[:1, :1], id="(1, 1, Lq, Lk)"),
            pytest.param(np.s_[:, :, :, :1], id="(B, H, Lq, 1)"),
        ],
    )
    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64], ids=str)
    def test_mask_shapes(self, index: Any, dtype: torch.dtype) -> None:
        module, x1, x2 = self.cross()
        keep = normal(2, 2, 5, 7, seed=3) > 0
        keep[..., 0] = True  # no row is empty
        mask = keep[index]
        four_axes = mask.reshape(len(mask), *[1] * (4 - mask.dim()), *mask.shape[1:])
        assert_within(module(x1, x2, mask.to(dtype)), expected_of(module, x1, x2, x2, four_axes)["output"])

    @pytest.mark.parametrize(
        "shape",
        [(), (7,), (5, 7), (1, 7), (2, 5), (1, 5, 7), (2, 7, 5), (2, 5, 1), (2, 3, 5, 7), (1, 2, 2, 5, 7)],
        ids=str,
    )
    def test_unfit_mask_shapes_are_named(self, shape: tuple[int, ...]) -> None:
        module, x1, x2 = self.cross()
        with pytest.raises(ValueError, match="mask has shape") as caught:
            module(x1, x2, torch.ones(shape))
        assert str(shape) in str(caught.value)
        assert "(B, Lq, Lk) = (2, 5, 7)" in str(caught.value)

    def test_batches_must_agree(self) -> None:
        module, x1, x2 = self.cross()
        with pytest.raises(ValueError, match="x1 and x2 must agree in B, got 2 and 1"):
            module(x1, x2[:1])


class TestShared:
    def test_masked_softmax_keeps_a_nan_where_it_attends_only(self) -> None:
        scores = torch.tensor([[math.nan, 0.0], [0.0, math.nan]])
        weights = masked_softmax(scores, torch.tensor([True, False]))
        assert torch.isnan(weights[0, 0])
        assert torch.equal(weights[1], torch.tensor([1.0, 0.0]))

    def test_masked_softmax_has_no_nan_in_the_backward_pass_of_an_empty_row(self) -> None:
        scores = torch.tensor([[-math.inf, math.nan, 1.0]]).requires_grad_()
        with torch.autograd.set_detect_anomaly(True):
            weights = masked_softmax(scores, torch.zeros(1, 1, dtype=torch.bool))
            (gradient,) = torch.autograd.grad(weights.sum(), scores)
        assert (gradient == 0).all()
