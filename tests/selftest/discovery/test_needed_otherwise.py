"""What needs tables, gradients, positions, ranks or texts, or answers with all heads side by side."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms

TURNED = """
def rotated(x, pe):
    pairs = x.reshape(*x.shape[:-1], -1, 1, 2)
    return (pe[..., 0] * pairs[..., 0] + pe[..., 1] * pairs[..., 1]).reshape(x.shape)

def f(q, k, v, pe):
    s = rotated(q, pe) @ rotated(k, pe).mT / math.sqrt({width})
    return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)
"""
LIKE_LLAMA = """
def rotated(x, freqs_cis):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs_cis[None, :, None]).flatten(3).to(x)

def f(q, k, v, freqs_cis):
    q, k, v = (x.transpose(1, 2) for x in (rotated(q, freqs_cis), rotated(k, freqs_cis), v))
    return ((q @ k.mT / math.sqrt({width})).softmax(-1) @ v).transpose(1, 2)
"""
WITH_GRADIENTS = """
def f(q, k, v, dout):
    s = q @ k.swapaxes(-1, -2) / math.sqrt({width})
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    return p @ v, p.swapaxes(-1, -2) @ dout
"""
OF_MERGED = """
class f(nn.Module):
    def __init__(self, num_heads, dropout=0.1):
        super().__init__()
        self.h, self.dropout = num_heads, nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        q, k, v = (x.unflatten(-1, (self.h, -1)).transpose(1, 2) for x in (q, k, v))
        s = q @ k.mT / math.sqrt({width})
        s = s if mask is None else s.masked_fill(mask == 0, -1e9)
        return (self.dropout(s.softmax(-1)) @ v).transpose(1, 2).flatten(2)
