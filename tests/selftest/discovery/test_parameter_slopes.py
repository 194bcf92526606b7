"""Gradients of parameters in whole modules: those of a table, and of layers that a hand-written backward pass feeds."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

TABLE = """
class Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, table):
        ctx.shape = table.shape
        return scores + table

    @staticmethod
    def backward(ctx, slope):
        return slope, {slope}

class f(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(17, num_heads)

    def forward(self, hidden_states):
        n = torch.arange(hidden_states.shape[1])
        q, k, v = (split(each(hidden_states), self.h) for each in (self.q, self.k, self.v))
        rows = {table}[(n[None] - n[:, None]).clamp(-8, 8) + 8]
        s = Added.apply(q @ k.mT * q.shape[-1] ** -0.5, rows.permute(2, 0, 1)[None])
        return self.o((s{softmax} @ v).transpose(1, 2).flatten(2))
"""
USUAL = {
    "slope": "slope.sum_to_size(ctx.shape)",
    "table": "self.relative_attention_bias.weight",
    "softmax": ".softmax(-1)",
}
STEPS = "(lambda t: t + ((t * 4).round() / 4 - t).detach())(self.relative_attention_bias.weight)"
"""Rounded to quarters, with the gradient of what is not rounded."""


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, False),
        ({"softmax": ".float().softmax(-1).to(v)"}, False),
        ({"table": STEPS}, False),
        ({"table": "self.relative_attention_bias.requires_grad_(False).weight"}, False),
        ({"slope": "slope.mean(0, keepdim=True)"}, True),
        ({"table": "self.relative_attention_bias.weight.detach()"}, True),
    ],
)
def test_the_gradient_of_a_table_is_its_slope(make: Make, changes: dict[str, str], wrong: bool) -> None:
    assert bool(failing(make(TABLE.format(**USUAL | changes)), "modules.as-built")) is wrong
