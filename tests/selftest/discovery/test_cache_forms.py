"""Caches in forms of their own: whatever the form, a sequence in pieces of any sizes is answered as the whole is."""

import pytest

from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make

START = """
class Cache:
    def __init__(self):
        self.k = self.v = None
    def update(self, k, v):
        self.k, self.v = (new if old is None else torch.cat([old, new], 2) for old, new in ((self.k, k), (self.v, v)))
        {keeping}
        return self.k, self.v
class Static:
    def __init__(self, batch_size, max_length, num_heads, head_dim, dtype=torch.bfloat16):
        self.k, self.v = torch.zeros(2, batch_size, num_heads, max_length, head_dim, dtype=dtype)
    def update(self, k, v, at):
        self.k[:, :, at], self.v[:, :, at] = k, v
        return self.k, self.v
class f(nn.Module):
    def __init__(self, dim, heads{more}):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        {made}
    def attended(self, q, k, v, at, last=99):
        j = torch.arange(k.shape[2])
        hidden = (j[None] > at[:, None]) | (j[None] <= at[:, None] - last)
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
OBJECT = """
    def forward(self, x, past_key_value=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        if past_key_value is not None:
            k, v = past_key_value.update(k, v)
        return self.attended(q, k, v, torch.arange(x.shape[1]) + {first})
"""
STATIC = """
    def forward(self, x, past_key_values: Static = None, cache_position=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1]) if cache_position is None else cache_position
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, at)
        return self.attended(q, k, v, {first})
"""
DICTIONARY = """
    def forward(self, x, cache):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        if cache:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        if cache is not None:
            cache.update(k=k, v=v)
        return self.attended(q, k, v, torch.arange(x.shape[1]) + {first})
