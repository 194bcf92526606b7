"""What a function refuses by a statement of its own is its limit, and is not checked; what breaks it is checked."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import CallOutcome
from attention_conformance.implementations.discovery import tensor_cores
from attention_conformance.implementations.discovery.claim_checks import ClaimCheck
from attention_conformance.implementations.discovery.functions import size_limits
from attention_conformance.implementations.discovery.functions.functions import function_candidate
from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

ODD = Case(Sizes(batch=2, num_heads=3, query_length=5, key_length=7, d_k=5, d_v=5))


def squares(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.shape != key.shape or key.shape != value.shape:
        raise ValueError("self-attention only")
    return scaled_dot_product_attention(query, key, value)


def few_widths(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    assert query.shape[-1] == value.shape[-1]
    assert query.shape[-1] in {16, 32, 64, 128}
    return scaled_dot_product_attention(query, key, value)


def wide(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    assert query.shape[-1] == value.shape[-1] == 64, "head_dim must be 64"
    return scaled_dot_product_attention(query, key, value)


def in_blocks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.shape[-2] % 32 or key.shape[-2] % 32:
        raise ValueError("lengths must be multiples of 32")
    return scaled_dot_product_attention(query, key, value)


def contiguous(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if not (query.is_contiguous() and key.is_contiguous() and value.is_contiguous()):
        raise NotImplementedError("contiguous tensors only")
    return scaled_dot_product_attention(query, key, value)


def breaking(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    shape = query.shape
    query, key, value = (each.view(-1, *each.shape[-2:]) for each in (query, key, value))
    return scaled_dot_product_attention(query, key, value).view(*shape[:-1], value.shape[-1])


@pytest.mark.parametrize(
    ("function", "note", "sizes"),
    [
        (squares, "fewer or more queries than keys not claimed: ValueError: self-attention only", (5, 5, 5, 5)),
        (few_widths, "head widths other than 16, 32, 64, 128 not claimed: AssertionError", (5, 7, 16, 16)),
        (wide, "head widths other than 64 not claimed: AssertionError: head_dim", (5, 7, 64, 64)),
        (in_blocks, "lengths that are no multiples of 32 not claimed: ValueError", (32, 32, 5, 5)),
        (contiguous, "views not claimed: NotImplementedError", (5, 7, 5, 5)),
        (breaking, "empty-sizes not claimed: RuntimeError", (5, 7, 5, 5)),
    ],
)
def test_what_is_refused_is_a_limit(
    function: Callable[..., Tensor], note: str, sizes: tuple[int, int, int, int]
) -> None:
    candidate = function_candidate(function.__name__, function, {}, "cpu")
    assert note in candidate.about
    assert ("views not claimed" in candidate.about) == (function is contiguous)
    fitted = fit(ODD, candidate.claims)
    assert isinstance(fitted, Case)
    s = fitted.sizes
    assert (s.query_length, s.key_length, s.d_k, s.d_v) == sizes
    verdicts = run(candidate, ("scores.dot-product", "values.single-key", "shapes.views"), ("float32",))
    statuses = {v.clause: v.status for v in verdicts}
    assert statuses.pop("shapes.views", None) == {breaking: Status.FAIL, contiguous: None}.get(function, Status.PASS)
    assert set(statuses.values()) == {Status.PASS}
    assert ("values.single-key" in statuses) == (function is not in_blocks)


def padded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    filled = scaled_dot_product_attention(query, key, value).transpose(1, 2)
    filled = torch.cat([filled, filled.new_zeros(len(filled), -filled.shape[1] % 32, *filled.shape[2:])], 1)
    return filled.reshape(len(filled), -1, *query.transpose(1, 2).shape[2:])[:, : query.shape[2]].transpose(1, 2)


def stating(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Value is (B, H, Lk, d_v)."""
    return padded(query, key, value)


@pytest.mark.parametrize(("function", "claimed"), [(padded, False), (stating, True)])
def test_an_answer_as_wide_as_its_keys_takes_no_other_width(function: Callable[..., Tensor], claimed: bool) -> None:
    candidate = function_candidate(function.__name__, function, {}, "cpu")
    assert (Feature.VALUE_WIDTH in candidate.claims) is claimed
    (verdict,) = run(candidate, ("scores.dot-product",), ("float32",))
    assert verdict.status is (Status.FAIL if claimed else Status.PASS)


def test_a_width_beyond_all_that_it_takes_is_unsupported() -> None:
    candidate = function_candidate("wide", wide, {}, "cpu")
    assert fit(ODD.sized(d_k=80, d_v=80), candidate.claims) == Unsupported("takes head widths 64 only")


