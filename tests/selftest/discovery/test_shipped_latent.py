"""Functions of latents, by their signatures: right ones conform in either form, others do not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.builtin.inhouse.latent import latent_attention as in_numpy
from attention_conformance.implementations.builtin.stepwise.latent_steps import LatentSteps
from attention_conformance.implementations.discovery.candidates import wrapped
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

PROMISED = {Feature.LATENT, Feature.SCALE, Feature.CAUSAL, Feature.VALID_LENS, Feature.VALUE_WIDTH}


def absorbed_and_wrongly_scaled(
    q_nope: Tensor, q_pe: Tensor, ckv: Tensor, kpe: Tensor, w_uk: Tensor, w_uv: Tensor, softmax_scale: Any = None
) -> Tensor:
    query, rows = torch.cat([q_nope @ w_uk, q_pe], -1), torch.cat([ckv, kpe], -1)[:, None]
    scores = query @ rows.mT * (softmax_scale or query.shape[-1] ** -0.5)
    mixed: Tensor = scores.softmax(-1) @ ckv[:, None]
    return mixed @ w_uv.mT


def one_step(
    q_nope: Tensor, q_pe: Tensor, kv_c: Tensor, k_pe: Tensor, w_uk: Tensor, w_uv: Tensor, kv_len: Any = None
) -> Tensor:
    """One query a sample, (B, H, d); w_uv: (H, r, d_v)."""
    query, rows = torch.cat([torch.einsum("bhd,hdr->bhr", q_nope, w_uk), q_pe], -1), torch.cat([kv_c, k_pe], -1)
    scores = torch.einsum("bhe,bse->bhs", query, rows) * (q_nope.shape[-1] + q_pe.shape[-1]) ** -0.5
    if kv_len is not None:
        scores = scores.masked_fill(torch.arange(kv_c.shape[1]) >= kv_len[:, None, None], -torch.inf)
    return torch.einsum("bhs,bsr,hrv->bhv", torch.nan_to_num(scores.softmax(-1)), kv_c, w_uv)


def one_wrong_step(
    q_nope: Tensor, q_pe: Tensor, kv_c: Tensor, k_pe: Tensor, w_uk: Tensor, w_uv: Tensor, kv_len: Any = None
) -> Tensor:
    """The same with scores divided by the root of the width of a row."""
    wide = (q_nope.shape[-1] + q_pe.shape[-1]) / (kv_c.shape[-1] + k_pe.shape[-1])
    return one_step(q_nope * wide**0.5, q_pe * wide**0.5, kv_c, k_pe, w_uk, w_uv, kv_len)


def tokens_first(q_nope: Tensor, q_pe: Tensor, kv_c: Tensor, k_pe: Tensor, w_uk: Tensor, w_uv: Tensor) -> Tensor:
    """Queries (B, L, H, d), both matrices (H, r, d)."""
    parts = q_nope.transpose(1, 2), q_pe.transpose(1, 2), kv_c, k_pe, w_uk.mT, w_uv.mT
    return LatentSteps()(*parts).transpose(1, 2)


def failing(function: Any, *clauses: str) -> set[str]:
    verdicts = run(wrapped("latent", function, {}, "cpu"), clauses, ("float32",))
    assert any(verdict.checks for verdict in verdicts)
    return {verdict.clause for verdict in verdicts if verdict.status in (Status.FAIL, Status.ERROR)}


@pytest.mark.parametrize("function", [LatentSteps().__call__, in_numpy], ids=["torch", "numpy"])
def test_a_right_one_conforms(function: Any) -> None:
    made = wrapped("latent", function, {}, "cpu")
    assert {feature for feature in PROMISED if feature not in made.claims} == set()
    assert Feature.GROUPED not in made.claims
    assert not failing(function, "latent.*", "scores.dot-product", "causal.square")


def test_a_wrong_one_is_caught() -> None:
    assert failing(absorbed_and_wrongly_scaled, "latent.scale", "latent.values", "scores.scale-explicit") == {
        "latent.scale"
    }


@pytest.mark.parametrize("function", [one_step, tokens_first])
def test_other_axes_are_found_by_calls(function: Any) -> None:
    assert not failing(function, "latent.scale", "latent.values", "latent.widths", "scores.dot-product")


def test_a_wrong_scale_of_one_query_is_caught() -> None:
    assert failing(one_wrong_step, "latent.scale") == {"latent.scale"}
