"""Modules with a mistake, and with parts that the suite does not know: what they are is seen next to the mistake."""

from pathlib import Path

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.modules.added_input import states_pre_norm
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import START, Make, assert_conforms, failing
from attention_conformance.tests.selftest.thorough import by_turns

GATED = """
class f(nn.Module):
    def __init__(self, c, num_heads):
        super().__init__()
        self.h, self.d = num_heads, c // num_heads
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(c, c, bias=False) for _ in "qkv")
        self.linear_g, self.linear_o = nn.Linear(c, c), nn.Linear(c, c)
    def forward(self, x):
        q, k, v = (each(x) for each in (self.linear_q, self.linear_k, self.linear_v))
        q, k, v = (each.unflatten(-1, (self.h, self.d)).transpose(1, 2) for each in (q, k, v))
        a = (q @ k.mT * self.d ** -0.5).softmax(-1)
        o = (a @ v).transpose(1, 2).reshape(x.shape)
        return self.linear_o(o * self.linear_g(x).sigmoid())
"""
SPLIT = ".unflatten(-1, (self.h, self.d)).transpose(1, 2)"
VIEWED = ".reshape(len(x), self.h, -1, self.d)"
MERGED = ".transpose(1, 2).reshape(x.shape)"
SLIPS = {
    "split by a view": (SPLIT, VIEWED),
    "merged by a view": (MERGED, ".reshape(x.shape)"),
    "softmax over queries": ("softmax(-1)", "softmax(-2)"),
    "softmax over heads": ("softmax(-1)", "softmax(1)"),
    "weights transposed": ("a @ v", "a.mT @ v"),
    "two softmaxes": ("softmax(-1)", "softmax(-1).softmax(-1)"),
    "scaled late": ("(q @ k.mT * self.d ** -0.5).softmax(-1)", "(q @ k.mT).softmax(-1) * self.d ** -0.5"),
    "keys summed": ("a @ v", "a @ k"),
    "queries compared": ("q @ k.mT", "q @ q.mT"),
}


def test_a_gate_next_to_attention_is_judged(make: Make) -> None:
    made = make(GATED)
    assert {"linear_g.weight", "linear_g.bias"}.isdisjoint(made.findings)
    assert_conforms(made)


@pytest.mark.parametrize("slip", by_turns([*SLIPS], 2))
def test_a_mistake_next_to_a_gate_fails(make: Make, slip: str) -> None:
    right, wrong = SLIPS[slip]
    assert right in GATED
    made = make(GATED.replace(right, wrong))
    assert "its numbers" not in made.findings
    assert failing(made, "scores.dot-product", "values.weighted-sum")


BIASED = """
class f(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
    def forward(self, x):
        bias = torch.cat([{order}])
        q, k, v = (split(each, self.h) for each in F.linear(x, self.qkv.weight, bias).chunk(3, -1))
        {after}
        return self.proj(attend(q, k, v)[0].transpose(1, 2).flatten(2))
"""
IN_ORDER = "self.q_bias, 0 * self.v_bias, self.v_bias"
ROTATED = "t = torch.arange(x.shape[1])[:, None] * 1e4 ** (-torch.arange(q.shape[-1] // 2) / (q.shape[-1] // 2)); " + (
    "turn = lambda y: torch.cat([y.chunk(2, -1)[0] * t.cos() - y.chunk(2, -1)[1] * t.sin(), "
    "y.chunk(2, -1)[1] * t.cos() + y.chunk(2, -1)[0] * t.sin()], -1); q, k = turn(q), turn(k)"
)


def test_keys_without_a_bias_are_judged_with_those_of_the_others(make: Make) -> None:
    made = make(BIASED.format(order=IN_ORDER, after=""))
    assert Feature.BIAS in made.claims
    assert not made.findings
    assert_conforms(made)
    assert not failing(made, "projections.bias", "gradients.single-input")


def test_a_bias_of_values_on_keys_fails(make: Make) -> None:
    order = "self.q_bias, self.v_bias, 0 * self.v_bias"
    assert failing(make(BIASED.format(order=order, after="")), "projections.bias")


