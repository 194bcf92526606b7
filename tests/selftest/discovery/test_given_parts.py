"""Constructors that are given what attends: an instance, a class or a function of the same file."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

INNER = """
class {inner}(nn.Module):
    def __init__(self{sizes}, attention_dropout=0.1):
        super().__init__()
        self.dropout = nn.Dropout(attention_dropout)
    def forward(self, queries, keys, values, attn_mask=None):
        s = torch.einsum("blhe,bshe->bhls", queries, keys) * {scale}
        if attn_mask is not None:
            s = s.masked_fill(attn_mask, -torch.inf)
        return torch.einsum("bhls,bshd->blhd", self.dropout(s.softmax(-1)), values)

class FeedForward(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layer = nn.Linear(width, width)
    def forward(self, x):
        return self.layer(x).relu()
"""
OUTER = """
class f(nn.Module):
    def __init__(self, {name}, d_model, n_heads):
        super().__init__()
        self.n_heads, self.inner = n_heads, {name}{call}
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))
    def forward(self, queries, keys, values, attn_mask=None):
        q, k, v = (p(x).unflatten(-1, (self.n_heads, -1)) for p, x in
                   ((self.q_proj, queries), (self.k_proj, {keys}), (self.v_proj, values)))
        return self.out_proj(self.inner(q, k, v, attn_mask).flatten(2))
"""
SCALE = "queries.shape[-1] ** -0.5"
FUNCTION = """
def plain_attention(queries, keys, values, attn_mask=None):
    s = torch.einsum("blhe,bshe->bhls", queries, keys) * {scale}
    if attn_mask is not None:
        s = s.masked_fill(attn_mask, -torch.inf)
    return torch.einsum("bhls,bshd->blhd", s.softmax(-1), values)
"""
DECOYS = """
class SparseAttention(nn.Module):
    def forward(self, queries, keys, values, attn_mask=None):
        return values.cumsum(1)
"""


@pytest.mark.parametrize("name", ["attention", "inner_attention", "attn"])
@pytest.mark.parametrize("sizes", ["", ", n_heads", ", head_dim, bias"])
def test_a_part_of_the_file_is_given_to_a_constructor_that_calls_it(make: Make, name: str, sizes: str) -> None:
    text = INNER.format(inner="FullAttention", sizes=sizes, scale=SCALE)
    made = make(text + OUTER.format(name=name, call="", keys="keys"))
    assert f"built with FullAttention as its {name!r}" in made.stated
    assert not failing(made, "scores.dot-product", "masks.bool", "heads.independent")


@pytest.mark.parametrize(
    ("scale", "keys", "broken"),
    [("1.3 * " + SCALE, "keys", "scores.dot-product"), (SCALE, "queries", "scores.dot-product")],
)
def test_mistakes_of_the_part_and_around_it_are_found(make: Make, scale: str, keys: str, broken: str) -> None:
    text = INNER.format(inner="FullAttention", sizes="", scale=scale)
    assert broken in failing(make(text + OUTER.format(name="attention", call="", keys=keys)), broken)


@pytest.mark.parametrize(("scale", "wrong"), [(SCALE, False), ("1.3 * " + SCALE, True)])
def test_a_class_or_a_function_is_given_too(make: Make, scale: str, wrong: bool) -> None:
    inside = INNER.format(inner="CoreAttention", sizes="", scale=scale)
    of_class = make(inside + OUTER.format(name="attention_class", call="()", keys="keys"))
    of_function = make(FUNCTION.format(scale=scale) + OUTER.format(name="attn_fn", call="", keys="keys"))
    for made in (of_class, of_function):
        assert failing(made, "scores.dot-product") == ({"scores.dot-product"} if wrong else set())


def test_the_part_with_which_it_attends_is_given(make: Make) -> None:
    text = DECOYS + INNER.format(inner="FullAttention", sizes="", scale=SCALE)
    made = make(text + OUTER.format(name="attention", call="", keys="keys"))
    assert "built with FullAttention as its 'attention'" in made.stated
    text = INNER.format(inner="Inner", sizes="", scale=SCALE)
    annotated = OUTER.format(name="attention", call="", keys="keys").replace(
        "attention, d_model", "attention: Inner, d_model"
    )
    assert not failing(make(text + annotated), "scores.dot-product")
