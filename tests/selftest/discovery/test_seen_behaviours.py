"""Behaviours that answers show: padding that does not count, gains of 1 more, refused rows, renewed memories."""

import pytest

from attention_conformance.spec.conventions import NormGain, PaddedPositions, SoftmaxPrecision
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

BLOOM = """
class f(nn.Module):
    '''`attention_mask` is (B, L), with 1 for tokens and 0 for padding.'''
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.h = num_heads
        self.qkv, self.out = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)
    def forward(self, x, attention_mask=None):
        mask = torch.ones(x.shape[:2]) if attention_mask is None else attention_mask
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.h + 1, dtype=x.dtype) / self.h)
        place = {place}
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / q.shape[-1] ** 0.5 + slopes[:, None, None] * place[:, None, None].to(x.dtype)
        later = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
        s = s.masked_fill(later | ~mask.bool()[:, None, None], torch.finfo(s.dtype).min)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("place", "answer"),
    [
        ("(mask.long().cumsum(-1) - 1) * mask.long()", PaddedPositions.SKIPPED),
        ("torch.arange(x.shape[1]).expand(x.shape[:2])", PaddedPositions.COUNTED),
    ],
)
def test_padded_keys_count_as_they_are_seen_to(make: Make, place: str, answer: PaddedPositions) -> None:
    made = make(BLOOM.format(place=place))
    assert made.claims.premises.alibi
    assert made.claims.conventions.padded_positions is answer
    assert not made.findings
    assert_conforms(made)


NORMED = """
def norm(x, weight):
    unit = x / (x.square().mean(-1, keepdim=True) + 1e-6) ** 0.5
    return unit * ({gain})

def f(query, key, value, mask, q_norm=None, k_norm=None):
    '''mask: (B, Lq, Lk) bool, True = visible.'''
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if q_norm is not None:
        q, k = norm(q, q_norm), norm(k, k_norm)
    seen = torch.broadcast_to(mask, (len(q), q.shape[2], k.shape[2]))
    if not seen.any(-1).all():
        raise ValueError("a row of the mask is empty")
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen[:, None], -torch.inf)
    return (s.softmax(-1) @ v).transpose(1, 2)
