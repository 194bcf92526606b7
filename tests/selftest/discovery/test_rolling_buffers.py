"""Plain classes whose buffers roll: fed as they promise, right ones conform, and what is overwritten early shows."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing, make

__all__ = ["make"]

CLAUSES = ("scores.dot-product", "window.extent", "cache.window", "cache.ring", "cache.decode")
BUFFERS = '''
class f:
    """Attention over the last tokens. {text}"""

    def __init__(self, win_size, num_heads, d_head, dtype=np.float64):
        self.w, self.n = win_size, 0
        self.k, self.v = (np.zeros((num_heads, win_size, d_head), dtype) for _ in range(2))
        self.at = np.full(win_size, -1)

    def __call__(self, q, k, v):
        {limit}
        new = self.n + np.arange(q.shape[1])
        self.n += q.shape[1]
        keys, values, at = self.k, self.v, self.at
        if {reads_first}:
            keys, values = np.concatenate([keys, k], 1), np.concatenate([values, v], 1)
            at = np.concatenate([at, new])
        last = slice(-self.w, None)
        slots = new[last] % {modulus}
        for held, x in ((self.k, k), (self.v, v)):
            held[:, slots] = x[:, last]
        self.at[slots] = new[last]
        if not {reads_first}:
            keys, values, at = self.k, self.v, self.at
        ahead = at - new[:, None]
        seen = (at >= 0) & (ahead <= 0) & (ahead > -self.w)
        s = np.where(seen, q @ keys.swapaxes(1, 2) / q.shape[-1] ** 0.5, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True) @ values
'''
USUAL = {"text": "Takes any number of tokens.", "limit": "pass", "reads_first": True, "modulus": "self.w"}


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"reads_first": False, "text": "Takes one token in each call."},
        {"reads_first": False, "text": ""},
        {"limit": "assert q.shape[1] <= self.w", "text": "Feed it in chunks that are no longer than the buffers."},
    ],
)
def test_right_ones_conform(make: Make, form: dict[str, object]) -> None:
    made = make(BUFFERS.format(**{**USUAL, **form}))
    assert {Feature.WINDOW, Feature.CACHE, Feature.RING_CACHE} <= made.claims.features
    assert not failing(made, *CLAUSES)


@pytest.mark.parametrize(
    ("form", "clause"),
    [
        ({"reads_first": False}, "cache.ring"),
        ({"reads_first": False, "limit": "assert q.shape[1] <= self.w"}, "cache.ring"),
        ({"modulus": "max(1, self.w - 2)"}, "cache.ring"),
    ],
)
def test_what_is_overwritten_too_early_shows(make: Make, form: dict[str, object], clause: str) -> None:
    text = {"text": "Takes several tokens at once. A window of 1 is the token alone."}
    assert clause in failing(make(BUFFERS.format(**{**USUAL, **text, **form})), *CLAUSES)


OF_TORCH = """
class f:
    def __init__(self, batch_size, heads, dim, window):
        self.k, self.v = (torch.zeros(batch_size, window + 1, heads, dim) for _ in range(2))
        self.n = 0

    def forward(self, q, k, v):
        self.k, self.v = self.k.to(k.dtype), self.v.to(k.dtype)
        rows = []
        for t in range(q.shape[1]):
            slot = self.n % self.k.shape[1]
            self.k[:, slot], self.v[:, slot] = k[:, t], v[:, t]
            self.n += 1
            held = min(self.n, self.k.shape[1]) - {fewer}
            x, keys, values = q[:, t : t + 1], self.k[:, :held], self.v[:, :held]
            rows.append(attend(*(y.transpose(1, 2) for y in (x, keys, values)))[0].transpose(1, 2))
        return torch.cat(rows, 1)
"""


def test_tensors_of_all_samples(make: Make) -> None:
    made = make(OF_TORCH.format(fewer=0))
    assert any("next to its own" in each for each in made.stated)
    assert not failing(made, *CLAUSES)
