"""Ways that the parameters of a module state, and that plain calls do not go: caches, windows, evaluation mode."""

import pytest

from attention_conformance.implementations.discovery.modules import narrow_windows
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.premises import Premises
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms

CACHED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.q, self.kv, self.out = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
    def forward(self, x, past_kv=None, use_cache=False):
        q, k, v = (split(each, self.h) for each in (self.q(x), *self.kv(x).chunk(2, -1)))
        if past_kv is not None:
            k, v = torch.cat([past_kv[0], k], 2), torch.cat([past_kv[1], v], 2)
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu({first})
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), {cache}
"""
OWN_CACHE = "(k, v) if use_cache else None"
WINDOW = """
class f(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.h, self.w, self.q, self.kv = heads, window, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in (self.q(x), *self.kv(x).chunk(2, -1)))
        s, one = q @ k.mT / q.shape[-1] ** 0.5, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        s = s.masked_fill(one.triu(1) | one.tril(-self.w), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
DROPPING = """
class f(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.h, self.q = config.num_heads, nn.Linear(config.hidden_size, config.hidden_size)
        self.kv, self.dropout_prob = nn.Linear(config.hidden_size, 2 * config.hidden_size), config.dropout
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in (self.q(x), *self.kv(x).chunk(2, -1)))
        p = F.dropout((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1), self.dropout_prob, {training})
        return ((p @ v).transpose(1, 2).flatten(2),)
"""


def fails(make: Make, text: str) -> bool:
    (found,) = run(make(text), ("relations.alternatives",), ("float32",))
    assert found.status in (Status.FAIL, Status.PASS)
    return found.status is Status.FAIL


@pytest.mark.parametrize(("first", "wrong"), [("k.shape[2] - q.shape[2] + 1", False), ("1", True)])
def test_a_cache_gives_in_pieces_what_it_gives_as_a_whole(make: Make, first: str, wrong: bool) -> None:
    text = CACHED.format(first=first, cache=OWN_CACHE)
    assert "in pieces through past_kv" in make(text).alternatives
    assert fails(make, text) is wrong


PLACED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def rotated(self, x, at):
        a, b = x.chunk(2, -1)
        turns = at[:, None, :, None] * 10000.0 ** -(torch.arange(a.shape[-1]) / a.shape[-1])
        return torch.cat([a * turns.cos() - b * turns.sin(), b * turns.cos() + a * turns.sin()], -1)
    def forward(self, x, past_kv=None, position_ids=None):
        '{text}'
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        past = 0 if past_kv is None else past_kv[0].shape[2]
        if position_ids is None:
            position_ids = {first} + torch.arange(x.shape[1])[None]
        q, k = self.rotated(q, position_ids), self.rotated(k, position_ids)
        if past_kv is not None:
            k, v = torch.cat([past_kv[0], k], 2), torch.cat([past_kv[1], v], 2)
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(past + 1)
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)
"""


@pytest.mark.parametrize(("first", "wrong"), [("past", False), ("0", True)])
def test_positions_that_are_left_out_go_on_behind_a_cache(make: Make, first: str, wrong: bool) -> None:
    assert fails(make, PLACED.format(first=first, text="Causal.")) is wrong


@pytest.mark.parametrize(("more", "wrong"), [("", False), (" * (past < 1)", True)])
def test_positions_that_have_to_be_given_with_a_cache_by_its_documentation_are(
    make: Make, more: str, wrong: bool
) -> None:
    text = PLACED.format(first="0", text="Next to a cache position_ids are needed.")
    made = make(text.replace("q, k = ", f"position_ids = position_ids{more}\n        q, k = "))
    assert not [way for way in made.alternatives if "pieces" in way]
    (found,) = run(made, ("modules.as-built",), ("float64",))
    assert found.status is (Status.FAIL if wrong else Status.PASS)


HOLDING = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.q, self.kv, self.out = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.held = None
    def reset_cache(self):
        self.held = None
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in (self.q(x), *self.kv(x).chunk(2, -1)))
        if self.held is not None:
            k, v = torch.cat([self.held[0], k], 2), torch.cat([self.held[1], v], 2)
        self.held = (k.detach(), v.detach()) if {kept} else None
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu({first})
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize("kept", ["True", "not self.training"])
@pytest.mark.parametrize(("first", "wrong"), [("k.shape[2] - q.shape[2] + 1", False), ("1", True)])
def test_a_cache_that_it_holds_is_emptied_before_each_sequence(make: Make, first: str, wrong: bool, kept: str) -> None:
    made = make(HOLDING.format(first=first, kept=kept))
    assert "in pieces after reset_cache()" in made.alternatives
    (plain, otherwise) = run(made, ("causal.square", "relations.alternatives"), ("float32",))
    assert {plain.status, otherwise.status} == ({Status.PASS, Status.FAIL} if wrong else {Status.PASS})


def test_a_cache_in_a_form_of_its_own_is_stated(make: Make) -> None:
    assert "past_kv" in make(CACHED.format(first="1", cache="None")).findings


@pytest.mark.parametrize(("before", "left"), [("pass", 19), ("assert x.shape[1] <= self.w", None)])
def test_a_window_is_narrow_enough_to_be_seen(make: Make, before: str, left: int | None) -> None:
    made = make(WINDOW.replace("        s, one", f"        {before}\n        s, one"))
    assert made.claims.premises == Premises(causal=True, window_left=left)


def test_windows_side_by_side_are_no_narrow_one(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    text = WINDOW.replace(
        "one.triu(1) | one.tril(-self.w)", "torch.block_diag(*BLOCKS)[: x.shape[1], : x.shape[1]] == 0"
    )
    text = text.replace("BLOCKS", "[torch.ones(self.w, self.w)] * -(-x.shape[1] // self.w)")
    assert make(text).claims.premises == Premises()
    monkeypatch.setattr(narrow_windows, "MOST_NUMBERS", 10)
    with pytest.raises(TargetError, match="stand side by side"):
        make(text)


CHUNKS = """
class f(nn.Module):
    \"""Causal.\"""
    def __init__(self, dim, heads, chunk=8):
        super().__init__()
        self.h, self.qkv, self.out, self.chunk = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), chunk
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        outputs = []
        for start in range(0, x.shape[1], self.chunk):
            part, first = slice(start, start + self.chunk), {first}
            places = torch.arange(x.shape[1])
            seen = (places[part, None] >= places) & (places >= first)
            outputs.append(attend(q[:, :, part], k, v, seen)[0])
        return self.out(torch.cat(outputs, 2).transpose(1, 2).flatten(2))
"""


