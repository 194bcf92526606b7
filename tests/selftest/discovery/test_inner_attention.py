"""Modules that take heads and have parameters of their own are judged inside of a layer."""

from __future__ import annotations

import pytest

from attention_conformance.implementations.discovery.candidates import IN_LAYER
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, failing

HEAD = """
from torch import nn

class Inner(nn.Module):
    def __init__(self, num_heads, head_dim=8):
        super().__init__()
        {parameters}

    def forward(self, q, k, v, mask=None):
        s = torch.einsum("{product}", {inputs}) * {factor}
        if mask is not None:
            s = s.masked_fill(~mask, -torch.inf)
        {weights}
        return torch.einsum("{sum}", w, v)
"""
BHLD = {"product": "bhid,bhjd->bhij", "sum": "bhij,bhjd->bhid"}
BLHD = {"product": "bihd,bjhd->bhij", "sum": "bhij,bjhd->bihd"}
LBHD = {"product": "ibhd,jbhd->bhij", "sum": "bhij,jbhd->ibhd"}
USUAL = {"inputs": "q, k", "factor": "q.shape[-1] ** -0.5", "weights": "w = s.softmax(-1)"}
COSINES = {
    "parameters": "self.log_tau = nn.Parameter(torch.full((num_heads, 1, 1), 2.0))",
    "inputs": "nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)",
    "factor": "self.log_tau.exp()",
}
SINKS = {
    "parameters": "self.sinks = nn.Parameter(torch.zeros(num_heads))",
    "weights": "w = torch.cat([s, self.sinks.view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1).softmax(-1)[..., :-1]",
}
KEPT = "w = torch.cat([s, self.sinks.view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1).softmax(-1)[..., 1:]"


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        (BHLD | USUAL | COSINES, False),
        (BLHD | USUAL | COSINES, False),
        (LBHD | USUAL | COSINES, False),
        (LBHD | USUAL | SINKS | {"weights": KEPT}, True),
        (BHLD | USUAL | COSINES | {"weights": "w = (s if s.shape[-1] < 64 else s / 2).softmax(-1)"}, True),
        (BHLD | USUAL | SINKS, False),
        (BHLD | USUAL | SINKS | {"weights": KEPT}, True),
    ],
)
def test_what_takes_heads_is_judged_inside_of_a_layer(make: Make, parts: dict[str, str], wrong: bool) -> None:
    made = make(HEAD.format(**parts), name="Inner")
    assert IN_LAYER in made.stated
    names = ("modules.as-built", "masks.bool", "shapes.large")
    assert (Status.FAIL in {each.status for each in run(made, names, ("float64",))}) is wrong
    assert made.findings == {} or wrong


PROJECTED_ALREADY = """
class f(nn.Module):
    def __init__(self, d_model, nhead, vdim={default}):
        super().__init__()
        self.nhead, self.out_proj = nhead, nn.Linear({width}, {width})
    def forward(self, query, key, value, attn_mask=None):
        q, k, v = (x.reshape(x.shape[0], -1, x.shape[2] // self.nhead).transpose(0, 1) for x in (query, key, value))
        s = q @ k.mT * {scale}
        if attn_mask is not None:
            s = s.masked_fill({mask}, -torch.inf) if attn_mask.dtype == torch.bool else s + attn_mask
        return self.out_proj((s.softmax(-1) @ v).transpose(0, 1).reshape(query.shape))
"""


@pytest.mark.parametrize(("default", "width"), [("None", "vdim"), ("8", "d_model")])
@pytest.mark.parametrize(
    ("scale", "mask", "broken"),
    [
        ("q.shape[-1] ** -0.5", "attn_mask", set()),
        ("query.shape[-1] ** -0.5", "attn_mask", {"scores.dot-product", "masks.bool"}),
        ("q.shape[-1] ** -0.5", "attn_mask.mT", {"masks.bool"}),
    ],
)
def test_a_module_that_projects_its_output_alone(
    make: Make, default: str, width: str, scale: str, mask: str, broken: set[str]
) -> None:
    made = make(PROJECTED_ALREADY.format(default=default, width=width, scale=scale, mask=mask))
    assert "it projects no inputs: judged inside of a layer that does" in made.stated
    assert ("vdim" in made.findings) is (default == "None")
    assert failing(made, "scores.dot-product", "masks.bool") == broken