def test_where_keys_are_rotated_their_bias_is_left_out(make: Make) -> None:
    made = make(BIASED.format(order=IN_ORDER, after=ROTATED))
    assert made.claims.premises.rotary_base
    assert Feature.BIAS not in made.claims
    assert_conforms(made)


RELATIVE = """
class f(nn.Module):
    def __init__(self, d_model, num_heads, most=8):
        super().__init__()
        self.h, self.most = num_heads, most
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(2 * most + 1, num_heads)
    def forward(self, x):
        place = torch.arange(x.shape[1])
        ahead = (place - place[:, None]).clamp(-self.most, self.most) + self.most
        bias = self.relative_attention_bias(ahead).{moved}
        q, k, v = (split(each(x), self.h) for each in (self.q, self.k, self.v))
        return self.o(attend(q, k, v, bias)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("moved", "wrong"), [("permute(2, 0, 1)", False), ("permute(2, 1, 0)", True)])
def test_rows_of_biases_ascend_as_their_name_promises(make: Make, moved: str, wrong: bool) -> None:
    assert bool(failing(make(RELATIVE.format(moved=moved)), "modules.as-built")) is wrong


NORMED = """
class f(nn.Module):
    def __init__(self, ni, nheads):
        super().__init__()
        self.h, self.norm, self.qkv, self.proj = nheads, nn.BatchNorm2d(ni), nn.Linear(ni, 3 * ni), nn.Linear(ni, ni)
    def forward(self, inp):
        x = self.norm(inp).flatten(2).mT
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        y = attend(q, k, v)[0].transpose(1, 2).flatten(2)
        return self.proj(y).mT.reshape(inp.shape) + inp
