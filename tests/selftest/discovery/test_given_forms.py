"""Module classes that are given something, or laid out for images and windows: the form in which each is attention."""

import re

import pytest
import torch
from torch import nn

from attention_conformance.implementations.discovery.modules.context_masks import BOTH_MASKS
from attention_conformance.implementations.discovery.modules.module_forms import Form, found_form
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.conventions import EmptyRow, Polarity, ProductPrecision
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import START, Make, assert_conforms

CLASS = """
class f(nn.Module):
    def __init__(self, {sizes}):
        super().__init__()
        {init}
        self.h = {heads}
        self.q, self.k, self.v, self.out = ({layer} for _ in range(4))
    def forward(self, {inputs}):
        {before}
        q, k, v = (split(each, self.h) for each in (self.q({x}), self.k({y}), self.v({y})))
        {turned}
        s = q @ k.mT * {scale}
        {masked}
        x = (s.softmax(-1) @ v).transpose(1, 2).flatten(2)
        {after}
"""
USUAL = {
    "sizes": "dim, heads",
    "init": "pass",
    "heads": "heads",
    "layer": "nn.Linear(dim, dim)",
    "inputs": "x",
    "before": "pass",
    "x": "x",
    "y": "x",
    "turned": "pass",
    "scale": "q.shape[-1] ** -0.5",
    "masked": "pass",
    "after": "return self.out(x)",
}
ROPE = {"sizes": "dim, heads, rope", "init": "self.rope = rope"}
TABLE = "cos, sin = {}; half = lambda x: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1); "
TURNED = "q, k = (x * cos + half(x) * sin for x in (q, k))"
COMPLEX = (
    "q, k = ((torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * self.t[:x.shape[-2]]) for x in (q, k))"
)
IMAGE = {
    "init": "self.norm = nn.GroupNorm(32, dim)",
    "layer": "nn.Conv2d(dim, dim, 1)",
    "before": "given = x; x = self.norm(x); size = x.shape[2:]",
    "after": "return given + self.out(x.mT.unflatten(-1, size))",
}
WINDOW = "self.register_buffer('at', torch.arange({0})[:, None] - torch.arange({0})[None] + {0} - 1)"
BIASED = "assert x.shape[1] == len(self.at); s = s + self.table[self.at].permute(2, 0, 1)"
FORMS: dict[str, dict[str, str]] = {
    "an object that rotates one tensor": {**ROPE, "turned": "q, k = self.rope(q, 0), self.rope.rotate(k)"},
    "an object that rotates two": {**ROPE, "turned": "q, k = self.rope(q, k)"},
    "an object that gives tables": {**ROPE, "turned": TABLE.format("self.rope(v, seq_len=v.shape[-2])") + TURNED},
    "a table of turns": {
        "sizes": "dim, heads, freqs_cis",
        "init": "self.t = freqs_cis",
        "turned": COMPLEX + "; q, k = (torch.view_as_real(x).flatten(-2) for x in (q, k))",
    },
    "a tuple of tables of half a head": {
        "inputs": "x, cos_sin",
        "turned": TABLE.format("(torch.cat([t, t], -1) for t in cos_sin if t.ndim == 4 or 1 / 0)") + TURNED,
    },
    "tables of a part of a head": {
        "inputs": "x, cos, sin",
        "turned": "p = q.shape[-1] // 4 * 2; half = lambda x: torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1); "
        "q, k = (torch.cat([x[..., :p] * cos + half(x[..., :p]) * sin, x[..., p:]], -1) for x in (q, k))",
    },
    "a second width, of one head": {
        "sizes": "dim, inner_dim, heads",
        "layer": "nn.Linear(dim, heads * inner_dim) if _ < 3 else nn.Linear(heads * inner_dim, dim)",
    },
    "a mask in every call": {"inputs": "x, mask=None", "masked": "s = s.masked_fill(mask[:, None].bool(), -torch.inf)"},
    "an input of key and value": {"inputs": "x_q, x_kv", "x": "x_q", "y": "x_kv"},
    "the input of key and value first": {"inputs": "context, x", "y": "context"},
    "an image": {**IMAGE, "x": "x", "y": "x"},
    "rows and columns before channels": {"before": "b, r, c, e = x.shape; x = x.flatten(1, 2)"},
    "channels before tokens": {
        "layer": "nn.Conv1d(dim, dim, 1)",
        "before": "assert x.ndim == 3",
        "after": "return self.out(x.mT)",
    },
    "a square window": {
        "sizes": "dim, window_size, heads",
        "init": WINDOW.format("window_size ** 2")
        + "; self.table = nn.Parameter(torch.randn(2 * window_size ** 2 - 1, heads))",
        "masked": BIASED,
    },
    "a window": {
        "sizes": "dim, window_size, heads",
        "init": WINDOW.format("(window_size[0] * window_size[1])")
        + "; self.table = nn.Parameter(torch.randn(2 * window_size[0] * window_size[1] - 1, heads))",
        "masked": BIASED,
    },
    "a base": {
        "sizes": "dim, heads, max_seq_len, theta",
        "init": "self.angles = torch.outer(torch.arange(max_seq_len), theta ** (-torch.arange(0, 1, 2 * heads / dim)))",
        "turned": "t = torch.cat([self.angles[: x.shape[1]]] * 2, -1).to(x); "
        + TABLE.format("t.cos(), t.sin()")
        + TURNED,
    },
    "letters in settings": {"sizes": "cfg", "init": "dim = cfg.D", "heads": "cfg.num_heads"},
    "matrices that mix heads, called projections": {
        "init": "self.proj_l = nn.Linear(heads, heads)",
        "masked": "s = self.proj_l(s.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)",
    },
    "a gate": {
        "init": "self.g = nn.Linear(dim, dim)",
        "before": "given = x",
        "after": "return self.out(x * self.g(given).sigmoid())",
    },
    "a convolution added to the values": {
        "sizes": "dim, resolution, heads",
        "init": "self.side = resolution; self.get_v = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)",
        "before": "given = x.mT.unflatten(-1, (self.side, self.side))",
        "after": "return self.out(x + self.get_v(given).flatten(2).mT)",
    },
    "a list": {"inputs": "inputs", "before": "x, y, z = inputs", "masked": "v = split(self.v(z), self.h)", "y": "y"},
    "sizes that the file sets as a program alone": {
        "sizes": "",
        "heads": "n_heads",
        "layer": "nn.Linear(d_model, n_heads * d_k)",
        "scale": "d_k ** -0.5",
    },
    "widths of queries and values, and lengths": {
        "sizes": "d_model, n_heads, d_queries, d_values",
        "heads": "n_heads",
        "layer": "nn.Linear(d_model, n_heads * d_queries) if d_queries == d_values else None",
        "inputs": "x, context, context_lengths",
        "y": "context",
        "masked": "s = s.masked_fill(torch.arange(s.shape[-1]) >= context_lengths[:, None, None, None], -torch.inf)",
    },
    "matrices that rotate pairs": {
        "inputs": "x, pe",
        "turned": "q, k = ((pe * x.unflatten(-1, (-1, 1, 2))).sum(-1).flatten(-2) for x in (q, k))",
    },
    "cosines and sines by known names": {
        "inputs": "x, mask, cos, sin",
        "turned": TABLE.format("cos[: x.shape[1]], sin[: x.shape[1]]") + TURNED,
        "masked": "s = s.masked_fill(mask, -torch.inf)",
    },
    "a norm of queries and keys without weights": {
        "turned": "q, k = (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))",
    },
    "a flag and groups": {"sizes": "dim, heads, query_groups, causal", "init": "assert query_groups and not causal"},
}


