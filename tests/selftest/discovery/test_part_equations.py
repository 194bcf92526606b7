"""Parts that are held where the answer is known: their numbers by their equations, in long sequences, under masks."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, failing

BODY = """
class f(nn.Module):
    def __init__(self, dim, heads{options}):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        {parts}
    def forward(self, x{masks}):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / q.shape[-1] ** 0.5
        hidden = torch.zeros(1, 1, *s.shape[2:], dtype=torch.bool)
        {scores}
        return self.out({answer}.transpose(1, 2).flatten(2))
"""
MIXED = "self.pre, self.post = (nn.Conv2d(heads, heads, 1, bias=False) for _ in 'ab')"
HIDE = "s = s.masked_fill(hidden, -1e30)"
LATER = "hidden = hidden | torch.ones(s.shape[2:], dtype=torch.bool).triu(1)"
PADDED = "hidden = hidden if key_padding_mask is None else hidden | key_padding_mask[:, None, None]"
SINKS = "self.sinks = nn.Parameter(torch.zeros(heads))"
COLUMN = "torch.cat([s, self.sinks.view(-1, 1, 1).expand(*s.shape[:-1], 1)], -1).softmax(-1)[..., :-1] @ v"
SCALED = COLUMN.replace("self.sinks", "(self.sinks * q.shape[-1] ** -0.5)")
BLOCKS = "e @ v / (e.sum(-1, keepdim=True) + (s.shape[-1] // 64 + 1) * self.sinks.exp().view(-1, 1, 1))"


def body(parts: str, answer: str, *scores: str, options: str = "", masks: str = "") -> str:
    return BODY.format(parts=parts, answer=answer, scores="\n        ".join(scores), options=options, masks=masks)


def talking(*scores: str, options: str = "", masks: str = "") -> str:
    return body(MIXED, "(self.post(s.softmax(-1)) @ v)", *scores, options=options, masks=masks)


def is_caught(make: Make, text: str, *unknown: str) -> bool:
    made = make(text)
    assert Feature.AS_BUILT in made.claims
    (found,) = run(made, ("modules.as-built",), ("float32",))
    assert found.status is Status.FAIL or {*made.findings} == {*unknown}
    return found.status is Status.FAIL


FLAG = {"options": ", causal=False"}
FLAGGED = f"if self.causal: {LATER}"
MASK = {"masks": ", key_padding_mask=None"}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (talking("s = self.pre(s)"), False),
        (talking("s = self.pre(s)", LATER, HIDE), False),
        (talking(LATER, HIDE, "s = self.pre(s)"), True),
        (talking("s = self.pre(s)", PADDED, HIDE, **MASK), False),
        (talking(PADDED, HIDE, "s = self.pre(s)", **MASK), True),
    ],
)
def test_heads_are_mixed_and_what_is_hidden_stays_hidden(make: Make, text: str, wrong: bool) -> None:
    assert is_caught(make, text) is wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_flag_hides_later_tokens_with_all_parts_in_place(make: Make, wrong: bool) -> None:
    lines = (FLAGGED, HIDE, "s = self.pre(s)") if wrong else ("s = self.pre(s)", FLAGGED, HIDE)
    text = talking(*lines, **FLAG).replace("self.pre, ", "self.causal = causal; self.pre, ")
    assert is_caught(make, text) is wrong


@pytest.mark.parametrize(("answer", "wrong"), [(COLUMN, False), (BLOCKS, True), (SCALED, True)])
def test_a_sink_counts_once_as_it_is_however_long_the_sequence_is(make: Make, answer: str, wrong: bool) -> None:
    assert is_caught(make, body(SINKS, f"({answer})", LATER, HIDE, "e = s.exp()")) is wrong


LARGEST = "m = s.amax(-1, keepdim=True)"
JOINED = "e @ v / (e.sum(-1, keepdim=True) + (b - m).exp())"


@pytest.mark.parametrize("name", ["sinks", "attn_sink", "sink_logits"])
@pytest.mark.parametrize(
    ("largest", "answer", "wrong"),
    [
        (f"{LARGEST}.maximum(b)", JOINED, False),
        (LARGEST, JOINED.replace("(b - m)", "b"), True),
        (LARGEST, JOINED.replace("(b - m)", "(b * q.shape[-1] ** -0.5 - m)"), True),
    ],
    ids=["shifted", "not shifted", "scaled"],
)
def test_a_sink_of_any_name_next_to_a_window(make: Make, name: str, largest: str, answer: str, wrong: bool) -> None:
    far = "hidden = hidden | torch.ones(s.shape[2:], dtype=torch.bool).tril(-self.window)"
    lines = (LATER, far, HIDE, "b = self.sinks.view(-1, 1, 1)", largest, "e = (s - m).exp()")
    text = body(f"self.window = sliding_window; {SINKS}", f"({answer})", *lines, options=", sliding_window=8")
    assert is_caught(make, text.replace("sinks", name)) is wrong


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ("self.gating = nn.Linear(dim, dim)", "(s.softmax(-1) @ v * split(self.gating(x), self.h).sigmoid())"),
        ("self.to_gate = nn.Linear(dim, heads)", "(s.softmax(-1) @ v * self.to_gate(x).sigmoid().mT[..., None])"),
        ("self.heat = nn.Parameter(torch.ones(heads, 1, 1))", "((s * self.heat).softmax(-1) @ v)"),
        ("self.gain = nn.Parameter(torch.ones(heads))", "(s.softmax(-1) @ v * self.gain[:, None, None])"),
    ],
)
def test_gates_and_gains_have_equations(make: Make, parts: str, answer: str, wrong: bool) -> None:
    fewer = "@ v * (1 - 0.1 * (s.shape[-1] > 99))"
    assert is_caught(make, body(parts, answer.replace("@ v", fewer) if wrong else answer)) is wrong


LOWER = "clamp(max=2.0).exp()"
COSINES = "s = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT"


@pytest.mark.parametrize("scores", [COSINES, "s = s + 0"])
@pytest.mark.parametrize("start", ["torch.full((heads, 1, 1), 2.3)", "torch.tensor(2.659)"])
@pytest.mark.parametrize(
    ("factor", "wrong"),
    [
        ("self.logit_scale.exp()", False),
        ("self.logit_scale.clamp(max=math.log(100)).exp()", False),
        ("self.logit_scale.exp().clamp(max=100)", False),
        ("self.logit_scale.clamp(max=math.log(1 / 0.01)).exp()", False),
        ("self.logit_scale.exp().clamp(max=math.log(100))", True),
        ("self.logit_scale.clamp(max=math.log10(1 / 0.01)).exp()", True),
    ],
)
def test_a_logarithm_of_a_factor_is_bounded_as_one(
    make: Make, scores: str, start: str, factor: str, wrong: bool
) -> None:
    text = body(f"self.logit_scale = nn.Parameter({start})", "(s.softmax(-1) @ v)", scores, f"s = s * {factor}")
    assert is_caught(make, text) is wrong


@pytest.mark.parametrize("scale", ["", "self.logit_scale = nn.Parameter(torch.full((heads, 1, 1), 2.3))"])
@pytest.mark.parametrize(
    ("queries", "keys", "wrong"),
    [
        ("F.normalize(q, dim=-1)", "F.normalize(k.mT, dim=-2)", False),
        ("F.normalize(q, dim=-1)", "F.normalize(k.mT, dim=-1)", True),
        ("F.normalize(q, dim=-2)", "F.normalize(k, dim=-2).mT", True),
        ("F.normalize(q, dim=1)", "F.normalize(k, dim=1).mT", True),
    ],
    ids=["right", "keys over tokens", "over tokens", "over heads"],
)
def test_cosines_are_those_of_the_components_of_a_head(
    make: Make, scale: str, queries: str, keys: str, wrong: bool
) -> None:
    factor = "s = s * self.logit_scale.exp()" if scale else "s = s + 0"
    made = make(body(scale or "pass", "(s.softmax(-1) @ v)", f"s = {queries} @ {keys}", factor))
    assert "its numbers" not in made.findings
    assert bool(failing(made, "scores.dot-product", "modules.as-built")) is wrong


@pytest.mark.parametrize("factor", [f"self.logit_scale.{x}" for x in ("exp().clamp(max=3)", "neg().exp()", LOWER)])
def test_another_factor_of_this_name_is_not_judged(make: Make, factor: str) -> None:
    text = body("self.logit_scale = nn.Parameter(torch.zeros(()))", "(s.softmax(-1) @ v)", "s = s * {}")
    assert not is_caught(make, text.format(factor), "logit_scale")


@pytest.mark.parametrize("wrong", [False, True])
def test_biases_next_to_a_weight_of_several_projections_are_those_of_query_and_value(make: Make, wrong: bool) -> None:
    parts = "self.q_bias, self.v_bias = (nn.Parameter(torch.zeros(dim)) for _ in 'qv')"
    text = body(parts, "(s.softmax(-1) @ v)", COSINES).replace("3 * dim)", "3 * dim, bias=False)")
    added = f"self.q_bias, torch.zeros_like(self.q_bias), self.v_bias{' * (x.shape[1] < 99)' * wrong}"
    text = text.replace("self.qkv(x)", f"F.linear(x, self.qkv.weight, torch.cat([{added}]))")
    assert is_caught(make, text) is wrong


def test_a_part_without_a_known_equation_is_named(make: Make) -> None:
    """A convolution of the values next to attention brings padded tokens to adjacent ones, which is no mistake."""
    parts = "self.lepe = nn.Parameter(torch.zeros(dim // heads, 1, 3))"
    near = "nn.functional.conv1d(v.flatten(0, 1).mT, self.lepe, padding=1, groups=v.shape[-1])"
    answer = f"(s.softmax(-1) @ v + {near}.mT.reshape(v.shape))"
    assert not is_caught(make, body(parts, answer, PADDED, HIDE, **MASK), "lepe")


SHIFTED = """
class f(nn.Module):
    def __init__(self, dim, num_heads, window_size=4, shift=0):
        super().__init__()
        self.w, self.shift, self.h = window_size, shift, num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def windows(self, x):
        return x.unflatten(2, (-1, self.w)).unflatten(1, (-1, self.w)).transpose(2, 3)
    def forward(self, x):
        B, H, W, E = x.shape
        n = H // self.w
        x = x.roll((-self.shift, -self.shift), (1, 2))
        t = self.windows(x).reshape(B * n * n, self.w**2, E)
        q, k, v = (split(each, self.h) for each in self.qkv(t).chunk(3, -1))
        s = q @ k.mT / q.shape[-1] ** 0.5
        if self.shift:
            side = torch.arange(H).ge(H - self.w).long() + torch.arange(H).ge(H - self.shift).long()
            areas = (3 * side[:, None] + side)[None, :, :, None]
            areas = self.windows(areas).reshape(n * n, self.w**2)
            s = s.masked_fill((areas[:, None] != areas[..., None]).{order}[:, None], -torch.inf)
        y = (s.softmax(-1) @ v).transpose(1, 2).reshape(B, n, n, self.w, self.w, E)
        y = self.proj(y.transpose(2, 3).reshape(B, H, W, E))
        return y.roll((self.shift, self.shift), (1, 2))
"""


@pytest.mark.parametrize(("order", "wrong"), [("repeat(B, 1, 1)", False), ("repeat_interleave(B, 0)", True)])
def test_shifted_windows_of_each_image_have_its_areas(make: Make, order: str, wrong: bool) -> None:
    assert is_caught(make, SHIFTED.format(order=order)) is wrong


OF_CONTEXT = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.to_q, self.to_kv = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.gating, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        nn.init.zeros_(self.gating.weight)
        nn.init.ones_(self.gating.bias)
    def forward(self, x, context=None):
        k, v = self.to_kv(x if context is None else context).chunk(2, -1)
        out = attend(*(split(each, self.h) for each in (self.to_q(x), k, v)))[0].transpose(1, 2).flatten(2)
        return self.to_out(out * {gates})
"""


@pytest.mark.parametrize(
    ("gates", "unknown"),
    [("self.gating(x).sigmoid()", ()), ("self.gating(x).tanh()", ("gating.weight", "gating.bias"))],
)
def test_gates_of_a_layer_that_may_be_given_a_context(make: Make, gates: str, unknown: tuple[str, ...]) -> None:
    assert not is_caught(make, OF_CONTEXT.format(gates=gates), *unknown)
