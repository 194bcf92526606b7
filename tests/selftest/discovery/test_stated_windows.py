"""Windows of modules: whether the own key counts, as documentation states, and those of images, by their default."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

WINDOW = '''
class f(nn.Module):
    """Causal attention. {stated}"""

    def __init__(self, dim, num_heads, sliding_window=4):
        super().__init__()
        self.h, self.sliding_window = num_heads, sliding_window
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1])
        ahead = at - at[:, None]
        seen = (ahead <= 0) & (-ahead {limit} self.sliding_window)
        return self.out(attend(q, k, v, seen)[0].transpose(1, 2).flatten(2))
'''
COUNTED = "A token sees sliding_window tokens in all: itself and the sliding_window - 1 before it."
NOT_COUNTED = "A token sees sliding_window tokens before it, in addition to itself."


@pytest.mark.parametrize(
    ("stated", "limit", "wrong"),
    [
        (COUNTED, "<", False),
        (COUNTED, "<=", True),
        (NOT_COUNTED, "<=", False),
        (NOT_COUNTED, "<", True),
        ("It has a sliding window.", "<=", False),
        ("It has a sliding window. x: (N, dim), N tokens in total.", "<=", False),
        ("It has a sliding window.", "<", False),
    ],
)
def test_documentation_states_whether_a_window_counts_the_own_key(
    make: Make, stated: str, limit: str, wrong: bool
) -> None:
    assert bool(failing(make(WINDOW.format(stated=stated, limit=limit)), "scores.*", "softmax.*")) is wrong


SETTINGS = WINDOW.replace("num_heads, sliding_window=4", "num_heads, args=None").replace(
    "self.h, self.sliding_window = num_heads, sliding_window",
    "self.h, self.args = num_heads, types.SimpleNamespace(sliding_window=4)",
)
OF_SETTINGS = "import types\n" + SETTINGS.replace("{limit} self.sliding_window", "{limit} self.args.sliding_window")
TO_ITSELF = "A token attends to itself and to the `sliding_window - 1` tokens before it."


@pytest.mark.parametrize(("limit", "wrong"), [("<", False), ("<=", True)])
def test_the_number_may_be_one_of_an_object_of_settings(make: Make, limit: str, wrong: bool) -> None:
    made = make(OF_SETTINGS.format(stated=TO_ITSELF, limit=limit))
    assert bool(failing(made, "scores.*", "softmax.*")) is wrong


NUMBER = """
def f(q, k, v, window):
    \"\"\"{stated}\"\"\"
    at = torch.arange(q.shape[2])
    ahead = at - at[:, None]
    return attend(q, k, v, (ahead <= 0) & (-ahead {limit} window))[0]
"""


@pytest.mark.parametrize(
    ("stated", "limit", "wrong"),
    [
        ("A token attends to at most ``window`` tokens, itself being one of them.", "<", False),
        ("A token attends to at most ``window`` tokens, itself being one of them.", "<=", True),
        ("Causal; window=1 returns v.", "<=", True),
        ("Causal; a window of 3 tokens besides itself.", "<", True),
        ("Causal; tokens of a window attend to themselves, too.", "<=", False),
        ("window: keys that a query sees, its own counted; window=1 is itself only.", "<=", True),
        ("window: keys that a query sees, its own counted; window=1 is itself only.", "<", False),
        ("Causal attention over the last `window` tokens (the current token counts).", "<=", True),
        ("Causal attention over the last `window` tokens (the current token counts).", "<", False),
        ("Causal attention over the last `window` tokens.", "<=", False),
        ("A query attends to at most window keys.", "<=", True),
        ("A query attends to at most window keys before it.", "<=", False),
        ("Token t sees t - window + 1 .. t, as far as its window reaches.", "<=", True),
        ("Token t sees t - window + 1 .. t, as far as its window reaches.", "<", False),
    ],
)
def test_documentation_states_it_of_functions(make: Make, stated: str, limit: str, wrong: bool) -> None:
    assert bool(failing(make(NUMBER.format(stated=stated, limit=limit)), "window.*")) is wrong


@pytest.mark.parametrize(("stated", "wrong"), [("visible tokens, itself included", True), ("visible tokens", False)])
def test_a_comment_of_the_parameter_states_it(make: Make, stated: str, wrong: bool) -> None:
    text = NUMBER.replace("window)", f"window,  # {stated}\n)", 1).format(stated="Causal.", limit="<=")
    assert bool(failing(make(text), "window.*")) is wrong


@pytest.mark.parametrize(("limit", "wrong"), [("<", False), ("<=", True)])
def test_a_comment_where_the_number_is_kept_states_it(make: Make, limit: str, wrong: bool) -> None:
    kept = "self.sliding_window = sliding_window  # visible tokens, the current one counts"
    text = WINDOW.replace(
        "self.h, self.sliding_window = num_heads, sliding_window", f"self.h = num_heads\n        {kept}"
    )
    made = make(text.format(stated="It has a window.", limit=limit))
    assert bool(failing(made, "scores.*", "softmax.*")) is wrong


BOTH_SIDES = WINDOW.replace(
    "(ahead <= 0) & (-ahead {limit} self.sliding_window)", "ahead.abs() <= self.sliding_window // 2"
)


def test_a_number_of_both_sides_is_that_of_all_keys(make: Make) -> None:
    text = BOTH_SIDES.replace("sliding_window=4", "sliding_window=3").replace("Causal attention. ", "")
    stated = "A token attends to at most sliding_window tokens, itself included."
    assert not failing(make(text.format(stated=stated)), "scores.*", "softmax.*")


OF_IMAGES = '''
class f(nn.Module):
    """x: (num_images * num_windows, N, dim); mask: (num_windows, N, N), added."""

    def __init__(self, dim, window_size=(4, 4), num_heads=4):
        super().__init__()
        self.h, (down, along) = num_heads, window_size
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * down - 1) * (2 * along - 1), num_heads))
        y, x = torch.meshgrid(torch.arange(down), torch.arange(along), indexing="ij")
        y, x = ((each.flatten()[:, None] - each.flatten()) for each in (y, x))
        self.register_buffer("rows", (y + down - 1) * (2 * along - 1) + x + along - 1)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        bias = self.relative_position_bias_table[self.rows].permute(2, 0, 1)
        if mask is not None:
            bias = bias + mask[:, None].{repeated}
        return self.proj(attend(q, k, v, bias)[0].transpose(1, 2).flatten(2))
'''


@pytest.mark.parametrize(
    ("repeated", "wrong"),
    [
        ("repeat(len(x) // len(mask), 1, 1, 1)", False),
        ("repeat_interleave(len(x) // len(mask), 0)", True),
    ],
)
def test_a_window_may_have_sides_by_default(make: Make, repeated: str, wrong: bool) -> None:
    assert bool(failing(make(OF_IMAGES.format(repeated=repeated)), "modules.as-built")) is wrong