def text_of(changes: dict[str, str]) -> str:
    text = CLASS.format(**{**USUAL, **changes})
    if "Conv" in changes.get("layer", ""):
        flat = "(each.flatten(2).mT for each in (self.q(x), self.k(x), self.v(x)))"
        text = re.sub(r"\(split\(each.*\n", f"(split(each, self.h) for each in {flat})\n", text)
    if "b, r, c, e" in text:
        text = text.replace("return self.out(x)", "return self.out(x).unflatten(1, (r, c))")
    return text


def form_of(changes: dict[str, str]) -> Form:
    space: dict[str, type[nn.Module]] = {}
    exec(START + text_of(changes), space)
    with torch.random.fork_rng(devices=[]):
        return found_form(space["f"], Polarity.MASKED_OUT)


@pytest.mark.parametrize("changes", FORMS.values(), ids=FORMS)
def test_the_form_as_which_it_answers_is_found(changes: dict[str, str]) -> None:
    assert form_of(changes)[2] is not None


@pytest.mark.parametrize("name", ["an object that rotates two", "a window", "rows and columns before channels"])
def test_what_does_not_answer_so_is_refused(name: str) -> None:
    with pytest.raises(TargetError, match=r"no attention|layout is unknown"):
        form_of({**FORMS[name], "scale": "(1 + v.mean())"})