def test_a_case_that_would_grow_to_millions_of_numbers_is_unsupported() -> None:
    candidate = function_candidate("in_blocks", in_blocks, {}, "cpu")
    many = fit(ODD.sized(batch=257, num_heads=256, query_length=1, key_length=1), candidate.claims)
    assert isinstance(many, Unsupported)
    assert many.reason.startswith("at the sizes that it takes, a case of 1,")


def inverted(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    hidden = None if attn_mask is None else ~attn_mask
    return scaled_dot_product_attention(query, key, value, None if hidden is None else ~hidden)


def with_a_flag(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    return inverted(query, key, value, attn_mask)


@pytest.mark.parametrize("function", [inverted, with_a_flag])
def test_the_kind_of_mask_that_raises_is_not_claimed(function: Callable[..., Tensor]) -> None:
    candidate = function_candidate("inverted", function, {}, "cpu")
    assert Feature.BOOL_MASK in candidate.claims
    assert Feature.FLOAT_MASK not in candidate.claims
    assert "float-mask not claimed: TypeError" in candidate.about


def no_later_queries(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    assert not is_causal or query.shape[-2] <= key.shape[-2]
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def test_lengths_that_the_flag_refuses_are_a_limit_under_it() -> None:
    candidate = function_candidate("attention", no_later_queries, {}, "cpu")
    assert "more queries than keys under a causal flag not claimed: AssertionError" in candidate.about
    long = ODD.sized(query_length=9)
    assert fit(long, candidate.claims) == long
    fitted = fit(replace(long, causal=True), candidate.claims)
    assert isinstance(fitted, Case)
    assert fitted.sizes.query_length == 7


def rising(query: Tensor, key: Tensor, value: Tensor, causal: str | None = None, scale: float | None = None) -> Tensor:
    if causal not in (None, "top-left"):
        raise ValueError(causal)
    if scale is not None and scale < 0.0:
        raise ValueError("the scale must not be negative")
    return scaled_dot_product_attention(query, key, value, is_causal=causal is not None, scale=scale)


def test_a_flag_and_scales_that_its_own_statements_refuse_are_not_claimed() -> None:
    candidate = function_candidate("rising", rising, {}, "cpu")
    assert "a scale below 0 not claimed: ValueError: the scale must not be negative" in candidate.about
    assert isinstance(fit(replace(ODD, scale=-0.5), candidate.claims), Unsupported)
    assert fit(replace(ODD, scale=0.0), candidate.claims) == replace(ODD, scale=0.0)
    assert candidate.findings == {"causal": "not judged: it raises ValueError: True"}
    (otherwise,) = run(candidate, ("relations.alternatives",), ("float32",))
    assert otherwise.status is Status.PASS


def test_arrays_of_another_dtype_are_a_limit() -> None:
    def promotes(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        answer: np.ndarray = weights / weights.sum(-1, keepdims=True) @ value
        return answer

    candidate = function_candidate("promotes", promotes, {}, "cpu")
    assert candidate.claims.dtypes == ("float64",)
    assert "float32 not claimed: it answers in float64" in candidate.about
    assert Feature.CORE in candidate.claims


def test_another_dtype_under_a_mask_is_one_too() -> None:
    def promotes(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        scores = query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
        scores = scores if mask is None else scores + mask * -1e9
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        answer: np.ndarray = weights / weights.sum(-1, keepdims=True) @ value
        return answer

    candidate = function_candidate("promotes", promotes, {}, "cpu")
    assert candidate.claims.dtypes == ("float64",)
    assert "float32 not claimed: it answers in float64 with a mask" in candidate.about


def broken(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.shape[-1] % 8:
        query.view(-1, 7919)  # a library, and no statement of the function, raises
    return scaled_dot_product_attention(query, key, value)


def test_what_a_kernel_is_not_compiled_for_is_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here cpu:0 stands for an accelerator; what breaks on the processor, too, is none of its limits."""
    places, answer = [""], ClaimCheck.answer

    def placed(check: ClaimCheck, problem: Problem) -> CallOutcome[Any]:
        places.append(check.device)
        return answer(check, problem)

    def compiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        whole = places[-1] == "cpu"
        return scaled_dot_product_attention(query, key, value) if whole else broken(query, key, value)

    monkeypatch.setattr(ClaimCheck, "answer", placed)
    for module in (tensor_cores, size_limits):
        monkeypatch.setattr(module, "is_accelerated", lambda check: check.device == "cpu:0")
    assert fit(ODD, function_candidate("broken", broken, {}, "cpu:0").claims) == ODD
    made = function_candidate("compiled", compiled, {}, "cpu:0")
    fitted = fit(ODD, made.claims)
    assert isinstance(fitted, Case)
    assert fitted.sizes.d_k == 8
    assert any("head widths other than 8, 16" in note for note in made.unclaimed)
