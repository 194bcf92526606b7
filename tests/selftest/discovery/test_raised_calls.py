"""First calls: what raises in one of them and answers when the same call is made again fails, and no refusal does."""

import pytest

from attention_conformance.implementations.api.raised_calls import MOST, RaisedCalls
from attention_conformance.tests.selftest.discovery.making import Make, failing

COUNTED = """
calls = 0
def f(q, k, v):
    global calls
    calls += 1
    if {when}:
        {then}
    return attend(q, k, v)[0]
"""
LAYER = """
class f(nn.Module):
    calls = 0
    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.h, self.qkv, self.out = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x):
        type(self).calls += 1
        if {when}:
            raise RuntimeError("the pool is empty")
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        return self.out(attend(q, k, v)[0].transpose(1, 2).flatten(2))
"""
POOL = "raise RuntimeError('the pool is empty')"
WRONG = {
    "for a while": ("1 < calls <= 40", POOL, "RuntimeError: the pool is empty"),
    "longer": ("1 < calls <= 90", POOL, "RuntimeError: the pool is empty"),
    "once": ("calls == 7", "raise ValueError(f'{tuple(q.shape)} came too early')", "came too early"),
}
RIGHT = {
    "one width": "def f(q, k, v):\n    assert q.shape[-1] % 8 == 0, q.shape\n    return attend(q, k, v)[0]",
    "own heads": (
        "def f(q, k, v):\n    if q.shape[1] != k.shape[1]:\n        raise NotImplementedError('groups')\n"
        "    return attend(q, k, v)[0]"
    ),
    "inputs changed before it refuses": (
        "def f(q, k, v, mask=None):\n    q = q.clone()\n    if mask is not None and mask.dtype is not torch.bool:\n"
        "        raise TypeError(f'{mask.dtype}')\n    return attend(q, k, v, mask)[0]"
    ),
    "a mask that is kept": (
        "seen = {}\ndef f(q, k, v, is_causal=False):\n    size = q.shape[2], k.shape[2]\n    if size not in seen:\n"
        "        seen[size] = torch.ones(size, dtype=torch.bool).tril()\n"
        "    return attend(q, k, v, seen[size] if is_causal else None)[0]"
    ),
}
EXITING = ("calls == 7", "calls == 60", "q.shape[1] != k.shape[1]")


@pytest.mark.parametrize(("when", "then", "line"), WRONG.values(), ids=WRONG)
def test_what_raises_once_and_answers_later_fails(make: Make, when: str, then: str, line: str) -> None:
    made = make(COUNTED.format(when=when, then=then))
    assert len(made.differing) == 1
    assert line in made.differing[0]
    assert made.exits == ()
    assert failing(made, "effects.*") == {"effects.repeatable"}


def test_a_module_that_raises_for_a_while_fails(make: Make) -> None:
    made = make(LAYER.format(when="20 < self.calls <= 60"))
    assert made.differing == ("RuntimeError: the pool is empty",)
    assert failing(made, "effects.repeatable") == {"effects.repeatable"}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_a_refusal_is_none(make: Make, text: str) -> None:
    made = make(text)
    assert (made.differing, made.exits) == ((), ())
    assert failing(made, "effects.*") == set()


def test_a_module_that_refuses_is_none(make: Make) -> None:
    made = make(LAYER.format(when="x.shape[1] > 1000"))
    assert (made.differing, made.exits) == ((), ())
    assert failing(made, "effects.repeatable", "effects.global-state") == set()


@pytest.mark.parametrize("when", EXITING)
def test_no_call_leaves_by_an_exit(make: Make, when: str) -> None:
    made = make(COUNTED.format(when=when, then="raise SystemExit(0)"))
    assert made.exits == ("SystemExit: 0",)
    assert "effects.global-state" in failing(made, "effects.*")


def test_few_calls_are_made_once_more() -> None:
    first = RaisedCalls()
    for number in range(10 * MOST):
        first.note(f"ValueError: {number}", list)
    assert len(first.chosen) == MOST
