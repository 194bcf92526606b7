"""What changes its inputs in place: each call gets arrays of its own, so that its masks are read as they are."""

import pytest

from attention_conformance.spec.conventions import Polarity
from attention_conformance.tests.selftest.discovery.making import Make, failing

OF_ARRAYS = """
def f(query, key, value, mask=None):
    query {by} np.sqrt(query.shape[-1])
    s = query @ np.swapaxes(key, -1, -2)
    s = s if mask is None else np.where(mask{hidden}, -np.inf, s)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ value
"""
OF_TENSORS = """
@torch.no_grad()
def f(query, key, value, mask=None):
    q = query.{view}
    q = q.{by}(q.shape[-1] ** -0.5).view(query.shape)
    s = q @ key.mT
    return (s if mask is None else s.masked_fill(mask{hidden}, -torch.inf)).softmax(-1) @ value
"""
MEANINGS = [("", Polarity.MASKED_OUT), (" == 0", Polarity.MAY_ATTEND)]


@pytest.mark.parametrize(("hidden", "means"), MEANINGS)
@pytest.mark.parametrize(("by", "wrong"), [("/=", True), ("= query /", False)])
def test_a_function_of_arrays(make: Make, hidden: str, means: Polarity, by: str, wrong: bool) -> None:
    made = make(OF_ARRAYS.format(by=by, hidden=hidden))
    assert made.claims.conventions.bool_mask is means
    assert bool(failing(made, "effects.inputs", dtype="float64")) is wrong
    assert not failing(made, "masks.bool", dtype="float64")


@pytest.mark.parametrize(("hidden", "means"), MEANINGS)
@pytest.mark.parametrize("view", ["detach()", "view(query.shape)"])
@pytest.mark.parametrize(("by", "wrong"), [("mul_", True), ("mul", False)])
def test_a_function_of_tensors(make: Make, hidden: str, means: Polarity, view: str, by: str, wrong: bool) -> None:
    made = make(OF_TENSORS.format(by=by, hidden=hidden, view=view))
    assert made.claims.conventions.bool_mask is means
    assert bool(failing(made, "effects.inputs")) is wrong
    assert not failing(made, "masks.bool")


OWN_MASK = """
def f(query, key, value, mask=None):
    s = query @ key.mT * query.shape[-1] ** -0.5
    if mask is not None:
        mask = {turned}
        s = s.masked_fill(mask, -torch.inf)
    return s.softmax(-1) @ value
"""
OF_NUMBERS = """
def f(query, key, value, key_mask=None):
    s = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    if key_mask is not None:
        {turned}
        s = s - 1e30 * key_mask[:, None, None, :]
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ value
"""


TURNED = [
    ("~mask", False),
    ("mask.logical_not()", False),
    ("mask.logical_not_()", True),
    ("mask.logical_not_()[:]", True),
]


@pytest.mark.parametrize("again", ["", ".logical_not()"])
@pytest.mark.parametrize(("turned", "wrong"), TURNED)
def test_a_mask_that_is_changed_is_named_whatever_true_means(make: Make, turned: str, again: str, wrong: bool) -> None:
    made = make(OWN_MASK.format(turned=f"({turned}){again}"))
    assert bool(failing(made, "effects.inputs", dtype="float64")) is wrong


@pytest.mark.parametrize(
    ("turned", "wrong"), [("key_mask = 1 - key_mask", False), ("key_mask *= -1; key_mask += 1", True)]
)
def test_a_mask_of_numbers_that_is_changed_is_named(make: Make, turned: str, wrong: bool) -> None:
    made = make(OF_NUMBERS.format(turned=turned))
    assert bool(failing(made, "effects.inputs", dtype="float64")) is wrong


MODULE = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, mask=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            {changed}
            s = s + mask{axes}
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
IN_PLACE = "mask *= -1; mask += 1; mask *= -1e30"


@pytest.mark.parametrize("axes", ["[:, None, None]", "[:, None]"])
@pytest.mark.parametrize(("changed", "wrong"), [("mask = (1.0 - mask) * -1e30", False), (IN_PLACE, True)])
def test_a_module_that_changes_its_mask_is_named(make: Make, axes: str, changed: str, wrong: bool) -> None:
    made = make(MODULE.format(changed=changed, axes=axes))
    assert bool(failing(made, "effects.inputs", dtype="float64")) is wrong
    assert not failing(made, "masks.*", dtype="float64")
