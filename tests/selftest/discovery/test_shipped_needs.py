"""Functions of published interfaces that need more than these do: lengths, pages, new keys, or the causal flag."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

CACHED = """
def flash_attn_with_kvcache(q, k_cache, v_cache, {parameters}, softmax_scale=None{flag}):
    (b, n, h, d), lengths = q.shape, cache_seqlens.long()
    rows, size = torch.arange(b)[:, None], k_cache.shape[1]
    if {table} is not None:
        rows = {table}.long()
    count = lengths[:, None] + torch.arange({new}.shape[1] if {new} is not None else 0)
    turns = {cos}
    if turns is not None:
        def rotated(x, at):
            c, s = turns[at][:, :, None], {sin}[at][:, :, None]
            half = c.shape[-1]
            a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
            return torch.cat([a * c - b * s, a * s + b * c, rest], -1)
        q, k = rotated(q, count), rotated(k, {places})
    if {new} is not None:
        at = (rows.gather(1, count // size), count % size) if {table} is not None else (rows, count)
        k_cache[at], v_cache[at] = k, v
    keys, values = (x[rows].flatten(1, 2) if {table} is not None else x for x in (k_cache, v_cache))
    lengths = lengths + count.shape[1]
    s = torch.einsum("bihd,bjhd->bhij", q, keys.repeat_interleave(h // keys.shape[2], 2))
    s = s * (d**-0.5 if softmax_scale is None else softmax_scale)
    place = torch.arange(keys.shape[1])
    hidden = place >= lengths[:, None, None]
    if {causal}:
        hidden = hidden | (place > torch.arange(n)[:, None] + (lengths - n)[:, None, None])
    p = s.masked_fill(hidden[:, None], -torch.inf).softmax(-1).nan_to_num()
    values = values.masked_fill(hidden.all(1)[..., None, None], 0.0)
    return torch.einsum("bhij,bjhd->bihd", p, values.repeat_interleave(h // values.shape[2], 2))
"""
KVCACHE = "flash_attn_with_kvcache"
LENGTHS = {
    "parameters": "k=None, v=None, cache_seqlens=None",
    "flag": ", causal=False",
    "table": "None",
    "new": "k",
    "cos": "None",
    "sin": "None",
    "places": "count",
    "causal": "causal",
}
ROWS = {**LENGTHS, "parameters": "k=None, v=None, cache_seqlens=None, cache_batch_idx=None"}
PAGES = {**LENGTHS, "parameters": "k=None, v=None, cache_seqlens=None, block_table=None", "table": "block_table"}
NEW = {
    **LENGTHS,
    "parameters": "k, v, rotary_cos, rotary_sin, cache_seqlens",
    "flag": "",
    "cos": "rotary_cos",
    "sin": "rotary_sin",
    "causal": "True",
}


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("form", ["lengths", "pages", "new keys"])
def test_what_a_cache_needs(make: Make, form: str, wrong: bool) -> None:
    parts = {"lengths": LENGTHS, "pages": PAGES, "new keys": NEW}[form]
    text = CACHED.format(**parts)
    right, mistaken = {
        "lengths": ("place >= lengths[", "place > lengths["),
        "pages": ("count // size", "count[:, :1].expand_as(count) // size"),
        "new keys": ("rotated(k, count)", "rotated(k, count - lengths[:, None])"),
    }[form]
    assert right in text
    text = text.replace(right, mistaken) if wrong else text
    clauses = ("values.weighted-sum", "relations.alternatives", "rotary-tables.scores", "rotary-tables.start")
    assert bool(failing(make(text, KVCACHE), *clauses)) is wrong


COPIED = """
    if cache_batch_idx is not None:
        own, (k_cache, v_cache) = (k_cache, v_cache), (k_cache[cache_batch_idx], v_cache[cache_batch_idx])
    count = lengths"""
KEPT = "        k_cache[at], v_cache[at] = k, v\n"
BACK = """
        if cache_batch_idx is not None:
            own[0][cache_batch_idx], own[1][cache_batch_idx] = k_cache, v_cache
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_what_the_next_call_finds_in_the_cache(make: Make, wrong: bool) -> None:
    """Of rows that are taken by their numbers a copy is made, which is not that of the caller."""
    text = CACHED.format(**ROWS)
    assert KEPT in text
    text = text.replace("\n    count = lengths", COPIED, 1).replace(KEPT, KEPT + ("" if wrong else BACK))
    assert bool(failing(make(text, KVCACHE), "relations.alternatives")) is wrong


ALWAYS = """
def f(q, k, v, softmax_scale=None, causal=True, window_size=(-1, -1), learnable_sink=None):
    if not causal:
        raise NotImplementedError("causal alone")
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    ahead = torch.arange(k.shape[1]) - torch.arange(k.shape[1] - q.shape[1], k.shape[1])[:, None]
    s = s.masked_fill((ahead > 0) | ((ahead < -window_size[0]) & (window_size[0] >= 0)), -torch.inf)
    if learnable_sink is not None:
        s = torch.cat([s, {times}learnable_sink[:, None, None].expand(*s.shape[:3], 1)], -1)
    return torch.einsum("bhij,bjhd->bihd", s.softmax(-1).nan_to_num()[..., : k.shape[1]], v)
"""


@pytest.mark.parametrize(("times", "wrong"), [("", False), ("2 * ", True)])
def test_a_flag_that_has_to_be_set(make: Make, times: str, wrong: bool) -> None:
    made = make(ALWAYS.format(times=times))
    assert made.claims.premises.causal
    assert Feature.SINKS in made.claims
    assert failing(make(ALWAYS.format(times=times)), "values.weighted-sum", "sinks.sum") == {"sinks.sum"} & {
        "sinks.sum" if wrong else ""
    }