"""


@pytest.mark.parametrize(("gain", "answer"), [("1 + weight", NormGain.PLUS_ONE), ("weight", NormGain.PLAIN)])
def test_gains_of_1_more_and_a_mask_that_is_needed(make: Make, gain: str, answer: NormGain) -> None:
    made = make(NORMED.format(gain=gain))
    assert made.claims.conventions.norm_gain is answer
    assert "a row without keys is refused: ValueError: a row of the mask is empty" in made.about
    assert_conforms(made)


MEMO = """
class f(nn.Module):
    '''While decoding, keys and values of the memory are projected once, and anew as soon as another one is passed.'''
    def __init__(self, d_model, n_heads, dropout=0.1):
        super().__init__()
        self.h, self.drop, self.kept = n_heads, nn.Dropout(dropout), None
        self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(d_model, d_model) for _ in "qkvo")
    def reset(self):
        self.kept = None
    def train(self, mode=True):
        self.reset()
        return super().train(mode)
    def forward(self, x, memory):
        if self.kept is None or self.training or {other}:
            self.kept = memory, split(self.to_k(memory), self.h), split(self.to_v(memory), self.h)
        _, k, v = self.kept
        s = split(self.to_q(x), self.h) @ k.mT / (x.shape[-1] // self.h) ** 0.5
        return self.out((self.drop(s.softmax(-1)) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("other", "wrong"), [("self.kept[0] is not memory", False), ("self.kept[0].shape != memory.shape", True)]
)
def test_a_memory_of_the_same_shape_is_another_one(make: Make, other: str, wrong: bool) -> None:
    assert bool(failing(make(MEMO.format(other=other)), "relations.alternatives")) is wrong


DROPPED = """
def f(query, key, value, p_drop=0.0, keep_mask=None):
    s = query @ key.mT / query.shape[-1] ** 0.5
    w = (s - s.amax(-1, keepdim=True)).exp()
    total = w.sum(-1, keepdim=True)
    if keep_mask is not None:
        w = w * keep_mask / (1 - p_drop)
    return w / {total} @ value
"""


@pytest.mark.parametrize(("total", "wrong"), [("total", False), ("w.sum(-1, keepdim=True)", True)])
def test_what_two_masks_of_dropout_keep_is_the_whole(make: Make, total: str, wrong: bool) -> None:
    made = make(DROPPED.format(total=total))
    assert not made.findings
    assert bool(failing(made, "relations.alternatives")) is wrong


OF_ONE_SEQUENCE = """
def f(Q, K, V, S, sm_scale, sliding_window=0):
    n, heads, group, d = Q.shape
    s = torch.einsum("qhmd,khd->hmqk", Q, K) * sm_scale
    far = torch.arange(len(K) - n, len(K))[:, None] - torch.arange(len(K))
    hidden = (far < 0) | ((far >= sliding_window) if sliding_window else torch.zeros_like(far).bool())
    sinks = S.view(heads, group, 1, 1).expand(-1, -1, n, -1)
    w = torch.cat([s.masked_fill(hidden, -torch.inf), sinks], -1).softmax(-1){columns}
    return torch.einsum("hmqk,khd->qhmd", w, V).reshape(n, -1)
"""


@pytest.mark.parametrize(("columns", "wrong"), [("[..., :-1]", False), ("[..., 1:]", True)])
def test_the_function_of_gpt_oss(make: Make, columns: str, wrong: bool) -> None:
    made = make(OF_ONE_SEQUENCE.format(columns=columns))
    if wrong:
        assert failing(made, "scores.dot-product", "sinks.softmax")
    else:
        assert_conforms(made)


TALKING = """
class f(nn.Module):
    '''Talking-heads attention: logits are mixed across heads before the softmax, weights after it.'''
    def __init__(self, dim, heads=8, causal=False):
        super().__init__()
        self.h, self.causal = heads, causal
        self.to_q, self.to_kv = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.before, self.after = (nn.Parameter(torch.randn(heads, heads)) for _ in range(2))
        self.to_out = nn.Linear(dim, dim)
    def forward(self, x, context=None):
        keys_values = self.to_kv(x if context is None else context).chunk(2, -1)
        q, k, v = (split(y, self.h) for y in (self.to_q(x), *keys_values))
        s = q @ k.mT / q.shape[-1] ** 0.5
        later = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1) if self.causal else torch.zeros(()).bool()
        {mixed}
        w = torch.einsum("bhij,hg->bgij", s.softmax(-1), self.after)
        return self.to_out((w @ v).transpose(1, 2).flatten(2))
"""
MIXED = 's = torch.einsum("bhij,hg->bgij", s, self.before)'
HIDDEN = "s = s.masked_fill(later, -1e9)"


@pytest.mark.parametrize("wrong", [False, True])
def test_mixed_heads_are_judged_where_keys_and_values_are_of_a_context(make: Make, wrong: bool) -> None:
    first, second = (HIDDEN, MIXED) if wrong else (MIXED, HIDDEN)
    made = make(TALKING.format(mixed=f"{first}; {second}"))
    assert bool(failing(made, "modules.as-built", dtype="float64")) is wrong


STREAMING = """
def f(query, key, value, window=1024, num_sinks=4):
    at = torch.arange(key.shape[2] - query.shape[2], key.shape[2])[:, None]
    place = torch.arange(key.shape[2])
    seen = {seen}
    s = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~seen, torch.finfo(query.dtype).min)
    return s.softmax(-1) @ value
"""


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        ("(place <= at) & ((at - place < window) | (place < num_sinks))", False),
        ("(place <= at) & (at - place < window) | (place < num_sinks)", True),
    ],
)
def test_sinks_are_not_seen_before_their_turn(make: Make, seen: str, wrong: bool) -> None:
    assert bool(failing(make(STREAMING.format(seen=seen)), "relations.alternatives")) is wrong


