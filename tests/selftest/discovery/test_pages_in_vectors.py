"""Pages whose places lie last, and keys in vectors: right ones conform, and a slip is caught where it shows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.candidates import wrapped
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

CLAUSES = ("scores.dot-product", "grouped.order", "paged.*")


def answered(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """(H, d) with (n, Hk, d), and the log-sum-exps (H,)."""
    k, v = (x.repeat_interleave(q.shape[0] // x.shape[1], 1) for x in (k, v))
    s = torch.einsum("hd,nhd->hn", q, k) * scale
    return torch.einsum("hn,nhd->hd", s.softmax(-1), v), s.logsumexp(-1)


def in_parts(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    sm_scale: float,
    page_table: Tensor,
    seq_lens: Tensor,
    chunk_size: int = 1 << 20,
    slip: str = "",
) -> Tensor:
    """Keys (pages, Hk, d / x, page_size, x), values (pages, Hk, d, page_size), in chunks of keys that are merged."""
    out, size, x = torch.zeros_like(query), v_cache.shape[3], 16 // query.element_size()
    assert k_cache.shape[4] == x
    assert chunk_size % size == 0 or chunk_size == 1 << 20
    for b, n in enumerate(seq_lens.tolist()):
        pages = page_table[b].long()
        order = (0, 3, 1, 4, 2) if slip == "vectors" else (0, 3, 1, 2, 4)
        keys = k_cache[pages].permute(order).flatten(0, 1).flatten(2)[:n]
        values = v_cache[pages].permute(0, 3, 1, 2).flatten(0, 1)[:n]
        if slip == "places":
            values = v_cache[pages].permute(0, 3, 1, 2).roll(1, 1).flatten(0, 1)[:n]
        chunks = zip(keys.split(chunk_size), values.split(chunk_size), strict=True) if n else ()
        parts = [answered(query[b], *chunk, sm_scale) for chunk in chunks]
        if parts:
            logs = torch.stack([log for _, log in parts])
            weights = torch.ones_like(logs) / len(parts) if slip == "merge" else logs.softmax(0)
            out[b] = (torch.stack([o for o, _ in parts]) * weights[..., None]).sum(0)
    return out


def transposed(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lens: Tensor, slip: str = ""
) -> Tensor:
    """Keys (pages, Hk, d, page_size), values (pages, Hk, page_size, d), and several queries, causal."""
    out = torch.zeros_like(q)
    for b, n in enumerate(context_lens.tolist()):
        pages = block_tables[b].long()
        keys = key_cache[pages].permute(0, 3, 1, 2).flatten(0, 1)[:n]
        values = value_cache[pages].permute(0, 2, 1, 3).flatten(0, 1)[:n]
        for i in range(q.shape[1]):
            if (seen := n - q.shape[1] + i + 1 - (slip == "last")) > 0:
                out[b, i] = answered(q[b, i], keys[:seen], values[:seen], q.shape[-1] ** -0.5)[0]
    return out


def slipped(function: Callable[..., Any], slip: str) -> Callable[..., Any]:
    """The function with a slip."""
    return partial(function, slip=slip)


def failing(made: Implementation, *clauses: str) -> set[str]:
    verdicts = run(made, clauses, ("float32",))
    assert sum(verdict.checks for verdict in verdicts)
    return {verdict.clause for verdict in verdicts if verdict.status in (Status.FAIL, Status.ERROR)}


@pytest.mark.parametrize("function", [in_parts, transposed])
def test_a_right_one_conforms(function: Any) -> None:
    made = wrapped("kernel", function, {}, "cpu")
    assert {Feature.PAGED, Feature.VALID_LENS, Feature.GROUPED} <= made.claims.features
    assert not failing(made, *CLAUSES, "causal.alignment", "shapes.large")


def test_small_parts_are_another_way() -> None:
    assert "with a small chunk_size" in wrapped("kernel", in_parts, {}, "cpu").alternatives


@pytest.mark.parametrize(
    ("function", "slip", "clause"),
    [
        (in_parts, "vectors", "scores.dot-product"),
        (in_parts, "places", "paged.lengths"),
        (in_parts, "merge", "relations.alternatives"),
        (transposed, "last", "scores.dot-product"),
    ],
)
def test_a_slip_is_caught_where_it_shows(function: Any, slip: str, clause: str) -> None:
    assert clause in failing(wrapped("kernel", slipped(function, slip), {}, "cpu"), clause)
