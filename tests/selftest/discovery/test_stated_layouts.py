"""One array of query, key and value: in which order and axes they lie, as documentation states it."""

import pytest

from attention_conformance.implementations.discovery.documented_equations import states_blocks
from attention_conformance.tests.selftest.discovery.making import Make, failing

PACKED = '''
def f(qkv, num_heads):
    """{stated}"""
    B, L, E = qkv.shape
    {parts}
    q, k, v = (each.reshape(B, L, num_heads, -1).transpose(1, 2) for each in (q, k, v))
    return attend(q, k, v)[0].transpose(1, 2).flatten(2)
'''
BLOCKS, HEADS = "q, k, v = qkv.chunk(3, -1)", "q, k, v = qkv.view(B, L, num_heads, 3, -1).unbind(3)"
KEYS_FIRST = "k, q, v = qkv.chunk(3, -1)"
STATED = "qkv: (B, L, 3 * E), queries, keys and values concatenated along the last axis"


@pytest.mark.parametrize(
    ("stated", "parts", "wrong"),
    [
        (STATED, BLOCKS, False),
        (STATED, HEADS, True),
        (STATED, KEYS_FIRST, True),
        (f"{STATED} for each head", HEADS, False),
        ("Self-attention of one array.", HEADS, False),
        ("Self-attention of one array.", KEYS_FIRST, False),
        ("qkv: what ``torch.cat([q, k, v], dim=-1)`` gives", HEADS, True),
    ],
)
def test_documentation_states_how_one_array_is_laid_out(make: Make, stated: str, parts: str, wrong: bool) -> None:
    made = make(PACKED.format(stated=stated, parts=parts))
    assert bool(failing(made, "scores.dot-product", "heads.*")) is wrong


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("It takes cat((q, k, v), -1).", True),
        ("The concatenation of query, key and value along the last dimension.", True),
        ("q, k, v one after the other in the feature axis", True),
        ("Not the queries, keys and values concatenated along the last axis.", False),
        ("Unlike torch.cat([q, k, v], dim=-1), it is head by head.", False),
        ("For each head its q, k, v side by side in the last axis.", False),
        ("Parameters: qkv: what torch.cat([q, k, v], dim=-1) gives.", True),
        ("torch.cat([q, k, v], dim=1)", False),
        ("torch.cat([k, q, v], dim=-1)", False),
        ("The heads are concatenated along the last axis.", False),
        ("q, k, v concatenated on the last axis for each of the heads", False),
        ("The weights q, k and v concatenated along the last dim.", False),
        ("Keys and values concatenated along the last axis.", False),
    ],
)
def test_what_states_blocks(text: str, stated: bool) -> None:
    def function(qkv: object) -> object:
        return qkv

    function.__doc__ = text
    assert states_blocks(function) is stated
