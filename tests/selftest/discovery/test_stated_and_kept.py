"""What is documented of masks and windows, layers and masks that are kept, and what is frozen: each right and wrong."""

from pathlib import Path

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.documented import stated_texts, states_booleans_alone
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import START, Make, failing, write

BOOLEANS = """
class f(nn.Module):
    '''{stated}'''
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        pairs = ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        q, k, v = (split(layer(x), self.h) for layer, x in pairs)
        s = q @ k.mT / q.shape[-1] ** 0.5
        if attn_mask is not None:
            given = attn_mask.unflatten(0, (-1, self.h)) if attn_mask.ndim == 3 else attn_mask
            s = s.masked_fill(given{moved}, -torch.inf)
        if key_padding_mask is not None:
            s = s.masked_fill(key_padding_mask[:, None, None], -torch.inf)
        return self.out_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), None
"""


@pytest.mark.parametrize(
    ("stated", "moved", "wrong"),
    [
        ("Takes boolean masks, True = not allowed.", "", set()),
        ("attn_mask: bool, True hides a key.", "", set()),
        ("Takes boolean masks, True = not allowed.", ".roll(1, -1)", {"masks.segments"}),
        ("Masks are those of torch.nn.MultiheadAttention.", "", {"masks.float"}),
    ],
)
def test_masks_that_are_documented_as_boolean(make: Make, stated: str, moved: str, wrong: set[str]) -> None:
    text = BOOLEANS.format(stated=stated, moved=moved)
    assert failing(make(text), "masks.segments", "masks.float") == wrong
    assert (Feature.FLOAT_MASK in make(text).claims) is ("masks.float" in wrong)


def test_functions_whose_masks_are_documented_as_boolean(make: Make) -> None:
    made = make("""
def f(query, key, value, attn_mask=None):
    '''attn_mask: booleans, True = take part'''
    s = query @ key.mT / query.shape[-1] ** 0.5
    return (s if attn_mask is None else s.masked_fill(~attn_mask, -torch.inf)).softmax(-1) @ value
""")
    assert "float-mask not claimed: by its documentation 'attn_mask' is boolean" in made.about


def test_what_documentation_states() -> None:
    class Either:
        """attn_mask is boolean, or a float mask that is added; kind is 'plain', "rotary" or `alibi`."""

    assert not states_booleans_alone(Either, "attn_mask")
    assert stated_texts(Either, "kind") == ["plain", "rotary", "alibi"]


LISTED = """
class Head(nn.Module):
    def __init__(self, dim, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, width) for _ in range(3))
    def forward(self, x):
        return attend(self.q(x), self.k(x), self.v(x))[0]

class f(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.heads = nn.ModuleList({listed})
        self.out = nn.Linear(dim, dim)
    def forward(self, x):
        return self.out(torch.cat([each(x) for each in self.heads], -1))
"""


@pytest.mark.parametrize(
    ("listed", "wrong"),
    [
        ("Head(dim, dim // num_heads) for _ in range(num_heads)", False),
        ("[Head(dim, dim // num_heads)] * num_heads", True),
    ],
)
def test_a_layer_that_is_listed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, wrong: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "mine.py", START + LISTED.format(listed=listed))
    made = candidate("mine.py:f", {}, in_part=True)
    assert bool(failing(made, "modules.as-built" if wrong else "heads.independent")) is wrong


CHANGED = """
class f(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.h = num_attention_heads
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (split(layer(hidden_states), self.h) for layer in (self.query, self.key, self.value))
        s = q @ k.mT / q.shape[-1] ** 0.5
        if attention_mask is not None:
            added = attention_mask[:, None, None].to(s.dtype){copied}
            added -= 1.0
            added *= torch.finfo(s.dtype).max
            s = s + added
        return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)
"""


@pytest.mark.parametrize(("copied", "wrong"), [(".clone()", False), ("", True)])
def test_a_mask_of_numbers_is_left_as_it_is(make: Make, copied: str, wrong: bool) -> None:
    assert bool(failing(make(CHANGED.format(copied=copied)), "relations.alternatives")) is wrong


