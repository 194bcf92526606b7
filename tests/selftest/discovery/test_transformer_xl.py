"""Relative positions of Transformer-XL under their published names: judged by its equation."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

BUILT = """(nn.Module):
    def __init__(self, n_head, n_feat):
        super().__init__()
        self.h, self.d = n_head, n_feat // n_head
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (nn.Linear(n_feat, n_feat) for _ in range(4))
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        self.pos_bias_u, self.pos_bias_v = (nn.Parameter(torch.rand(n_head, 1, self.d)) for _ in range(2))
"""
TEXT = (
    f"class RelPositionMultiHeadedAttention{BUILT}"
    + """
    def forward(self, query, key, value, pos_emb, mask=None):
        T = query.shape[1]
        q, k, v = (split(x, self.h) for x in (self.linear_q(query), self.linear_k(key), self.linear_v(value)))
        r = split(self.linear_pos(pos_emb), self.h)
        token = torch.arange(T)
        ahead = token - token[:, None]
        at = (T - 1 {at}).expand(len(q), self.h, T, T)
        scores = (q + self.pos_bias_u) @ k.mT
        scores = {scores}
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        return self.linear_out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
)
POSITION = "((q + self.pos_bias_v) @ r.mT).gather(3, at)"
RIGHT = f"(scores + {POSITION}) * self.d ** -0.5"


def wrong(made_of: str, make: Make, at: str = "+ ahead") -> set[str]:
    made = make(TEXT.format(at=at, scores=made_of), "RelPositionMultiHeadedAttention")
    assert not made.findings
    return failing(made, "modules.as-built", "scores.dot-product")


@pytest.mark.parametrize("at", ["+ ahead", "- ahead"])
def test_a_right_one_holds_whichever_distance_stands_first(make: Make, at: str) -> None:
    assert not wrong(RIGHT, make, at)


@pytest.mark.parametrize(
    ("scores", "at"),
    [
        (f"scores * self.d ** -0.5 + {POSITION}", "+ ahead"),
        (RIGHT.replace("pos_bias_v", "pos_bias_u"), "+ ahead"),
        (RIGHT.replace("r.mT", "r.roll(-1, 1).mT"), "+ ahead"),
    ],
)
def test_a_term_of_positions_with_a_known_mistake_is_found(make: Make, scores: str, at: str) -> None:
    assert wrong(scores, make, at) == {"modules.as-built"}


INSIDE = (
    f"class f{BUILT}"
    + """
    def forward(self, x):
        T, E = x.shape[1:]
        distances = torch.arange({first}, {last}, -1.0, dtype=x.dtype)
        angles = distances[:, None] * 10000.0 ** (-torch.arange(0, E, 2, dtype=x.dtype) / E)
        r = self.linear_pos({made}).unflatten(-1, (self.h, self.d)).transpose(0, 1)
        q, k, v = (split(w(x), self.h) for w in (self.linear_q, self.linear_k, self.linear_v))
        far = (q + self.pos_bias_v) @ r.mT
        far = torch.cat([torch.zeros_like(far[..., :1]), far], -1)
        far = far.view(*far.shape[:2], -1, T)[:, :, 1:].reshape(*far.shape[:2], T, -1)[..., :T]
        scores = ((q + self.pos_bias_u) @ k.mT + far) * self.d ** -0.5
        {hide}
        return self.linear_out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
)
ALTERNATING = "torch.stack((angles.sin(), angles.cos()), -1).flatten(1)"
SIDE_BY_SIDE = "torch.cat((angles.sin(), angles.cos()), -1)"
HIDE = "scores = scores.masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf)"


@pytest.mark.parametrize(
    ("made_of", "first", "last", "hide", "wrong"),
    [
        (ALTERNATING, "T - 1", "-T", "", False),
        (SIDE_BY_SIDE, "T - 1", "-1", HIDE, False),
        (ALTERNATING, "T - 1", "-1", "", True),
        (SIDE_BY_SIDE, "T", "0", HIDE, True),
        (ALTERNATING, "T", "1 - T", "", True),
        (SIDE_BY_SIDE.replace(".cos()", ".sin()"), "T - 1", "-T", "", None),
        (SIDE_BY_SIDE, "T + 3", "3", HIDE, None),
    ],
    ids=["both sides", "causal", "behind alone", "one too far", "one too far on both sides", "other", "far behind"],
)
def test_positions_that_are_made_inside(
    make: Make, made_of: str, first: str, last: str, hide: str, wrong: bool | None
) -> None:
    made = make(INSIDE.format(made=made_of, first=first, last=last, hide=hide))
    assert bool(made.findings) is (wrong is None)
    assert bool(failing(made, "modules.as-built")) is bool(wrong)
