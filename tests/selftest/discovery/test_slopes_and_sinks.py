"""Slopes inside that are not those of ALiBi, sinks as a factor of the output, and what is judged by single queries."""

import pytest

from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing, refused

BIASED = '''
def f(q, k, v):
    """{words}"""
    heads, length = q.shape[1:3]
    slopes = torch.tensor([{slope} for h in range(heads)], dtype=q.dtype)
    far = torch.arange(length)[None] - torch.arange(length)[:, None]
    s = q @ k.mT / q.shape[-1] ** 0.5 + slopes.view(-1, 1, 1) * far.to(q.dtype)
    return s.masked_fill(far > 0, -torch.inf).softmax(-1) @ v
'''
ALIBI = "Causal attention with linear biases (ALiBi)."
USUAL, FROM_ONE, OF_EIGHT = "2 ** (-8 * (h + 1) / heads)", "2 ** (-8 * h / heads)", "2.0 ** -(h + 1)"
OF_ONE = "2.0 ** -8"
WITH_SINKS = '''
def f(q, k, v, sinks, sliding_window=None):
    """Causal attention with a sink for each head, a key without a value. q, k, v: (B, H, L, D), queries the last."""
    age = torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] - torch.arange(k.shape[2])
    hidden = age < 0 if sliding_window is None else (age < 0) | (age >= sliding_window)
    s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
    kept = torch.sigmoid(s.logsumexp(-1) {sign} sinks.view(1, -1, 1))
    return s.softmax(-1) @ v * kept[..., None]
'''


def test_slopes_that_documentation_states_conform(make: Make) -> None:
    assert_conforms(make(BIASED.format(words=ALIBI, slope=USUAL)))


def test_slopes_that_begin_with_one_are_none_of_alibi(make: Make) -> None:
    made = make(BIASED.format(words=ALIBI, slope=FROM_ONE))
    assert "scores.dot-product" in failing(made, "scores.*", dtype="float64")


@pytest.mark.parametrize(("words", "slope"), [("Attention.", FROM_ONE), (ALIBI, OF_EIGHT), (ALIBI, OF_ONE)])
def test_slopes_of_a_rule_of_its_own_are_not_judged(make: Make, words: str, slope: str) -> None:
    """Not as ALiBi's, which nothing states or which they are for 8 heads or for one, nor by single queries."""
    with pytest.raises(TargetError, match="slopes"):
        make(BIASED.format(words=words, slope=slope))


def test_a_factor_for_the_sinks_may_give_rows_without_keys_nan(make: Make) -> None:
    assert_conforms(make(WITH_SINKS.format(sign="-")))


def test_another_factor_fails(make: Make) -> None:
    assert "sinks.sum" in failing(make(WITH_SINKS.format(sign="+")), "sinks.*", dtype="float64")


SCALED = '''
class f(nn.Module):
    """{doc}"""
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.qkv, self.dense = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x):
        b, n, dim = x.shape
        q, k, v = self.qkv(x).view(b, n, self.h, 3, -1).permute(3, 0, 2, 1, 4)
        slopes = 2.0 ** (-8.0 * torch.arange(1, self.h + 1) / self.h)
        bias, scale = slopes.to(x.dtype)[:, None, None] * torch.arange(n), q.shape[-1] ** -0.5
        s = ({scores}).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
        return self.dense((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
'''


@pytest.mark.parametrize(("scores", "wrong"), [("q @ k.mT * scale + bias", False), ("(q @ k.mT + bias) * scale", True)])
def test_slopes_of_a_module_are_not_scaled_with_its_scores(make: Make, scores: str, wrong: bool) -> None:
    made = make(SCALED.format(doc="Causal attention with ALiBi.", scores=scores))
    assert made.claims.premises.alibi
    assert bool(failing(made, "scores.dot-product")) is wrong


@pytest.mark.parametrize("doc", ["As in Falcon.", "The bias is scaled, too.", "softmax((q k + bias) / sqrt(d))"])
def test_slopes_that_are_meant_to_be_scaled_are_not_judged(make: Make, doc: str) -> None:
    assert "depends on its inputs" in refused(make, SCALED.format(doc=doc, scores="(q @ k.mT + bias) * scale"))