IN_ONE = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.cast_queries, self.cast_output = heads, nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.cast_keys_values = nn.Linear(dim, 2 * dim)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in (self.cast_queries(x), *self.cast_keys_values(x).chunk(2, -1)))
        return self.cast_output(attend(q, k, v)[0].transpose(1, 2).flatten(2))
"""


def test_one_name_states_keys_and_values(make: Make) -> None:
    assert_conforms(make(IN_ONE))


def test_values_of_the_file_are_as_before(make: Make) -> None:
    text = text_of(FORMS["sizes that the file sets as a program alone"])
    made = make(text + "\nif __name__ == '__main__':\n    d_model, n_heads, d_k = 512, 8, 64\n")
    assert_conforms(made)


def test_a_scale_of_all_heads_together_is_read_and_wrong(make: Make) -> None:
    variant = form_of({"scale": "x.shape[-1] ** -0.5"})[2]
    assert variant is not None
    assert not variant.known


def test_what_is_given_for_an_unknown_name_has_to_be_right() -> None:
    with pytest.raises(TargetError, match="its constructor needs 'zoom'"):
        form_of({"sizes": "dim, heads, zoom", "init": "self.zoom = torch.ones(zoom).sum()", "scale": "2.7 / self.zoom"})


def test_sines_and_cosines_in_turn_need_heads_of_even_width(make: Make) -> None:
    rows = "class PositionalEncoding(nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
    rows += (
        "        self.rows = torch.zeros(99, dim)\n        self.rows[:, 1::2] = torch.ones(99, dim // 2 + dim % 2)\n"
    )
    rows += "    def forward(self, x):\n        return x + self.rows[: x.shape[1]].to(x)\n"
    added = {"init": "self.add = PositionalEncoding(dim)", "before": "x = self.add(x)"}
    made = make(rows + text_of(added))
    assert "judged without add" in made.about
    assert_conforms(made)


@pytest.mark.parametrize("name", ["attn_bias", "attn_mask", "mask"])
def test_a_mask_that_its_own_statement_refuses_is_not_claimed(make: Make, name: str) -> None:
    made = make(text_of({"inputs": f"x, {name}=None", "before": f"assert {name} is None"}))
    assert not {Feature.BOOL_MASK, Feature.FLOAT_MASK} & made.claims.features
    assert name in made.findings
    assert_conforms(made)


@pytest.mark.parametrize("name", ["an image", "a square window", "a window", "a gate", "a list"])
def test_a_right_one_conforms(make: Make, name: str) -> None:
    assert_conforms(make(text_of(FORMS[name])))


def test_a_setting_is_what_the_code_compares_it_with(make: Make) -> None:
    settings = {"sizes": "cfg", "init": "dim = cfg.n_emb; assert cfg.kind == 'full'", "heads": "cfg.n_head"}
    assert_conforms(make(text_of({**USUAL, **settings})))


def test_a_wrong_image_does_not_conform(make: Make) -> None:
    made = make(text_of({**FORMS["an image"], "scale": "k.shape[-2] ** -0.5"}))
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(made)


def test_a_scale_in_float32_is_seen(make: Make) -> None:
    made = make(text_of({"scale": "(1 / torch.sqrt(torch.tensor(k.shape[-1])))"}))
    assert made.claims.conventions.product_precision is ProductPrecision.FLOAT32
    assert_conforms(made, "float64")


OF_A_HEAD = {"init": "assert dim % 1 == 0, 'divisible by num_head_channels'"}


def test_a_width_of_heads_is_no_number_of_them(make: Make) -> None:
    assert make(text_of(OF_A_HEAD)).construct is None


def test_dropout_after_the_output_is_not_that_of_the_attention(make: Make) -> None:
    added = {"before": "given = x", "after": "return self.drop(self.out(x)) + given"}
    sizes = {"sizes": "dim, heads, dropout=0.1", "init": "self.drop = nn.Dropout(dropout)"}
    made = make(text_of({**sizes, **added}))
    assert "it drops nothing before the input is added" in made.about
    assert Feature.DROPOUT not in made.claims


def context(name: str, given: str = "{0} is None", else_: str = "{0}") -> dict[str, str]:
    """A module that takes keys and values from `name`, if it is given."""
    before = f"y = x if {given.format(name)} else {else_.format(name)}"
    return {"inputs": f"x, {name}=None", "before": before, "y": "y"}


@pytest.mark.parametrize("name", ["context", "encoder_hidden_states", "kv", "key_value_states"])
def test_another_sequence_that_may_be_left_out_is_given(make: Make, name: str) -> None:
    made = make(text_of(context(name)))
    assert Feature.CROSS in made.claims
    assert_conforms(made)


def test_a_sequence_that_is_left_out_where_it_is_as_long_is_wrong(make: Make) -> None:
    made = make(text_of(context("context", "context is None or context.shape == x.shape")))
    (verdict,) = run(made, ("cross-attention.sources",), ("float32",))
    assert verdict.status is Status.FAIL


@pytest.mark.parametrize("else_", ["torch.cat([x, {0}], 1)", "x + {0}.mean(1, keepdim=True)", "x"])
def test_what_is_not_read_as_keys_and_values_is_not_given(make: Make, else_: str) -> None:
    assert form_of(context("context", else_=else_))[1].inputs == 1
    assert_conforms(make(text_of(context("context", else_=else_))))


def test_another_sequence_has_a_mask_of_its_own(make: Make) -> None:
    of_its_own = {
        **context("encoder_hidden_states"),
        "inputs": "x, attention_mask=None, encoder_hidden_states=None, encoder_attention_mask=None",
        "masked": "m = attention_mask if y is x else encoder_attention_mask; s = s if m is None else s + m",
    }
    made = make(text_of(of_its_own))
    assert {Feature.CROSS, Feature.FLOAT_MASK} <= made.claims.features
    assert_conforms(made)


def test_settings_may_name_the_part_of_a_model_first_and_be_kept(make: Make) -> None:
    settings = {"sizes": "cfg", "init": "dim, self.cfg = cfg.vit_hidden_dim, cfg", "heads": "cfg.vit_n_heads"}
    tables = {"inputs": "x, cos, sin", "turned": "assert cos.ndim == 3; " + TABLE.format("cos[:, None], sin[:, None]")}
    made = make(
        text_of({**settings, **tables, "before": "pass", "masked": TURNED + "; s = q @ k.mT * q.shape[-1] ** -0.5"})
    )
    assert Feature.COPIED in made.claims
    assert_conforms(made)


def test_a_row_that_padding_and_the_triangle_empty_gets_what_padding_gives(make: Make) -> None:
    hidden = "(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1) | (False if mask is None else ~mask[:, None, None]))"
    made = make(text_of({"inputs": "x, mask=None", "masked": f"s = s.masked_fill({hidden}, torch.finfo(s.dtype).min)"}))
    assert made.claims.premises.causal
    assert made.claims.conventions.empty_row_causal is EmptyRow.UNIFORM


PAIRED = "hidden = None if mask is None else ~(mask[:, :, None] & (mask if y is x else context_mask)[:, None])[:, None]"


@pytest.mark.parametrize("read", [True, False])
def test_a_mask_that_is_read_next_to_another_alone_comes_with_it(make: Make, read: bool) -> None:
    inputs = {**context("context"), "inputs": "x, mask=None, context=None, context_mask=None"}
    masked = f"{PAIRED}; s = s if hidden is None else s.masked_fill(hidden, torch.finfo(s.dtype).min)"
    made = make(text_of({**inputs, "masked": masked if read else "pass"}))
    assert Feature.CROSS in made.claims
    assert (Feature.KEY_PADDING in made.claims) == read
    if read:
        assert_conforms(made)


HIDDEN = "m = {}; s = s if m is None else s.masked_fill(~m[:, None, None], torch.finfo(s.dtype).min)"
REFUSED = "assert mask is None or context_mask is None; "
BOTH = {
    "ignored": HIDDEN.format("mask if y is x else context_mask"),
    "in the place of the other": HIDDEN.format("context_mask if mask is None else mask"),
    "refused": REFUSED + HIDDEN.format("context_mask if mask is None else mask"),
    "of queries and keys": HIDDEN.format("context_mask") + "; s = s if mask is None else s - 9e9 * ~mask",
}


@pytest.mark.parametrize("case", BOTH)
def test_a_mask_of_its_own_tokens_has_no_say_on_those_of_a_context(make: Make, case: str) -> None:
    inputs = {**context("context"), "inputs": "x, mask=None, context=None, context_mask=None"}
    made = make(text_of({**inputs, "masked": BOTH[case]}))
    assert Feature.CROSS in made.claims
    assert (BOTH_MASKS in made.alternatives) == (case in ("ignored", "in the place of the other"))
    found = run(made, ("relations.alternatives",), ("float64",))
    assert (Status.FAIL in {each.status for each in found}) == (case == "in the place of the other")