"""
RING = """
    def forward(self, x, cache=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        ring_k, ring_v, n = cache or (torch.zeros_like(k[:, :, :1].repeat(1, 1, self.w, 1)),) * 2 + (0,)
        outputs = []
        for i in range(x.shape[1]):
            ring_k, ring_v, slot = ring_k.clone(), ring_v.clone(), {first}
            ring_k[:, :, slot], ring_v[:, :, slot] = k[:, :, i], v[:, :, i]
            last = torch.tensor([min(n + i, self.w - 1)])
            outputs.append(self.attended(q[:, :, i : i + 1], ring_k, ring_v, last))
        return torch.cat(outputs, 1), (ring_k, ring_v, n + x.shape[1])
"""
CUT = """
    def forward(self, x, layer_past=None, use_cache=False):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        if layer_past is not None:
            k, v = torch.cat([layer_past[0], k], 2), torch.cat([layer_past[1], v], 2)
        at = torch.arange(x.shape[1]) + k.shape[2] - x.shape[1]
        kept = slice(-{first}, None)
        return self.attended(q, k, v, at, self.w), (k[:, :, kept], v[:, :, kept]) if use_cache else None
"""
STARTED = """
    def forward(self, x, start_pos: int):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        stop = start_pos + x.shape[1]
        self.k, self.v = self.k.to(x), self.v.to(x)
        self.k[: len(x), : self.h, start_pos:stop, : k.shape[3]] = k.detach()
        self.v[: len(x), : self.h, start_pos:stop, : v.shape[3]] = v.detach()
        k = torch.cat([self.k[: len(x), : self.h, :start_pos, : k.shape[3]], k], 2)
        v = torch.cat([self.v[: len(x), : self.h, :start_pos, : v.shape[3]], v], 2)
        return self.attended(q, k, v, torch.arange(x.shape[1]) + {first})
"""
SET_UP = """
    def setup_caches(self, max_batch_size, max_seq_length):
        shape = (2, max_batch_size, self.h, max_seq_length, self.out.in_features // self.h)
        self.held = torch.zeros(shape, dtype=self.out.weight.dtype)
    def forward(self, x, input_pos=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1]) if input_pos is None else input_pos
        if input_pos is not None:
            self.held[0, : len(x), :, at], self.held[1, : len(x), :, at] = k.detach(), v.detach()
            k, v = self.held[:, : len(x)]
        return self.attended(q, k, v, {first})
"""
ONE_BY_ONE = """
    def forward(self, x, positions):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        self.held = self.held.to(x)
        ring = self.held[:, : len(x), : self.h, :, : k.shape[3]]
        last, at = positions[-self.w :] % self.w, torch.arange(x.shape[1])
        ring[0][:, :, last], ring[1][:, :, last] = k[:, :, -self.w :].detach(), v[:, :, -self.w :].detach()
        if x.shape[1] > 1:
            return self.attended(q, k, v, at, self.w)
        return self.attended(q, ring[0], ring[1], positions.clamp(max={first}))
"""
ROOM = "self.k = self.v = torch.zeros(8, 8, 200, 64)"
KEPT = "self.k, self.v = torch.zeros(2, 8, 8, 200, 64)"
WINDOW, OF_WINDOW = ", window=4", "self.w = window"
RING_HELD = "self.w, self.held = window, torch.zeros(2, 8, 8, window, 64)"
FORMS = {
    "an object": (OBJECT, "pass", "", "k.shape[2] - x.shape[1]", "(k.shape[2] - x.shape[1]) * (len(q[0, 0]) < 2)"),
    "slots that are not written": (STATIC, "pass", "", "at", "(at if x.shape[1] > 1 else at + k.shape[2])"),
    "a dictionary": (DICTIONARY, "pass", "", "k.shape[2] - x.shape[1]", "0"),
    "a ring": (RING, OF_WINDOW, WINDOW, "(n + i) % self.w", "(n + i) % self.w if n else i % (self.w - 1)"),
    "a tuple that is cut": (CUT, OF_WINDOW, WINDOW, "(self.w - 1)", "(self.w - 2)"),
    "places in what it holds": (STARTED, KEPT, "", "start_pos", "(start_pos if x.shape[1] < 2 else 0)"),
    "a cache that is set up": (SET_UP, "pass", "", "at", "(at if x.shape[1] > 1 else at + 1)"),
    "a ring for one token at a time": (ONE_BY_ONE, RING_HELD, WINDOW, "self.w - 1", "self.w"),
}


def judged(make: Make, text: str) -> tuple[Status, ...]:
    made = make(text)
    assert not made.findings
    return tuple({each.status for each in run(made, ("modules.as-built", "relations.alternatives"), ("float64",))})


def text_of(form: str, first: str, keeping: str = "pass") -> str:
    forward, made, more, *_ = FORMS[form]
    head = START.replace("{keeping}", keeping).replace("{more}", more).replace("{made}", made)
    return head + forward.replace("{first}", first)


@pytest.mark.parametrize("form", FORMS)
def test_a_right_cache_is_not_accused(make: Make, form: str) -> None:
    assert judged(make, text_of(form, FORMS[form][3])) == (Status.PASS,)


@pytest.mark.parametrize("form", [each for each in FORMS if "one token" not in each])
def test_a_wrong_cache_is_seen(make: Make, form: str) -> None:
    assert Status.FAIL in judged(make, text_of(form, FORMS[form][4]))


@pytest.mark.parametrize(("at", "wrong"), [("at", False), ("at + 2 * (at > 3) * (self.n > at)", True)])
def test_what_one_sequence_leaves_is_not_seen_by_the_next(make: Make, at: str, wrong: bool) -> None:
    kept = "self.n = max(getattr(self, 'n', 0), int(at[-1]))\n        return self.attended(q, k, v, "
    text = text_of("a cache that is set up", at).replace("return self.attended(q, k, v, ", kept)
    assert (Status.FAIL in judged(make, text)) is wrong


def test_a_cache_of_the_first_and_last_tokens_is_not_accused(make: Make) -> None:
    short = "x if x.shape[2] < 9 else torch.cat([x[:, :, :2], x[:, :, -6:]], 2)"
    few = f"self.k, self.v = ({short} for x in (self.k, self.v))"
    assert judged(make, text_of("an object", "k.shape[2] - x.shape[1]", few)) == (Status.PASS,)


def test_a_cache_of_few_bits_is_not_accused_but_stated(make: Make) -> None:
    few = "self.k, self.v = ((16 * x).round() / 16 for x in (self.k, self.v))"
    made = make(text_of("an object", "k.shape[2] - x.shape[1]", few))
    assert made.findings == {"past_key_value": "a cache in a form of its own"}
    assert {each.status for each in run(made, ("modules.as-built",), ("float64",))} <= {Status.PASS}
