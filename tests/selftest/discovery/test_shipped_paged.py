"""Functions of pages, by the signatures of servers: right ones conform, others do not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.inhouse.paged import paged_attention as in_numpy
from attention_conformance.implementations.builtin.stepwise.paged_steps import PagedSteps
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.implementations.discovery.candidates import wrapped
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

PAGED = {Feature.PAGED, Feature.VALID_LENS, Feature.GROUPED}


def ref_paged_attn(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    query_lens: list[int],
    kv_lens: list[int],
    block_tables: Tensor,
    scale: float,
    soft_cap: float | None = None,
) -> Tensor:
    """Always causal."""
    rows = query.unflatten(0, (len(query_lens), -1)) if query_lens else query[None]
    options: dict[str, Any] = {"is_causal": True, "scale": scale, "softcap": soft_cap}
    return PagedSteps()(rows, key_cache, value_cache, block_tables, torch.tensor(kv_lens), **options).flatten(0, 1)


def without_a_length(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    causal: bool = False,
) -> Tensor:
    """Answers with all that the pages have room for."""
    room = torch.full_like(cache_seqlens, block_table.shape[1] * key_cache.shape[1])
    return PagedSteps()(query, key_cache, value_cache, block_table, room, is_causal=causal)


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lengths: Tensor,
    page_indices: Tensor,
    *,
    attn_logits_soft_cap: float | None = None,
    pages_per_compute_block: int,
) -> Tensor:
    """One query, whose scores are not scaled."""
    assert pages_per_compute_block == 1
    keys, values = (pool.permute(1, 2, 0, 3) for pool in (k_pages, v_pages))
    options: dict[str, Any] = {"scale": 1.0, "softcap": attn_logits_soft_cap}
    return PagedSteps()(q[:, None], keys, values, page_indices, lengths, **options)[:, 0]


def codes_in_pages(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    k_descale: Tensor,
    v_descale: Tensor,
    causal: bool = False,
) -> Tensor:
    """A scale for each head of each sample."""
    samples = []
    for b in range(len(query)):
        scales = (k_descale[b, :, None], v_descale[b, :, None])
        key, value = (pool.to(query.dtype) * by for pool, by in zip((key_cache, value_cache), scales, strict=True))
        samples.append(PagedSteps()(query[b : b + 1], key, value, block_table[b : b + 1], cache_seqlens[b:], causal))
    return torch.cat(samples)


def scales_of_values_for_keys(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    k_descale: Tensor,
    v_descale: Tensor,
) -> Tensor:
    return codes_in_pages(query, key_cache, value_cache, block_table, cache_seqlens, v_descale, v_descale)


class PlannedPrefill:
    """With the methods of FlashInfer's wrapper; its log-sum-exp is to base 2."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        self.planned: dict[str, Any] = {}

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        custom_mask: Tensor | None = None,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: Any = "float16",
    ) -> None:
        counts, last = paged_kv_indptr.diff().tolist(), paged_kv_last_page_len.tolist()
        self.planned = {
            "queries": qo_indptr.diff().tolist(),
            "pages": paged_kv_indices.split(counts),
            "lengths": self.lengths(counts, last, page_size),
            "options": (causal, sm_scale, (window_left, -1), logits_soft_cap or None),
            "mask": self.kept(custom_mask),
        }

    def kept(self, mask: Tensor | None) -> Tensor | None:
        return mask

    @staticmethod
    def lengths(counts: list[int], last: list[int], size: int) -> list[int]:
        return [(count - 1) * size + full if count else 0 for count, full in zip(counts, last, strict=True)]

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        made, samples, at = self.planned, [], 0
        mask, options = made["mask"], made["options"]
        for x, pages, length in zip(q.split(made["queries"]), made["pages"], made["lengths"], strict=True):
            if mask is None:
                samples.append(PagedSteps()(x[None], *paged_kv_cache, pages[None], torch.tensor([length]), *options)[0])
                continue
            rows = (pool[pages].flatten(0, 1)[:length].transpose(0, 1) for pool in paged_kv_cache)
            seen = mask[at : at + len(x) * length].view(len(x), length)
            steps = Steps()(x.transpose(0, 1)[None], *(each[None] for each in rows), attn_mask=seen, scale=options[1])
            samples.append(steps[0].transpose(0, 1))
            at += len(x) * length
        return torch.cat(samples)


