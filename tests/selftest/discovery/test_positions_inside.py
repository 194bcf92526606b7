"""Modules that add positions to their scores: by ALiBi, by tables of distances, and cosines in square windows."""

import pytest

from attention_conformance.spec.premises import Premises
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, refused
from attention_conformance.tests.selftest.thorough import thorough

ALIBI = """
class f(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        below = 1 << (num_heads.bit_length() - 1)
        self.register_buffer("slopes", torch.tensor({slopes})[:, None, None])
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        place = torch.arange(x.shape[1])
        distance = place - place[:, None]
        s = q @ k.mT / math.sqrt({width}) + self.slopes * {bias}
        s = s.masked_fill(distance > 0, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
GEOMETRIC = "[2.0 ** (-8.0 * (i + 1) / num_heads) for i in range(num_heads)]"
MIXED = (
    "([2.0 ** (-8.0 * (i + 1) / below) for i in range(below)] + [2.0 ** (-4.0 * (i + 1) / below) "
    "for i in range(0, 2 * below, 2)])[:num_heads]"
)


@pytest.mark.parametrize(("slopes", "interleaved"), [(GEOMETRIC, False), (MIXED, True)])
def test_the_slopes_of_alibi_are_a_premise(make: Make, slopes: str, interleaved: bool) -> None:
    made = make(ALIBI.format(slopes=slopes, width="q.shape[-1]", bias="distance"))
    assert made.claims.premises == Premises(causal=True, alibi=True, interleaved=interleaved)
    assert_conforms(made)


def test_slopes_that_are_wrong_for_six_heads_are_judged(make: Make) -> None:
    made = make(ALIBI.format(slopes=MIXED.replace("2 * below, 2)", "2 * below)"), width="q.shape[-1]", bias="distance"))
    (verdict,) = run(made, ("shapes.coincident",), ("float32",))
    assert verdict.status is Status.FAIL


def test_slopes_that_begin_as_those_of_alibi_are_judged(make: Make) -> None:
    """Of three heads the third has the slope of the first."""
    text = ALIBI.format(slopes=MIXED.replace("range(0, ", "range(1, "), width="q.shape[-1]", bias="distance")
    made = make(text)
    assert made.claims.premises.interleaved
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(made)


@pytest.mark.parametrize("wrong", [{"width": "x.shape[-1]"}, {"bias": "(distance - (distance < -4).int())"}])
def test_another_mistake_is_accused(make: Make, wrong: dict[str, str]) -> None:
    made = make(ALIBI.format(**{"slopes": GEOMETRIC, "width": "q.shape[-1]", "bias": "distance", **wrong}))
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(made)


def test_other_slopes_are_no_premise(make: Make) -> None:
    message = refused(make, ALIBI.format(slopes="[0.5] * num_heads", width="q.shape[-1]", bias="distance"))
    assert "by slopes of 0.5, 0.5, 0.5, which are not those of ALiBi" in message


POWER = "[2.0 ** (-8.0 * (i + 1) / n) for n in [1 << (num_heads - 1).bit_length()] for i in range(num_heads)]"


@pytest.mark.parametrize(
    "words",
    ["Attention with linear biases (ALiBi).", "ALiBi: each head has its own slope, not above one half for 8 heads."],
)
def test_slopes_that_are_documented_as_those_of_alibi_are_judged(make: Make, words: str) -> None:
    text = ALIBI.format(slopes=POWER, width="q.shape[-1]", bias="distance")
    made = make(text.replace("    def __init__", f'    """{words}"""\n    def __init__', 1))
    assert made.claims.premises == Premises(causal=True, alibi=True, interleaved=True)
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(made)


@pytest.mark.parametrize("name", ["alibi_slopes", "slopes_of"])
def test_what_makes_the_slopes_of_a_function_may_state_that_they_are_those_of_alibi(make: Make, name: str) -> None:
    text = f"""
def {name}(num_heads):
    return torch.tensor({POWER})

def f(q, k, v):
    far = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    far = {name}(q.shape[1])[:, None, None] * far.abs()
    return attend(q, k, v, -far.to(q.dtype))[0]
"""
    if name == "slopes_of":
        assert "which are not those of ALiBi" in refused(make, text)
    else:
        assert make(text).claims.premises == Premises(alibi=True, interleaved=True)


@pytest.mark.parametrize(
    ("slopes", "words"),
    [
        (POWER, "ALiBi, with the slopes of the next power of two cut to the number of heads."),
        (POWER, "Linear biases, unlike those of ALiBi."),
        (POWER, "Attention that favours near keys."),
        (f"sorted({MIXED})", "Attention with ALiBi."),
        ("[2.0 ** -(i + 1) for i in range(num_heads)]", "ALiBi."),
    ],
)
def test_slopes_that_nobody_states_to_be_those_of_alibi_are_not_judged(make: Make, slopes: str, words: str) -> None:
    text = ALIBI.format(slopes=slopes, width="q.shape[-1]", bias="distance")
    text = text.replace("    def __init__", f'    """{words}"""\n    def __init__', 1)
    assert "which are not those of ALiBi" in refused(make, text)


RELATIVE = """
class Base(nn.Module):
    def __init__(self, n_head, d_model, d_head, dropout):
        super().__init__()
        self.h = n_head
        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.o_net, self.layer_norm = nn.Linear(n_head * d_head, d_model, bias=False), nn.LayerNorm(d_model)

