"""Where a module keeps what, how it is built and what it is given: read from its answer where names do not state it."""

import pytest
from torch import nn

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.modules.constructors import constructor
from attention_conformance.spec.cases import Case, MaskKind, MaskShape
from attention_conformance.spec.conventions import RotaryPairing
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing, refused

START = """
def heads_of(x, h):
    return x.unflatten(-1, (h, -1)).transpose(-3, -2)

def joined(x):
    return x.transpose(-3, -2).flatten(-2)

def softmaxed(q, k):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)

emb, dropout = 20, 0.2

class Head(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(emb, size, bias=False) for _ in range(3))
    def forward(self, x):
        return softmaxed(self.query(x), self.key(x)) @ self.value(x)
"""
FORM = """
class f(nn.Module):
    def __init__(self, {sizes}):
        super().__init__()
        self.h = {heads}
        {init}
    def forward(self, {inputs}):
        {body}
"""
ONE = "self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)"
FOUR = "self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))"
OUTPUT = "return self.out(joined(softmaxed(q, k) @ v))"
EACH = "q, k, v = (heads_of(f(y), self.h) for f, y in ((self.q, {}), (self.k, {}), (self.v, {})))"
THIRDS = "q, k, v = (heads_of(each, self.h) for each in self.qkv(x).chunk(3, -1))"
INTERLEAVED = "q, k, v = self.qkv(x).unflatten(-1, (self.h, 3, -1)).permute(3, 0, 2, 1, 4)"
EINSUM = "self.wq, self.wk, self.wv, self.wo = (nn.Parameter(torch.randn({})) for _ in range(4))"
FORMS: dict[str, dict[str, str]] = {
    "query, key and value of each head in turn": {"body": f"{INTERLEAVED}; {OUTPUT}"},
    "width before head": {
        "init": ONE.replace("qkv", "to_qvk"),
        "body": f"q, k, v = self.to_qvk(x).unflatten(-1, (-1, 3, self.h)).permute(3, 0, 4, 1, 2); {OUTPUT}",
    },
    "stored as (in, out), key first": {
        "init": "self.w_kqv, self.w_out = nn.Parameter(torch.randn(dim, 3 * dim)), nn.Parameter(torch.randn(dim, dim))",
        "body": "k, q, v = (heads_of(each, self.h) for each in (x @ self.w_kqv).chunk(3, -1)); "
        "return joined(softmaxed(q, k) @ v) @ self.w_out",
    },
    "(H, E, d)": {
        "init": EINSUM.format("h, dim, dim // h"),
        "body": "q, k, v = (torch.einsum('ble,hed->bhld', x, w) for w in (self.wq, self.wk, self.wv)); "
        "return torch.einsum('bhld,hed->ble', softmaxed(q, k) @ v, self.wo)",
    },
    "unnamed layers": {
        "init": "self.a, self.b, self.c, self.d = (nn.Linear(dim, dim) for _ in range(4))",
        "body": "v, q, k = (heads_of(each(x), self.h) for each in (self.a, self.b, self.c)); "
        "return self.d(joined(softmaxed(q, k) @ v))",
    },
    "convolutions of width 1": {
        "init": FOUR.replace("nn.Linear(dim, dim)", "nn.Conv1d(dim, dim, 1)"),
        "body": "y = x.mT; q, k, v = (heads_of(each(y).mT, self.h) for each in (self.q, self.k, self.v)); "
        "return self.o(joined(softmaxed(q, k) @ v).mT).mT",
    },
    "a list of heads, a width in the file": {
        "sizes": "num_heads, head_size",
        "heads": "num_heads",
        "init": "self.heads, self.proj = nn.ModuleList(Head(head_size) for _ in range(num_heads)), nn.Linear(emb, emb)",
        "body": "return self.proj(torch.cat([each(x) for each in self.heads], -1))",
    },
    "layers that are made in the first call": {
        "init": "self.q, self.k, self.v, self.o = (nn.LazyLinear(dim) for _ in range(4))",
        "body": EACH.format(*"xxx") + "; return self.o(joined(softmaxed(q, k) @ v))",
    },
    "biases of query and value as parameters": {
        "init": ONE.replace("3 * dim", "3 * dim, bias=False") + "; self.q_bias, self.v_bias = (nn.Parameter("
        "torch.zeros(dim)) for _ in range(2))",
        "body": "bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias]); "
        f"q, k, v = (heads_of(y, self.h) for y in F.linear(x, self.qkv.weight, bias).chunk(3, -1)); {OUTPUT}",
    },
    "heads that are mixed": {
        "init": f"{ONE}; self.mix = nn.Parameter(torch.randn(h, h))",
        "body": f"{THIRDS}; return self.out(joined(torch.einsum('bhij,hg->bgij', softmaxed(q, k), self.mix) @ v))",
    },
    "inputs by keyword only, a dictionary": {
        "init": FOUR,
        "inputs": "*, query, key, value",
        "body": EACH.format("query", "key", "value")
        + "; p = softmaxed(q, k); return {'weights': p, 'output': self.o(joined(p @ v))}",
    },
    "an input and its context, weights first": {
        "init": FOUR,
        "inputs": "x, context",
        "body": EACH.format("x", "context", "context") + "; p = softmaxed(q, k); return p, self.o(joined(p @ v))",
    },
    "a table of rotations": {
        "inputs": "x, start, freqs_cis",
        "body": f"{THIRDS}; c = freqs_cis; turn = lambda t: torch.view_as_real(torch.view_as_complex("
        f"t.float().unflatten(-1, (-1, 2))) * c).flatten(-2).to(t); q, k = turn(q), turn(k); {OUTPUT}",
    },
}
USUAL = {"sizes": "dim, h=3", "heads": "h", "init": ONE, "inputs": "x", "body": f"{THIRDS}; {OUTPUT}"}


