"""Flags, settings and masks in the forms of much-used model code: the right one is not accused, the wrong one is."""

from typing import Any

import pytest

from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.modules.array_modules import array_module
from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature, PositionIds
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, make

__all__ = ["make"]

FLAGGED = """
class f(nn.Module):
    def __init__(self, heads, dim):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, {flag}):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / q.shape[-1] ** 0.5
        if {name}:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu({first}), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize("flag", ["causal_mask=False", "use_causal_mask: bool = True"])
@pytest.mark.parametrize("first", [1, 2])
def test_a_flag_of_causality_in_other_words_is_judged(make: Make, flag: str, first: int) -> None:
    name = flag.split("=")[0].split(":")[0].strip()
    made = make(FLAGGED.format(flag=flag, name=name, first=first))
    assert Feature.CAUSAL in made.claims
    assert not made.findings
    if first == 1:
        assert_conforms(made)
    else:
        with pytest.raises(AssertionError, match="elements differ"):
            assert_conforms(made)


SETTINGS = """
class f(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.h, d = config.num_attention_heads, config.hidden_size
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.scaled, self.depth = config.scale_attn_weights, config.scale_attn_by_inverse_layer_idx
        self.kind = getattr(config, "position_embedding_type", "absolute")
        if self.kind == "relative_key":
            self.distances = nn.Embedding(2 * config.max_position_embeddings - 1, d // self.h)
    def forward(self, hidden_states):
        q, k, v = (split(each, self.h) for each in self.qkv(hidden_states).chunk(3, -1))
        s = q @ k.mT
        if self.kind == "relative_key":
            at = torch.arange(s.shape[-1])
            s = s + torch.einsum("bhld,lrd->bhlr", q, self.distances(at[:, None] - at))
        s = s / {root} if self.scaled else s
        s = s / 7 if self.depth else s
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize("root", ["q.shape[-1] ** 0.5", "q.shape[-1]"])
def test_settings_are_as_the_code_has_them_by_default(make: Make, root: str) -> None:
    made = make(SETTINGS.format(root=root))
    assert not made.findings
    if "**" in root:
        assert_conforms(made)
    else:
        with pytest.raises(AssertionError, match="elements differ"):
            assert_conforms(made)


OF_PARTS = """
class f(nn.Module):
    def __init__(self, cfg, d_model: int):
        super().__init__()
        self.h, self.longest = cfg.heads_of.n_heads, cfg.places.max_seq_len
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
    def forward(self, x):
        assert x.shape[1] <= self.longest
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        return self.out(attend(q, k, v, scale={scale})[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize("scale", ["None", "x.shape[-1] ** -0.5"])
def test_settings_of_parts_are_those_that_the_code_reads(make: Make, scale: str) -> None:
    made = make(OF_PARTS.format(scale=scale))
    if scale == "None":
        assert_conforms(made)
    else:
        with pytest.raises(AssertionError, match="elements differ"):
            assert_conforms(made)


STRICT = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (split(each(hidden_states), self.h) for each in (self.q, self.k, self.v))
        s = q @ k.mT / q.shape[-1] ** 0.5
        if attention_mask is not None:
            if attention_mask.size() != (s.shape[0], 1, *s.shape[2:]):
                raise ValueError(f"Attention mask should be of size {{s.shape}}, but is {{attention_mask.size()}}")
            s = {masked}
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize("masked", ["s + attention_mask", "s + attention_mask.mT", "s + attention_mask[:1]"])
def test_a_mask_of_one_head_for_all_is_judged(make: Make, masked: str) -> None:
    made = make(STRICT.format(masked=masked))
    assert Feature.FLOAT_MASK in made.claims
    if masked == "s + attention_mask":
        assert not made.findings
        assert_conforms(made)
    else:
        with pytest.raises((AssertionError, RuntimeError), match=r"elements differ|must match the size"):
            assert_conforms(made)


CHANNELS = """
class f(nn.Module):
    def __init__(self, ni, attn_chans, transpose=True, centred=False):
        super().__init__()
        self.h, self.norm, self.centred = ni // attn_chans, nn.LayerNorm(ni), centred
        self.qkv, self.proj, self.t = nn.Linear(ni, 3 * ni), nn.Linear(ni, ni), transpose
    def forward(self, x):
        x = self.norm(x.mT if self.t else x)
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        x = self.proj(attend(q, k, v)[0].transpose(1, 2).flatten(2))
        x = x - x.mean({axis}, keepdim=True) if self.centred else x
        return x.mT if self.t else x
"""


@pytest.mark.parametrize(("axis", "wrong"), [("-1", False), ("0", True)])
def test_an_option_of_layout_is_none_that_is_tried(make: Make, axis: str, wrong: bool) -> None:
    made = make(CHANNELS.format(axis=axis))
    (found,) = run(made, ("modules.as-built",), ("float32",))
    assert found.status is (Status.FAIL if wrong else Status.PASS)


CACHED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, layer_past=None, use_cache=False):
        q, k, v = self.qkv(x.view(-1, x.shape[-1])).view(*x.shape[:2], -1).chunk(3, -1)
        q, k, v = (split(each, self.h) for each in (q, k, v))
        if layer_past is not None:
            k, v = (torch.cat({both}, 2) for old, new in zip(layer_past, (k, v)))
        s = q @ k.mT / q.shape[-1] ** 0.5
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1 + s.shape[-1] - s.shape[-2]), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)
"""


@pytest.mark.parametrize(("both", "wrong"), [("[old, new]", False), ("[new, old]", True)])
def test_pieces_lie_in_one_piece_of_memory(make: Make, both: str, wrong: bool) -> None:
    made = make(CACHED.format(both=both))
    assert not made.findings
    (found,) = run(made, ("modules.as-built",), ("float32",))
    assert found.status is (Status.FAIL if wrong else Status.PASS)


LETTERS = """
class f(nn.Module):
    def __init__(self, d_model, q, v, h):
        super().__init__()
        self.h, self.W_q, self.W_k = h, nn.Linear(d_model, q * h), nn.Linear(d_model, q * h)
        self.W_v, self.W_o = nn.Linear(d_model, v * h), nn.Linear(v * h, d_model)
    def forward(self, query, key, value):
        q, k, v = (split(w(x), self.h) for w, x in ((self.W_q, query), (self.W_k, key), (self.W_v, value)))
        s = q @ k.mT / {number} ** 0.5
        return self.W_o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize("number", ["q.shape[-1]", "query.shape[1]"])
def test_widths_of_a_head_are_letters(make: Make, number: str) -> None:
    made = make(LETTERS.format(number=number))
    if number.startswith("q."):
        assert_conforms(made)
    else:
        with pytest.raises(AssertionError, match="elements differ"):
            assert_conforms(made)


@pytest.mark.parametrize(
    ("comment", "found"),
    [
        ("scaled_dot_product_attention takes a mask where True indicates what should take part", False),
        ("if Lq == 1 no need to mask, otherwise the mask is needed", False),
        ("the mask is True where a key may be used", True),
        ("where mask == 1 a key may be used", True),
    ],
)
def test_a_comment_on_another_function_states_nothing_of_its_own_mask(make: Make, comment: str, found: bool) -> None:
    made = make(
        f"""
def f(q, k, v, mask=None):
    # {comment}
    s = q @ k.mT / q.shape[-1] ** 0.5
    return (s if mask is None else s.masked_fill(mask, -torch.inf)).softmax(-1) @ v
"""
    )
    assert made.claims.conventions.bool_mask is Polarity.MASKED_OUT
    assert ("mask" in made.findings) is found


NEEDING = """
import jax.numpy as jnp
from flax import linen

class f(linen.Module):
    num_hiddens: int
    num_heads: int

    @linen.compact
    def __call__(self, queries, keys, values, valid_lens):
        q, k, v = (linen.Dense(self.num_hiddens)(each) for each in (queries, keys, values))
        s = q @ k.swapaxes(1, 2)
        if valid_lens is not None:
            s = jnp.where(jnp.arange(s.shape[-1]) < valid_lens[:, None, None], s, -1e6)
        return linen.softmax(s) @ v
"""


def test_an_array_module_that_needs_lengths_is_made_without_any() -> None:
    pytest.importorskip("flax")
    space: dict[str, Any] = {"__name__": "needing"}
    exec(NEEDING, space)
    module = array_module(space["f"])
    assert module is not None
    made: Any = module
    assert len(list(made(embed_dim=12, num_hiddens=12, num_heads=1).parameters())) == 6


OF_HEADS = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads, layer_idx=None):
        super().__init__()
        self.h, self.window = num_heads, 99 if layer_idx % 2 else None
        self.q, self.k, self.v, self.out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
    def forward(self, hidden_states, {name}=None):
        q, k, v = (split(each(hidden_states), self.h) for each in (self.q, self.k, self.v))
        p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        if {name} is not None:
            p = p * {factors}
        return self.out((p @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("name", "factors", "judged", "wrong"),
    [
        ("head_mask", "head_mask", True, False),
        ("layer_head_mask", "layer_head_mask.view(self.h)[:, None, None]", True, False),
        ("head_mask", "head_mask.flip(1)", True, True),
        ("head_mask", "(head_mask > 0)", False, False),
        ("head_mask", "(head_mask - 1).exp()", True, True),
        ("heads_mask", "(heads_mask - 1).exp()", False, False),
    ],
)
def test_factors_of_heads_are_judged(make: Make, name: str, factors: str, judged: bool, wrong: bool) -> None:
    made = make(OF_HEADS.format(name=name, factors=factors))
    assert (Feature.HEAD_GATES in made.claims) is judged
    assert (name in made.findings) is not judged
    found = run(made, ("head-gates.factor", "head-gates.open"), ("float32",))
    assert {each.status for each in found} == (
        {Status.FAIL, Status.PASS} if wrong else {Status.PASS} if judged else set()
    )


TABLES = """
class f(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.h, d = config.num_attention_heads, config.hidden_size
        self.d = config.rotary_dim
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        turns = 10000.0 ** -(torch.arange(0, self.d, 2) / self.d)
        turns = torch.arange(config.max_position_embeddings)[:, None] * turns
        self.tables = torch.cat([turns.cos(), turns.sin()], -1)
    def rope(self, x, at):
        cos, sin = self.tables[at][:, None].to(x).chunk(2, -1)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    def forward(self, hidden_states, position_ids=None):
        q, k, v = (split(each, self.h) for each in self.qkv(hidden_states).chunk(3, -1))
        q, k = (self.rope(each, position_ids) for each in (q, k))
        return self.out(attend(q, k, {v})[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize("v", ["v", "v.roll(1, 2)"])
def test_positions_are_those_of_its_tables(make: Make, v: str) -> None:
    made = make(TABLES.format(v=v))
    many = Sizes(batch=2, num_heads=3, query_length=5000, key_length=5000)
    kinds = [PositionIds.NONE, *([PositionIds.FAR, PositionIds.ASCENDING] if v == "v" else [])]
    for kind in kinds:
        fitted = fit(Case(sizes=many).extended(position_ids=kind), made.claims)
        assert isinstance(fitted, Case)
        assert fitted.sizes.query_length <= 2048
        ids = build(fitted.sized(num_heads=1, d_k=2, d_v=2), "float32").extras.get("query_positions")
        assert ids is None or ids.max() < 2048
    if v == "v":
        assert Feature.POSITION_IDS in made.claims
        assert_conforms(made)
    else:
        with pytest.raises(AssertionError, match="elements differ"):
            assert_conforms(made)