"""


def test_a_norm_over_samples_before_attention_is_no_leak(make: Make) -> None:
    assert_conforms(make(NORMED))


PRE_NORM = '''
class f(nn.Module):
    """Pre-LN attention: y = x + Dropout(MHA(LN(x))); pad: (B, T) bool, True on padding."""
    def __init__(self, d_model, n_head, dropout=0.1):
        super().__init__()
        self.ln, self.in_proj = nn.LayerNorm(d_model), nn.Linear(d_model, 3 * d_model)
        self.h, self.drop, self.out_proj = n_head, nn.Dropout(dropout), nn.Linear(d_model, d_model)
    def forward(self, x, pad=None):
        y = self.ln(x)
        q, k, v = (split(t, self.h) for t in self.in_proj(y).chunk(3, -1))
        s = q @ k.mT * q.shape[-1] ** -0.5
        if pad is not None:
            s = s.masked_fill({pad}[:, None, None], -torch.inf)
        return {added} + self.drop(self.out_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2)))
'''


@pytest.mark.parametrize(
    ("added", "pad", "wrong"), [("x", "pad", False), ("y", "pad", True), ("x", "pad.roll(1, 0)", True)]
)
def test_the_input_of_a_pre_norm_layer_is_added(make: Make, added: str, pad: str, wrong: bool) -> None:
    made = make(PRE_NORM.format(added=added, pad=pad))
    assert Feature.KEY_PADDING in made.claims.features
    assert bool(failing(made, "modules.as-built", "masks.key-padding", "effects.threads")) is wrong


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("y = x + Dropout(MHA(LN(x)))", True),
        ("Pre-norm attention with a residual: x + attn(norm(x)).", True),
        ("Pre-norm: the residual is taken before the norm.", True),
        ("Attention on pre-normalised inputs, with a residual.", False),
        ("Pre-norm: h = LN(x); y = h + MHA(h).", False),
        ("Pre-LN attention; the norm of the input is the residual.", False),
        ("Pre-norm, with apply_residual_connection_post_layernorm as in BLOOM.", False),
        ("Attention with a residual.", False),
    ],
)
def test_which_texts_state_that_the_input_is_added(text: str, states: bool) -> None:
    kind = type("Layer", (), {"__doc__": text})
    assert states_pre_norm(kind) is states


SINKS = """
class f(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.h, self.sinks = num_heads, nn.Parameter(torch.zeros(num_heads))
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden_size, hidden_size) for _ in "qkvo")
    def forward(self, x):
        q, k, v = (split(w(x), self.h) for w in (self.q_proj, self.k_proj, self.v_proj))
        s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1) > 0, -torch.inf)
        s = torch.cat([s, self.sinks.view(1, -1, 1, 1).expand(len(x), -1, x.shape[1], 1)], -1)
        return self.o_proj((s.softmax(-1)[..., {left}] @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("left", "wrong"), [(":-1", False), ("1:", True)])
def test_the_column_of_a_sink_is_left_out(make: Make, left: str, wrong: bool) -> None:
    made = make(SINKS.format(left=left))
    assert "its numbers" not in made.findings
    assert bool(failing(made, "scores.dot-product", "values.weighted-sum")) is wrong


COSINES = """
class f(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.logit_scale = nn.Parameter(torch.zeros(num_heads, 1, 1))
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        s = F.normalize(q{axis}) @ F.normalize(k{axis}).mT * self.logit_scale.clamp(max=4.6).exp()
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("axis", "wrong"), [(", dim=-1", False), ("", True)])
def test_cosines_are_those_of_each_head(make: Make, axis: str, wrong: bool) -> None:
    made = make(COSINES.format(axis=axis))
    assert "its numbers" not in made.findings
    assert bool(failing(made, "scores.dot-product", "softmax.over-keys")) is wrong


WIDTHS = """
class f(nn.MultiheadAttention):
    def __init__(self, embed_dim, num_heads, dropout=0.0, batch_first=True):
        super().__init__(embed_dim, num_heads, dropout=dropout, batch_first=batch_first)
        self.log_width = nn.Parameter(torch.full((num_heads,), 4.0).log())
    def forward(self, query, key, value):
        gap = torch.arange(query.shape[1])[:, None] - torch.arange(key.shape[1])
        bias = -gap.square() / (2 * (2 * self.log_width).exp())[:, None, None]
        q, k, v = (x.transpose(0, 1) for x in (query, key, value))
        out, weights = F.multi_head_attention_forward(
            q, k, v, self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias, None, None, False,
            {rate}, self.out_proj.weight, self.out_proj.bias, attn_mask=bias.to(query.dtype).repeat(len(query), 1, 1))
        return out.transpose(0, 1), weights
"""


@pytest.mark.parametrize(
    ("rate", "wrong"),
    [("self.dropout if self.training else 0.0", False), ("self.dropout", True)],
)
def test_nothing_is_dropped_in_evaluation_by_what_is_unknown(tmp_path: Path, rate: str, wrong: bool) -> None:
    (tmp_path / "mine.py").write_text(START + WIDTHS.format(rate=rate))
    made = candidate(f"{tmp_path}/mine.py:f", {}, in_part=True)
    assert "its numbers" in made.findings
    assert bool(failing(made, "modules.as-built", dtype="float64")) is wrong


KEPT_BIASES = """
class f(nn.Module):
    def __init__(self, dim, num_heads, resolution=4):
        super().__init__()
        place = torch.arange(resolution * resolution)
        row, column = place // resolution, place % resolution
        apart = [(each[:, None] - each).abs() for each in (row, column)]
        self.register_buffer("index", apart[0] * resolution + apart[1], persistent=False)
        self.h, self.qkv, self.act, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Hardswish(), nn.Linear(dim, dim)
        self.attention_biases, self.kept = nn.Parameter(torch.zeros(num_heads, resolution**2)), {{}}
    def train(self, mode=True):
        {dropped}
        return super().train(mode)
    def biases(self):
        if self.training:
            return self.attention_biases[:, self.index]
        if "biases" not in self.kept:
            self.kept["biases"] = self.attention_biases[:, self.index]
        return self.kept["biases"]
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        return self.proj(self.act(attend(q, k, v, self.biases())[0].transpose(1, 2).flatten(2)))
"""


@pytest.mark.parametrize(("dropped", "wrong"), [("self.kept = {}", False), ("pass", True)])
def test_what_is_kept_of_parameters_is_dropped_with_them(tmp_path: Path, dropped: str, wrong: bool) -> None:
    (tmp_path / "mine.py").write_text(START + KEPT_BIASES.format(dropped=dropped))
    made = candidate(f"{tmp_path}/mine.py:f", {}, in_part=True)
    assert bool(failing(made, "modules.as-built", dtype="float64")) is wrong