def of_form(make: Make, changes: dict[str, str]) -> Implementation:
    return make(START + FORM.format(**{**USUAL, **changes}))


@pytest.mark.parametrize("changes", FORMS.values(), ids=FORMS)
def test_a_right_one_conforms(make: Make, changes: dict[str, str]) -> None:
    made = of_form(make, changes)
    assert made.claims.scope is Scope.MODULE
    assert_conforms(made)


@pytest.mark.parametrize("form", ["query, key and value of each head in turn", "(H, E, d)", "unnamed layers"])
def test_a_wrong_one_does_not(make: Make, form: str) -> None:
    text = START.replace("math.sqrt(q.shape[-1])", "q.shape[-1]") + FORM.format(**{**USUAL, **FORMS[form]})
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(make(text))


def test_rotations_inside_are_a_premise(make: Make) -> None:
    table = "t = torch.arange(64)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)"
    rotate = (
        "def rotated(x):\n    d, l = x.shape[-1], x.shape[-2]\n    "
        f"{table}\n    c, s = t.cos()[:l].to(x), t.sin()[:l].to(x)\n    "
        "a, b = x[..., ::2], x[..., 1::2]\n    return torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2)\n"
    )
    made = make(START + rotate + FORM.format(**{**USUAL, "body": f"{THIRDS}; q, k = rotated(q), rotated(k); {OUTPUT}"}))
    assert made.claims.premises.settings() == ("rotary=10000",)
    assert made.claims.conventions.rotary_pairing is RotaryPairing.INTERLEAVED
    assert_conforms(made)


def test_one_head(make: Make) -> None:
    made = of_form(
        make,
        {
            "sizes": "d_in, d_out",
            "heads": "1",
            "init": "self.wq, self.wk, self.wv = (nn.Parameter(torch.rand(d_in, d_out)) for _ in range(3))",
            "body": "return softmaxed(x @ self.wq, x @ self.wk) @ (x @ self.wv)",
        },
    )
    assert Feature.HEADS not in made.claims
    assert_conforms(made)


@pytest.mark.parametrize(
    ("sizes", "check", "promised"),
    [
        ("dim, h=3", "", False),
        ("dim, h=3", "assert dim % h == 0", True),
        ("embed_dim, num_heads", "dim, h = embed_dim, num_heads", False),
    ],
)
def test_that_widths_are_refused_is_required_where_it_is_promised(
    make: Make, sizes: str, check: str, promised: bool
) -> None:
    made = of_form(make, {"sizes": sizes, "heads": "1", "init": f"{check or 'pass'}; self.h = h; {ONE}"})
    assert (made.construct is not None) is promised
    assert candidate("torch.nn:MultiheadAttention", {}).construct is not None


FUNCTIONS = {
    "(L, d)": "def f(q, k, v, mask):\n    s = q @ k.T / np.sqrt(q.shape[-1]) + mask\n"
    "    e = np.exp(s - s.max(-1, keepdims=True))\n    return e / e.sum(-1, keepdims=True) @ v",
    "(B * H, L, d)": "def f(q, k, v):\n    s = torch.bmm(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5\n"
    "    return torch.bmm(s.softmax(-1), v)",
    "value first, (B, L, H, d)": "def f(values, keys, query):\n    q, k, v = (x.transpose(1, 2) for x in (query, keys,"
    " values))\n    return attend(q, k, v)[0].transpose(1, 2)",
    "a width and masks without heads": "def f(q, k, v, d_k, mask=None, dropout=None):\n    s = q @ k.mT / d_k ** 0.5\n"
    "    s = s if mask is None else s.masked_fill(mask.unsqueeze(1) == 0, -1e9)\n    p = s.softmax(-1)\n"
    "    return (p if dropout is None else dropout(p)) @ v",
}


