"""Limits of published code: one length for all, modes that have to be on, one head at a time, caches for callers."""

import pytest

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

ONE_LENGTH = """
class f(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))
    def forward(self, key, value, query):
        B, L, E = query.shape
        q, k, v = (p(x).view(B, L, self.h, -1).transpose(1, 2) for p, x in
                   ((self.q, query), (self.k, key), (self.v, value)))
        return self.o(attend(q, k, v)[0].transpose(1, 2).reshape(B, L, E))
"""
FLAGGED = """
def f(q, k, v, sm_scale, is_causal):
    s = q @ k.mT * sm_scale
    if is_causal:
        s = s.masked_fill(torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1), -torch.inf)
    return s.softmax(-1) @ v
"""
DROP_IN = """
def f(query, key, value, attn_mask=None, is_causal=False):
    triangle = torch.ones(query.shape[-2], query.shape[-2], dtype=torch.bool).tril()
    mask = triangle if is_causal else attn_mask
    return attend(query, key, value, mask)[0]
"""


def test_a_module_that_reads_one_length_is_judged_with_that(make: Make) -> None:
    made = make(ONE_LENGTH)
    assert "it raises" in made.findings["unequal-lengths"]
    assert_conforms(made)
    assert not failing(made, "heads.independent")


def test_a_triangle_of_one_length_is_judged_with_that(make: Make) -> None:
    made = make(FLAGGED)
    assert "under its causal flag" in made.findings["unequal-lengths"]
    assert Feature.CROSS in made.claims
    assert not failing(made, "causal.empty-rows", "causal.alignment")


def test_a_published_interface_promises_all_lengths(make: Make) -> None:
    made = make(DROP_IN)
    assert "unequal-lengths" not in made.findings
    assert failing(made, "causal.empty-rows")


SELF_ALONE = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads, bias=True, self_attention=False):
        super().__init__()
        assert self_attention, "Only support self attention"
        self.h = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim, bias) for _ in range(4))
    def forward(self, query, key, value, key_padding_mask=None, need_weights=True):
        q, k, v = (split(p(query.transpose(0, 1)), self.h) for p in (self.q_proj, self.k_proj, self.v_proj))
        assert len(key) == len(query)
        mask = None if key_padding_mask is None else ~key_padding_mask[:, None, None].bool()
        y, w, _ = attend(q, k, v, mask)
        return self.out_proj(y.transpose(1, 2).flatten(2)).transpose(0, 1), w.mean(1)
"""


def test_a_mode_that_has_to_be_on_is_all_that_is_claimed(make: Make) -> None:
    made = make(SELF_ALONE)
    assert {Feature.CROSS, Feature.KEY_VALUE}.isdisjoint(made.claims.features)
    assert not failing(made, "heads.independent", "shapes.sizes")


PAST = """
def f(query, key, value, past_position=0):
    s = query @ key.mT * query.shape[-1] ** -0.5
    hidden = torch.arange(key.shape[-2]) < key.shape[-2] - past_position - query.shape[-2]
    return s.masked_fill(hidden, -torch.inf).softmax(-1) @ value
"""
ONE_HEAD = """
def f(query, key_, value):
    assert query.ndim == 2
    return (query @ key_.T / query.shape[-1] ** 0.5).softmax(-1) @ value
"""


def test_earlier_tokens_that_are_counted_as_none_are_hidden(make: Make) -> None:
    made = make(PAST)
    assert "its 'past_position' counts those of earlier tokens" in made.about
    assert_conforms(made)


def test_many_heads_are_not_asked_for_one_at_a_time(make: Make) -> None:
    made = make(ONE_HEAD)
    assert not failing(made, "scores.dot-product", "heads.independent", "shapes.large")
    assert isinstance(fit(Case().sized(batch=300, num_heads=300), made.claims), Unsupported)


CACHED = """
class f(nn.Module):
    def __init__(self, embed_dim, n_heads, use_mask=True):
        super().__init__()
        self.h, self.use_mask = n_heads, use_mask
        self.key, self.query, self.value, self.proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
    def forward(self, x, layer_past=None):
        q, k, v = (split(each(x), self.h) for each in (self.query, self.key, self.value))
        present = torch.stack([k, v])
        if layer_past is not None:
            {past}
        L, K = q.shape[-2], k.shape[-2]
        mask = torch.ones(L, K, dtype=torch.bool).tril(K - L)
        return self.proj(attend(q, k, v, mask)[0].transpose(1, 2).flatten(2)), present
