"""Random tables that modules keep as plain tensors: held at zero, and given another dtype, like parameters."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

SKEWED = """
class f(nn.Module):
    def __init__(self, h=4, d=32, max_seq=2048):
        super().__init__()
        self.h, self.rows = h, torch.{rows}(max_seq, d // h)
        self.q, self.k, self.v, self.fc = (nn.Linear(d, d) for _ in range(4))
    def forward(self, inputs, mask=None):
        q, k, v = (split(p(x), self.h) for p, x in zip((self.q, self.k, self.v), inputs))
        L = q.shape[2]
        near = q @ self.rows[len(self.rows) - L:].mT
        near = near * torch.ones(L, L).tril().flip(-1)
        near = F.pad(near, (1, 0)).reshape(*near.shape[:2], L + 1, L)[:, :, 1:, :k.shape[2]]
        s = (q @ k.mT + near) / math.sqrt({width})
        s = s if mask is None else s{masked}
        return self.fc((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
FILLED, ADDED = ".masked_fill(mask.bool(), -1e9)", " + mask * -1e9"


def test_a_table_that_is_a_plain_tensor_is_held_and_lengths_that_it_refuses_are_not_claimed(make: Make) -> None:
    made = make(SKEWED.format(rows="randn", width="q.shape[-1]", masked=FILLED))
    assert made.findings.keys() == {"rows"}
    assert "fewer queries than keys not claimed" in made.about
    assert "float64" in made.claims.dtypes
    assert_conforms(made, "float64")
    assert not failing(made, "scores.dot-product", "heads.independent", dtype="float64")


@pytest.mark.parametrize("slip", ["self.h * q.shape[-1]"])
def test_its_other_scale_is_seen(make: Make, slip: str) -> None:
    made = make(SKEWED.format(rows="randn", width=slip, masked=FILLED))
    assert failing(made, "scores.dot-product", dtype="float64")


def test_a_number_that_is_added_empties_rows_otherwise_in_each_dtype(make: Make) -> None:
    made = make(SKEWED.format(rows="randn", width="q.shape[-1]", masked=ADDED))
    assert "in float32, and another answer in float64" in made.about
    assert Feature.BOOL_MASK in made.claims
