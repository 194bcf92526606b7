"""Inputs that lie in one array, masks that have to be given, inputs that are not read: as people publish them."""

from contextlib import nullcontext

import pytest

from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

PACKED = """
class f(nn.Module):
    def __init__(self, *, device: torch.device, heads: int, n_ctx: int):
        super().__init__()
        self.heads, self.device = heads, device
    def forward(self, qkv):
        q, k, v = ({split})
        return {joined}
"""
THIRDS = "each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in qkv{turned}.chunk(3, -1)"
IN_HEADS = "each.transpose(1, 2) for each in qkv{turned}.unflatten(-1, (self.heads, -1)).chunk(3, -1)"
OUTPUT = "attend(q, k, v{scale})[0].transpose(1, 2).flatten(2){turned}"
NEEDED = """
def f(query, key, value, mask{default}):
    s = query @ key.mT / query.shape[-1] ** 0.5
    return s.masked_fill({hidden}, -1e9).softmax(-1) @ value
"""
UNREAD = """
class f(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.qkv, self.proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
    def forward(self, x, xpos):
        q, k, v = (split(each, self.h) for each in self.qkv({read}).chunk(3, -1))
        return self.proj(attend(q, k, v)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("split", "turned", "scale"),
    [(THIRDS, "", ""), (IN_HEADS, "", ", scale=0.3"), (THIRDS, ".mT", ""), (IN_HEADS, ".mT", "")],
)
def test_a_class_of_one_array_and_a_number_of_heads(make: Make, split: str, turned: str, scale: str) -> None:
    text = PACKED.format(split=split.format(turned=turned), joined=OUTPUT.format(turned=turned, scale=scale))
    made = make(text)
    assert made.claims.scope is Scope.OP
    assert "it takes query, key and value in one array" in made.about
    with pytest.raises(AssertionError, match="elements differ") if scale else nullcontext():
        assert_conforms(made)


def test_heads_in_the_batch_of_one_array(make: Make) -> None:
    made = make("def f(qkv):\n    q, k, v = qkv.mT.chunk(3, -1)\n    return attend(q, k, v)[0].mT\n")
    assert "in one array (B * H, 3 * d, L)" in made.about
    assert_conforms(made)


@pytest.mark.parametrize(
    ("default", "hidden"), [("", "mask[:, None, None] == 0"), ("=None", "mask[:, None, None].roll(1, -1)")]
)
def test_a_mask_of_keys_that_has_to_be_given(make: Make, default: str, hidden: str) -> None:
    made = make(NEEDED.format(default=default, hidden=hidden))
    assert Feature.KEY_PADDING in made.claims
    with pytest.raises(AssertionError, match="elements differ") if "roll" in hidden else nullcontext():
        assert_conforms(made)


def test_masks_of_all_axes_alone(make: Make) -> None:
    made = make(NEEDED.format(default="=None", hidden="torch.zeros(1).bool() if mask is None else mask[:, :, :, :]"))
    assert "its 'mask' is given as (B, H, Lq, Lk)" in made.about
    assert_conforms(made)


@pytest.mark.parametrize("added", ["mask[:, :, :, : k.shape[-2]]", "mask[:, :, :, : k.shape[-2]].roll(1, 1)"])
def test_added_masks_of_all_axes_alone(make: Make, added: str) -> None:
    made = make(f"""
def f(q, k, v, mask=None):
    s = q @ k.mT / q.shape[-1] ** 0.5
    return (s if mask is None else s + {added}).softmax(-1) @ v
""")
    assert "its 'mask' is given as (B, H, Lq, Lk)" in made.about
    with pytest.raises(AssertionError, match="elements differ") if "roll" in added else nullcontext():
        assert_conforms(made)


ROWS_CUT_OUT = '''
def f(q, k, v, bias=None):
    """{words}"""
    parts = []
    for first in range(0, max(1, q.shape[-2]), 8):
        own = q[..., first : first + 8, :]
        shape = (*q.shape[:2], own.shape[-2], k.shape[-2])
        added = 0 if bias is None else bias[..., first : first + 8, :].expand(shape){more}
        parts.append((own @ k.mT / q.shape[-1] ** 0.5 + added).softmax(-1) @ v)
    return torch.cat(parts, -2)
'''


@pytest.mark.parametrize(
    ("words", "more", "wrong"),
    [
        ("bias broadcasts to (B, H, N, M), with its last two sizes N and M.", "", False),
        ("bias is added to the scores.", "", False),
        ("bias is added to the scores.", ".roll(first // 8, -1)", True),
        ("bias broadcasts to (B, H, N, M).", "", True),
    ],
)
def test_rows_of_a_bias_that_each_block_cuts_out(make: Make, words: str, more: str, wrong: bool) -> None:
    made = make(ROWS_CUT_OUT.format(words=words, more=more))
    assert bool(failing(made, "masks.*", "shapes.combinations", dtype="float64")) is wrong


def test_the_width_of_a_head_before_the_heads(make: Make) -> None:
    axes = "x.permute(0, 2, 3, 1) for x in (q, k, v)"
    made = make(f"def f(q, k, v):\n    return attend(*({axes}))[0].permute(0, 3, 1, 2)\n")
    assert "called in its own layout (B, d, H, L)" in made.about
    assert_conforms(made)


def test_a_second_input_that_is_not_read(make: Make) -> None:
    made = make(UNREAD.format(read="x"))
    assert "judged without 'xpos', which changes nothing" in made.about
    assert_conforms(made)


def test_a_second_input_that_is_read_is_not_left_out(make: Make) -> None:
    text = UNREAD.format(read="x if xpos is None else x + xpos")
    try:
        made = make(text)
    except TargetError:
        return
    assert "which changes nothing" not in made.about


def test_a_class_that_has_to_be_told_a_flag(make: Make) -> None:
    made = make("""
class f(nn.Module):
    def __init__(self, allow_flash: bool) -> None:
        super().__init__()
    def forward(self, q, k, v, mask=None):
        return attend(q, k, v, mask)[0]
""")
    assert made.claims.scope is Scope.OP
    assert_conforms(made)
