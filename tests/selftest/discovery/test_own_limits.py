"""What published code refuses, hides or lays out in a way of its own: a limit that is not checked, and no mistake."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

WINDOWED = """
def f(query, key, value, sliding_window_size=-1):
    q, s = query, query @ key.mT
    s = s / {root}
    if sliding_window_size >= 0:
        if query.shape[2] != key.shape[2]:
            raise ValueError("as many queries as keys")
        at = torch.arange(key.shape[2])
        s = s.masked_fill((at - at[:, None]).abs() > sliding_window_size, -torch.inf)
    return s.softmax(-1) @ value
"""
NARROW = """
def f(query, key, value, scale=None):
    if value.shape[-1] > query.shape[-1]:
        raise ValueError("values are as wide as keys at most")
    return attend(query, key, value, scale=scale)[0]
"""
SERIES = """
class MultiHeadAttention(nn.Module):
    def __init__(self, nb_head, d_model):
        super().__init__()
        self.h, self.linears = nb_head, nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        \"\"\"(batch, N, T, d_model), attention over T; mask (batch, T, T).\"\"\"
        B, N = query.shape[:2]
        q, k, v = (
            each(x).view(B, N, -1, self.h, x.shape[-1] // self.h).transpose(2, 3)
            for each, x in zip(self.linears, (query, key, value))
        )
        s = q @ k.mT / {root}
        if mask is not None:
            s = s.masked_fill(mask[:, None, None] == 0, -1e9)
        x = (s.softmax(-1) @ v).transpose(2, 3).reshape(B, N, -1, self.h * v.shape[-1])
        return self.linears[-1](x)
"""
HOLES = """
class f(nn.Module):
    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.h, self.qkv, self.proj = n_head, nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        mask = torch.ones(block_size, block_size).tril()
        mask[:, 24::25] = 0
        self.register_buffer("mask", mask)

    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / {root}
        s = s.masked_fill(self.mask[: x.shape[1], : x.shape[1]] == 0, -torch.inf)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
ROOT, WRONG = "q.shape[-1] ** 0.5", "(q.shape[-1] - 1) ** 0.5"


@pytest.mark.parametrize(("root", "wrong"), [(ROOT, False), (WRONG, True)])
def test_windows_of_other_lengths_that_are_refused(make: Make, root: str, wrong: bool) -> None:
    made = make(WINDOWED.format(root=root))
    assert {Feature.WINDOW, Feature.CROSS} <= made.claims.features
    assert any("windows of other lengths" in each for each in made.unclaimed)
    assert bool(failing(made, "window.*", "shapes.combinations", "scores.dot-product")) is wrong


def test_values_wider_than_keys_that_are_refused(make: Make) -> None:
    made = make(NARROW)
    assert Feature.VALUE_WIDTH in made.claims
    assert not failing(made, "shapes.output", "shapes.combinations", "values.combination")


@pytest.mark.parametrize(("root", "wrong"), [(ROOT, False), (WRONG, True)])
def test_tokens_behind_an_axis_of_their_own(make: Make, root: str, wrong: bool) -> None:
    made = make(SERIES.format(root=root), "MultiHeadAttention")
    assert "(B, 1, L, E)" in made.about
    assert bool(failing(made, "scores.dot-product", "masks.bool", "heads.independent")) is wrong


@pytest.mark.parametrize(("root", "wrong"), [(ROOT, False), (WRONG, True)])
def test_tokens_that_a_kept_mask_hides_from_all(make: Make, root: str, wrong: bool) -> None:
    made = make(HOLES.format(root=root))
    assert any("more than 24 tokens" in each for each in made.unclaimed)
    assert bool(failing(made, "scores.dot-product", "gradients.query", "shapes.large")) is wrong


LAYER = """
class f(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.self_attn, self.norm = nn.MultiheadAttention(d_model, nhead, batch_first=True), nn.LayerNorm(d_model)

    def forward(self, src, src_mask=None, src_key_padding_mask=None):
        x = self.self_attn(src, src, src, attn_mask=src_mask, {padding}need_weights=False)[0]
        return self.norm(src + x)
"""


@pytest.mark.parametrize(("padding", "wrong"), [("key_padding_mask=src_key_padding_mask, ", False), ("", True)])
def test_both_masks_of_a_layer_around_torchs_module(make: Make, padding: str, wrong: bool) -> None:
    made = make(LAYER.format(padding=padding))
    assert {Feature.BOOL_MASK, Feature.KEY_PADDING} <= made.claims.features
    assert not made.findings
    assert bool(failing(made, "masks.bool", "masks.key-padding", "conventions.empty-row")) is wrong


OF_SAMPLES = '''
def f(Q, K, V, mask=None):
    """mask: boolean, True where a key takes part: (L, S), (B, L, S) for each sample, or (B, H, L, S)."""
    B, H, L = Q.shape[:3]
    s = Q @ K.mT / Q.shape[-1] ** 0.5
    if mask is not None:
        if mask.ndim == 3:
            mask = {of_samples}.view(B, H, L, -1)  # one mask for every head
        s = s.masked_fill(~mask, -torch.inf)
    return s.softmax(-1) @ V
'''
EACH = "mask.repeat_interleave(H, 0)"


@pytest.mark.parametrize(("of_samples", "wrong"), [(EACH, False), ("mask.repeat(H, 1, 1)", True)])
def test_masks_of_three_axes_as_they_are_documented(make: Make, of_samples: str, wrong: bool) -> None:
    made = make(OF_SAMPLES.format(of_samples=of_samples))
    assert not made.findings
    assert bool(failing(made, "relations.alternatives")) is wrong


def test_documented_axes_that_are_refused_are_not_claimed(make: Make) -> None:
    made = make(OF_SAMPLES.format(of_samples=EACH).replace("mask.ndim == 3", "mask.ndim == 9"))
    assert not failing(made, "relations.alternatives")


BUCKETS = """
class T5Attention(nn.Module):
    def __init__(self, d_model, num_heads, num_buckets=8, max_distance=20):
        super().__init__()
        self.h, self.num_buckets, self.max_distance = num_heads, num_buckets, max_distance
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)

    def rows(self, ahead):
        half = self.num_buckets // 2
        far = ahead.abs()
        exact = half // 2
        logs = torch.log(far.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        rows = torch.where(far < exact, far, {large}) + (ahead > 0) * half
        return rows.clamp(max=self.num_buckets - 1)

    def forward(self, x):
        q, k, v = (split(each(x), self.h) for each in (self.q, self.k, self.v))
        at = torch.arange(x.shape[1])
        s = q @ k.mT + self.relative_attention_bias(self.rows(at - at[:, None])).permute(2, 0, 1)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
LARGE = "exact + (logs * (half - exact)).long()"


@pytest.mark.parametrize(("large", "wrong"), [(f"({LARGE}).clamp(max=half - 1)", False), (LARGE, True)])
def test_the_farthest_keys_of_buckets(make: Make, large: str, wrong: bool) -> None:
    made = make(BUCKETS.format(large=large), "T5Attention")
    assert bool(failing(made, "modules.as-built")) is wrong


@pytest.mark.parametrize(
    ("ignored", "by"),
    [
        ("math.log(self.max_distance / exact)", "math.log(20 / exact)"),
        ("num_heads, num_buckets, max_distance", "num_heads, num_buckets, 20"),
        ("half = self.num_buckets // 2", "half = 4"),
    ],
)
def test_numbers_of_buckets_that_a_constructor_takes_are_used(make: Make, ignored: str, by: str) -> None:
    text = BUCKETS.format(large=f"({LARGE}).clamp(max=half - 1)")
    assert ignored in text
    assert failing(make(text.replace(ignored, by), "T5Attention"), "modules.as-built")


OWN_PARAMETERS = '''
class f(nn.Module):
    """{text}"""
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h, self.d = num_heads, embed_dim // num_heads
        self.in_proj_weight = nn.Parameter(torch.randn(3 * embed_dim, embed_dim) / embed_dim ** 0.5)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        qkv = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = qkv.view(*x.shape[:2], self.h, 3, self.d).permute(3, 0, 2, 1, 4)
        return self.out_proj(attend(q, k, v)[0].transpose(1, 2).flatten(2))
'''


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("Self-attention.", False), ("It loads a state dict of torch.nn.MultiheadAttention.", True)],
)
def test_rows_of_a_packed_parameter_lie_as_they_are_documented(make: Make, text: str, wrong: bool) -> None:
    made = make(OWN_PARAMETERS.format(text=text))
    assert not made.findings
    assert bool(failing(made, "projections.query", "projections.bias", "heads.independent")) is wrong


DETR = """
class f(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.self_attn, self.norm = nn.MultiheadAttention(d_model, nhead), nn.LayerNorm(d_model)

    def with_pos_embed(self, tensor, pos):
        return tensor if pos is None else tensor + pos

    def forward(self, src, src_mask=None, src_key_padding_mask=None, pos=None):
        q = k = self.with_pos_embed(src, pos)
        x = self.self_attn(q, k, {value}, attn_mask=src_mask, key_padding_mask=src_key_padding_mask)[0]
        return self.norm(src + x)
"""


@pytest.mark.parametrize(("value", "wrong"), [("src", False), ("q", True)])
def test_positions_that_are_not_added_to_values(make: Make, value: str, wrong: bool) -> None:
    made = make(DETR.format(value=value))
    assert not made.findings
    assert bool(failing(made, "modules.as-built")) is wrong


DETR_MEMORY = """
class f(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.nhead = nhead
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def with_pos_embed(self, tensor, pos):
        return tensor if pos is None else tensor + pos

    def forward(self, tgt, memory, pos=None, query_pos=None):
        q, k = self.with_pos_embed(tgt, query_pos), self.with_pos_embed(memory, pos)
        q, k, v = (split(w(x).transpose(0, 1), self.nhead)
                   for w, x in ((self.q_proj, q), (self.k_proj, k), (self.v_proj, {value})))
        return self.out_proj(attend(q, k, v)[0].transpose(1, 2).flatten(2)).transpose(0, 1)
"""


@pytest.mark.parametrize(("value", "wrong"), [("memory", False), ("k", True)])
def test_positions_of_queries_and_of_a_memory(make: Make, value: str, wrong: bool) -> None:
    made = make(DETR_MEMORY.format(value=value.replace("k", "self.with_pos_embed(memory, pos)")))
    assert bool(failing(made, "modules.as-built")) is wrong


DETR_OF_EITHER = """
class f(nn.Module):
    \"\"\"{text}\"\"\"
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, hidden_states, object_queries=None, key_value_states=None, spatial_position_embeddings=None):
        x = hidden_states if object_queries is None else hidden_states + object_queries
        y, memory = x, {own}
        if key_value_states is not None:
            y = memory = key_value_states
            if spatial_position_embeddings is not None:
                y = y + spatial_position_embeddings
        q, k, v = (split(w(z), self.h) for w, z in ((self.q_proj, x), (self.k_proj, y), (self.v_proj, {values})))
        return self.out_proj(attend(q, k, v)[0].transpose(1, 2).flatten(2))
"""
ADDED = "Positions are added to queries and keys, never to the values."


@pytest.mark.parametrize(
    ("text", "own", "values", "wrong", "judged"),
    [
        (ADDED, "hidden_states", "memory", False, True),
        (ADDED, "x", "memory", True, True),
        (ADDED, "hidden_states", "memory if key_value_states is None else y", True, True),
        (ADDED, "hidden_states", "2 * x - hidden_states if key_value_states is None else memory", False, False),
        ("Positions are added to queries and keys, not only there.", "x", "memory", False, False),
    ],
    ids=["right", "added to values", "added to those of a memory", "twice", "not stated"],
)
def test_positions_of_a_layer_whose_memory_may_be_left_out(
    make: Make, text: str, own: str, values: str, wrong: bool, judged: bool
) -> None:
    made = make(DETR_OF_EITHER.format(text=text, own=own, values=values))
    assert ("object_queries" not in made.findings) is judged
    assert bool(failing(made, "modules.as-built")) is wrong


CONTEXT = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.to_q, self.to_kv = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context=None, mask=None, context_mask=None):
        k, v = self.to_kv(x if context is None else context).chunk(2, -1)
        q, k, v = (split(each, self.h) for each in (self.to_q(x), k, v))
        s = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            seen = mask if context is None else torch.ones(k.shape[0], k.shape[2]) > 0
            seen = {seen} if context is not None and context_mask is not None else seen
            s = s.masked_fill(~(mask[:, None, :, None] & seen[:, None, None]), -1e30)
        return self.to_out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("seen", "wrong"), [("context_mask", False), ("context_mask.roll(1, 1)", True)])
def test_a_mask_of_context_that_is_read_next_to_another(make: Make, seen: str, wrong: bool) -> None:
    made = make(CONTEXT.format(seen=seen))
    assert {Feature.CROSS, Feature.KEY_PADDING} <= made.claims.features
    assert not made.findings
    assert bool(failing(made, "masks.key-padding")) is wrong


SLICED = """
class f(nn.Module):
    def __init__(self, query_dim, heads):
        super().__init__()
        self.heads, self.size = heads, None
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(query_dim, query_dim) for _ in range(4))

    def set_attention_slice(self, size):
        self.size = size

    def forward(self, x):
        q, k, v = (split(each(x), self.heads).flatten(0, 1) for each in (self.to_q, self.to_k, self.to_v))
        size = self.size or len(q)
        parts = [attend(*(each[n * size : (n + 1) * size] for each in (q, k, v)))[0] for n in range({count})]
        out = torch.zeros_like(q)
        out[: sum(map(len, parts))] = torch.cat(parts)
        return self.to_out(out.unflatten(0, (len(x), -1)).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("count", "wrong"), [("-(-len(q) // size)", False), ("len(q) // size", True)])
def test_a_method_that_sets_slices_leaves_the_answer(make: Make, count: str, wrong: bool) -> None:
    assert bool(failing(make(SLICED.format(count=count)), "relations.alternatives")) is wrong


NORMED = '''
class f(nn.Module):
    """Each head of queries and keys is normalised by an RMSNorm{order}."""
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.q_norm, self.k_norm = nn.RMSNorm(dim // heads, 1e-6), nn.RMSNorm(dim // heads, 1e-6)

    def rotated(self, x):
        d = x.shape[-1]
        angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        q, k = self.q_norm(self.rotated(q)), self.k_norm(self.rotated(k))
        return self.out(attend(q, k, v)[0].transpose(1, 2).flatten(2))
'''


@pytest.mark.parametrize(
    ("order", "wrong"), [("", False), (", and was rotated before this norm", False), (", and then rotated", True)]
)
def test_norms_come_first_where_this_is_stated(make: Make, order: str, wrong: bool) -> None:
    made = make(NORMED.format(order=order))
    assert Feature.QK_NORM in made.claims or made.claims.premises.qk_norm
    assert bool(failing(made, "qk-norm.*", "numerics.bound")) is wrong


@pytest.mark.parametrize(("mask", "wrong"), [("mask", False), ("mask | True", True)])
def test_self_attention_of_what_may_be_given_a_context(make: Make, mask: str, wrong: bool) -> None:
    made = make(CONTEXT.format(seen="context_mask").replace("seen = mask if", f"seen = ({mask}) if"))
    assert {Feature.CROSS, Feature.KEY_PADDING} <= made.claims.features
    assert bool(failing(made, "cross-attention.shared-inputs", "masks.key-padding")) is wrong


@pytest.mark.parametrize("named", ["context_mask", "mask"])
def test_a_mask_that_is_of_another_sequence_by_its_name(make: Make, named: str) -> None:
    text = CONTEXT.format(seen="context_mask").replace("mask=None, context_mask=None", f"{named}=None")
    text = text.replace("if mask is not None:", f"if context is not None and {named} is not None:")
    text = text.replace("(mask[:, None, :, None] & seen[:, None, None])", f"{named}[:, None, None]")
    made = make("\n".join(line for line in text.splitlines() if "seen =" not in line))
    ignored = failing(made, "cross-attention.shared-inputs", "masks.key-padding")
    assert bool(ignored) is (named == "mask"), "a mask of any other name hides keys in self-attention, too"
