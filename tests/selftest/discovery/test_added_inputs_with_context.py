"""Layers that add their input to what attention gives, and may be given another sequence for keys and values."""

from __future__ import annotations

import pytest

from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make

LAYER = """
from torch import nn

class Layer(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.heads = num_attention_heads
        self.query, self.key, self.value, self.dense = (nn.Linear(hidden_size, hidden_size) for _ in range(4))
        self.LayerNorm, self.dropout = nn.LayerNorm(hidden_size), nn.Dropout(0.1)

    def forward(self, hidden_states, attention_mask=None, encoder_hidden_states=None, encoder_attention_mask=None):
        other = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        mask = attention_mask if encoder_hidden_states is None else {mask}
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.query, hidden_states), (self.key, other), (self.value, other))
        )
        s = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            s = s.masked_fill(mask[:, None, None] == 0, -torch.inf)
        heads = self.dropout(s.softmax(-1)) @ v
        given = self.dropout(self.dense(heads.transpose(1, 2).flatten(2)))
        return (self.LayerNorm(given + hidden_states),)
"""


@pytest.mark.parametrize(("mask", "wrong"), [("encoder_attention_mask", False), ("None", True)])
def test_what_it_adds_is_left_out_with_another_sequence_too(make: Make, mask: str, wrong: bool) -> None:
    made = make(LAYER.format(mask=mask), name="Layer")
    names = ("scores.dot-product", "cross-attention.key-length", "masks.padding")
    statuses = {each.clause: each.status for each in run(made, names, ("float64",))}
    assert statuses["scores.dot-product"] is Status.PASS
    assert (Status.FAIL in {*statuses.values()}, bool(made.findings)) == (False, wrong)
