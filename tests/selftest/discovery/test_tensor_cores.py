"""Tensor cores: what an accelerator reads of float32 inputs is seen and stated, and widens no bound elsewhere."""

from collections.abc import Callable
from dataclasses import astuple

import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.discovery import tensor_cores
from attention_conformance.implementations.discovery.functions.functions import function_candidate
from attention_conformance.implementations.discovery.read_bits import CELL
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


def test_the_processor_has_no_such_excuse() -> None:
    made = function_candidate("attention", function(cut), {}, "cpu")
    assert made.claims.conventions.product_precision is ProductPrecision.WORKING


def test_other_dtypes_are_judged_as_before() -> None:
    for dtype in ("float64", "bfloat16", "float16"):
        assert astuple(precision(dtype, products=ProductPrecision.TF32)) == astuple(precision(dtype))
    assert precision("float32", products=ProductPrecision.TF32).storage > precision("float32").storage
