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
