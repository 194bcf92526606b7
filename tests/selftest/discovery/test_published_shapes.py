"""Module classes in the shapes in which people publish them: each is judged, and a right one conforms."""

import pytest

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import EmptyRow, Polarity
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms

START = """
from dataclasses import dataclass

@dataclass
class Sizes:
    n_embd: int
    n_head: int = 2
    vocabulary: int = 7

def heads_of(x, h):
    return x.unflatten(-1, (h, -1)).transpose(1, 2)

def joined(x):
    return x.transpose(1, 2).flatten(2)
"""
SETTINGS = """
class f(nn.Module):
    def __init__(self, config{annotation}):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.h = config.n_head
        self.qkv, self.proj = nn.Linear(config.n_embd, 3 * config.n_embd), nn.Linear(config.n_embd, config.n_embd)
    def forward(self, x):
        q, k, v = (heads_of(each, self.h) for each in self.qkv(x).chunk(3, -1))
        return self.proj(joined(attend(q, k, v)[0]))
"""
CROSS = """
class f(nn.Module):
    def __init__(self, {sizes}):
        super().__init__()
        self.h = {heads}
        self.toqueries, self.tovalues = nn.Linear({width}, {width}), nn.Linear({width}, {width})
        self.tokeys, self.fc_out = nn.Linear({width}, {width}, bias={bias}), nn.Linear({width}, {width})
        self.norm = nn.LayerNorm({width})
    def forward(self, {inputs}):
        given = query
        query = {before}
        q, k, v = (heads_of(each, self.h) for each in (self.toqueries(query), self.tokeys(keys), self.tovalues(values)))
        s = q @ k.mT / math.sqrt(q.shape[-1])
        s = s if mask is None else s.masked_fill({masked}, {fill})
        x = self.fc_out(joined(s.softmax(-1) @ v))
        return {after}
"""
USUAL = {
    "sizes": "d_model, h, dropout=0.1",
    "heads": "h",
    "width": "d_model",
    "bias": "True",
    "inputs": "query, keys, values, mask=None",
    "before": "query",
    "masked": "mask == 0",
    "fill": "-torch.inf",
    "after": "x",
}
SHAPES: dict[str, dict[str, str]] = {
    "heads first": {"sizes": "h, d_model, dropout=0.1"},
    "by keyword only": {"sizes": "*, h, d_model"},
    "widths of heads": {"sizes": "n_head, d_model, d_k, d_v", "heads": "n_head"},
    "a length": {"sizes": "d_in, d_out, context_length, dropout, num_heads", "heads": "num_heads", "width": "d_out"},
    "a flag that is needed": {"sizes": "d_model, h, log_weights"},
    "values, keys, query": {"inputs": "values, keys, query, mask=None"},
    "no bias of the key": {"bias": "False"},
    "masks without a head axis": {"masked": "mask.unsqueeze(1) == 0"},
    "True means masked out": {"masked": "mask"},
    "a finite number for masked scores": {"fill": "-1e9"},
    "the input is added": {"after": "self.norm(x + given)"},
    "the input is added in place": {"after": "self.norm(x.add_(given))"},
}


@pytest.mark.parametrize("annotation", ["", ": Sizes"])
def test_sizes_in_an_object_of_settings(make: Make, annotation: str) -> None:
    made = make(START + SETTINGS.format(annotation=annotation))
    assert made.claims.scope is Scope.MODULE
    assert_conforms(made)


def test_a_width_beside_an_object_of_settings(make: Make) -> None:
    text = SETTINGS.format(annotation=", dim").replace(
        "nn.Linear(config.n_embd, 3 * config.n_embd)", "nn.Linear(dim, 3 * dim)"
    )
    assert_conforms(make(START + text))


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_shapes(make: Make, changes: dict[str, str]) -> None:
    made = make(START + CROSS.format(**{**USUAL, **changes}))
    assert Feature.BOOL_MASK in made.claims
    assert Feature.FLOAT_MASK not in made.claims
    assert_conforms(made)