class PlannedDecode(PlannedPrefill):
    def plan(  # type: ignore[override]
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        **options: Any,
    ) -> None:
        given = {name: option for name, option in options.items() if name != "kv_data_type"}
        queries = torch.arange(len(indptr))
        super().plan(queries, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, **given)


class WholeLastPage(PlannedPrefill):
    @staticmethod
    def lengths(counts: list[int], last: list[int], size: int) -> list[int]:
        return [count * size for count in counts]


class LastMaskKept(PlannedPrefill):
    last: Tensor | None = None

    def kept(self, mask: Tensor | None) -> Tensor | None:
        self.last = self.last if mask is None else mask
        return self.last


def failing(implementation: Implementation, *clauses: str) -> set[str]:
    verdicts = run(implementation, clauses, ("float32",))
    assert any(verdict.checks for verdict in verdicts)
    return {verdict.clause for verdict in verdicts if verdict.status in (Status.FAIL, Status.ERROR)}


@pytest.mark.parametrize(
    ("function", "promised"),
    [
        (PagedSteps().__call__, PAGED | {Feature.CAUSAL, Feature.SCALE, Feature.WINDOW, Feature.SOFTCAP}),
        (in_numpy, PAGED | {Feature.CAUSAL, Feature.SCALE, Feature.WINDOW, Feature.SOFTCAP}),
        (ref_paged_attn, PAGED | {Feature.CAUSAL, Feature.SCALE, Feature.SOFTCAP}),
        (paged_attention, PAGED | {Feature.SOFTCAP}),
    ],
    ids=["torch", "numpy", "all-tokens", "decoded"],
)
def test_a_right_one_conforms(function: Any, promised: set[Feature]) -> None:
    made = wrapped("paged", function, {}, "cpu")
    assert {f for f in promised if f not in made.claims} == set()
    assert "called as" in made.about
    assert not failing(made, "paged.*", "masks.valid-lens", "scores.dot-product", "causal.square")


@pytest.mark.parametrize(
    ("kind", "promised"),
    [(PlannedPrefill, {Feature.CAUSAL}), (PlannedDecode, set[Feature]())],
    ids=["prefill", "decode"],
)
def test_a_class_that_plans_and_runs_conforms(kind: type, promised: set[Feature]) -> None:
    made = wrapped("planned", kind, {}, "cpu")
    assert {
        f for f in PAGED | {Feature.SCALE, Feature.WINDOW, Feature.SOFTCAP} | promised if f not in made.claims
    } == set()
    assert "WithPagedKVCacheWrapper" in made.about
    assert not failing(made, "paged.*", "masks.valid-lens", "scores.scale-explicit")


def test_a_class_that_reads_all_of_the_last_page_is_caught() -> None:
    made = wrapped("planned", WholeLastPage, {}, "cpu")
    assert failing(made, "paged.lengths", "scores.dot-product") == {"paged.lengths"}


def test_masks_of_a_plan_are_those_of_real_keys() -> None:
    made, stale = (wrapped("planned", kind, {}, "cpu") for kind in (PlannedPrefill, LastMaskKept))
    assert Feature.BOOL_MASK in made.claims
    assert not failing(made, "masks.bool", "masks.rules", "masks.broadcast", "paged.lengths")
    assert failing(stale, "masks.bool", "paged.lengths") == {"paged.lengths"}


def test_codes_in_pages_have_scales_for_all_or_for_each_head() -> None:
    made = wrapped("paged", codes_in_pages, {}, "cpu")
    assert Feature.QUANTISED in made.claims
    assert "a scale for each tensor, head" in made.about
    assert not failing(made, "quantised.*", "paged.lengths", "paged.decode")
    wrong = wrapped("paged", scales_of_values_for_keys, {}, "cpu")
    assert failing(wrong, "quantised.head-scales", "paged.lengths") == {"quantised.head-scales"}


def test_a_wrong_one_is_caught() -> None:
    made = wrapped("paged", without_a_length, {}, "cpu")
    assert failing(made, "paged.table", "paged.lengths", "causal.square") == {"paged.table", "paged.lengths"}
