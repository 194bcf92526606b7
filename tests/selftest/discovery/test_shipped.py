"""Interfaces of shipped kernels: their functions are judged as they are, right ones conform, wrong ones are caught."""

import inspect
import itertools
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from attention_conformance.implementations.adapters.paging import TakenPages
from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.candidates import wrapped
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Alignment, EmptyRow, LogBase, ProductPrecision
from attention_conformance.spec.features import Feature, Packing
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import MASKS
from attention_conformance.tests.selftest.discovery.shipped_bodies import (
    Function,
    Sequence,
    composed,
    flash,
    flashinfer,
)
from attention_conformance.tests.selftest.discovery.shipped_cache_body import cached

OF_SCORES = {Feature.CAUSAL, Feature.SCALE, Feature.WINDOW, Feature.SOFTCAP, Feature.LOG_SUM_EXP}
OF_FLASH = OF_SCORES | {Feature.ALIBI, Feature.DROPOUT, Feature.GRADIENTS}
PROMISED = {
    "flash_attn_func": OF_FLASH | {Feature.CROSS, Feature.GROUPED},
    "flash_attn_kvpacked_func": OF_FLASH | {Feature.CROSS, Feature.GROUPED},
    "flash_attn_qkvpacked_func": OF_FLASH,
    "flash_attn_varlen_func": OF_FLASH
    | {Feature.CROSS, Feature.GROUPED, Feature.CUMULATIVE_LENGTHS, Feature.PAGED, Feature.VALID_LENS},
    "varlen_attn": {Feature.CAUSAL, Feature.SCALE, Feature.WINDOW, Feature.GROUPED, Feature.CUMULATIVE_LENGTHS},
    "flash_attn_with_kvcache": OF_SCORES
    | {Feature.ALIBI, Feature.GROUPED, Feature.CACHE, Feature.STATIC_CACHE, Feature.PAGED, Feature.VALID_LENS}
    | {Feature.ALIBI_SAMPLES, Feature.ROTARY_TABLES},
    "single_prefill_with_kv_cache": OF_SCORES | {Feature.ROTARY, Feature.GROUPED, Feature.BOOL_MASK},
    "single_decode_with_kv_cache": OF_SCORES - {Feature.CAUSAL} | {Feature.ROTARY, Feature.GROUPED},
    "memory_efficient_attention": {Feature.FLOAT_MASK, Feature.MASK_GRADIENT, Feature.SCALE, Feature.DROPOUT},
    "eager_attention_forward": {Feature.FLOAT_MASK, Feature.WEIGHTS, Feature.SCALE, Feature.GROUPED, Feature.DROPOUT},
    "attention": {Feature.CAUSAL, Feature.SCALE, Feature.SOFTCAP, Feature.WEIGHTS, Feature.BOOL_MASK, Feature.GROUPED}
    | {Feature.VALID_LENS},
}
"""What the signatures promise, at least."""
WRONG = (
    ("flash_attn_func", "corner", "causal.alignment"),
    ("flash_attn_func", "groups", "grouped.order"),
    ("flash_attn_func", "softcap", "softcap.formula"),
    ("flash_attn_kvpacked_func", "value", "scores.dot-product"),
    ("flash_attn_qkvpacked_func", "causal", "causal.square"),
    ("flash_attn_varlen_func", "documents", "packed.lengths"),
    ("flash_attn_varlen_func", "table", "paged.table"),
    ("varlen_attn", "documents", "packed.lengths"),
    ("varlen_attn", "window", "window.extent"),
    ("flash_attn_varlen_func", "slopes", "positions.alibi"),
    ("flash_attn_with_kvcache", "cache", "cache.decode"),
    ("flash_attn_with_kvcache", "window", "window.extent"),
    ("flash_attn_with_kvcache", "cache", "paged.lengths"),
    ("flash_attn_with_kvcache", "new", "relations.alternatives"),
    ("flash_attn_with_kvcache", "row", "relations.alternatives"),
    ("flash_attn_with_kvcache", "pad", "relations.alternatives"),
    ("flash_attn_with_kvcache", "table-start", "rotary-tables.scores"),
    ("single_prefill_with_kv_cache", "mask", "masks.bool"),
    ("single_prefill_with_kv_cache", "rotary", "shapes.combinations"),
    ("single_decode_with_kv_cache", "log", "softmax.log-sum-exp"),
    ("memory_efficient_attention", "mask", "masks.float"),
    ("eager_attention_forward", "gain", "softmax.rows-sum-to-one"),
    ("attention", "causal", "causal.square"),
    ("attention", "starts", "shapes.combinations"),
)
CHEAP = ("scores.*", "masks.*", "causal.*", "window.extent", "softcap.formula", "grouped.*", "returned.base", "cache.*")
IN_PAGES = (
    "paged.lengths",
    "paged.append",
    "relations.alternatives",
    "rotary-tables.scores",
    "positions.alibi-samples",
)


