"""Backward passes alone: functions that are given what a forward pass keeps, and return three gradients."""

import pytest
import torch

from attention_conformance.implementations.discovery.functions.backward_alone import backward_alone
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make
from attention_conformance.tests.selftest.thorough import thorough

OF_TENSORS = """
def f(dout, q, k, v, out, softmax_lse, softmax_scale=None, causal=False):
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    s = torch.einsum("blhd,bshd->bhls", q, k) * {scale}
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + {ahead}), -torch.inf)
    p = torch.exp(s - softmax_lse[..., None]).to(q)
    dp = torch.einsum("blhd,bshd->bhls", dout, v)
    ds = p * (dp - (dout * out).sum(-1).transpose(1, 2)[..., None]) * scale
    dq, dk = torch.einsum("bhls,bshd->blhd", ds, k), torch.einsum("bhls,blhd->bshd", ds, q)
    return dq, dk, torch.einsum("bhls,blhd->bshd", p, dout)
"""
OF_ARRAYS = """
def f(Q, K, V, O, dO, L, block=4):
    dQ, dK, dV, scale = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V), Q.shape[-1] ** -0.5
    D = (O * dO).sum(-1)
    for j in range(0, K.shape[0], block):
        k, v = K[j : j + block], V[j : j + block]
        p = np.exp(scale * Q @ k.T - L[:, None])
        ds = p * (dO @ v.T - D[:, None]) * scale
        dQ {adds} ds @ k
        dK[j : j + block], dV[j : j + block] = ds.T @ Q, p.T @ dO
    return {{"dq": dQ, "dk": dK, "dv": dV}}
"""
OF_WEIGHTS = """
def f(query, key, value, attn, grad_output):
    dv = attn.mT @ grad_output
    dp = grad_output @ value.mT
    ds = attn * (dp - (attn * dp).sum({axis}, keepdim=True)) / query.shape[-1] ** 0.5
    return ds @ key, ds.mT @ query, dv
"""

CAUSAL = """
import numpy as np

def f(q, k, v, dout{flag}):
    s = np.einsum("hid,hjd->hij", q, k) * q.shape[-1] ** -0.5
    if {causal}:
        s = np.where(np.tri(*s.shape[1:], s.shape[2] - s.shape[1], dtype=bool), s, -np.inf)
    lse = np.logaddexp.reduce(s, axis=-1, keepdims=True)
    p = np.exp(s - np.where(np.isneginf(lse), 0, lse))
    dp = np.einsum("hid,hjd->hij", dout, v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)){scale}
    return np.einsum("hij,hjd->hid", ds, k), np.einsum("hij,hid->hjd", ds, q), np.einsum("hij,hid->hjd", p, dout)
"""
SCALED = " * q.shape[-1] ** -0.5"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (CAUSAL.format(flag=", causal=True", causal="causal", scale=SCALED), False),
        (CAUSAL.format(flag="", causal="True", scale=SCALED), False),
        (CAUSAL.format(flag="", causal="True", scale=""), True),
        (OF_TENSORS.format(scale="scale", ahead="s.shape[-1] - s.shape[-2]"), False),
        (OF_TENSORS.format(scale="scale", ahead="0"), False),
        (OF_TENSORS.format(scale="q.shape[-1] ** -0.5", ahead="0"), True),
        (OF_TENSORS.format(scale="scale", ahead="(s.shape[-1] > 64)"), True),
        pytest.param(OF_ARRAYS.format(adds="+="), False, marks=thorough),
        pytest.param(OF_ARRAYS.format(adds="="), True, marks=thorough),
        (OF_WEIGHTS.format(axis="-1"), False),
        (OF_WEIGHTS.format(axis="-2"), True),
    ],
)
def test_it_is_judged_by_its_gradients(make: Make, text: str, wrong: bool) -> None:
    made = make(text)
    assert any("backward pass" in each for each in made.stated)
    names = ("gradients.*", "causal.*", "shapes.meetings", "shapes.large", "scores.scale*")
    statuses = {each.status for each in run(made, names, ("float64",))}
    assert (Status.FAIL in statuses) is wrong
    assert Status.ERROR not in statuses


def test_what_has_no_right_gradient_is_none() -> None:
    def scaled(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return q * dout, k, v

    assert backward_alone(scaled) is None