@pytest.mark.parametrize(
    ("changes", "polarity", "answer"),
    [
        ({}, Polarity.MAY_ATTEND, EmptyRow.NAN),
        ({"masked": "mask"}, Polarity.MASKED_OUT, EmptyRow.NAN),
        ({"fill": "-1e9"}, Polarity.MAY_ATTEND, EmptyRow.UNIFORM),
    ],
)
def test_what_a_mask_means_is_claimed_as_it_is_seen(
    make: Make, changes: dict[str, str], polarity: Polarity, answer: EmptyRow
) -> None:
    conventions = make(START + CROSS.format(**{**USUAL, **changes})).claims.conventions
    assert (conventions.bool_mask, conventions.empty_row_bool) == (polarity, answer)


@pytest.mark.parametrize(
    "wrong", [{"masked": "mask.flip(-1) == 0"}, {"after": "x + 0.01 * given"}, {"width": "(d_model)"}]
)
def test_a_wrong_one_is_still_wrong(make: Make, wrong: dict[str, str]) -> None:
    text = START + CROSS.format(**{**USUAL, **wrong})
    if "width" in wrong:
        text = text.replace("math.sqrt(q.shape[-1])", "math.sqrt(k.shape[-2])")
    made = make(text)
    with pytest.raises(AssertionError, match=r"elements differ|expected"):
        assert_conforms(made)


def test_a_class_without_parameters_is_a_function(make: Make) -> None:
    made = make("""
class f(nn.Module):
    def __init__(self, temperature, attn_dropout=0.1):
        super().__init__()
        self.temperature, self.dropout = temperature, nn.Dropout(attn_dropout)
    def forward(self, q, k, v, mask=None):
        s = q / self.temperature @ k.mT
        return self.dropout((s if mask is None else s.masked_fill(mask == 0, -1e9)).softmax(-1)) @ v
""")
    assert made.claims.scope is Scope.OP
    assert made.claims.conventions.empty_row_bool is EmptyRow.UNIFORM
    assert_conforms(made)


def test_one_head_is_left_out_where_it_has_other_parameters(make: Make) -> None:
    text = START + CROSS.format(**USUAL)
    made = make(text.replace("self.norm =", "if h == 1: self.fc_out = nn.Identity()\n        self.norm ="))
    one_head = fit(Case().sized(num_heads=1), made.claims)
    assert isinstance(one_head, Unsupported)
    assert "with one head it has other parameters" in one_head.reason
    assert_conforms(made)


@pytest.mark.parametrize("config", ["MineConfig", "GPTConfig"])
def test_settings_that_nobody_names_are_those_by_default(make: Make, config: str) -> None:
    defaults = f"class {config}:\n    def __init__(self, n_embd=768):\n        self.scaled = True\n"
    text = SETTINGS.format(annotation="").replace("class f(", "class MineAttention(")
    scaled = text.replace("self.h = ", "self.scaled, self.h = config.scaled, ")
    text = scaled.replace("attend(q, k, v)", "attend(q if self.scaled else 2 * q, k, v)")
    assert_conforms(make(START + defaults + text, "MineAttention"))


@pytest.mark.parametrize(
    ("softmax", "precision"), [("s.softmax(-1)", "working"), ("s.float().softmax(-1).to(s)", "float32")]
)
def test_what_computes_in_float32_is_seen(make: Make, softmax: str, precision: str) -> None:
    attended = f"[s := q @ k.mT / math.sqrt(q.shape[-1]), {softmax} @ v][1]"
    result = make(START + SETTINGS.format(annotation="").replace("attend(q, k, v)[0]", attended))
    assert result.claims.conventions.product_precision == precision
    assert_conforms(result, "float64")


