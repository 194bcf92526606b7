"""Windows that a constructor may be given and has none of by default: built with them, and judged by what they show."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

MODULE = '''
class f(nn.Module):
    """{stated}"""

    def __init__(self, dim, num_heads, {window}):
        super().__init__()
        self.h, self.window = num_heads, {name}
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1])
        behind = at[:, None] - at
        seen = {seen}
        return self.out(attend(q, k, v, seen)[0].transpose(1, 2).flatten(2))
'''
CAUSAL = "(behind >= 0) & (behind {limit} self.window) if {on} else behind >= 0"
NONE, LESS = "self.window is not None", "self.window > 0"


def module(seen: str, stated: str = "Attention.", window: str = "window=None") -> str:
    return MODULE.format(seen=seen, stated=stated, window=window, name=window.partition("=")[0].partition(":")[0])


@pytest.mark.parametrize(
    ("stated", "window", "limit", "wrong"),
    [
        ("Causal; window: tokens that a query sees, itself included.", "window=None", "<", False),
        ("Causal; window: tokens that a query sees, itself included.", "window=None", "<=", True),
        ("Causal.", "local_window: int = 0", "<", False),
        ("Causal.", "local_window: int = 0", "<=", False),
        ("Causal; window: tokens before it that a query sees, besides itself.", "attention_window=-1", "<=", False),
        ("Causal; window: tokens before it that a query sees, besides itself.", "attention_window=-1", "<", True),
    ],
)
def test_windows_that_are_off_by_default(make: Make, stated: str, window: str, limit: str, wrong: bool) -> None:
    seen = CAUSAL.format(limit=limit, on=NONE if "None" in window else LESS)
    made = make(module(seen, stated, window))
    assert Feature.WINDOW in made.claims
    assert not made.findings
    assert any("where a problem has a window" in each for each in made.stated)
    assert bool(failing(made, "window.*")) is wrong


@pytest.mark.parametrize(
    ("limit", "wrong"), [("self.window", False), ("min(self.window, 8)", True), ("max(self.window, 2)", True)]
)
def test_a_window_of_both_sides(make: Make, limit: str, wrong: bool) -> None:
    made = make(module(f"behind.abs() <= {limit} if {NONE} else behind.abs() >= 0"))
    assert Feature.WINDOW in made.claims
    assert bool(failing(made, "window.extent", "window.narrow", "shapes.large")) is wrong


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (f"(at[:, None] // self.window == at // self.window) if {NONE} else behind.abs() >= 0", "no window"),
        ("behind >= 0", "changes nothing"),
        (f"x.undefined if {NONE} else behind >= 0", "it raises"),
    ],
)
def test_what_is_no_window_that_is_known_is_not_judged(make: Make, seen: str, why: str) -> None:
    made = make(module(seen))
    assert Feature.WINDOW not in made.claims
    assert why in made.findings["window"]
    assert not failing(made, "scores.dot-product", "modules.as-built")


def test_numbers_of_other_names_are_no_windows(make: Make) -> None:
    made = make(module("behind >= 0", window="max_window_layers=None"))
    assert Feature.WINDOW not in made.claims
    assert not made.findings


OF_SETTINGS = """
class f(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.h, self.window = config.num_heads, getattr(config, "sliding_window", None)
        dim = config.hidden_size
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1])
        behind = at[:, None] - at
        seen = (behind >= 0) & (behind < self.window) if self.window{read} else behind >= 0
        if mask is not None:
            seen = seen & mask[:, None, None]
        return self.out(attend(q, k, v, seen)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("read", "claimed"), [("", True), (" and False", False)])
def test_a_setting_may_be_a_window_or_is_read_by_others(make: Make, read: str, claimed: bool) -> None:
    made = make(OF_SETTINGS.format(read=read))
    assert (Feature.WINDOW in made.claims) is claimed
    assert not made.findings
    assert not failing(made, "scores.dot-product", "window.*", "shapes.combinations")


OF_FIELDS = """
from dataclasses import dataclass

@dataclass
class Sizes:
    hidden_size: int
    num_heads: int
    sliding_window: int | None = None
"""


@pytest.mark.parametrize(("limit", "wrong"), [("<", False), ("<=", True)])
def test_a_field_of_settings_may_be_a_window(make: Make, limit: str, wrong: bool) -> None:
    text = OF_SETTINGS.replace(
        "config):", 'config: Sizes):\n        "sliding_window = W: W tokens, itself included."', 1
    )
    read = text.replace('getattr(config, "sliding_window", None)', "config.sliding_window").replace("<", limit)
    made = make(OF_FIELDS + read.format(read=" is not None"))
    assert Feature.WINDOW in made.claims
    assert bool(failing(made, "window.*")) is wrong
