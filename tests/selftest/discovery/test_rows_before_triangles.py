"""Modules that always hide keys by their places: what a query gets that is left none is taken as it is seen."""

import pytest

from attention_conformance.spec.conventions import EmptyRow
from attention_conformance.tests.selftest.discovery.making import Make, failing

MODULE = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.heads = num_heads
        self.q, self.k, self.v, self.out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
    def forward(self, query, key, value):
        q, k, v = (split(y, self.heads) for y in (self.q(query), self.k(key), self.v(value)))
        ahead = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]{corner}
        s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill({hidden}, {fill})
        return self.out(({weights} @ v).transpose(1, 2).flatten(2))
"""
FUNCTION = """
def f(query, key, value, r, u_bias, v_bias):
    content = (query + u_bias[:, None]) @ key.mT
    b, h, i, j = content.shape
    position = F.pad((query + v_bias[:, None]) @ r.mT, (1, 0)).view(b, h, j + 1, i)[:, :, 1:].reshape(b, h, i, j)
    s = (content + position) / query.shape[-1] ** 0.5
    s = s.masked_fill(torch.ones(i, j, dtype=torch.bool).triu(1 + j - i), {fill})
    return {weights} @ value
"""
USUAL = "s.softmax(-1)"
TRIANGLE, BEFORE, AROUND = "ahead > 0", "(ahead > 0) | (ahead < -4)", "(ahead < -4) | (ahead > 4)"
AT_THE_END = " - k.shape[2] + q.shape[2]"
ROWS = {
    EmptyRow.NAN: ("-torch.inf", USUAL),
    EmptyRow.UNIFORM: ("-1e30", USUAL),
    EmptyRow.ZEROS: ("-torch.inf", "s.softmax(-1).nan_to_num()"),
}
FIRST = "(s.softmax(-1).nan_to_num() + s.isneginf().all(-1, True) * (torch.arange(s.shape[-1]) < 1).to(s))"
CLAUSES = ("causal.*", "window.*", "cross-attention.lengths", "values.single-key")


def always(hidden: str, corner: str, fill: str, weights: str) -> str:
    return MODULE.format(hidden=hidden, corner=corner, fill=fill, weights=weights)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    ("hidden", "corner"), [(TRIANGLE, AT_THE_END), (BEFORE, AT_THE_END), (BEFORE, ""), (AROUND, "")]
)
def test_rows_of_modules(make: Make, hidden: str, corner: str, row: EmptyRow) -> None:
    made = make(always(hidden, corner, *ROWS[row]))
    assert made.claims.conventions.empty_row_causal is row
    assert (f"a query without keys in its window gets {row}" in made.stated) is (row is not EmptyRow.ZEROS)
    assert not failing(made, *CLAUSES, dtype="float64")


@pytest.mark.parametrize("row", ROWS)
def test_rows_of_functions_that_are_judged_as_modules(make: Make, row: EmptyRow) -> None:
    fill, weights = ROWS[row]
    made = make(FUNCTION.format(fill=fill, weights=weights))
    assert made.claims.conventions.empty_row_causal is row
    assert not failing(made, *CLAUSES, "modules.as-built", dtype="float64")


@pytest.mark.parametrize("hidden", [TRIANGLE, BEFORE])
def test_another_answer_is_a_mistake(make: Make, hidden: str) -> None:
    made = make(always(hidden, AT_THE_END, "-torch.inf", FIRST))
    assert "cross-attention.lengths" in failing(made, *CLAUSES, dtype="float64")


def test_nan_is_demanded_where_it_is_seen(make: Make) -> None:
    other = f"({USUAL} if q.shape[2] < 30 else s.softmax(-1).nan_to_num())"
    made = make(always(TRIANGLE, AT_THE_END, "-torch.inf", other))
    assert failing(made, dtype="float64")
