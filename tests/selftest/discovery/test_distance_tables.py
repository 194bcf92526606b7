"""Tables of distances and learned slopes: by their equations, with each option, in long sequences."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make

BODY = """
class f(nn.Module):
    def __init__(self, dim, heads{options}):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        {parts}
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        place = torch.arange(x.shape[1])
        ahead, scale = place - place[:, None], q.shape[-1] ** -0.5
        s = q @ k.mT
        {scores}
        return self.out({answer}.transpose(1, 2).flatten(2))
"""
USUAL = "(s.softmax(-1) @ v)"
LATER = "s = s.masked_fill(ahead > 0, -torch.inf)"
SHAW = (
    "self.rel_k, self.rel_v = (nn.Parameter(torch.randn(5, dim // heads)) for _ in 'kv')",
    "rows = ahead.clamp(-2, 2) + 2",
)
SHAW_VALUES = "(s.softmax(-1) @ v + torch.einsum('bhij,ijd->bhid', s.softmax(-1), self.rel_v[{rows}]))"
KEYS = "self.distance_embedding = nn.Embedding(2 * 150 - 1, dim // heads)"
READ = "near = torch.einsum('bhid,ijd->bhij', q, self.distance_embedding.weight[{rows} + 149])"
SLOPES = "self.slopes = nn.Parameter(torch.linspace(0.1, 1, heads))"


def body(parts: str, *scores: str, answer: str = USUAL, options: str = "") -> str:
    return BODY.format(parts=parts, scores="\n        ".join(scores), answer=answer, options=options)


def fall(distance: str) -> str:
    return f"s = s * scale - self.slopes.view(-1, 1, 1) * {distance}"


def optional(added: str) -> str:
    parts = f"self.position_kind = position_kind\n        if self.position_kind == 'relative_key':\n            {KEYS}"
    lines = f"if self.position_kind == 'relative_key':\n            {READ.format(rows='(-ahead)')}\n            {added}"
    return body(parts, lines, "s = s * scale", options=", position_kind='absolute'")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (body(KEYS, READ.format(rows="ahead"), "s = (s + near) * scale"), False),
        (body(KEYS, READ.format(rows="(-ahead)"), "s = (s + near) * scale", LATER), False),
        (body(KEYS, READ.format(rows="ahead"), "s = s * scale + near"), True),
        (body(KEYS, READ.format(rows="ahead.abs()"), "s = (s + near) * scale"), True),
        (body(KEYS, READ.format(rows="ahead.clamp(-99, 99)"), "s = (s + near) * scale"), True),
        (optional("s = s + near"), False),
        (optional("s = s + near / scale"), True),
        (body(SLOPES, fall("ahead.abs()"), LATER), False),
        (body(SLOPES, fall("ahead.abs()")), False),
        (body(SLOPES, fall("ahead.abs().clamp(max=64)"), LATER), True),
    ],
)
def test_scores_of_distances(make: Make, text: str, wrong: bool) -> None:
    assert is_caught(make, text) is wrong


@pytest.mark.parametrize(("values", "wrong"), [("rows", False), ("rows.clamp(max=3)", True)])
def test_rows_of_distances_are_added_to_values(make: Make, values: str, wrong: bool) -> None:
    """Of those that are wrong the equation is unknown, and the first screen says so, or the answers show it."""
    lines = (SHAW[1], "s = (s + torch.einsum('bhid,ijd->bhij', q, self.rel_k[rows])) * scale")
    made = make(body(SHAW[0], *lines, answer=SHAW_VALUES.format(rows=values)))
    assert bool(made.findings) is wrong


def is_caught(make: Make, text: str) -> bool:
    made = make(text)
    assert Feature.AS_BUILT in made.claims
    (found,) = run(made, ("modules.as-built",), ("float64",))
    assert found.status is Status.FAIL or not made.findings
    return found.status is Status.FAIL
