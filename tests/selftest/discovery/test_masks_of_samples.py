"""Masks of each sample that the documentation of a module class states, where heads lie in samples."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

FOLDED = '''
class f(nn.Module):
    """Cross attention.

    mask: boolean, True where attention is allowed. Either (batch, n_context), one row of keys for all of the
    {words}
    """
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.to_q, self.to_kv = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q, k, v = (split(each, self.h).flatten(0, 1) for each in (self.to_q(x), *self.to_kv(context).chunk(2, -1)))
        s = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            mask = mask[:, None].repeat_interleave(self.h, 0) if mask.ndim == 2 else mask.{repeated}
            s = s.masked_fill(~mask, -torch.inf)
        return self.to_out((s.softmax(-1) @ v).unflatten(0, (-1, self.h)).transpose(1, 2).flatten(2))
'''
OF_SAMPLES = "queries, or (batch, n_query, n_context). It holds for every head."
OF_HEADS = "queries, or (batch * heads, n_query, n_context)."
EACH, IN_TURN, AS_GIVEN = "repeat_interleave(self.h, 0)", "repeat(self.h, 1, 1)", "contiguous()"


@pytest.mark.parametrize(("words", "repeated"), [(OF_SAMPLES, EACH), (OF_HEADS, AS_GIVEN), ("queries.", AS_GIVEN)])
def test_a_right_order_is_no_mistake(make: Make, words: str, repeated: str) -> None:
    assert_conforms(make(FOLDED.format(words=words, repeated=repeated)))


def test_the_order_of_heads_where_samples_have_masks_of_their_own_is(make: Make) -> None:
    made = make(FOLDED.format(words=OF_SAMPLES, repeated=IN_TURN))
    assert "masks.bool" in failing(made, "masks.*", dtype="float64")
    assert "mask" not in made.findings
