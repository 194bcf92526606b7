"""Functions that are passed weights and a rate of dropout: each way to call them, in training and in evaluation."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

OF_TORCH = """
def f(x, heads, w_q, w_k, w_v, w_o, {rate}, {mode}, need_weights=True):
    q, k, v = (split(x @ w, heads) for w in (w_q, w_k, w_v))
    if not need_weights:
        out = F.scaled_dot_product_attention(q, k, v, dropout_p={fused})
        return out.transpose(1, 2).flatten(2) @ w_o, None
    p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    kept = F.dropout(p, {dropped})
    return (kept @ v).transpose(1, 2).flatten(2) @ w_o, kept
"""
OF_NUMPY = """
def f(x, n_heads, Wq, Wk, Wv, Wo, dropout_rate=0.1, train=False):
    q, k, v = (np.stack(np.split(x @ w, n_heads, -1), -3) for w in (Wq, Wk, Wv))
    s = np.exp(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)
    p = s / s.sum(-1, keepdims=True)
    if {condition}:
        p = p * (np.random.rand(*p.shape) >= dropout_rate) / {factor}
    return np.concatenate([*np.moveaxis(p @ v, -3, 0)], -1) @ Wo
"""
RIGHT = ("rate, training", "rate if training else 0.0")
FORMS = {
    "a rate that is needed": ("rate", "training=True"),
    "a rate and a mode by default": ("rate=0.1", "training=False"),
    "a mode that is needed": ("rate", "training"),
}
WAYS = {
    "without a mode": ("rate", RIGHT[1], {"dropout.evaluation"}),
    "fused without a mode": (RIGHT[0], "rate", {"relations.alternatives"}),
    "a mode the other way round": ("rate, not training", RIGHT[1], {"dropout.evaluation"}),
}
CLAUSES = ("dropout.evaluation", "dropout.factors", "relations.alternatives")


def of_torch(parameters: tuple[str, str], dropped: str, fused: str) -> str:
    rate, mode = (each.replace("rate", "dropout_p") for each in parameters)
    dropped, fused = (each.replace("rate", "dropout_p") for each in (dropped, fused))
    return OF_TORCH.format(rate=rate, mode=mode, dropped=dropped, fused=fused)


@pytest.mark.parametrize("form", FORMS)
def test_each_way_drops_in_training_alone(make: Make, form: str) -> None:
    made = make(of_torch(FORMS[form], *RIGHT))
    assert {Feature.DROPOUT, Feature.EVALUATION} <= made.claims.features
    assert failing(made, *CLAUSES, "dropout.rate-zero", "dropout.rate") == set()
    assert_conforms(made)


@pytest.mark.parametrize("way", WAYS)
def test_a_way_that_ignores_the_mode_fails(make: Make, way: str) -> None:
    dropped, fused, expected = WAYS[way]
    assert failing(make(of_torch(FORMS["a rate that is needed"], dropped, fused)), *CLAUSES) >= expected


@pytest.mark.parametrize(
    ("condition", "factor", "expected"),
    [
        ("train and dropout_rate", "(1 - dropout_rate)", set()),
        ("dropout_rate > 0", "(1 - dropout_rate)", {"dropout.evaluation"}),
        ("train and dropout_rate", "dropout_rate", {"dropout.factors"}),
        ("train", "(1 - dropout_rate)", {"dropout.rate-zero"}),
    ],
)
def test_what_draws_from_numpys_generator(make: Make, condition: str, factor: str, expected: set[str]) -> None:
    made = make(OF_NUMPY.format(condition=condition, factor=factor))
    found = failing(made, *CLAUSES[:2], "dropout.rate-zero", dtype="float64")
    assert found == expected


LAYER = """
def f(x, heads, w_q, w_k, w_v, w_o, dropout=None):
    q, k, v = (split(x @ w, heads) for w in (w_q, w_k, w_v))
    p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    p = p if dropout is None else dropout(p)
    return (p @ v).transpose(1, 2).flatten(2) @ w_o
"""
OUTPUT = """
def f(x, heads, w_q, w_k, w_v, w_o, dropout=0.0):
    q, k, v = (split(x @ w, heads) for w in (w_q, w_k, w_v))
    p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return F.dropout((p @ v).transpose(1, 2).flatten(2) @ w_o, dropout)
"""


@pytest.mark.parametrize("text", [LAYER, OUTPUT])
def test_other_dropout_is_not_judged(make: Make, text: str) -> None:
    made = make(text)
    assert Feature.DROPOUT not in made.claims
    assert failing(made, "relations.alternatives", "scores.dot-product") == set()
