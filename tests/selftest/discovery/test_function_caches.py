"""Caches that functions take: in whatever form, a sequence in pieces is answered as the whole is."""

import pytest

from attention_conformance.implementations.discovery.functions.needed_arrays import with_needed_arrays
from attention_conformance.implementations.discovery.modules.own_cache import UNKNOWN_FORM
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make
from attention_conformance.tests.selftest.thorough import thorough

ATTENDED = """
def attended(q, k, v, first, last=10**9):
    i, j = torch.arange(q.shape[2])[:, None] + first, torch.arange(k.shape[2])
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill((j > i) | (j <= i - last), -torch.inf)
    return s.softmax(-1) @ v
"""
DICTIONARY = """
def f(q, k, v, cache=None):
    past = 0
    if cache is not None:
        if "k" in cache:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        cache["k"], cache["v"] = k, v
        past = cache["k"].shape[2] - {less}
    return attended(q, k, v, past)
"""
RETURNED = """
def f(q, k, v, state=None):
    if state is not None:
        k, v = np.concatenate([state[0], k], 1), np.concatenate([state[1], v], 1)
    s = np.einsum("hqd,hkd->hqk", q, k) / np.sqrt(q.shape[-1])
    if {masked}:
        s = np.where(np.triu(np.ones(s.shape[1:], bool), 1 + k.shape[1] - q.shape[1]), -np.inf, s)
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("hqk,hkd->hqd", e / e.sum(-1, keepdims=True), v), (k, v)
"""
OBJECT = """
class KVCache:
    def __init__(self, batch_size, num_heads, max_len, head_dim, dtype=torch.float32):
        self.k, self.v = (torch.zeros(batch_size, max_len, num_heads, head_dim, dtype=dtype) for _ in "kv")
def f(q, k, v, kv_cache: KVCache = None, start_pos=0):
    past, k, v = start_pos, k, v
    if kv_cache is not None:
        end = past + k.shape[1]
        kv_cache.k[:, past:end], kv_cache.v[:, past:end] = k, v
        k, v = kv_cache.k[:, :end], kv_cache.v[:, :end]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return attended(q, k, v, {first}).transpose(1, 2)
"""
FLAGGED = """
def f(q, k, v, num_heads, causal=False, past_k=None, past_v=None):
    if past_k is not None:
        k, v = torch.cat([{k}], 1), torch.cat([{v}], 1)
    a, b, c = (split(x, num_heads) for x in (q, k, v))
    o = attended(a, b, c, b.shape[2] - a.shape[2]) if causal else attended(a, b, c, 10**6)
    return o.transpose(1, 2).flatten(2), k, v
"""
ROLLING = """
def f(q, k, v, cache=None, window=4):
    past = 0
    if cache is not None:
        if cache:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        past, cache[:] = k.shape[2] - q.shape[2], [x[:, :, -max(1, window - {less}):] for x in (k, v)]
    return attended(q, k, v, past, window)
"""
NEEDED = """
def f(q, k, v, cache):
    past = cache["k"].shape[2] if cache else 0
    if cache:
        k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
    cache.update(k=k, v=v)
    return attended(q, k, v, {first})
"""

APART = """
def f(q, k, v, past_k, past_v, start_pos):
    k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    return attended(q, k, v, {first}), k, v
"""


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize(
    ("text", "forms"),
    [
        (DICTIONARY, ({"less": "q.shape[2]"}, {"less": "0"})),
        (RETURNED, ({"masked": "True"}, {"masked": "state is None"})),
        (OBJECT, ({"first": "past"}, {"first": "past + (past > 0)"})),
        (FLAGGED, ({"k": "past_k, k", "v": "past_v, v"}, {"k": "k, past_k", "v": "v, past_v"})),
        (ROLLING, ({"less": "1"}, {"less": "2"})),
        (NEEDED, ({"first": "past"}, {"first": "0"})),
        (APART, ({"first": "start_pos"}, {"first": "0"})),
    ],
)
def test_pieces_are_answered_as_the_whole(
    make: Make, text: str, forms: tuple[dict[str, str], dict[str, str]], wrong: bool
) -> None:
    made = make(ATTENDED + text.format(**forms[wrong]))
    assert not {*made.findings} & {"cache", "state", "kv_cache", "start_pos", "past_k", "past_v"}
    assert any("in pieces of several tokens through" in way for way in made.alternatives)
    (found,) = run(made, ("relations.alternatives",), ("float64",))
    assert found.status is (Status.FAIL if wrong else Status.PASS), found.message
    assert not wrong or "through" in found.message