def test_what_computes_in_chunks_is_judged(make: Make) -> None:
    assert_conforms(make(CHUNKS.format(first="0")))


def test_chunks_that_see_no_others_may_be_meant(make: Make) -> None:
    with pytest.raises(TargetError, match="its queries see the keys of their own chunk=8 tokens alone"):
        make(CHUNKS.format(first="start"))


SLOWER = """
class f(nn.Module):
    def __init__(self, dim, heads, factor={factor}):
        super().__init__()
        self.h, self.qkv, self.out, self.ntk_factor = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), factor
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        rates = 10000.0 ** -(torch.arange(0, q.shape[-1], 2) / q.shape[-1]) / self.ntk_factor
        angles = torch.outer(torch.arange(x.shape[1]), rates).to(x)
        def rotated(x):
            a, b = x.chunk(2, -1)
            return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)
        return self.out(attend(rotated(q), rotated(k), v)[0].transpose(1, 2).flatten(2))
"""


def test_usual_rotations_are_judged_whatever_the_text_names(make: Make) -> None:
    assert make(SLOWER.format(factor="1.0")).claims.premises.rotary_base == 10000.0


def test_rotations_at_rates_that_the_suite_does_not_know_are_no_mistake(make: Make) -> None:
    with pytest.raises(TargetError, match="it rotates queries and keys by angles of its own"):
        make(SLOWER.format(factor="8.0"))


@pytest.mark.parametrize(("training", "wrong"), [("self.training", False), ("True", True)])
def test_dropout_is_off_in_evaluation_mode_however_its_rate_is_held(make: Make, training: str, wrong: bool) -> None:
    assert fails(make, DROPPING.format(training=training)) is wrong


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint
class f(nn.Module):
    def __init__(self, dim, heads, dropout=0.0):
        super().__init__()
        self.h, self.rate = heads, dropout
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
    def core(self, q, k, v):
        w = F.dropout((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1), self.rate, self.training)
        return w @ v
    def forward(self, x):
        q, k, v = (split(each(x), self.h) for each in (self.q, self.k, self.v))
        return self.o(checkpoint(self.core, q, k, v, use_reentrant=False).transpose(1, 2).flatten(2))
