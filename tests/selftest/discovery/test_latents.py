"""Latents that attend to other tokens and to themselves."""

from __future__ import annotations

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

RESAMPLER = '''
class f(nn.Module):
    """The latents attend to the media{themselves}; mask: (B, L) bool, {true}."""
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.norm_media, self.norm_latents = num_heads, nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.to_q, self.to_kv, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
    def forward(self, media, latents, mask=None):
        media, latents = self.norm_media(media), self.norm_latents(latents)
        k, v = self.to_kv({keys}).chunk(2, -1)
        q, k, v = (split(t, self.h) for t in (self.to_q(latents), k, v))
        if mask is not None:
            mask = F.pad(mask, ({pad}), value={value})[:, None, None]
        o = attend(q, k, v, mask)[0]
        return self.to_out(o.{merged})
'''
AS_DOCUMENTED = {
    "themselves": " and to themselves",
    "true": "True for real tokens",
    "keys": "torch.cat([media, latents], 1)",
    "pad": "0, latents.shape[1]",
    "value": "True",
    "merged": "transpose(1, 2).flatten(2)",
}
NAMES = ("scores.dot-product", "modules.as-built")


def test_they_are_judged_as_self_attention(make: Make) -> None:
    made = make(RESAMPLER.format(**AS_DOCUMENTED))
    assert not made.findings
    assert_conforms(made)
    assert not failing(made, *NAMES)


@pytest.mark.parametrize(
    "slip",
    [
        {"merged": "reshape(latents.shape)"},
        {"pad": "latents.shape[1], 0"},
        {"value": "False"},
        {"true": "True for padding"},
        {"keys": "media", "pad": "0, 0"},
    ],
)
def test_mistakes_are_seen(make: Make, slip: dict[str, str]) -> None:
    assert failing(make(RESAMPLER.format(**{**AS_DOCUMENTED, **slip})), *NAMES)


def test_those_that_attend_to_other_tokens_alone_are_cross_attention(make: Make) -> None:
    alone = {"themselves": " and not to themselves", "keys": "media", "pad": "0, 0"}
    made = make(RESAMPLER.format(**{**AS_DOCUMENTED, **alone}))
    assert not failing(made, *NAMES, "cross-attention.key-length", "masks.padding")
