"""The attention of seq2seq decoders: judged by relations between its own answers, in whatever layout it takes."""

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing, refused

ADDITIVE = """
class f(nn.Module):
    def __init__(self, enc_hid_dim, dec_hid_dim):
        super().__init__()
        self.attn, self.v = nn.Linear(2 * enc_hid_dim + dec_hid_dim, dec_hid_dim), nn.Linear(dec_hid_dim, 1, bias=False)

    def forward(self, hidden, encoder_outputs, mask=None):
        # hidden = [batch size, dec hid dim]
        # encoder_outputs = [src len, batch size, enc hid dim * 2]
        # mask = [batch size, src len], 0 for <pad> tokens
        src_len, batch, _ = encoder_outputs.shape
        encoder_outputs = encoder_outputs.{batch_first}
        # encoder_outputs = [batch size, src len, enc hid dim * 2]
        repeated = hidden[:, None].expand(-1, src_len, -1)
        scores = self.v(torch.tanh(self.attn(torch.cat([repeated, encoder_outputs], -1)))).squeeze(-1)
        if mask is not None:
            scores = {masked}
        weights = scores.softmax({axis})
        return {returned}
"""
PARTS = {
    "batch_first": "permute(1, 0, 2)",
    "masked": "scores.masked_fill(mask == 0, -1e10)",
    "axis": "1",
    "returned": "(weights[:, None] @ encoder_outputs).squeeze(1), weights",
}
RIGHT = [
    {},
    {"masked": "scores + (1.0 - mask) * -1e9"},
    {"returned": "weights"},
    {"returned": "weights[:, None] @ encoder_outputs"},
    {"returned": "scores"},
]
WRONG = [
    ({"masked": "scores.masked_fill(mask == 0, -1e-10)"}, "where 'mask' hides source tokens"),
    ({"masked": "scores.masked_fill(mask != 0, -1e10)"}, "where 'mask' hides source tokens"),
    ({"masked": "scores * mask"}, "where 'mask' hides source tokens"),
    ({"axis": "0"}, "the sum of its weights over the source tokens"),
    ({"batch_first": "view(batch, src_len, -1)"}, "each sample alone"),
]
GENERAL = """
class f(nn.Module):
    \"\"\"Luong's score.

    Args:
        hidden: (1, B, D)
        encoder_outputs: (B, S, E)
        {documented}
    \"\"\"
    def __init__(self, encoder_size, decoder_size):
        super().__init__()
        self.w = nn.Linear(encoder_size, decoder_size, bias=False)

    def forward(self, hidden, encoder_outputs, {name}{default}):
        scores = (self.w(encoder_outputs) @ hidden[-1][:, :, None]).squeeze(2)
        at = torch.arange(scores.shape[1], device=scores.device)
        if {given}:
            scores = scores.masked_fill({hidden}, float("-inf"))
        p = F.softmax(scores, dim=-1)
        return (p[:, :, None] * encoder_outputs).sum(1){weights}
"""
PADDING = {
    "name": "src_mask",
    "documented": "src_mask: (B, S), True for padding",
    "default": "=None",
    "given": "src_mask is not None",
}
LENGTHS = {"name": "src_lengths", "documented": "src_lengths: (B,)", "default": "", "given": "True"}
HIDING = [
    (PADDING, "src_mask", "", False),
    (PADDING, "src_mask", ", p", False),
    (PADDING, "~src_mask", "", True),
    (PADDING, "~src_mask", ", p", True),
    (LENGTHS, "at >= src_lengths[:, None]", "", False),
    (LENGTHS, "at >= src_lengths[:, None]", ", p", False),
    (LENGTHS, "at > src_lengths[:, None]", "", True),
    (LENGTHS, "at > src_lengths[:, None]", ", p", True),
    (LENGTHS, "at >= src_lengths[:, None] - 1", ", p", True),
]
METHODS = """
class f(nn.Module):
    def __init__(self, method, hidden_size):
        super().__init__()
        self.method = method
        if self.method == "general":
            self.attn = nn.Linear(hidden_size, hidden_size)
        elif self.method == "concat":
            self.attn, self.v = nn.Linear(2 * hidden_size, hidden_size), nn.Parameter(torch.rand(hidden_size))
        elif self.method != "dot":
            raise ValueError(method)

    def forward(self, hidden, encoder_outputs):  # encoder_outputs: (S, B, D)
        if self.method == "concat":
            both = torch.cat([hidden.expand(len(encoder_outputs), -1, -1), encoder_outputs], 2)
            energies = (self.attn(both).tanh() * self.v).sum(2){of_concat}
        else:
            projected = self.attn(encoder_outputs) if self.method == "general" else encoder_outputs
            energies = (hidden * projected).sum(2)
        return F.softmax(energies.t(), dim=1).unsqueeze(1)
"""
QUERIED = """
class f(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.wa, self.ua, self.va = (nn.Linear(hidden_size, n) for n in (hidden_size, hidden_size, 1))

    def forward(self, query, keys):
        scores = self.va(torch.tanh(self.wa(query) + self.ua(keys))).squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights
"""


def judged(make: Make, text: str) -> Implementation:
    """What is refused otherwise, judged in part."""
    refused(make, text)
    made = candidate("mine.py:f", {}, in_part=True)
    assert [*made.findings] == ["its numbers"]
    assert made.claims.features == {Feature.AS_BUILT}
    assert "decoder" in made.about
    return made


def contexts(made: Implementation) -> set[str]:
    """What its run looks at."""
    return {*vars(made.modes[Feature.AS_BUILT])["otherwise"]}


@pytest.mark.parametrize("changes", RIGHT)
def test_a_decoder_s_attention_is_not_accused(make: Make, changes: dict[str, str]) -> None:
    assert not failing(judged(make, ADDITIVE.format(**PARTS | changes)), "modules.as-built", dtype="float64")


@pytest.mark.parametrize(("changes", "context"), WRONG)
def test_what_is_wrong_with_it_is_named(make: Make, changes: dict[str, str], context: str) -> None:
    made = judged(make, ADDITIVE.format(**PARTS | changes))
    assert failing(made, "modules.as-built", dtype="float64")


@pytest.mark.parametrize(("given", "hidden", "weights", "wrong"), HIDING)
def test_what_hides_source_tokens_hides_them(
    make: Make, given: dict[str, str], hidden: str, weights: str, wrong: bool
) -> None:
    made = judged(make, GENERAL.format(**given, hidden=hidden, weights=weights))
    assert f"where {given['name']!r} hides source tokens" in contexts(made)
    assert bool(failing(made, "modules.as-built", dtype="float64")) is wrong


@pytest.mark.parametrize("of_concat", ["", ".mul(encoder_outputs.shape[1])"])
def test_each_method_is_judged(make: Make, of_concat: str) -> None:
    made = judged(make, METHODS.format(of_concat=of_concat))
    assert {"method='concat'", "method='dot'"} <= contexts(made)
    assert bool(failing(made, "modules.as-built", dtype="float64")) is bool(of_concat)


def test_a_query_and_keys_are_a_decoder_s(make: Make) -> None:
    assert not failing(judged(make, QUERIED), "modules.as-built", dtype="float64")
