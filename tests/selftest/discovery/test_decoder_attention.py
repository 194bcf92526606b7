"""The attention of seq2seq decoders: judged by relations between its own answers, in whatever layout it takes."""

from pathlib import Path

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.documented_inputs import samples_first_in
from attention_conformance.implementations.discovery.targets.loading import load_target
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import START, Make, failing, refused, write

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
        weights = {weights}
        return {returned}
"""
PARTS = {
    "batch_first": "permute(1, 0, 2)",
    "masked": "scores.masked_fill(mask == 0, -1e10)",
    "weights": "scores.softmax(1)",
    "returned": "(weights[:, None] @ encoder_outputs).squeeze(1), weights",
}
RIGHT = [
    {},
    {"masked": "scores + (1.0 - mask) * -1e9"},
    {"returned": "weights"},
    {"returned": "weights[:, None] @ encoder_outputs"},
    {"returned": "scores"},
    {"returned": "weights.float()"},
    {"weights": "F.dropout(scores.softmax(1), 0.1, self.training)"},
]
OF_NOTHING = "the sum of its weights over the source tokens"
"""Each weight is 1, whatever a mask hides."""
WRONG = [
    ({"masked": "scores.masked_fill(mask == 0, -1e-10)"}, "where 'mask' hides source tokens"),
    ({"masked": "scores.masked_fill(mask != 0, -1e10)"}, "where 'mask' hides source tokens"),
    ({"masked": "scores * mask"}, "where 'mask' hides source tokens"),
    ({"weights": "scores.softmax(0)"}, "each sample alone"),
    ({"weights": "scores[:, None].softmax(1).squeeze(1)"}, OF_NOTHING),
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
    "documented": "src_mask: (B, S), True where padded",
    "default": "=None",
    "given": "src_mask is not None",
}
NEEDED = PADDING | {"default": "", "given": "True"}
LENGTHS = {"name": "src_lengths", "documented": "src_lengths: (B,)", "default": "", "given": "True"}
HIDING = [
    (PADDING, "src_mask", "", False),
    (PADDING, "src_mask", ", p", False),
    (PADDING, "~src_mask", "", True),
    (PADDING, "~src_mask", ", p", True),
    (NEEDED, "src_mask", ", p", False),
    (NEEDED, "~src_mask", ", p", True),
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
STATES = ["hidden[0][-1]", "hidden[-1]", "hidden.mean(0) + hidden[1]"]
OF_STATE = """
class f(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.w = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden, encoder_outputs):
        # encoder_outputs: (batch, seq_len, hidden)
        p = torch.bmm(encoder_outputs, self.w({state}).unsqueeze(2)).squeeze(2).softmax(1)
        return torch.bmm(p.unsqueeze(1), encoder_outputs).squeeze(1), p
"""
CAPTION = """
class f(nn.Module):
    def __init__(self, encoder_dim, decoder_dim, attention_dim):
        super().__init__()
        self.of_image, self.of_state = nn.Linear(encoder_dim, attention_dim), nn.Linear(decoder_dim, attention_dim)
        self.score = nn.Linear(attention_dim, 1)

    def forward(self, encoder_out, decoder_hidden):
        scores = self.score(F.relu(self.of_image(encoder_out) + self.of_state(decoder_hidden).unsqueeze(1))).squeeze(2)
        alpha = scores.softmax(1)
        return (encoder_out * alpha.unsqueeze(2)).sum(dim=1), alpha
"""


def judged(make: Make, text: str, *unseen: str) -> Implementation:
    """What is refused otherwise, judged in part; `unseen`: its masks whose effect cannot be seen."""
    refused(make, text)
    made = candidate("mine.py:f", {}, in_part=True)
    assert [*made.findings] == ["its numbers", *unseen]
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
    unseen = ["mask"] if context == OF_NOTHING else []
    (found,) = run(judged(make, ADDITIVE.format(**PARTS | changes), *unseen), dtypes=("float64",))
    assert found.status is Status.FAIL
    assert context in found.message


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


@pytest.mark.parametrize("state", STATES)
def test_the_state_may_be_that_of_an_lstm_or_of_layers(make: Make, state: str) -> None:
    assert not failing(judged(make, OF_STATE.format(state=state)), "modules.as-built", dtype="float64")


def test_where_no_layout_is_stated_the_one_that_holds_is_taken(make: Make) -> None:
    """An image's features come first here; taken for tokens first, they would be broadcast."""
    assert not failing(judged(make, CAPTION), "modules.as-built", dtype="float64")


@pytest.mark.parametrize("text", ["coverage", "heads"])
def test_what_is_no_decoder_s_stays_refused(make: Make, text: str) -> None:
    coverage = QUERIED.replace("query, keys", "query, keys, coverage")
    heads = QUERIED.replace("self, hidden_size", "self, hidden_size, heads")
    refused(make, coverage if text == "coverage" else heads)
    made = safe_call(lambda: candidate("mine.py:f", {}, in_part=True)).value
    assert made is None or "decoder" not in made.about


@pytest.mark.parametrize(
    ("line", "stated"),
    [
        ("# encoder_outputs: what was read (seq_len x batch x hidden)", False),
        ("batch_size, seq_len, _ = encoder_outputs.size()", True),
        ("src_len = encoder_outputs.shape[0]", False),
        ("# weights of encoder_outputs (batch, src_len, 1)", None),
        ("S, B = encoder_outputs.size(0), encoder_outputs.size(1)", None),
        ("encoder_outputs = encoder_outputs.permute(1, 0, 2)  # encoder_outputs = [batch, src, dim]", None),
    ],
)
def test_a_layout_is_stated_before_it_is_changed(tmp_path: Path, line: str, stated: bool | None) -> None:
    text = (
        f"class f(nn.Module):\n    def forward(self, hidden, encoder_outputs):\n        {line}\n        return hidden\n"
    )
    kind = load_target(f"{write(tmp_path, 'mine.py', START + text)}:f")
    assert isinstance(kind, type)
    assert samples_first_in(kind, ["encoder_outputs"]) is stated


def test_a_query_and_keys_are_a_decoder_s(make: Make) -> None:
    assert not failing(judged(make, QUERIED), "modules.as-built", dtype="float64")