"""


@pytest.mark.parametrize(("order", "wrong"), [("(old, new)", False), ("(new, old)", True)])
def test_new_keys_and_values_in_one_tensor_are_appended_by_the_caller(make: Make, order: str, wrong: bool) -> None:
    past = f"k, v = (torch.cat({order}, -2) for old, new in zip(layer_past, present))"
    made = make(CACHED.format(past=past))
    assert Feature.AS_BUILT in made.claims
    assert bool(failing(made, "modules.as-built")) is wrong


NEEDED = """
class f(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.h, self.qkv, self.dense = num_attention_heads, nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(
            hidden_size, hidden_size)
    def forward(self, hidden_states, ltor_mask):
        q, k, v = (split(each, self.h) for each in self.qkv(hidden_states).chunk(3, -1))
        s = q @ k.mT / q.shape[-1] ** 0.5
        s = s * ltor_mask - torch.finfo(s.dtype).max * (1.0 - ltor_mask)
        return self.dense((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def test_a_mask_of_ones_is_given_where_one_has_to_be(make: Make) -> None:
    made = make(NEEDED)
    assert Feature.BOOL_MASK in made.claims
    assert_conforms(made)


EXACT = """
class f(nn.Module):
    def __init__(self, dim, num_heads, {length}):
        super().__init__()
        self.h, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.bias = nn.Parameter(0.02 * torch.randn(num_heads, {length}, {length}))
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        return self.proj(attend(q, k, v, self.bias{wrong})[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize("length", ["length", "num_patches", "seq_len"])
def test_the_only_length_that_is_taken_is_a_premise(make: Make, length: str) -> None:
    made = make(EXACT.format(length=length, wrong=""))
    assert made.claims.premises.length
    assert_conforms(made)


def test_a_bias_that_other_samples_change_fails(make: Make) -> None:
    assert failing(make(EXACT.format(length="length", wrong=" * (1 + 0.1 * x.mean())")))


IN_PAIRS = """
def rotated(x):
    pairs = torch.view_as_complex(x{copied}.reshape(*x.shape[:-1], -1, 2))
    rates = 10000.0 ** (-2 * torch.arange(x.shape[-1] // 2).double() / x.shape[-1])
    angles = torch.outer(torch.arange(x.shape[-2]).double(), rates)
    turns = torch.polar(torch.ones_like(angles), angles).to(pairs)
    return torch.view_as_real(pairs * turns).flatten(-2)

def f(q, k, v):
    return attend(rotated(q), rotated(k), {value})[0]
"""


COPIED = ".clone(memory_format=torch.contiguous_format)"


@pytest.mark.parametrize("copied", ["", COPIED])
def test_pairs_that_begin_at_odd_places_are_a_limit_of_torch(make: Make, copied: str) -> None:
    made = make(IN_PAIRS.format(copied=copied, value="v"))
    assert (Feature.VIEWS in made.claims) is bool(copied)
    assert made.claims.premises.rotary_base == 10000.0
    assert not failing(made, "shapes.views", "scores.dot-product")


def test_a_view_that_cannot_be_made_is_no_limit_next_to_pairs(make: Make) -> None:
    made = make(IN_PAIRS.format(copied=COPIED, value="v.view(-1).view(v.shape)"))
    assert failing(made, "shapes.views", "scores.dot-product")
