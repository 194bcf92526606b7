"""Masks that are cut to the lengths by their first axes: more are taken by accident where samples and heads are few."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing
from attention_conformance.tests.selftest.thorough import thorough

TORCH = '''
def f(query, key, value, {name}=None):
    """Attention. {words}"""
    mask = {name}
    if mask is not None:
        mask = mask[{cut}]{slip}
    return attend(query, key, value, mask)[0]
'''
ADDED = '''
def f(q, k, v, n_head: int, mask=None):
    """Multi-head attention. q: (batch, n_ctx, n_state), k, v: (batch, n_ctx_k, n_state)

    mask: additive (>= n_ctx, >= n_ctx_k), cut to size
    """
    q, k, v = (split(x, n_head) for x in (q, k, v))
    s = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        s = s + mask[: q.shape[2], : k.shape[2]].to(s.dtype){slip}
    return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)
'''
APART = """
def f(query, key, value, mask=None, bias=None):
    s = query @ key.mT * query.shape[-1] ** -0.5
    s = s if bias is None else s + bias[: query.shape[2], : key.shape[2]]{slip}
    s = s if mask is None else s.masked_fill(~mask, -torch.inf)
    return s.softmax(-1) @ value
"""
ARRAYS = """
def f(query, key, value, mask=None):
    s = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    if mask is not None:
        mask = mask[: query.shape[2], : key.shape[2]]{slip}
        s = {xp}.where(mask, s, -{xp}.inf) if mask.dtype == bool else s + mask
    p = {xp}.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ value
"""
CUT = ": query.shape[2], : key.shape[2]"
FUNCTIONS = {
    "nothing stated": TORCH.replace("{name}", "mask").replace("{words}", "").replace("{cut}", CUT),
    "a published name": TORCH.replace("{name}", "attn_mask")
    .replace("{words}", "attn_mask: (L, S) or longer, cut")
    .replace("{cut}", CUT),
    "a bias": TORCH.replace("{name}", "bias").replace("{words}", "").replace("{cut}", CUT),
    "an unknown name": TORCH.replace("{name}", "terms").replace("{words}", "").replace("{cut}", CUT),
    "added": ADDED,
    "apart": APART,
    "numpy": ARRAYS.replace("{xp}", "np"),
}
SEEN = [name for name in FUNCTIONS if name != "an unknown name"]
"""What an unknown name does is known by its effect alone, and a wrong one is none of a mask."""
REVERSED = ".flip(-1)"
CLAUSES = ("masks.*", "shapes.combinations", "shapes.meetings")


@pytest.mark.parametrize("text", FUNCTIONS.values(), ids=FUNCTIONS)
def test_what_is_cut_is_claimed_with_two_axes(make: Make, text: str) -> None:
    made = make(text.replace("{slip}", ""))
    assert "masks not claimed" not in made.about
    assert not failing(made, *CLAUSES, dtype="float64")


@pytest.mark.parametrize("text", [FUNCTIONS[each] for each in SEEN], ids=SEEN)
def test_mistakes_are_seen_through_what_is_cut(make: Make, text: str) -> None:
    slip = "[:, ::-1]" if "np." in text else REVERSED
    assert failing(make(text.replace("{slip}", slip)), *CLAUSES, dtype="float64")


@thorough
def test_arrays_of_jax_are_cut_too(make: Make) -> None:
    pytest.importorskip("jax", reason="JAX is not installed: pip install '.[jax]'")
    made = make("import jax.numpy as jnp\n" + ARRAYS.format(xp="jnp", slip=""))
    assert any("'mask' is given as (Lq, Lk)" in each for each in (made.about, *made.stated))
    assert not failing(made, "masks.*", "shapes.combinations")


STATED = {
    "(B, H, L, S)": "mask: (B, H, L, S)",
    "any": "mask: broadcast to the scores",
}


@pytest.mark.parametrize("words", STATED.values(), ids=STATED)
def test_axes_that_are_documented_are_claimed(make: Make, words: str) -> None:
    assert failing(make(TORCH.format(name="mask", words=words, cut=CUT, slip="")), *CLAUSES, dtype="float64")


def test_what_keeps_its_first_axes_is_claimed_with_all_of_them(make: Make) -> None:
    text = TORCH.format(name="mask", words="", cut="..., : query.shape[2], : key.shape[2]", slip="")
    made = make(text)
    assert "is given as" not in made.about
    assert not failing(made, *CLAUSES, dtype="float64")


MODULE = '''
class f(nn.Module):
    """Attention. {words}"""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, {name}=None):
        q, k, v = (split(part(x), self.heads) for part in (self.q, self.k, self.v))
        mask = {name}
        if mask is not None:
            mask = mask[{cut}]
            mask = mask[:, None]{slip} if mask.ndim == 3 else mask{slip}
        return self.out(attend(q, k, v, mask)[0].transpose(1, 2).flatten(2))
'''
MODULES = {
    "pairs": {"name": "mask", "words": "", "cut": ": x.shape[1], : x.shape[1]"},
    "of samples": {"name": "mask", "words": "mask: (B or 1, L, L), is cut", "cut": ":, : x.shape[1], : x.shape[1]"},
}


@pytest.mark.parametrize("given", MODULES.values(), ids=MODULES)
def test_masks_of_modules_are_cut(make: Make, given: dict[str, str]) -> None:
    assert not failing(make(MODULE.format(**given, slip="")), *CLAUSES, dtype="float64")


@pytest.mark.parametrize("given", MODULES.values(), ids=MODULES)
def test_mistakes_of_modules_are_seen_through_what_is_cut(make: Make, given: dict[str, str]) -> None:
    assert failing(make(MODULE.format(**given, slip=REVERSED)), *CLAUSES, dtype="float64")
