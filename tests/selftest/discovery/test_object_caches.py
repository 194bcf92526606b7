"""Caches that are objects with named arrays: of a class of the file, or of the names that the code reads."""

import pytest

from attention_conformance.implementations.discovery.functions.object_caches import part_of, parts_in
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make
from attention_conformance.tests.selftest.thorough import thorough

TUPLE = """
from typing import NamedTuple
class Seen(NamedTuple):
    k: torch.Tensor
    v: torch.Tensor
    index: int
def f(q, k, v, cache):
    at = {at}
    ks, vs = cache.k.clone(), cache.v.clone()
    ks[:, at], vs[:, at] = k[:, 0], v[:, 0]
    s = torch.einsum("bqhd,bkhd->bhqk", q, ks) / q.shape[-1] ** 0.5
    s = s.masked_fill(torch.arange(ks.shape[1]) > {last}, {fill})
    return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), vs), Seen(ks, vs, cache.index + {by})
"""
RIGHT = {"at": "cache.index", "last": "cache.index", "fill": "-torch.inf", "by": "1"}
UNSEEN = {"last": "cache.index - 1"}


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({}, Status.PASS),
        (UNSEEN, Status.FAIL),
        ({**UNSEEN, "fill": "torch.finfo(s.dtype).min"}, Status.FAIL),
        ({"last": "10**9"}, Status.FAIL),
        ({"by": "0"}, Status.FAIL),
        ({"at": "cache.index + 1"}, Status.FAIL),
    ],
)
def test_steps_with_a_named_tuple(make: Make, wrong: dict[str, str], status: Status) -> None:
    made = make(TUPLE.format(**RIGHT | wrong))
    assert "one token after another, with an empty cache in 'cache'" in made.about
    assert not made.findings
    (found,) = run(made, ("causal.square",) if made.claims.premises.causal else ("scores.dot-product",), ("float64",))
    assert found.status is status, found.message


PIECES = """
{before}
def f(q, k, v, cache{default}):
    n = {count}
    end = n + q.shape[2]
    {keys}[:, :, n:end], {values}[:, :, n:end] = k, v
    i, j = np.arange(n, end)[:, None], np.arange({keys}.shape[2])
    s = np.where(j > {last}, -np.inf, q @ {keys}.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    e = np.exp(s - s.max(-1, keepdims=True))
    {count} = end
    return e / e.sum(-1, keepdims=True) @ {values}
"""
NAMES = {"before": "", "default": "", "keys": "cache.keys", "values": "cache.values", "count": "cache.pos"}
ITEMS = {"keys": "cache['cached_key']", "values": "cache['cached_value']", "count": "cache['cache_index']"}
CLASS = "class Kept:\n    def __init__(self, keys, values, pos):\n"
CLASS += "        self.keys, self.values, self.pos = keys, values, pos\n"


@pytest.mark.parametrize(("last", "status"), [("i", Status.PASS), ("i - n", Status.FAIL)])
@pytest.mark.parametrize("names", [{}, ITEMS, {"before": CLASS}])
def test_pieces_with_what_is_changed(make: Make, names: dict[str, str], last: str, status: Status) -> None:
    made = make(PIECES.format(**NAMES | names, last=last))
    assert any("in pieces of several tokens through cache" in way for way in made.alternatives)
    (found,) = run(made, ("relations.alternatives",), ("float64",))
    assert found.status is status, found.message


GROWING = """
from typing import NamedTuple
class Seen(NamedTuple):
    key: torch.Tensor
    value: torch.Tensor
    offset: int
def f(q, k, v, past):
    k, v = torch.cat([past.key, k], 2), torch.cat([past.value, v], 2)
    i, j = torch.arange(q.shape[2])[:, None] + {first}, torch.arange(k.shape[2])
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(j > i, -torch.inf)
    return s.softmax(-1) @ v, Seen(k, v, past.offset + q.shape[2])
"""


@pytest.mark.parametrize(("first", "status"), [("past.offset", Status.PASS), ("0", Status.FAIL)])
def test_arrays_that_grow_get_no_room(make: Make, first: str, status: Status) -> None:
    made = make(GROWING.format(first=first))
    assert any("in pieces of several tokens through past" in way for way in made.alternatives)
    (found,) = run(made, ("relations.alternatives",), ("float64",))
    assert found.status is status, found.message


JAX = """
import jax
import jax.numpy as jnp
from typing import NamedTuple
class Cache(NamedTuple):
    k: jax.Array
    v: jax.Array
    index: jax.Array
    @classmethod
    def empty(cls, batch, max_len, heads, dim, dtype=jnp.float32):
        none = jnp.zeros((batch, max_len, heads, dim), dtype)
        return cls(none, none, jnp.zeros((), jnp.int32))
@jax.jit
def f(q, k, v, cache):
    k, v = (jax.lax.dynamic_update_slice(c, x, (0, cache.index, 0, 0)) for c, x in ((cache.k, k), (cache.v, v)))
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    s = jnp.where(jnp.arange(k.shape[1]) {hidden} cache.index, jnp.finfo(s.dtype).min, s)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v), Cache(k, v, cache.index + 1)
"""


@thorough  # JAX compiles a program for each shape
@pytest.mark.parametrize(("hidden", "status"), [(">", Status.PASS), (">=", Status.FAIL)])
def test_steps_of_jax(make: Make, hidden: str, status: Status) -> None:
    pytest.importorskip("jax")
    made = make(JAX.format(hidden=hidden))
    assert "one token after another, with an empty cache in 'cache'" in made.about
    (found,) = run(made, ("causal.square",), ("float32",))
    assert found.status is status, found.message


def test_names_of_parts() -> None:
    named = {*parts_in(["k_cache", "v_cache", "cur_len", "max_len"])}
    assert named == {"k_cache", "v_cache", "cur_len", "max_len"}
    assert not parts_in(["k", "length"])
    assert part_of("num_heads") is None
