"""Tensor cores: what an accelerator reads of float32 inputs is seen and stated, and widens no bound elsewhere."""

from collections.abc import Callable
from dataclasses import astuple

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.discovery import tensor_cores
from attention_conformance.implementations.discovery.functions.functions import function_candidate
from attention_conformance.implementations.discovery.read_bits import CELL, same_in_cells
from attention_conformance.reference.bounds.precision import precision
from attention_conformance.spec.conventions import ProductPrecision

Read = Callable[[Tensor], Tensor]


def cut(x: Tensor) -> Tensor:
    """What tensor cores read of float32 numbers."""
    if x.dtype != torch.float32:
        return x
    return (x.contiguous().view(torch.int32) & -CELL).view(torch.float32)


def of_two(x: Tensor) -> Tensor:
    return cut(x) + cut(x - cut(x)) if x.dtype == torch.float32 else x


def function(read: Read) -> Callable[..., Tensor]:
    def attention(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
        scaled = query * (query.shape[-1] ** -0.5 if scale is None else scale)
        return read((read(scaled) @ read(key.transpose(-1, -2))).softmax(-1)) @ read(value)

    return attention


@pytest.mark.parametrize(
    ("read", "seen"),
    [
        (cut, ProductPrecision.TF32),
        (of_two, ProductPrecision.TF32X3),
        (lambda x: x, ProductPrecision.WORKING),
        (lambda x: x.bfloat16().to(x.dtype), ProductPrecision.WORKING),
    ],
)
def test_what_it_reads_is_seen(read: Read, seen: ProductPrecision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_cores, "is_accelerated", lambda check: True)
    made = function_candidate("attention", function(read), {}, "cpu")
    assert made.claims.conventions.product_precision is seen
    assert any(f"product-precision={seen}" in note for note in made.stated) is (seen is not ProductPrecision.WORKING)


def test_roundings_of_scores_in_float32_are_not_taken_for_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounding(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        powers = (scores * (1.0 + 2.0**-22) - scores.amax(-1, keepdim=True)).exp()
        output: Tensor = (powers @ value) * (1.0 / powers.sum(-1, keepdim=True))
        return output

    monkeypatch.setattr(tensor_cores, "is_accelerated", lambda check: True)
    made = function_candidate("attention", rounding, {}, "cpu")
    assert made.claims.conventions.product_precision is ProductPrecision.WORKING


@pytest.mark.parametrize(("number", "same"), [(1.0 / 3.0, True), (0.375, False)])
def test_an_answer_in_float16_is_not_taken_for_one_of_tf32(number: float, same: bool) -> None:
    outputs = [np.array([number * times]) for times in (1.0, 1.0, 1.0, 2.0)]
    assert same_in_cells(outputs) is same


def test_the_processor_has_no_such_excuse() -> None:
    made = function_candidate("attention", function(cut), {}, "cpu")
    assert made.claims.conventions.product_precision is ProductPrecision.WORKING


def test_other_dtypes_are_judged_as_before() -> None:
    for dtype in ("float64", "bfloat16", "float16"):
        assert astuple(precision(dtype, products=ProductPrecision.TF32)) == astuple(precision(dtype))
    assert precision("float32", products=ProductPrecision.TF32).storage > precision("float32").storage
