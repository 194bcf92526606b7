"""What a signature offers next to the form that is judged: masks of other ranks, and a second input."""

import numpy as np
import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.cases import Case, MaskKind, MaskShape
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms

MASKED = """
class f(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.h = num_heads
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
    def forward(self, hidden_states, {name}=None):
        layers = self.query, self.key, self.value
        q, k, v = (p(hidden_states).unflatten(-1, (self.h, -1)).transpose(1, 2) for p in layers)
        s = q @ k.mT / math.sqrt(q.shape[-1])
        m = {name}
        if m is not None:
            {body}
        return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)
"""
THREE = "m = m[:, None] if m.ndim == 3 else {two}; s = s.masked_fill(m == 0, -1e9)"
RIGHT = {
    "of keys": THREE.format(two="m[:, None, None]"),
    "of queries and keys": THREE.format(two="m[:, None, None] * m[:, None, :, None]"),
    "shared": "s = s.masked_fill(m[:, None] == 0, -1e9)",
    "added": "m = m[:, None, None] if m.ndim == 2 else m; s = s + (1.0 - m.to(s.dtype)) * -1e9",
    "refused": THREE.format(two="m.no_such_rank"),
}
WRONG = THREE.format(two="m[:, None, :, None]")


def made_of(make: Make, body: str, name: str = "attention_mask") -> Implementation:
    return make(MASKED.format(name=name, body=body))


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_a_mask_that_hides_keys_in_each_rank_is_not_accused(make: Make, body: str) -> None:
    made = made_of(make, body)
    assert not made.findings
    assert not [way for way in made.alternatives if "(B, Lk)" in way]


@pytest.mark.parametrize("name", ["attention_mask", "mask"])
def test_a_mask_of_tokens_that_acts_on_queries_does_not_vanish(make: Make, name: str) -> None:
    """The published name promises that it hides keys."""
    made = made_of(make, WRONG, name)
    assert made.findings == {name: "not judged as (B, Lk): it changes the answer, but hides no keys"}
    ways = [way for way in made.alternatives if "(B, Lk)" in way]
    assert ways == ([f"with its {name!r} as (B, Lk)"] if name == "attention_mask" else [])
    if ways:
        case = fit(Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS), made.claims)
        assert isinstance(case, Case)
        problem = build(case, "float32").forward_only()
        judged, other = (run(problem.fresh(), "cpu").output for run in (made.run, made.alternatives[ways[0]]))
        assert judged.shape == other.shape
        assert np.abs(judged - other).max() > 0.1


SECOND = """
class f(nn.Module):
    def __init__(self, n_state, n_head):
        super().__init__()
        self.h = n_head
        self.query, self.key, self.value, self.out = (nn.Linear(n_state, n_state) for _ in range(4))
    def forward(self, x, {name}=None, mask=None):
        {body}
        q, k, v = (p(y).unflatten(-1, (self.h, -1)).transpose(1, 2)
                   for p, y in ((self.query, x), (self.key, other), (self.value, other)))
        s = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            s = s + mask[:x.shape[1], :x.shape[1]]
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
INSTEAD = "other = x if {name} is None else {name}"


@pytest.mark.parametrize("name", ["xa", "y"])
def test_a_second_input_is_judged_whatever_its_name(make: Make, name: str) -> None:
    """Next to it the mask of the module's own tokens need not fit."""
    made = make(SECOND.format(name=name, body=INSTEAD.format(name=name)))
    assert Feature.CROSS in made.claims
    assert not made.findings
    assert "masks between other lengths not claimed: RuntimeError" in made.about
    assert_conforms(made)


@pytest.mark.parametrize("name", ["memory", "group"])
def test_what_changes_the_answer_as_another_input_is_no_small_print(make: Make, name: str) -> None:
    given = "torch.cat([memory, x], 1)" if name == "memory" else "x"
    made = make(SECOND.format(name=name, body=f"other = x if {name} is None else {given}"))
    assert Feature.CROSS not in made.claims
    found = {"memory": "not judged: another input that changes the answer"}
    assert made.findings == (found if name == "memory" else {})