STEP = """
def f(q, k, v, state, window=4):
    if not state:
        state.update(k=k.new_zeros(*k.shape[:2], window, k.shape[-1]), v=v.new_zeros(*v.shape[:2], window, v.shape[-1]))
        state["seen"] = 0
    slot = state["seen"] % window
    state["k"][:, :, slot], state["v"][:, :, slot] = k[:, :, 0], v[:, :, 0]
    state["seen"] += 1
    filled = {filled}
    s = (state["k"][:, :, :filled] * q).sum(-1, keepdim=True) / q.shape[-1] ** 0.5
    return (s.softmax(2) * state["v"][:, :, :filled]).sum(2, keepdim=True)
"""


@pytest.mark.parametrize(("filled", "status"), [("min(state['seen'], window)", Status.PASS), ("window", Status.FAIL)])
def test_a_step_of_one_token_is_fed_all_of_them(make: Make, filled: str, status: Status) -> None:
    made = make(STEP.format(filled=filled))
    assert "one token after another" in made.about
    assert not made.findings
    assert [each.status for each in run(made, ("causal.square", "window.causal"), ("float64",))] == [status] * 2


def test_a_cache_that_is_not_driven_is_named(make: Make) -> None:
    text = 'def f(q, k, v, cache=None, cache_len=None):\n    if cache is not None:\n        k, v = cache["lost"]\n'
    made = make(f"{text}    return attend(q, k, v)[0]\n")
    assert made.findings == {"cache": UNKNOWN_FORM}


def test_a_triangle_from_the_top_left_is_for_the_first_piece(make: Make) -> None:
    text = "def f(q, k, v, past=None, is_causal=False):\n    if past is not None:\n        k, v = "
    text += "(torch.cat([p, x], 2) for p, x in zip(past, (k, v)))\n"
    made = make(f"{text}    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal), (k, v)\n")
    assert "not judged with 'is_causal'" in made.findings["past"]
    (found,) = run(made, ("relations.alternatives",), ("float64",))
    assert found.status is Status.PASS


def test_a_cache_of_fewer_bits_is_judged_where_it_rounds_nothing(make: Make) -> None:
    text = OBJECT.replace(", dtype=torch.float32", "").replace(", dtype=dtype", "")
    made = make(ATTENDED + text.format(first="past"))
    assert any("through kv_cache" in way for way in made.alternatives)
    found = run(made, ("relations.alternatives",), ("float64", "float32"))
    assert [each.status for each in found] == [Status.PASS] * 2


JAX = """
import jax
import jax.numpy as jnp
def f(q, k, v, cache=None, pos=0):
    if cache is not None:
        cache = k, v = [jax.lax.dynamic_update_slice(c, x, (0, 0, pos, 0)) for c, x in zip(cache, (k, v))]
    i, j = jnp.arange(q.shape[2])[:, None] + pos, jnp.arange(k.shape[2])
    s = jnp.where(j > i, -jnp.inf, q @ k.mT / q.shape[-1] ** 0.5)
    return jax.nn.softmax(s, -1) @ v, cache
"""


@thorough  # JAX compiles a program for each piece
def test_room_for_tokens_is_given_where_places_are_stated(make: Make) -> None:
    pytest.importorskip("jax")
    made = make(JAX)
    assert any("through cache" in way for way in made.alternatives)
    assert not made.findings


SLOTS = """
def f(q, k, v, k_cache, v_cache, cache_index):
    '''{text}'''
    end = cache_index + q.shape[1]
    k_cache[:, cache_index:end], v_cache[:, cache_index:end] = k, v
    i, j = torch.arange(cache_index, end)[:, None], torch.arange(k_cache.shape[1])
    s = torch.einsum("bihd,bjhd->bhij", q, k_cache) / q.shape[-1] ** 0.5
    w = s.masked_fill(j > {last}, -torch.inf).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", w, v_cache)
"""
OF_SEVERAL = "Causal attention of the new tokens, which are a prompt at first."


@pytest.mark.parametrize(("last", "status"), [("i", Status.PASS), ("end - 1", Status.FAIL)])
def test_slots_by_index_keep_the_promise_of_causality(make: Make, last: str, status: Status) -> None:
    made = make(SLOTS.format(text=OF_SEVERAL, last=last))
    assert not made.findings
    assert "with an empty cache in 'k_cache' and 'v_cache'" in made.about
    assert any("in pieces of several tokens through k_cache, v_cache" in way for way in made.alternatives)
    found = run(made, ("causal.square", "relations.alternatives"), ("float64",))
    assert [each.status for each in found] == [status] * 2, [each.message for each in found]


@pytest.mark.parametrize(
    ("text", "how"), [("A step of causal attention.", "one token after another"), ("Attention.", "is given all tokens")]
)
def test_nothing_is_promised_of_several_tokens(make: Make, text: str, how: str) -> None:
    made = make(SLOTS.format(text=text, last="end - 1"))
    assert how in made.about
    found = run(made, ("scores.dot-product", "relations.alternatives"), ("float64",))
    assert [each.status for each in found] == [Status.PASS] * 2, [each.message for each in found]


