"""Images with one head of narrow queries and keys: judged by their equation, next to which a mistake is seen."""

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, refused

IMAGE = """
class f(nn.Module):
    def __init__(self, channels, ratio=2):
        super().__init__()
        self.query, self.key = (nn.Conv2d(channels, channels // ratio, 1) for _ in "qk")
        self.value, self.gamma = nn.Conv2d(channels, channels, 1), nn.Parameter(torch.zeros(1))
    def forward(self, x):
        q, k, v = (each(x).flatten(2).mT for each in (self.query, self.key, self.value))
        a = (q @ k.mT).softmax(-1)
        return x + self.gamma * (a @ v).mT.reshape(x.shape)
"""
NON_LOCAL = """
class f(nn.Module):
    def __init__(self, in_channels):
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(in_channels, in_channels // 2, 1) for _ in range(3))
        self.W = nn.Conv2d(in_channels // 2, in_channels, 1)
    def forward(self, x):
        q, k, v = (each(x).flatten(2).mT for each in (self.theta, self.phi, self.g))
        a = (q @ k.mT).softmax(-1)
        y = a @ v
        return x + self.W(y.mT.reshape(len(x), -1, *x.shape[2:]))
"""
SLIPS = {"right": ("a @ v", "a @ v"), "transposed": ("a @ v", "a.mT @ v"), "queries": ("softmax(-1)", "softmax(-2)")}


@pytest.mark.parametrize("text", [IMAGE, NON_LOCAL], ids=["image", "non-local"])
@pytest.mark.parametrize("slip", SLIPS)
def test_it_is_judged_by_its_equation(make: Make, text: str, slip: str) -> None:
    right, written = SLIPS[slip]
    refused(make, text.replace(right, written))
    made = candidate("mine.py:f", {}, in_part=True)
    assert "judged by the equation of the whole" in made.findings["its numbers"]
    (found,) = run(made, dtypes=("float32",))
    assert (found.clause, found.status) == ("modules.as-built", Status.PASS if slip == "right" else Status.FAIL)
