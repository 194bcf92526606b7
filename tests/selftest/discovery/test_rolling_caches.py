"""Caches of few tokens that roll: what follows a long prompt is answered as in the whole sequence."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

ROLLING = """
class f(nn.Module):
    def __init__(self, dim, heads, sliding_window):
        super().__init__()
        self.h, self.w, self.qkv, self.out = heads, sliding_window, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.k = self.v = None
    def forward(self, x, start_pos=0):
        assert start_pos == 0 or x.shape[1] == 1
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        at = torch.arange(start_pos, start_pos + x.shape[1])
        if start_pos == 0:
            self.k, self.v = (torch.zeros_like(each[:, :, :1].repeat(1, 1, self.w, 1)) for each in (k, v))
        last, slots = slice(-self.w, None), {slots}
        self.k[:, :, slots], self.v[:, :, slots] = k[:, :, last].detach(), v[:, :, last].detach()
        ahead = at[:, None] - at[None]
        seen = (ahead >= 0) & (ahead < self.w)
        if start_pos:
            k, v, seen = self.k.clone(), self.v.clone(), torch.arange(self.w)[None] <= start_pos
        return self.out(attend(q, k, v, seen)[0].transpose(1, 2).flatten(2))
"""
BY_PLACE = "at[-self.w:] % self.w"
FROM_THE_FIRST = "at % self.w if len(at) < self.w else torch.arange(self.w)"


@pytest.mark.parametrize(("slots", "wrong"), [(BY_PLACE, False), (FROM_THE_FIRST, True)])
def test_single_tokens_after_a_long_prompt(make: Make, slots: str, wrong: bool) -> None:
    made = make(ROLLING.format(slots=slots))
    assert any("after a prompt" in way for way in vars(made.modes[Feature.AS_BUILT])["pieces"])
    assert bool(failing(made, "modules.as-built")) is wrong