FROZEN = """
class Lean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return attend(q, k, v)[0]
    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        if not {needed}:
            return None, None, None
        p = attend(q, k, v)[1]
        ds = p * (grad @ v.mT - (p * (grad @ v.mT)).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
        return ds @ k, ds.mT @ q, p.mT @ grad

class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim) for _ in range(4))
    def forward(self, x):
        q, k, v = (split(layer(x), self.h) for layer in (self.to_q, self.to_k, self.to_v))
        return self.to_out(Lean.apply(q, k, v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("needed", "wrong"), [("any(ctx.needs_input_grad)", False), ("any(ctx.needs_input_grad[:2])", True)]
)
def test_a_gradient_where_other_parameters_are_frozen(make: Make, needed: str, wrong: bool) -> None:
    assert bool(failing(make(FROZEN.format(needed=needed)), "gradients.single-input")) is wrong


DISTANCES = """
class f(nn.Module):
    '''position_embedding_type: 'absolute', 'relative_key' or 'relative_key_query' '''
    def __init__(self, hidden_size, num_attention_heads, position_embedding_type="absolute"):
        super().__init__()
        self.h, self.kind = num_attention_heads, position_embedding_type
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        if position_embedding_type != "absolute":
            self.distance_embedding = nn.Embedding(2 * 64 - 1, hidden_size // num_attention_heads)
    def forward(self, hidden_states):
        q, k, v = (split(layer(hidden_states), self.h) for layer in (self.query, self.key, self.value))
        s = q @ k.mT
        if self.kind != "absolute":
            place = torch.arange(q.shape[2])
            rows = self.distance_embedding(place[:, None] - place + 63)
            s = s + torch.einsum("bhld,lrd->bhlr", q, rows)
            if self.kind != "relative_key":
                s = s + torch.einsum({of_keys})
        return ((s / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
"""


@pytest.mark.parametrize(
    ("of_keys", "wrong"),
    [
        ("'bhrd,lrd->bhlr', k, rows", False),
        ("'bhld,lrd->bhlr', k, rows", True),
        ("'bhrd,rld->bhlr', k, rows", True),
    ],
)
def test_an_option_that_documentation_alone_names(make: Make, of_keys: str, wrong: bool) -> None:
    assert bool(failing(make(DISTANCES.format(of_keys=of_keys)), "modules.as-built")) is wrong


WINDOWS = """
class f(nn.Module):
    '''x: {stated}, the windows of an image'''
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.h, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        rows = (2 * window_size[0] - 1) * (2 * window_size[1] - 1)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(rows, num_heads))
        places = torch.cartesian_prod(torch.arange(window_size[0]), torch.arange(window_size[1]))
        moved = places[:, None] - places + torch.tensor(window_size) - 1
        self.register_buffer("index", moved[..., 0] * (2 * window_size[1] - 1) + moved[..., 1])
    def forward(self, x, mask=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / q.shape[-1] ** 0.5 + self.relative_position_bias_table[self.index].permute(2, 0, 1)
        if mask is not None:
            s = s.unflatten(0, {windows}) + {added}
            s = s.flatten(0, 1)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
IMAGES_FIRST, WINDOWS_FIRST = ("(-1, len(mask))", "mask[:, None]"), ("(len(mask), -1)", "mask[:, None, None]")


@pytest.mark.parametrize(
    ("stated", "order", "wrong"),
    [
        ("(B * nW, N, C)", IMAGES_FIRST, False),
        ("(B * nW, N, C)", WINDOWS_FIRST, True),
        ("(N, C)", WINDOWS_FIRST, False),
    ],
)
def test_the_documented_order_of_windows(make: Make, stated: str, order: tuple[str, str], wrong: bool) -> None:
    text = WINDOWS.format(stated=stated, windows=order[0], added=order[1])
    assert bool(failing(make(text), "modules.as-built")) is wrong


KEPT = """
KEPT = {{}}

def f(query, key, value, window=None):
    shape = (query.shape[2], key.shape[2]{kept})
    if shape not in KEPT:
        ahead = torch.arange(shape[1]) - torch.arange(shape[1] - shape[0], shape[1])[:, None]
        KEPT[shape] = (ahead > 0) | (ahead <= -(shape[1] + 1 if window is None else window))
    s = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(KEPT[shape], -torch.inf)
    return s.softmax(-1).nan_to_num() @ value
"""


@pytest.mark.parametrize(("kept", "wrong"), [(", window", False), ("", True)])
def test_a_window_that_is_kept_by_the_shape_alone(make: Make, kept: str, wrong: bool) -> None:
    found = failing(make(KEPT.format(kept=kept)), "window.extent", "window.narrow", "window.outside")
    assert bool(found) is wrong


SUNK = """
def f(q, k, v, sinks, softmax_scale=None, causal=False, window_size=(-1, -1)):
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    ahead = torch.arange(k.shape[1]) - torch.arange(k.shape[1] - q.shape[1], k.shape[1])[:, None]
    left, right = window_size[0], 0 if causal else window_size[1]
    hidden = ((ahead > right) & (right >= 0)) | ((ahead < -left) & (left >= 0))
    s = s.masked_fill(hidden, -torch.inf)
    most = torch.maximum(s.amax(-1, keepdim=True), sinks[:, None, None])
    e = (s - most).exp()
    p = e / (e.sum(-1, keepdim=True) + (sinks[:, None, None]{less}).exp())
    return torch.einsum("bhij,bjhd->bihd", p, v)
"""


@pytest.mark.parametrize(("less", "wrong"), [(" - most", False), ("", True)])
def test_sinks_that_a_published_interface_needs(make: Make, less: str, wrong: bool) -> None:
    made = make(SUNK.format(less=less))
    assert Feature.SINKS in made.claims
    assert bool(failing(make(SUNK.format(less=less)), "causal.empty-rows", "sinks.range", "sinks.weights")) is wrong


SINGLE_KEY = """
def f(query, key, value, attn_bias=None):
    s = query @ key.mT / query.shape[-1] ** 0.5
    s = s if attn_bias is None else s + attn_bias
    log, mean = s[..., 0], value[..., :1, :]
    for j in range(1, key.shape[-2]):
        step = (s[..., j] - log).sigmoid()[..., None]
        mean = mean + step * (value[..., j : j + 1, :] - mean){shifted}
        log = torch.logaddexp(log, s[..., j])
    return mean.expand(*query.shape[:-1], -1)
"""


@pytest.mark.parametrize(("shifted", "wrong"), [("", set()), (" * 1.01", {"values.weighted-sum"})])
def test_rows_without_keys_of_which_nobody_thought(make: Make, shifted: str, wrong: set[str]) -> None:
    text = SINGLE_KEY.format(shifted=shifted)
    assert failing(make(text), "masks.empty-row-float", "masks.float", "values.weighted-sum") - {"masks.float"} == wrong


EXPONENTIALS = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / q.shape[-1] ** 0.5
        e = (s{less}).exp()
        return self.out((e / e.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("less", "wrong"), [(" - s.amax(-1, keepdim=True)", False), ("", True), (" - s.amax((-1, -2), keepdim=True)", True)]
)
def test_scores_of_any_size_in_modules_of_one_width(make: Make, less: str, wrong: bool) -> None:
    found = failing(make(EXPONENTIALS.format(less=less)), "softmax.large-scores", "softmax.row-maximum")
    assert bool(found) is wrong