@pytest.mark.parametrize("text", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_are_called_in_their_own_layout(make: Make, text: str) -> None:
    made = make(text)
    assert made.claims.scope is Scope.OP
    assert_conforms(made, made.claims.dtypes[0])


TRANSPOSED_IN = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x):
        q, k, v = self.qkv(x.METHOD(-1, x.shape[-1])).view(*x.shape[:-1], 3, self.h, -1).permute(2, 0, 3, 1, 4)
        return self.out(joined(softmaxed(q, k) @ v))
"""


@pytest.mark.parametrize("method", ["view", "reshape"])
def test_a_module_that_takes_views_of_its_input_needs_it_contiguous(make: Make, method: str) -> None:
    made = make(START + TRANSPOSED_IN.replace("METHOD", method))
    assert (Feature.VIEWS in made.claims) is (method == "reshape")
    assert ("views not claimed: RuntimeError: view size is not compatible" in made.about) is (method == "view")


CUT = """
class f(nn.Module):
    def __init__(self, n_state, n_head):
        super().__init__()
        self.h = n_head
        self.query, self.key, self.value, self.out = (nn.Linear(n_state, n_state) for _ in range(4))
    def forward(self, x, xa=None, mask=None):
        q, k, v = (heads_of(p, self.h) for p in (self.query(x), self.key(x if xa is None else xa),
                   self.value(x if xa is None else xa)))
        qk = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            qk = qk + mask[:x.shape[1], :x.shape[1]]
        return self.out(joined(qk.softmax(-1) @ v)), qk.detach()
"""


def test_a_mask_that_is_cut_to_the_queries_is_one_for_all(make: Make) -> None:
    made = make(START + CUT)
    assert Feature.WEIGHTS not in made.claims
    fitted = fit(Case(mask=MaskKind.FLOAT).sized(batch=9, query_length=4, key_length=4), made.claims)
    assert isinstance(fitted, Case)
    assert fitted.mask_shape is MaskShape.SHARED
    assert_conforms(made)


class Triangles(nn.Module):
    """As a list of heads has them."""

    def __init__(self, n_embd: int, num_heads: int, block_size: int = 32) -> None:
        super().__init__()
        self.size, self.tokens = n_embd // num_heads, block_size


@pytest.mark.parametrize(("heads", "tokens"), [(2, 2048), (256, 256)])
def test_heads_with_tables_of_their_own_are_built_in_little_memory(heads: int, tokens: int) -> None:
    module = constructor(Triangles)(256, heads)
    assert isinstance(module, Triangles)
    assert module.tokens == tokens


def test_what_breaks_at_small_heads_is_not_judged_by_its_names(make: Make) -> None:
    """A part of each head is rotated, of which nothing is left in small ones."""
    message = refused(
        make,
        """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h, self.qkv, self.out = num_heads, nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        first, second = q[..., : q.shape[-1] // 4].chunk(2, -1)
        return self.out(attend(q, k, v)[0].transpose(1, 2).flatten(2)) + 0 * first.sum() * second.sum()
""",
    )
    assert "heads of 4 components raise ValueError: not enough values" in message


WIDE_VALUES = """
class f(nn.Module):
    def __init__(self, {parameters}):
        super().__init__()
        self.h, self.d_k, self.d_v = n_head, {d_k}, {d_v}
        self.w_q, self.w_k = nn.Linear(d_model, n_head * self.d_k), nn.Linear(d_model, n_head * self.d_k)
        self.w_v, self.fc = nn.Linear(d_model, n_head * self.d_v), nn.Linear(n_head * self.d_v, d_model)
    def forward(self, q, k, v):
        q, k, v = (split(w(x), self.h) for w, x in ((self.w_q, q), (self.w_k, k), (self.w_v, v)))
        return self.fc(((q @ k.mT / self.{scale} ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
OF_EACH_HEAD = {"parameters": "n_head, d_model, d_k, d_v", "d_k": "d_k", "d_v": "d_v"}
OF_ALL_HEADS = {
    "parameters": "d_model, n_head, v_channels=None",
    "d_k": "d_model // n_head",
    "d_v": "(v_channels or d_model) // n_head",
}


@pytest.mark.parametrize(("scale", "wrong"), [("d_k", False), ("d_v", True)])
@pytest.mark.parametrize("form", [OF_EACH_HEAD, OF_ALL_HEADS], ids=["of each head", "of all heads"])
def test_values_of_a_width_of_their_own(make: Make, form: dict[str, str], scale: str, wrong: bool) -> None:
    made = make(WIDE_VALUES.format(**form, scale=scale))
    assert Feature.VALUE_WIDTH in made.claims.features
    assert bool(failing(made, "scores.scale-default", "values.weighted-sum")) is wrong
