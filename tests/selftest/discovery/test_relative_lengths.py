"""Modules with a table of relative positions for as many keys as queries."""

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

CONFORMER = """
class RelPositionMultiHeadedAttention(nn.Module):
    def __init__(self, n_head, n_feat):
        super().__init__()
        self.h = n_head
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (nn.Linear(n_feat, n_feat) for _ in range(4))
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)

    def forward(self, query, key, value, mask, pos_emb):
        T = query.shape[1]
        q, k, v = (split(x, self.h) for x in (self.linear_q(query), self.linear_k(key), self.linear_v(value)))
        r = split(self.linear_pos(pos_emb), self.h)
        at = T - 1 - torch.arange(T)[:, None] + torch.arange({keys})
        scores = q @ k.mT
        scores = scores + (q @ r.mT).gather(3, at.expand(*scores.shape[:2], *at.shape))
        scores = scores * (query.shape[-1] // self.h) ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(1), -math.inf)
        x = torch.softmax(scores, -1) @ v
        return self.linear_out(x.transpose(1, 2).flatten(2))
"""


def test_other_lengths_that_are_refused_are_not_claimed(make: Make) -> None:
    made = make(CONFORMER.format(keys="T"), "RelPositionMultiHeadedAttention")
    assert Feature.CROSS not in made.claims
    assert not failing(made, "heads.independent", "scores.dot-product")


def test_more_keys_that_are_answered_are_claimed(make: Make) -> None:
    made = make(CONFORMER.format(keys="key.shape[1]"), "RelPositionMultiHeadedAttention")
    assert Feature.CROSS in made.claims