@cache
def functions(wrong: str = "", only_half: bool = False) -> dict[str, Function]:
    sequence = Sequence(wrong, only_half)
    of_a_cache = {"flash_attn_with_kvcache": cached(sequence)}
    return {**flash(sequence), **of_a_cache, **flashinfer(sequence), **composed(wrong)}


def presented(name: str, wrong: str = "", only_half: bool = False, **settings: str) -> Implementation:
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    return wrapped(name, functions(wrong, only_half)[name], given, "cpu")


def failing(implementation: Implementation, clauses: tuple[str, ...], dtype: str) -> set[str]:
    verdicts = run(implementation, clauses, (dtype,))
    assert any(verdict.checks for verdict in verdicts)
    return {v.clause for v in verdicts if v.status in (Status.FAIL, Status.ERROR)}


@pytest.mark.parametrize("name", PROMISED)
def test_what_the_signature_promises_is_claimed_and_holds(name: str) -> None:
    made = presented(name)
    assert PROMISED[name] <= made.claims.features
    assert "called as" in made.about
    assert not failing(made, CHEAP + IN_PAGES, "float32")


@pytest.mark.parametrize(("name", "wrong", "clause"), WRONG)
def test_a_wrong_one_is_caught(name: str, wrong: str, clause: str) -> None:
    assert failing(presented(name, wrong), (clause,), "float32") == {clause}


@pytest.mark.parametrize("name", ["flash_attn_func", "flash_attn_varlen_func", "single_prefill_with_kv_cache"])
def test_functions_of_half_types_alone(name: str) -> None:
    made = presented(name, only_half=True)
    assert made.claims.dtypes == ("bfloat16", "float16")
    assert PROMISED[name] <= made.claims.features
    assert not failing(made, ("scores.*", "causal.*"), "bfloat16")
    assert failing(presented(name, "scale", only_half=True), ("shapes.large",), "bfloat16")


def test_documented_conventions_are_claimed_and_a_setting_goes_before() -> None:
    conventions = presented("flash_attn_func").claims.conventions
    assert (conventions.causal_alignment, conventions.empty_row_causal) == (Alignment.BOTTOM_RIGHT, EmptyRow.ZEROS)
    assert presented("single_prefill_with_kv_cache").claims.conventions.log_sum_exp_base is LogBase.TWO
    eager = presented("eager_attention_forward").claims.conventions
    assert (eager.product_precision, eager.empty_row_float) == (ProductPrecision.FLOAT32, EmptyRow.NAN)  # as seen
    assert presented("memory_efficient_attention").claims.conventions.empty_row_float is EmptyRow.NAN
    other = presented("flash_attn_func", causal_alignment="top-left").claims.conventions
    assert other.causal_alignment is Alignment.TOP_LEFT


