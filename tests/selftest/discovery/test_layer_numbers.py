"""The number of the layer that a class is: it may be needed, and where nothing may depend on it, others are given."""

import pytest

from attention_conformance.implementations.discovery.values_tried import NOT_JUDGED
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make

CORE = """
class f(nn.Module):
    '''{text}'''
    def __init__(self, head_dim, layer_number, {flag}=True):
        super().__init__()
        self.layer, self.root = layer_number, head_dim**0.5
    def forward(self, query_layer, key_layer, value_layer, attention_mask=None):
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query_layer, key_layer, value_layer))
        s = q @ k.mT / (self.root * self.layer)
        if {again}:
            s = s * self.layer
        if attention_mask is not None:
            s = s.masked_fill(attention_mask, -torch.inf)
        return (s.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(2)
"""
PUBLISHED = "apply_query_key_layer_scaling"
STATED = "Scores are divided by layer_number for small numbers, and the answer does not depend on it."
ALWAYS, IN_HALF_TYPES = "True", "q.dtype in (torch.float16, torch.bfloat16)"


@pytest.mark.parametrize(("again", "status"), [(ALWAYS, Status.PASS), (IN_HALF_TYPES, Status.FAIL)])
@pytest.mark.parametrize(("text", "flag"), [(STATED, "small"), ("", PUBLISHED)])
def test_a_number_of_a_layer_that_changes_nothing(make: Make, text: str, flag: str, again: str, status: Status) -> None:
    made = make(CORE.format(text=text, flag=flag, again=again))
    assert "(L, B, H, d)" in made.about
    assert not made.findings
    found = run(made, ("scores.scale-default", "relations.alternatives"), ("float64",))
    assert [each.status for each in found] == [Status.PASS, status], [each.message for each in found]
    assert status is Status.PASS or "with layer_number=4" in found[-1].message


@pytest.mark.parametrize(("again", "findings"), [(ALWAYS, {}), ("False", {"layer_number": NOT_JUDGED})])
def test_one_that_nothing_is_said_of_is_named_where_it_changes_the_answer(
    make: Make, again: str, findings: dict[str, str]
) -> None:
    made = make(CORE.format(text="Scores are less by the layer.", flag="other", again=again))
    assert made.findings == findings
    (found,) = run(made, ("relations.alternatives",), ("float64",))
    assert found.status is Status.PASS, found.message


MODULE = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads, {layer}):
        super().__init__()
        self.h, self.less = num_heads, 2.0 ** ({layer} - {first})
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
    def forward(self, x):
        q, k, v = (split(layer(x), self.h) for layer in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(F.scaled_dot_product_attention(q * self.less, k, v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("layer", "first", "status"),
    [("layer_number", 1, Status.PASS), ("layer_idx", 0, Status.PASS), ("layer_idx", 1, Status.FAIL)],
)
def test_a_module_that_needs_it_is_the_first_layer(make: Make, layer: str, first: int, status: Status) -> None:
    made = make(MODULE.format(layer=layer, first=first))
    (found,) = run(made, ("scores.dot-product",), ("float64",))
    assert found.status is status, found.message