"""
OF_SETTINGS = """
class f(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.d = config.hidden_size // config.num_attention_heads
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(self, query_layer, key_layer, value_layer, attention_mask=None):
        q = query_layer
        s = q @ key_layer.mT / math.sqrt({width})
        s = s if attention_mask is None else s + attention_mask
        return (self.dropout(s.softmax(-1)) @ value_layer).transpose(1, 2).flatten(2)
"""
WITH_USUAL = OF_SETTINGS.replace("config):", "config=USUAL):").replace(
    "self.dropout =", "self.most = config.longest_of_all + 1; self.dropout ="
)
BY_DEFAULT = f"""
from types import SimpleNamespace
USUAL = SimpleNamespace(hidden_size=64, num_attention_heads=4, attention_probs_dropout_prob=0.0, longest_of_all=32)
{WITH_USUAL}"""
OF_TEXTS = """
class f(nn.Module):
    def __init__(self, dim, heads, attn_type, eos_id):
        super().__init__()
        assert attn_type in ("full", "local")
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (self.h, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return self.out(((q @ k.mT / math.sqrt({width})).softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
OF_POSITIONS = """
class f(nn.Module):
    def __init__(self, config, layer_idx=None):
        super().__init__()
        self.h, dim = config.num_attention_heads, config.hidden_size
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim) for _ in range(4))

    def rotated(self, x, position_ids):
        first, second = x.chunk(2, -1)
        rates = 10000.0 ** -(torch.arange(first.shape[-1]) / first.shape[-1])
        angles = position_ids[:, None, :, None] * rates
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x)

    def forward(self, hidden_states, attention_mask=None, position_ids=None):
        projections = self.q_proj, self.k_proj, self.v_proj
        q, k, v = (each(hidden_states).unflatten(-1, (self.h, -1)).transpose(1, 2) for each in projections)
        s = self.rotated(q, position_ids) @ self.rotated(k, position_ids).mT / math.sqrt({width})
        assert attention_mask is not None
        return self.o_proj(((s + attention_mask).softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
DRAWN = """
class f:
    def __init__(self, embed_dim, n_heads, rng):
        self.h = n_heads
        self.params = {{name: rng.normal(0, 1, (embed_dim, embed_dim)) for name in ("Wq", "Wk", "Wv", "Wo")}}

    def __call__(self, x):
        q, k, v = (np.stack(np.split(x @ self.params[name], self.h, -1), -3) for name in ("Wq", "Wk", "Wv"))
        s = q @ k.swapaxes(-1, -2) / math.sqrt({width})
        p = np.exp(s - s.max(-1, keepdims=True))
        heads = np.moveaxis(p / p.sum(-1, keepdims=True) @ v, -3, 0)
        return np.concatenate([*heads], -1) @ self.params["Wo"]
"""
SEVERAL = """
class f(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.h, self.c_attn, self.c_proj = n_head, nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def rotated(self, x, cos, sin):
        first, second = x[..., ::2], x[..., 1::2]
        return torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(3)

    def forward(self, x, rope, mask, max_seq_length):
        q, k, v = (each.unflatten(-1, (self.h, -1)).transpose(1, 2) for each in self.c_attn(x).chunk(3, -1))
        q, k = (self.rotated(each, rope[..., 0], rope[..., 1]) for each in (q, k))
        s = q @ k.mT / math.sqrt({width})
        s = s if mask is None else s.masked_fill(~mask, -torch.inf)
        return self.c_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
LEFT_OUT = """
class f(nn.Module):
    def __init__(self, n_embd, n_head, attn_impl="fast"):
        super().__init__()
        self.h, self.c_attn, self.c_proj = n_head, nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.attn_impl = attn_impl

    def forward(self, x, freqs_cis=None):
        if self.attn_impl == "fast":
            raise RuntimeError("install what is fast")
        q, k, v = (each.unflatten(-1, (self.h, -1)).transpose(1, 2) for each in self.c_attn(x).chunk(3, -1))
        turns = freqs_cis[: x.shape[1]]
        q, k = (torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (-1, 2))) * turns).flatten(3) for y in (q, k))
        s = q @ k.mT / math.sqrt({width})
        if self.attn_impl == "plain":
            return self.c_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
TEMPERATE = """
class f(nn.Module):
    def __init__(self, scale=8):
        super().__init__()
        self.scale = scale

    def forward(self, q, k, v):
        return (q @ k.mT * self.scale * math.sqrt(q.shape[-1]) / math.sqrt({width})).softmax(-1) @ v
"""
EACH = {
    "left out": LEFT_OUT,
    "temperate": TEMPERATE,
    "matrices": TURNED,
    "freqs_cis": LIKE_LLAMA,
    "dout": WITH_GRADIENTS,
    "merged": OF_MERGED,
    "settings": OF_SETTINGS,
    "settings by default": BY_DEFAULT,
    "text": OF_TEXTS,
    "positions": OF_POSITIONS,
    "drawn": DRAWN,
    "several": SEVERAL,
}


@pytest.mark.parametrize("text", EACH.values(), ids=EACH)
def test_what_is_needed_is_given(make: Make, text: str) -> None:
    assert_conforms(make(text.format(width="q.shape[-1]")), "float32")


@pytest.mark.parametrize("name", [name for name in EACH if name not in ("text", "several", "left out")])
def test_a_wrong_one_is_accused(make: Make, name: str) -> None:
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(make(EACH[name].format(width="2 * q.shape[-1]")), "float32")


SLOPES = """
def f(q, k, v, alibi_slopes, causal=False):
    if q.dtype not in ({dtypes}):
        raise TypeError("unsupported")
    far = torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])
    bias = -alibi_slopes.float()[:, None, None] * (far + k.shape[1] - q.shape[1]).abs()
    q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
    return attend(q, k, v, bias, causal)[0].transpose(1, 2).to({answer})
"""


@pytest.mark.parametrize("dtypes", ["torch.float32, torch.bfloat16", "torch.bfloat16, torch.float16"])
def test_slopes_that_have_to_be_given(make: Make, dtypes: str) -> None:
    dtype = dtypes.rpartition("torch.")[2]
    made = make(SLOPES.format(dtypes=dtypes, answer=f"torch.{dtype}"))
    assert Feature.ALIBI in made.claims.features
    assert_conforms(made, dtype)
