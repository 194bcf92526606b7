"""Functions that write their output into an array which they are given."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

KERNEL = """
def f(q, k, v, o, sm_scale, causal=False):
    o{rows}.copy_(attend(q, k, v, causal=causal, scale=sm_scale)[0]{rows})
"""
IN_NUMPY = """
def f(Q, K, V, out):
    s = Q @ np.swapaxes(K, -1, -2) / math.sqrt(Q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    np.matmul(p / p.sum(-1, keepdims=True), V, out=out)
"""


@pytest.mark.parametrize("text", [KERNEL.format(rows=""), IN_NUMPY], ids=["torch", "numpy"])
def test_the_array_is_the_answer(make: Make, text: str) -> None:
    made = make(text)
    assert "it writes its output into" in made.about
    assert_conforms(made)


def test_a_part_that_is_not_written_is_none_of_the_output(make: Make) -> None:
    made = make(KERNEL.format(rows="[..., :-1, :]"))
    assert Feature.CAUSAL in made.claims
    assert failing(made, "scores.dot-product")
