"""Dropout of what is always causal, rates in settings, and tables of complex rotations: right and wrong ones."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

CLAUSES = ("dropout.rate", "dropout.independent", "dropout.seed", "dropout.next-call", "dropout.factors")
FUNCTION = """
def f(q, k, v, dropout_p=0.0):
    s = q @ k.mT / q.shape[-1] ** 0.5
    p = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    return {dropped} @ v
"""
SETTINGS = """
class f(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.h, width = config.num_attention_heads, config.hidden_size
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
    def forward(self, hidden_states):
        q, k, v = (split(layer(hidden_states), self.h) for layer in (self.q, self.k, self.v))
        p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return ({dropped} @ v).transpose(1, 2).flatten(2)
"""
OWN = """
from dataclasses import dataclass

@dataclass
class Config:
    hidden_size: int = 32
    num_attention_heads: int = 4
    attention_probs_dropout_prob: float = 0.0
"""
COMPLEX = """
class f(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.h, half = n_heads, torch.arange(0, dim // n_heads, 2).double()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        angles = torch.outer(torch.arange(4096.0).double(), 10000.0 ** (-half / (dim // n_heads)))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)
    def rotated(self, x):
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.turns[: x.shape[2]]).flatten(3).to(x.dtype)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        return self.out(attend(self.rotated(q), self.rotated(k), v{moved}, causal=True)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("dropped", "wrong"),
    [
        ("F.dropout(p, dropout_p)", False),
        ("(p * F.dropout(torch.ones_like(p[:1]), dropout_p))", True),
        ("(p * F.dropout(torch.ones_like(p), dropout_p / 2))", True),
    ],
)
def test_dropout_of_what_is_always_causal(make: Make, dropped: str, wrong: bool) -> None:
    made = make(FUNCTION.format(dropped=dropped))
    assert made.claims.premises.causal
    assert Feature.DROPOUT in made.claims
    assert bool(failing(make(FUNCTION.format(dropped=dropped)), *CLAUSES)) is wrong


OWN_MODE = """
def f(q, k, v, p_drop=0.0, {mode}, generator=None):
    \"\"\"Dropout in training alone.\"\"\"
    p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    if {training} and p_drop > 0:
        keep = torch.rand(p.shape, generator=generator) {compared} p_drop
        p = p * keep / (1 - p_drop)
    return p @ v, p
"""


@pytest.mark.parametrize(
    ("mode", "training"),
    [("train=False", "train"), ("deterministic=True", "not deterministic"), ("train=False", "True")],
)
@pytest.mark.parametrize("compared", [">=", "<"])
def test_modes_of_functions_have_names_of_their_own(make: Make, mode: str, training: str, compared: str) -> None:
    made = make(OWN_MODE.format(mode=mode, training=training, compared=compared))
    assert any(f"its {mode.partition('=')[0]!r} is" in each for each in made.stated)
    wrong = {"dropout.rate"} if compared == "<" else set()
    wrong |= {"dropout.evaluation"} if training == "True" else set()
    assert failing(made, *CLAUSES, "dropout.evaluation") == wrong


@pytest.mark.parametrize(("dropped", "wrong"), [("self.dropout(p)", False), ("p", True), ("self.dropout(p) / 2", True)])
@pytest.mark.parametrize("by_default", [False, True])
def test_rates_of_dropout_in_settings(make: Make, dropped: str, wrong: bool, by_default: bool) -> None:
    text = SETTINGS.format(dropped=dropped)
    text = OWN + text.replace("self, config)", "self, config=Config())") if by_default else text
    assert Feature.DROPOUT in make(text).claims
    assert bool(failing(make(text), *CLAUSES)) is wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_weights_without_a_scale_that_are_zeros_in_float16_count_as_none_that_are_dropped(
    make: Make, wrong: bool
) -> None:
    dropped = "(p * self.dropout(torch.ones_like(p[:1])))" if wrong else "self.dropout(p)"
    stated = SETTINGS.replace("(nn.Module):", '(nn.Module):\n    """The scores are not scaled."""', 1)
    made = make(stated.replace(" / q.shape[-1] ** 0.5", "").format(dropped=dropped))
    assert bool(failing(made, *CLAUSES, dtype="float16")) is wrong


@pytest.mark.parametrize(("moved", "wrong"), [("", False), (" * (torch.arange(v.shape[2]) != 2)[:, None]", True)])
def test_tables_of_complex_rotations_stay_complex(make: Make, moved: str, wrong: bool) -> None:
    assert bool(failing(make(COMPLEX.format(moved=moved)), "scores.dot-product", "values.weighted-sum")) is wrong