"""


def test_the_mode_is_the_same_where_a_backward_pass_computes_once_more(make: Make) -> None:
    (dropped,) = run(make(CHECKPOINTED), ("dropout.evaluation",), ("float32",))
    assert (dropped.status, dropped.failed) == (Status.PASS, 0)


UNSCALED = """
class NAME(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.q, self.k, self.v, self.o = heads, *(nn.Linear(dim, dim, bias=False) for _ in range(4))
    def forward(self, x, position_bias=None):
        q, k, v = (split(each(x), self.h) for each in (self.q, self.k, self.v))
        s = q @ k.mT + (0.0 if position_bias is None else position_bias)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
f = NAME
"""


@pytest.mark.parametrize(("name", "status"), [("T5Attention", Status.PASS), ("Attention", Status.FAIL)])
def test_scores_are_not_scaled_where_the_name_states_it(make: Make, name: str, status: Status) -> None:
    made = make(UNSCALED.replace("NAME", name))
    (found,) = run(made, ("scores.scale-default",), ("float32",))
    assert found.status is status
    assert "numbers are added as its 'position_bias'" in made.about


ROTATED_UNSCALED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.q, self.k, self.v, self.o = heads, *(nn.Linear(dim, dim, bias=False) for _ in range(4))
    def forward(self, x):
        q, k, v = (split(each(x), self.h) for each in (self.q, self.k, self.v))
        width = q.shape[-1]
        angles = torch.arange(q.shape[-2])[:, None] * 10000.0 ** (-torch.arange(0, width, 2).double() / width)
        c, s = (each.to(x.dtype) for each in (angles.cos(), angles.sin()))
        q, k = (torch.cat([a * c - b * s, a * s + b * c], -1) for a, b in (each.chunk(2, -1) for each in (q, k)))
        return self.o((q @ k.mT).softmax(-1).matmul(v).transpose(1, 2).flatten(2))  # NOTE
"""


@pytest.mark.parametrize(("note", "status"), [("as in T5, no scaling", Status.PASS), ("joined", Status.FAIL)])
def test_rotated_scores_are_not_scaled_where_the_text_states_it(make: Make, note: str, status: Status) -> None:
    made = make(ROTATED_UNSCALED.replace("NOTE", note))
    (found,) = run(made, ("scores.dot-product",), ("float32",))
    assert found.status is status
    assert made.claims.premises.rotary_base == 10000.0


PREPARED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.k = None
    def setup_caches(self, max_batch_size, max_seq_len):
        width = self.out.in_features // self.h
        self.k, self.v = (torch.zeros(max_batch_size, self.h, max_seq_len, width) for _ in "kv")
        self.at = 0
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        start, n = 0, x.shape[1]
        if self.k is not None:
            start = self.at
            for held, new in ((self.k, k), (self.v, v)):
                held[:, :, start : start + n] = new.detach()
            k, v = (held[:, :, : start + n].to(x) for held in (self.k, self.v))
            self.at += {step}
        later = torch.ones(n, start + n, dtype=torch.bool).triu(start + 1)
        return self.out(attend(q, k, v, ~later)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("step", "wrong"), [("n", False), ("1", True)])
def test_a_cache_that_has_to_be_made_is_made(make: Make, step: str, wrong: bool) -> None:
    assert fails(make, PREPARED.format(step=step)) is wrong


SIXES = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        if dim % 6:
            raise ValueError("the width has to be a multiple of 6")
        self.h, self.q, self.kv, self.out = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in (self.q(x), *self.kv(x).chunk(2, -1)))
        return self.out(attend(q, k, v)[0].transpose(1, 2).flatten(2)){wrong}
"""


@pytest.mark.parametrize("wrong", ["", " * (1.0 if self.h < 5 else 1.01)"])
def test_sizes_of_heads_that_a_module_refuses_by_a_statement_are_its_limit(make: Make, wrong: str) -> None:
    made = make(SIXES.format(wrong=wrong))
    assert "heads not claimed: ValueError: the width has to be a multiple of 6" in made.about
    found = run(made, ("heads.*", "relations.grad-mode"), ("float32",))
    assert {each.status for each in found} == ({Status.PASS, Status.FAIL} if wrong else {Status.PASS})


REQUESTED = """
class f(nn.Module):
    def __init__(self, dim, heads, dropout=0.0):
        super().__init__()
        self.h, self.qkv, self.out, self.rate = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), dropout
    def forward(self, x, mask=None, output_attentions=False):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        rate = self.rate if self.training else 0.0
        mask, weights = None if mask is None else mask[:, None, None, :], None
        if output_attentions:
            _, weights, _ = attend(q, k, v, mask)
            y = {dropped} @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=rate)
        y = self.out(y.transpose(1, 2).flatten(2))
        return (y, {weights}) if output_attentions else y
"""


@pytest.mark.parametrize(
    ("dropped", "weights", "wrong"),
    [
        ("F.dropout(weights, rate)", "weights", False),  # rows without keys get NaN in this way alone
        ("F.dropout(weights, rate)", "weights.mean(1)", False),
        ("F.dropout(weights, rate)", "weights * v.abs().sum(-1, keepdim=True).mT", True),
        ("F.dropout(weights, self.rate)", "weights", True),
        ("weights.roll(1, -1)", "weights", True),
    ],
)
def test_weights_on_request_change_nothing_else(make: Make, dropped: str, weights: str, wrong: bool) -> None:
    assert fails(make, REQUESTED.format(dropped=dropped, weights=weights)) is wrong
