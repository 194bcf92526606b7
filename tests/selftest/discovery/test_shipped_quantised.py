"""Functions of codes with scales, by their signatures: right ones conform, others do not."""

from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.builtin.inhouse.quantised import quantised_attention as in_numpy
from attention_conformance.implementations.builtin.stepwise.paged_steps import PagedSteps
from attention_conformance.implementations.builtin.stepwise.quantised_steps import QuantisedSteps
from attention_conformance.implementations.discovery.candidates import wrapped
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

PROMISED = {Feature.QUANTISED, Feature.SCALE, Feature.CAUSAL, Feature.GROUPED}


def one_scale(
    q: Tensor, k: Tensor, v: Tensor, k_scale: float | Tensor, v_scale: float | Tensor, sm_scale: float | None = None
) -> Tensor:
    """A scale for all heads; int8 alone."""
    if not isinstance(k_scale, Tensor) or k_scale.numel() != 1 or k.dtype.itemsize == 1 != (k.dtype is torch.int8):
        raise ValueError("one scale, and int8")
    by = (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale) * float(k_scale)
    scores = q.float() @ k.float().mT * by
    return (scores.softmax(-1) @ v.float() * v_scale).to(q.dtype)


def value_scale_ignored(query: Tensor, key: Tensor, value: Tensor, key_scale: Tensor, value_scale: Tensor) -> Tensor:
    return QuantisedSteps()(query, key, value, key_scale, torch.ones_like(value_scale))


def cache_of_codes(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor | None = None,
    page_table: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """By the names of FlashAttention 3, without new keys: a scale for each head of each sample."""
    table = torch.arange(len(q))[:, None] if page_table is None else page_table
    lengths = torch.full((len(q),), k_cache.shape[1]) if cache_seqlens is None else cache_seqlens
    samples = []
    for b in range(len(q)):
        key, value = (
            cache.to(q.dtype) * (1.0 if by is None else by[b, :, None])
            for cache, by in ((k_cache, k_descale), (v_cache, v_descale))
        )
        samples.append(PagedSteps()(q[b : b + 1], key, value, table[b : b + 1], lengths[b:], causal, softmax_scale))
    return torch.cat(samples)


@wraps(cache_of_codes)
def scales_of_the_first_sample(*inputs: Any, **options: Any) -> Tensor:
    scales = {name: options[name] for name in ("k_descale", "v_descale") if options.get(name) is not None}
    return cache_of_codes(*inputs, **options | {name: scale[:1].expand_as(scale) for name, scale in scales.items()})


def failing(function: Any, *clauses: str) -> set[str]:
    verdicts = run(wrapped("quantised", function, {}, "cpu"), clauses, ("float32",))
    assert any(verdict.checks for verdict in verdicts)
    return {verdict.clause for verdict in verdicts if verdict.status in (Status.FAIL, Status.ERROR)}


@pytest.mark.parametrize("function", [QuantisedSteps().__call__, in_numpy], ids=["torch", "numpy"])
def test_a_right_one_conforms(function: Any) -> None:
    made = wrapped("quantised", function, {}, "cpu")
    assert {feature for feature in PROMISED if feature not in made.claims} == set()
    assert not failing(function, "quantised.*", "scores.dot-product")


def test_one_is_judged_in_the_codes_and_scales_that_it_takes() -> None:
    assert not failing(one_scale, "quantised.*", "scores.dot-product")
    about = wrapped("quantised", one_scale, {}, "cpu").about
    assert "codes int8" in about
    assert "a scale for each tensor" in about


def test_a_cache_of_codes_has_pages_and_scales_of_samples() -> None:
    made = wrapped("cache", cache_of_codes, {}, "cpu")
    assert {each for each in (Feature.QUANTISED, Feature.PAGED, Feature.VALID_LENS) if each not in made.claims} == set()
    assert Feature.CACHE not in made.claims, "it has no parameters for new keys and values"
    checked = ("quantised.sample-scales", "quantised.float8", "paged.table", "paged.lengths")
    assert not failing(cache_of_codes, *checked)
    assert failing(scales_of_the_first_sample, *checked) == {"quantised.sample-scales"}


def test_a_wrong_one_is_caught() -> None:
    assert failing(value_scale_ignored, "quantised.int8", "scores.dot-product") == {"quantised.int8"}
