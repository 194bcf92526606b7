"""Parts of unknown equations next to a mask: the query of a token that is hidden amid others changes no other row."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

FAR = '''
class f(nn.Module):
    """Attention with a learned term for far keys. mask: (B, L), True = may be attended to."""
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
        self.far = nn.Parameter(torch.rand(num_heads, d_model // num_heads))
    def forward(self, x, mask=None):
        q, k, v = (split(each(x), self.h) for each in (self.q, self.k, self.v))
        at = torch.arange(x.shape[1])
        added = (({query}) * self.far[:, None]).sum(-1, keepdim=True)
        s = q @ k.mT * q.shape[-1] ** -0.5 + added * (at - at[:, None] > 1)
        if mask is not None:
            s = s.masked_fill(~mask[:, None, None], torch.finfo(s.dtype).min)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
'''


@pytest.mark.parametrize(("query", "wrong"), [("q", False), ("q.roll(-1, 2)", True)])
def test_the_query_of_a_hidden_token_changes_no_other_row(make: Make, query: str, wrong: bool) -> None:
    made = make(FAR.format(query=query))
    assert bool(failing(made, "modules.as-built", dtype="float64")) is wrong
