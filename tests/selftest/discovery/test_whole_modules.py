"""Whole modules: what is left out where the answer is known is in place where relations are checked."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make

GATED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.to_gate = {gate}
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        y = attend(q, k, v{options})[0]
        return {returned}
"""
LINEAR = "nn.Linear(dim, heads)"
RESHAPED = "self.to_gate(x).sigmoid().reshape(len(x), self.h, -1, 1)"
TRANSPOSED = "self.to_gate(x).sigmoid().mT[..., None]"
CUT = "self.to_gate(x).sigmoid().detach().mT[..., None]"
OUT = "self.out((y * {opened}).transpose(1, 2).flatten(2))"
TABLE = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.relative_attention_bias = nn.Embedding(8, heads)
    def forward(self, x, past=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        last, n = k.shape[2], q.shape[2]
        at = torch.arange(last)
        far = self.relative_attention_bias((at[:, None] - at).clamp(0, 7)).permute(2, 0, 1)
        later = torch.ones(n, last, dtype=torch.bool).triu(last - n + 1)
        s = (q @ k.mT / q.shape[-1] ** 0.5 + far[:, {rows}]).masked_fill(later, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)
"""


def gated(opened: str, causal: bool = False, gate: str = LINEAR) -> str:
    options = ", causal=True" if causal else ""
    return GATED.format(gate=gate, options=options, returned=OUT.format(opened=opened))


def is_caught(make: Make, text: str) -> bool:
    made = make(text)
    assert Feature.AS_BUILT in made.claims
    (found,) = run(made, ("modules.as-built",), ("float32",))
    assert found.status in (Status.FAIL, Status.PASS)
    return found.status is Status.FAIL


@pytest.mark.parametrize(
    ("opened", "causal", "wrong"),
    [(TRANSPOSED, False, False), (TRANSPOSED, True, False), (RESHAPED, False, True), (CUT, True, True)],
)
def test_gates_are_in_place(make: Make, opened: str, causal: bool, wrong: bool) -> None:
    """They are moved with their tokens, and let gradients through."""
    assert is_caught(make, gated(opened, causal)) is wrong


@pytest.mark.parametrize(("rows", "wrong"), [("last - n :", False), (":n", True)])
def test_a_table_is_in_place_where_tokens_come_in_pieces(make: Make, rows: str, wrong: bool) -> None:
    assert is_caught(make, TABLE.format(rows=rows)) is wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_training_is_evaluation_where_nothing_is_dropped(make: Make, wrong: bool) -> None:
    """Dropout by a function is seen, as its answers differ, and is no mistake."""
    dropped = "F.dropout(self.to_gate(x), 0.5, self.training).sigmoid().mT[..., None]"
    assert (
        is_caught(make, gated("(self.training + self.to_gate(x)).sigmoid().mT[..., None]" if wrong else dropped))
        is wrong
    )


@pytest.mark.parametrize(
    ("spread", "wrong"), [("repeat_interleave(x.shape[-1] // self.h)", False), ("repeat({})", True)]
)
def test_heads_move_with_all_their_parameters(make: Make, spread: str, wrong: bool) -> None:
    each = f"self.to_gate.{spread.format('x.shape[-1] // self.h')}.unflatten(0, (self.h, -1))[:, None]"
    assert is_caught(make, gated(each, gate="nn.Parameter(torch.ones(heads))")) is wrong


@pytest.mark.parametrize(("opened", "idle"), [("(1 + 0 * self.to_gate(x)).mT[..., None]", True), (TRANSPOSED, False)])
def test_a_parameter_that_changes_nothing_is_not_judged(make: Make, opened: str, idle: bool) -> None:
    assert ("to_gate.weight" in make(gated(opened)).findings) is idle


def test_a_part_that_knows_places_may_do_so(make: Make) -> None:
    placed = "nn.Parameter(torch.zeros(99, heads))"
    assert not is_caught(make, gated("(1 + self.to_gate[: x.shape[1]]).mT[..., None]", gate=placed))


COUNTED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, prefix_len=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1])
        seen = (at <= at[:, None])[None]
        if prefix_len is not None:
            seen = seen | (at < {count})
        return self.out(attend(q, k, v, seen[:, None])[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("count", "wrong"), [("prefix_len[:, None, None]", False), ("prefix_len.max()", True)])
def test_counts_of_a_sample_are_its_own(make: Make, count: str, wrong: bool) -> None:
    """What they mean is unknown, and needs not be known: a sample alone gets its answer."""
    assert is_caught(make, COUNTED.format(count=count)) is wrong


def test_nothing_is_claimed_where_all_parts_are_known(make: Make) -> None:
    assert Feature.AS_BUILT not in make(gated("1", gate="None")).claims


def test_heads_inside_a_wider_axis_are_not_moved(make: Make) -> None:
    """What lies next to other things in one axis is not moved with the heads: where is unknown."""
    text = """
class f(nn.Module):
    def __init__(self, dim, heads, r=4):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.lora_a, self.lora_b = nn.Linear(dim, r, bias=False), nn.Linear(r, 3 * dim, bias=False)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in (self.qkv(x) + self.lora_b(self.lora_a(x))).chunk(3, -1))
        return self.out(attend(q, k, v)[0].transpose(1, 2).flatten(2))
"""
    assert not is_caught(make, text)