SEVERAL = """
class f(nn.Module):
    def __init__(self, nx, n_ctx, config, scale=False):
        super().__init__()
        self.h, self.scaled = config.n_head, scale
        self.weight = nn.Parameter(torch.randn(3 * nx, nx))
        self.weight.data = self.weight.data.transpose(0, 1)
        self.out = nn.Linear(nx, nx * (1 + config.extra_of_lora))
    def forward(self, x):
        q, k, v = (heads_of(each, self.h) for each in (x @ self.weight).chunk(3, -1))
        return self.out(joined(attend(q, k, v, scale=None if self.scaled else 1.0)[0]))
"""
PARTS = """
class f(nn.Module):
    def __init__(self, c_q, c_k, c_v, c_hidden, no_heads, gating=True):
        super().__init__()
        self.h = no_heads
        self.linear_q, self.linear_k = nn.Linear(c_q, c_hidden * no_heads), nn.Linear(c_k, c_hidden * no_heads)
        self.linear_v, self.linear_o = nn.Linear(c_v, c_hidden * no_heads), nn.Linear(c_hidden * no_heads, c_q)
        self.linear_g = nn.Linear(c_q, c_hidden * no_heads)
    def forward(self, q_x, kv_x):
        q, k, v = (heads_of(each, self.h) for each in (self.linear_q(q_x), self.linear_k(kv_x), self.linear_v(kv_x)))
        return self.linear_o(joined(attend(q, k, v)[0]) * self.linear_g({gated}).sigmoid())
"""
ONE_MODE = """
class f(nn.Module):
    def __init__(self, args, embed_dim, num_heads, self_attention=False, encoder_decoder_attention=False):
        super().__init__()
        assert self_attention ^ encoder_decoder_attention
        self.h = num_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(embed_dim, embed_dim, bias=not args.unknown) for _ in "qkv")
    def forward(self, query, key, value):
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        return joined(attend(*(heads_of(each, self.h) for each in (q, k, v)))[0])
"""


@pytest.mark.parametrize(
    ("text", "flags"),
    [(SEVERAL, "scale"), (PARTS.format(gated="q_x"), ""), (ONE_MODE, "encoder_decoder_attention")],
    ids=["settings", "parts", "one mode"],
)
def test_constructors_of_model_code(make: Make, text: str, flags: str) -> None:
    made = make(START + text)
    assert (f"built with {flags}=True" in made.about) is bool(flags)
    assert_conforms(made)


HELD = """
class f(nn.Module):
    def __init__(self, dim, n_heads, max_batch_size=4):
        super().__init__()
        self.h, self.held = n_heads, torch.zeros(max_batch_size, 1)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        self.held[:len(x)] = x.detach()[:, :1, 0]
        q, k, v = (each.unflatten(-1, (self.h, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return self.out(attend(q, k, v)[0].transpose(1, 2).flatten(2))
"""


def test_samples_beyond_those_that_a_module_is_built_for_are_not_given(make: Make) -> None:
    made = make(START + HELD)
    fitted = fit(Case().sized(batch=257), made.claims)
    assert not isinstance(fitted, Unsupported)
    assert fitted.sizes.batch == 4
    assert_conforms(made)


def test_tokens_beyond_those_that_a_module_has_rows_for_are_not_given(make: Make) -> None:
    rows = HELD.replace("max_batch_size=4", "rows=512").replace("torch.zeros(max_batch_size, 1)", "0")
    text = rows.replace(
        "self.qkv,", "self.register_buffer('ones', torch.ones(rows, 1), persistent=False)\n        self.qkv,"
    )
    made = make(START + text.replace("self.held[:len(x)] = x.detach()[:, :1, 0]", "x = x * self.ones[:x.shape[1]]"))
    fitted = fit(Case().sized(query_length=1031, key_length=1031), made.claims)
    assert not isinstance(fitted, Unsupported)
    assert fitted.sizes.query_length == fitted.sizes.key_length == 512
    assert_conforms(made)
