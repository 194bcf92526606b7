"""Functions that need sinks for their heads, and answer in another layout than they are called in, as eager ones do."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

EAGER = '''
def f(query, key, value, sinks, attention_mask=None, scaling=None, dropout=0.0, training=False):
    """Attention with a sink for each head. attention_mask: added, broadcastable to (B, H, Lq, Lk), may be longer."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    logits = query @ key.mT
    column = sinks.reshape(1, -1, 1, 1).expand(query.shape[0], -1, query.shape[2], -1).to(logits.dtype)
    logits = torch.cat({joined}, dim=-1)
    if attention_mask is not None:
        logits = logits + F.pad(attention_mask[..., : key.shape[-2]], (0, 1))
    probs = logits.softmax(-1)[..., :-1]
    out = F.dropout(probs, p=dropout, training=training) @ value
    return {out}, probs
'''
JOINED = {"right": "[logits * scaling, column]", "wrong": "[logits * scaling, column * scaling]"}
OUT = {
    "as the inputs": "out",
    "tokens first": "out.transpose(1, 2).contiguous()",
    "side by side": "out.transpose(1, 2).flatten(2)",
}
CLAUSES = ("scores.*", "masks.float", "masks.bool", "sinks.*", "dropout.*")


@pytest.mark.parametrize("out", OUT.values(), ids=OUT)
@pytest.mark.parametrize("joined", JOINED)
def test_an_output_in_another_layout_next_to_needed_sinks(make: Make, joined: str, out: str) -> None:
    made = make(EAGER.format(joined=JOINED[joined], out=out))
    assert Feature.DROPOUT in made.claims
    found = failing(made, *CLAUSES, dtype="float64")
    assert ("scores.scale-zero" in found) is bool(found) is (joined == "wrong")