MERGED = """
def f(query, key, value, world_size=4):
    if not query.shape[2] == key.shape[2]:
        raise ValueError("as many queries as keys are needed")
    out = total = None
    for k, v in zip(key.chunk(world_size, 2), value.chunk(world_size, 2)):
        s = query @ k.mT / query.shape[-1] ** 0.5
        part, log = s.softmax(-1) @ v, s.logsumexp(-1, keepdim=True)
        share = 1.0 if out is None else torch.sigmoid(log - total)
        out = part if out is None else out - share * (out - part)
        total = log if total is None else torch.logaddexp(total, log)
    return out
"""


def test_a_merge_by_the_rest_is_seen_where_queries_are_as_many_as_keys(make: Make) -> None:
    made = make(MERGED)
    assert made.claims.conventions.softmax_precision is SoftmaxPrecision.ROW
    assert_conforms(made, "float64")


@pytest.mark.parametrize("option", ["max_bias=0.0", "more=False"])
def test_an_option_that_matters_with_a_mask_alone_is_not_judged(make: Make, option: str) -> None:
    name, _, _ = option.partition("=")
    text = f"""
def f(query, key, value, mask=None, {option}):
    s = query @ key.mT / query.shape[-1] ** 0.5
    s = s if mask is None else s + mask * (1 + {name})
    return s.softmax(-1) @ value
"""
    assert name in make(text).findings


CASCADE = """
def part(q, k, v, mask=None):
    s = q @ k.mT{first}
    s = s if mask is None else s.masked_fill(~mask, -torch.inf)
    return (s{then}).softmax(-1) @ v, s.logsumexp(-1, keepdim=True)

def f(q, k, v, k_prefix, v_prefix):
    '''k_prefix, v_prefix: (H, P, d), of all samples, and fully visible.'''
    shared, log_shared = part(q, k_prefix, v_prefix)
    own, log_own = part(q, k, v, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril())
    most = torch.maximum(log_shared, log_own)
    w_shared, w_own = (log_shared - most).exp(), (log_own - most).exp()
    return (shared * w_shared + own * w_own) / (w_shared + w_own)
"""
SCALED = " / q.shape[-1] ** 0.5"


@pytest.mark.parametrize(("first", "then", "wrong"), [(SCALED, "", False), ("", SCALED, True)])
def test_keys_of_a_prefix_are_the_first_ones(make: Make, first: str, then: str, wrong: bool) -> None:
    made = make(CASCADE.format(first=first, then=then))
    assert made.claims.premises.causal
    if wrong:
        assert failing(made, "scores.dot-product")
    else:
        assert_conforms(made)


def test_a_mask_of_dropout_that_is_of_no_use_is_not_judged(make: Make) -> None:
    used = "if keep_mask is not None:"
    text = DROPPED.format(total="total").replace("p_drop=0.0, keep_mask=None", "keep_mask=None, active=False")
    made = make(text.replace(used, "if keep_mask is not None and active:").replace(" / (1 - p_drop)", ""))
    assert "keep_mask" in made.findings
    assert_conforms(made)


RATED = """
def f(query, key, value, dropout_p=0.0, dropout_mask=None):
    p = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    if dropout_mask is not None:
        p = p.masked_fill(~dropout_mask, 0.0){kept}
    {drawn}
    return p @ value / (1 - dropout_p)
"""
DRAWN = "elif dropout_p:\n        p = p * (torch.rand(p.shape{}) >= dropout_p)"


@pytest.mark.parametrize(("kept", "wrong"), [("", False), (".softmax(-1)", True)])
def test_a_rate_that_divides_what_a_mask_of_dropout_keeps_is_no_dropout_of_its_own(
    make: Make, kept: str, wrong: bool
) -> None:
    made = make(RATED.format(kept=kept, drawn=""))
    assert Feature.DROPOUT not in made.claims
    assert "its rate of dropout is that of the weights that its 'dropout_mask' keeps" in made.stated
    assert bool(failing(made, "relations.alternatives", "scores.dot-product")) is wrong


@pytest.mark.parametrize(("shape", "wrong"), [("", False), ("[:2] + (1,) + p.shape[3:]", True)])
def test_a_rate_that_draws_as_well_is_judged(make: Make, shape: str, wrong: bool) -> None:
    made = make(RATED.format(kept="", drawn=DRAWN.format(shape)))
    assert Feature.DROPOUT in made.claims
    assert bool(failing(made, "dropout.rate", "dropout.independent")) is wrong
