"""Modules that rotate a part of each head: so many components, more than small heads have, or a share of any head."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

ROTATED = '''
def rotate(x, place, dim, divisor):
    angles = place[..., None].double() * 10000.0 ** (-torch.arange(0, dim, 2).double() / divisor)
    cos, sin = (each.repeat(1, 1, 2).to(x.dtype)[:, None] for each in (angles.cos(), angles.sin()))
    part, rest = {parts}
    half = torch.cat((-part[..., dim // 2:], part[..., :dim // 2]), -1)
    return torch.cat({joined}, -1)

class f(nn.Module):
    """Causal attention with partial rotary embeddings. attention_mask: (B, L), 1 for real tokens, 0 for padding."""
    def __init__(self, hidden_size, num_heads, {parameter}):
        super().__init__()
        self.h, self.width = num_heads, hidden_size // num_heads
        self.dim = {dim}
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
    def forward(self, hidden_states, attention_mask=None):
        tokens = torch.arange(hidden_states.shape[1])
        place = tokens[None] if attention_mask is None else {skipped}
        q, k, v = self.query_key_value(hidden_states).unflatten(-1, (self.h, -1)).transpose(1, 2).chunk(3, -1)
        q, k = (rotate(x, place, self.dim, {divisor}) for x in (q, k))
        s = (q @ k.mT * self.width ** -0.5).masked_fill(tokens[:, None] < tokens, torch.finfo(q.dtype).min)
        if attention_mask is not None:
            s = s.masked_fill(attention_mask[:, None, None] == 0, torch.finfo(q.dtype).min)
        return self.dense((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
'''
FIRST = {"parts": "(x[..., :dim], x[..., dim:])", "joined": "(part * cos + half * sin, rest)"}
LAST = {"parts": "(x[..., -dim:], x[..., :-dim])", "joined": "(rest, part * cos + half * sin)"}
SHARE = {"parameter": "rotary_pct=0.25", "dim": "int(self.width * rotary_pct)", "divisor": "self.dim", **FIRST}
NUMBER = {"parameter": "rotary_dim=8", "dim": "rotary_dim", "divisor": "self.dim", **FIRST}
COUNTED = {"skipped": "tokens[None]"}
SKIPPED = {"skipped": "(attention_mask.long().cumsum(-1) - 1).clamp(min=0)"}


@pytest.mark.parametrize("twin", [{**SHARE, **COUNTED}, {**SHARE, **SKIPPED}, {**NUMBER, **COUNTED}])
def test_a_part_that_is_rotated_is_judged_by_its_equation(make: Make, twin: dict[str, str]) -> None:
    made = make(ROTATED.format(**twin))
    assert made.claims.premises.rotary_dim in (4, 8)
    assert "its numbers" not in made.findings
    assert_conforms(made)


@pytest.mark.parametrize("slip", [{"divisor": "self.width"}, LAST])
@pytest.mark.parametrize("usual", [SHARE, NUMBER])
def test_angles_of_the_whole_head_and_the_last_part_are_mistakes(
    make: Make, usual: dict[str, str], slip: dict[str, str]
) -> None:
    made = make(ROTATED.format(**{**usual, **COUNTED, **slip}))
    assert "its numbers" in made.findings or failing(made, "scores.*", "modules.as-built", dtype="float64")
