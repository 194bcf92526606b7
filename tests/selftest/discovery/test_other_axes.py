"""Ways to call that are documented for a shipped function: xFormers' other axes, and the blocks of flex_attention."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

XFORMERS = """
def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None):
    if query.ndim {refused}:
        raise ValueError("queries of other axes")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (x.unsqueeze(2) if query.ndim == 3 else x.flatten(2, -2) for x in (query, key, value))
    s = torch.einsum("blhd,bmhd->bhlm", q * scale, k)
    if attn_bias is not None:
        s = s + (attn_bias.reshape(s.shape) if query.ndim != 4 else attn_bias)
    x = torch.einsum("bhlm,bmhd->blhd", torch.dropout(s.softmax(-1), p, True), v)
    if query.ndim == 5:
        return {grouped}
    return x.squeeze(2) if query.ndim == 3 else x
"""
GROUPED = "x.unflatten(2, query.shape[2:4])"
SWAPPED = "x.unflatten(2, query.shape[2:4][::-1]).transpose(2, 3)"
GROUPS = "with its heads in groups, (B, L, G, H, d)"
FLEX = """
def flex_attention(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False):
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    s = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    B, H, L, K = s.shape
    at = [torch.arange(n).view([-1 if axis == own else 1 for axis in range(4)]) for own, n in enumerate(s.shape)]
    if score_mod is not None:
        s = score_mod(s, *at)
    if block_mask is not None:
        rows, columns = block_mask.BLOCK_SIZE
        seen = torch.zeros_like(s, dtype=torch.bool)
        hidden = ~block_mask.mask_mod(*at).expand(s.shape)
        listed = ((block_mask.kv_num_blocks, block_mask.kv_indices, False),
                  (block_mask.full_kv_num_blocks, block_mask.full_kv_indices, True))
        for number, which, full in listed:
            for b, h, i in () if number is None else np.ndindex(B, H, -(-L // rows)):
                own = min(b, number.shape[0] - 1), min(h, number.shape[1] - 1), i
                for j in which[own][: number[own]].tolist():
                    {skipped}
                    tile = (b, h, slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
                    seen[tile] = True if full else ~hidden[tile]
        s = s.masked_fill(~seen, -torch.inf)
        empty = ~seen.any(-1, keepdim=True)
        return s.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0) @ value
    return s.softmax(-1) @ value
"""
BLOCKS = "with several blocks of keys, of which some are full"


@pytest.mark.parametrize(("grouped", "wrong"), [(GROUPED, False), (SWAPPED, True)])
def test_heads_in_groups(make: Make, grouped: str, wrong: bool) -> None:
    made = make(XFORMERS.format(grouped=grouped, refused="< 3"), "memory_efficient_attention")
    assert GROUPS in made.alternatives
    assert bool(failing(made, "relations.alternatives")) is wrong
    assert not failing(made, "scores.dot-product", "masks.float")


def test_axes_that_are_refused_are_not_claimed(make: Make) -> None:
    made = make(XFORMERS.format(grouped=GROUPED, refused="!= 4"), "memory_efficient_attention")
    assert GROUPS not in made.alternatives
    assert any(f"{GROUPS} not claimed" in each for each in made.stated)
    assert not failing(made, "relations.alternatives")


@pytest.mark.parametrize(("skipped", "wrong"), [("", False), ("if full: continue", True)])
def test_blocks_of_keys(make: Make, skipped: str, wrong: bool) -> None:
    made = make(FLEX.format(skipped=skipped), "flex_attention")
    assert BLOCKS in made.alternatives
    assert bool(failing(made, "relations.alternatives")) is wrong