def test_what_stands_in_for_an_eager_function_has_its_own_answers() -> None:
    """Transformers' own `sdpa_attention_forward`, and what users register in its place."""

    def forward(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        groups: Any = module.num_key_value_groups
        k, v = (x.repeat_interleave(groups, 1) for x in (key, value))
        answer = torch.nn.functional.scaled_dot_product_attention(query, k, v, attention_mask, scale=scaling)
        return answer.swapaxes(1, 2), None

    made = wrapped("forward", forward, {}, "cpu")
    conventions = made.claims.conventions
    assert "called as transformers" in made.about
    assert (conventions.product_precision, conventions.empty_row_float) == (ProductPrecision.WORKING, EmptyRow.ZEROS)
    assert not failing(made, ("scores.*", "masks.*", "grouped.order"), "bfloat16")


def test_pages_have_a_multiple_of_the_tokens_that_a_function_needs() -> None:
    made = presented("flash_attn_varlen_func")
    assert "pages of a multiple of 16 tokens" in made.about
    fitted = fit(Case().extended(page_size=3), made.claims)
    assert isinstance(fitted, Case)
    assert (fitted.extension.page_size, fitted.sizes.key_length) == (16, 7 * 16 // 3)


def test_documents_of_one_sample_have_no_pages() -> None:
    paged = Case().extended(page_size=2, packing=Packing.LENGTHS)
    assert isinstance(TakenPages()(paged), Unsupported)
    assert not isinstance(TakenPages()(paged.extended(packing=Packing.SEGMENTS)), Unsupported)


def test_the_same_names_with_heads_first() -> None:
    """Many kernels have taken over the names and not the layout."""

    def attention(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softmax_scale: float | None = None,
    ) -> torch.Tensor:
        assert window_size == (-1, -1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale)

    made = wrapped("attention", attention, {}, "cpu")
    assert "called as" not in made.about
    assert {Feature.CAUSAL, Feature.SCALE} <= made.claims.features
    assert not failing(made, ("scores.*", "causal.square", "causal.alignment"), "float64")


@pytest.mark.parametrize("name", ["flash_attn_func", "attend"])
def test_a_function_of_that_very_name_needs_fewer_parameters(name: str) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
        output: torch.Tensor = functions()["flash_attn_func"](q, k, v, 0.0, None, causal)
        return output

    attend.__name__ = name
    made = wrapped(name, attend, {}, "cpu")
    assert made.claims.conventions.causal_alignment is Alignment.BOTTOM_RIGHT
    assert ("its causal mask starts bottom-right" in made.stated) is (name == "attend")


@pytest.mark.parametrize("name", ["sm_scale", "scaling", "softmax_scale"])
def test_a_scale_that_has_to_be_given(name: str) -> None:
    space: dict[str, Callable[..., torch.Tensor]] = {}
    exec(f"def attention(q, k, v, causal, {name}): return (q @ k.mT * {name}).softmax(-1) @ v", space)
    made = wrapped("attention", space["attention"], {}, "cpu")
    assert Feature.SCALE in made.claims
    assert not failing(made, ("scores.*",), "float64")


def test_what_a_function_writes_into_its_inputs_is_seen() -> None:
    def writing(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
    ) -> torch.Tensor:
        output: torch.Tensor = functions()["flash_attn_func"](q, k, v, 0.0, softmax_scale, causal, window_size)
        with torch.no_grad():
            q.mul_(2.0)
        return output

    assert failing(wrapped("writing", writing, {}, "cpu"), ("effects.inputs",), "float64")


def test_the_step_of_a_decoder_has_one_query() -> None:
    fitted = fit(Case(), presented("single_decode_with_kv_cache").claims)
    assert not isinstance(fitted, Unsupported)
    assert fitted.sizes.query_length == 1


def test_flex_attention_as_it_is() -> None:
    made = wrapped("flex_attention", flex_attention, {}, "cpu")
    promised = MASKS - {Feature.MASK_GRADIENT} | OF_SCORES | {Feature.SEGMENTS, Feature.ALIBI, Feature.GROUPED}
    assert promised <= made.claims.features
    assert not failing(made, ("causal.square", "window.extent", "softcap.formula"), "float64")


def dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: torch.Tensor | None = None,
    key_value_seq_lengths: torch.Tensor | None = None,
    local_window_size: tuple[int, int] | None = None,
) -> torch.Tensor:
    """A port of that of jax.nn, with tensors and with lengths of keys alone."""
    assert (bias, query_seq_lengths, local_window_size) == (None, None, None)
    q, k, v = (x.swapaxes(1, 2) for x in (query, key, value))
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool) if mask is None else mask
    if is_causal:
        seen = seen & torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    if key_value_seq_lengths is not None:
        seen = seen & (torch.arange(k.shape[-2]) < key_value_seq_lengths.view(-1, 1, 1, 1))
    output = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True)
    return output.swapaxes(1, 2)


