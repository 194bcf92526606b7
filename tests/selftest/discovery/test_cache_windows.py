"""Decoding steps over pages with a window and slopes, which stand at the last key of each sample."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

DECODE = '''
def f(q, k_cache, v_cache, block_tables, context_lens, scale=None, sliding_window=None, alibi_slopes=None):
    """q: (B, H, D), k_cache, v_cache: (num_blocks, block_size, H, D)

    context_lens: (B,) int{lengths}
    """
    scale, size = scale or q.shape[-1] ** -0.5, k_cache.shape[1]
    out = np.empty((*q.shape[:2], v_cache.shape[-1]), q.dtype)
    for b, n in enumerate(context_lens):
        start = 0 if sliding_window is None else max(0, n - sliding_window)
        start = {start}
        keys, values = (each[block_tables[b]].reshape(-1, *each.shape[2:])[start:n] for each in (k_cache, v_cache))
        s = np.einsum("hd,shd->hs", q[b], np.repeat(keys, q.shape[1] // keys.shape[1], 1)) * scale
        if alibi_slopes is not None:
            s = s + alibi_slopes[:, None] * (start + np.arange(len(keys)) - {query})
        p = np.exp(s - s.max(-1, keepdims=True))
        p = p / p.sum(-1, keepdims=True)
        out[b] = np.einsum("hs,shd->hd", p, np.repeat(values, q.shape[1] // values.shape[1], 1))
    return out
'''
RIGHT = {"lengths": "", "start": "start", "query": "(n - 1)"}
CLAUSES = ("masks.*", "window.*", "positions.*", "paged.*")


@pytest.mark.parametrize("lengths", ["", ", all >= 1"], ids=["raising", "documented"])
def test_lengths_of_0_are_no_claim_of_a_cache(make: Make, lengths: str) -> None:
    assert not failing(make(DECODE.format(**{**RIGHT, "lengths": lengths})), *CLAUSES)


SLIPS = {
    "begins with a page": ({"start": "start // size * size"}, "window.extent"),
    "slopes reversed": ({"query": "2 * (start + np.arange(len(keys))) + (n - 1)"}, "positions.alibi"),
}


@pytest.mark.parametrize(("slip", "clause"), SLIPS.values(), ids=SLIPS)
def test_mistakes_of_a_window_and_of_slopes(make: Make, slip: dict[str, str], clause: str) -> None:
    found = failing(make(DECODE.format(**{**RIGHT, **slip})), *CLAUSES)
    assert clause in found
    assert ("positions.alibi" in found) is (clause == "positions.alibi")