class f(Base):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.r_net = nn.Linear(self.o_net.out_features, self.o_net.in_features, bias=False)
    def forward(self, w, r, r_w_bias, r_r_bias, attn_mask=None):
        q, k, v = (each.unflatten(-1, (self.h, -1)) for each in self.qkv_net(w).chunk(3, -1))
        place = self.r_net(r).unflatten(-1, (self.h, -1))
        of_places = torch.einsum("ibnd,jnd->ijbn", q + r_r_bias, place)
        padded = torch.cat([torch.zeros_like(of_places[:, :1]), of_places], 1)
        shifted = padded.view(padded.shape[1], padded.shape[0], *padded.shape[2:])[1:].view_as(of_places)
        s = (torch.einsum("ibnd,jbnd->ijbn", q + r_w_bias, k) + shifted) / q.shape[-1] ** 0.5
        if attn_mask is not None:
            s = s.masked_fill(attn_mask[..., None], -torch.inf)
        x = torch.einsum("ijbn,jbnd->ibnd", s.softmax({axis}), v).flatten(2)
        return self.layer_norm(w + self.o_net(x))
"""


def test_tables_of_distances_are_given_as_zeros(make: Make) -> None:
    made = make(RELATIVE.format(axis=1))
    assert "'r' (zeros (Lk, E)), 'r_w_bias' (zeros (H, d)), 'r_r_bias' (zeros (H, d))" in made.about
    assert_conforms(made)


@thorough
def test_a_softmax_over_queries_is_accused_with_them(make: Make) -> None:
    with pytest.raises(AssertionError, match=r"differ|expected"):
        assert_conforms(make(RELATIVE.format(axis=0)))


POSITIONED = """
class Projection(nn.Module):
    def __init__(self, width, bias=True):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=bias)
    def forward(self, x):
        return self.linear(x)

class RelPositionalEncoding(nn.Module):
    def forward(self, x):
        return torch.randn(1, 2 * x.shape[1] - 1, x.shape[2], dtype=x.dtype)

class f(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.positions, self.pos_proj = RelPositionalEncoding(), Projection(d_model, False)
        self.query_proj, self.key_proj, self.value_proj = (Projection(d_model) for _ in range(3))
        self.u_bias = nn.Parameter(torch.zeros(num_heads, d_model // num_heads))
        self.v_bias = nn.Parameter(torch.zeros(num_heads, d_model // num_heads))
        self.out_proj = Projection(d_model)
    def forward(self, x):
        q, k, v = (split(each(x), self.h) for each in (self.query_proj, self.key_proj, self.value_proj))
        place = split(self.pos_proj(self.positions(x)), self.h)
        s = (q + self.u_bias[:, None]) @ k.mT + ((q + self.v_bias[:, None]) @ place.mT)[..., : x.shape[1]]
        return self.out_proj((({scaled}).softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def test_positions_made_inside_are_silent(make: Make) -> None:
    made = make(POSITIONED.format(scaled="s / q.shape[-1] ** 0.5"))
    assert (
        "judged without positions, 'u_bias' (zeros), 'v_bias' (zeros), 'pos_proj.linear.weight' (zeros)" in made.about
    )
    assert_conforms(made)


def test_a_scale_of_all_heads_is_accused_with_them(make: Make) -> None:
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(make(POSITIONED.format(scaled="s / x.shape[-1] ** 0.5")))


COSINE = """
class f(nn.Module):
    def __init__(self, dim, window_size, num_heads, qkv_bias=True):
        super().__init__()
        self.h, sides = num_heads, [torch.arange(1 - each, each) / (each - 1) for each in window_size]
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), 10.0).log())
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, num_heads, bias=False))
        self.register_buffer("table", torch.stack(torch.meshgrid(*sides, indexing="ij"), -1).flatten(0, 1))
        at = torch.stack(torch.meshgrid(*map(torch.arange, window_size), indexing="ij"), -1).flatten(0, 1)
        apart = at[:, None] - at + torch.tensor(window_size) - 1
        self.register_buffer("index", apart[..., 0] * (2 * window_size[1] - 1) + apart[..., 1])
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
    def forward(self, x):
        bias = torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])
        q, k, v = (split(each, self.h) for each in F.linear(x, self.qkv.weight, bias).chunk(3, -1))
        s = F.normalize(q, dim={axis}) @ F.normalize(k, dim=-1).mT * self.logit_scale.clamp(max=math.log(100)).exp()
        s = s + 16 * self.cpb_mlp(self.table).sigmoid()[self.index].permute(2, 0, 1)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def test_cosines_in_a_square_window(make: Make) -> None:
    made = make(COSINE.format(axis=-1))
    assert made.claims.premises.settings() == ("qk-norm=1e-12", "scale=1", "length=16")
    assert_conforms(made)