def test_a_port_with_tensors_gets_its_lengths_as_tensors() -> None:
    made = wrapped("dot_product_attention", dot_product_attention, {}, "cpu")
    assert Feature.VALID_LENS in made.claims.features
    assert not failing(made, ("masks.valid-lens",), "float32")


def in_windows(each_side: Callable[[int], int] | None) -> Callable[..., torch.Tensor]:
    """The same with windows, of which one in one number is so wide on each side; None: it has to be a pair."""

    def windowed(*inputs: torch.Tensor, local_window_size: Any = None, **options: Any) -> torch.Tensor:
        query, key = inputs[:2]
        seen = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool)
        if local_window_size is not None:
            if isinstance(local_window_size, int) and each_side is not None:
                local_window_size = (each_side(local_window_size),) * 2
            left, right = local_window_size
            seen = seen.triu(-left).tril(right)
        given = options.get("mask")
        options["mask"] = seen[None, None] & (True if given is None else given)
        return dot_product_attention(*inputs, **options)

    windowed.__signature__ = inspect.signature(dot_product_attention)  # type: ignore[attr-defined]
    return windowed


@pytest.mark.parametrize(
    ("each_side", "wrong"), [(lambda width: width, False), (None, False), (lambda width: width // 2, True)]
)
def test_a_window_in_one_number_is_as_wide_on_each_side(each_side: Callable[[int], int] | None, wrong: bool) -> None:
    made = wrapped("windowed", in_windows(each_side), {}, "cpu")
    assert ("with one number as its window" in made.alternatives) is (each_side is not None)
    assert failing(made, ("relations.alternatives",), "float32") == ({"relations.alternatives"} if wrong else set())


def in_slots(ignored: bool) -> Callable[..., torch.Tensor]:
    """Sequences in slots, of whose keys the first `seqused_k` count; for their number alone if the rest is ignored."""

    def flash_attn_varlen_func(  # type: ignore[no-untyped-def]
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale=None,
        causal=False,
        seqused_k=None,
    ):
        outputs = []
        for b, (first, last) in enumerate(itertools.pairwise(cu_seqlens_q)):
            start, slot = int(cu_seqlens_k[b]), int(cu_seqlens_k[b + 1] - cu_seqlens_k[b])
            used = slot if seqused_k is None else int(seqused_k[b])
            keys, values = (x[start : start + used].transpose(0, 1) for x in (k, v))
            scores = q[first:last].transpose(0, 1) @ keys.mT * (softmax_scale or q.shape[-1] ** -0.5)
            corner = (slot if ignored else used) - int(last - first)
            hidden = torch.ones_like(scores, dtype=torch.bool).triu(corner + 1) & causal
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num()
            outputs.append((weights @ values).transpose(0, 1))
        return torch.cat(outputs)

    return flash_attn_varlen_func


@pytest.mark.parametrize("ignored", [False, True])
def test_slots_that_are_not_full_are_another_way_to_call(ignored: bool) -> None:
    made = wrapped("slots", in_slots(ignored), {}, "cpu")
    assert failing(made, ("relations.alternatives", "packed.lengths", "causal.alignment"), "float32") == (
        {"relations.alternatives"} if ignored else set()
    )


def test_documents_of_length_0_that_are_refused_are_not_claimed() -> None:
    whole = functions()["flash_attn_varlen_func"]

    @wraps(whole)
    def refusing(q: Any, k: Any, v: Any, cu_seqlens_q: Any, *rest: Any, **options: Any) -> Any:
        if (cu_seqlens_q.diff() < 1).any():
            raise ValueError("each document needs a query")
        return whole(q, k, v, cu_seqlens_q, *rest, **options)

    made = wrapped("refusing", refusing, {}, "cpu")
    assert "documents without queries are refused" in made.stated
    assert not failing(made, ("packed.*",), "float32")
    assert failing(presented("flash_attn_varlen_func", "documents"), ("packed.*",), "float32")