MERGED = """
def f(q, k, v, cache_k, cache_v, start_pos):
    '''Causal attention of a prompt or a piece of it.'''
    n, end = len(q), start_pos + q.shape[1]
    cache_k[:n, start_pos:end], cache_v[:n, start_pos:end] = k, v
    i, j = torch.arange(start_pos, end)[:, None], torch.arange(cache_k.shape[1])
    s = torch.einsum("bihd,bjhd->bhij", q, cache_k[:n]) / q.shape[-1] ** 0.5
    o = s.masked_fill(j > {last}, -torch.inf).softmax(-1) @ cache_v[:n].transpose(1, 2)
    return {answer}
"""


@pytest.mark.parametrize(("last", "status"), [("i", Status.PASS), ("end - 1", Status.FAIL)])
@pytest.mark.parametrize(
    ("answer", "axes"), [("o.transpose(1, 2).reshape(n, len(i), -1)", "(B, L, H * D)"), ("o", "(B, H, L, D)")]
)
def test_the_output_next_to_a_cache_has_axes_of_its_own(
    make: Make, answer: str, axes: str, last: str, status: Status
) -> None:
    made = make(MERGED.format(answer=answer, last=last))
    assert f"its output is {axes}" in made.about
    assert any("in pieces of several tokens through cache_k, cache_v" in way for way in made.alternatives)
    found = run(made, ("causal.square", "relations.alternatives"), ("float64",))
    assert [each.status for each in found] == [status] * 2, [each.message for each in found]


MERGED_STEP = """
def f(q, k, v, kv_cache):
    '''A step of one token.'''
    if kv_cache:
        k, v = (np.concatenate([old, x[:, :, None]], 2) for old, x in zip(kv_cache, (k, v)))
    else:
        k, v = k[:, :, None], v[:, :, None]
    kv_cache[:] = k, v
    s = np.einsum("bhd,bhkd->bhk", q, k) {scaled}
    e = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhk,bhkd->bhd", e / e.sum(-1, keepdims=True), v).reshape(len(q), -1)
"""


@pytest.mark.parametrize(
    ("scaled", "status"), [("/ np.sqrt(q.shape[-1])", Status.PASS), ("/ q.shape[-1]", Status.FAIL)]
)
def test_the_heads_of_a_step_are_taken_apart(make: Make, scaled: str, status: Status) -> None:
    made = make(MERGED_STEP.format(scaled=scaled))
    assert "one token after another" in made.about
    assert "its output is (B, L, H * D)" in made.about
    (found,) = run(made, ("causal.square",), ("float64",))
    assert found.status is status, found.message


JAX_SLOTS = """
import jax
import jax.numpy as jnp
def f(q, k, v, k_cache, v_cache, cache_index):
    '''Causal attention of new tokens.'''
    k, v = (jax.lax.dynamic_update_slice(c, x, (0, 0, cache_index, 0)) for c, x in ((k_cache, k), (v_cache, v)))
    i, j = jnp.arange(q.shape[2])[:, None] + cache_index, jnp.arange(k.shape[2])
    s = jnp.where(j > {last}, -jnp.inf, q @ k.mT / q.shape[-1] ** 0.5)
    return jax.nn.softmax(s, -1) @ v, (k, v), cache_index + q.shape[2]
"""


@thorough  # JAX compiles a program for each piece
@pytest.mark.parametrize(("last", "status"), [("i", Status.PASS), ("i[-1]", Status.FAIL)])
def test_slots_of_jax_are_returned(make: Make, last: str, status: Status) -> None:
    pytest.importorskip("jax")
    made = make(JAX_SLOTS.format(last=last))
    assert any("in pieces of several tokens through k_cache, v_cache" in way for way in made.alternatives)
    found = run(made, ("causal.square", "relations.alternatives"), ("float64",))
    assert [each.status for each in found] == [status] * 2, [each.message for each in found]


def test_keys_and_values_of_earlier_calls_are_no_arrays_of_unknown_meaning() -> None:
    def f(q: object, k: object, v: object, k_cache: object, v_cache: object, unknown: object) -> None:
        raise AssertionError("it is not called")

    assert not [*with_needed_arrays(f)]


MODULE = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, causal=False, past=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v{wrong}], 2)
        o = attended(q, k, v, k.shape[2] - q.shape[2] if causal else 10**6)
        return self.out(o.transpose(1, 2).flatten(2)), (k, v)
"""


@pytest.mark.parametrize(("wrong", "status"), [("", Status.PASS), (" * 2", Status.FAIL)])
def test_a_module_that_sees_later_tokens_is_compared_in_its_last_piece(make: Make, wrong: str, status: Status) -> None:
    made = make(ATTENDED + MODULE.format(wrong=wrong))
    assert "past" not in made.findings
    (found,) = run(made, ("modules.as-built",), ("float64",))
    assert found.status is status, found.message
