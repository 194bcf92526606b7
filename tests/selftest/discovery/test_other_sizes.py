"""Classes that refuse the sizes or the dtype in which they are looked at first, and functions that are given sizes."""

import pytest

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, make

__all__ = ["make"]

SELECTIVE = """
class {name}(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        {built}
        self.h, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        {called}
        q, k, v = (split(part, self.h) for part in self.qkv(x).chunk(3, -1))
        return self.proj(attend(q, k, v, scale={scale})[0].transpose(1, 2).flatten(2))
"""
USUAL, WRONG = "q.shape[-1] ** -0.5", "0.8 * q.shape[-1] ** -0.5"
EIGHTS = "assert dim // num_heads % 8 == 0, 'heads of 8, 16, ... components'"
POWERS = "assert x.shape[-1] // self.h in (32, 64, 128)"
EVEN = "if num_heads % 2: raise ValueError('an even number of heads')"


def both(text: str, scales: tuple[str, str]) -> str:
    """A file with two of the same form: f with one scale, g with another one."""
    return "".join(text.replace("{name}", n).replace("{scale}", s) for n, s in zip("fg", scales, strict=True))


@pytest.mark.parametrize(
    ("built", "called", "sizes"),
    [(EIGHTS, "pass", (2, 16)), ("pass", POWERS, (2, 32)), (EVEN, "pass", (2, 11)), (EVEN, POWERS, (2, 32))],
)
def test_a_class_that_refuses_the_first_sizes_is_judged_at_others(
    make: Make, built: str, called: str, sizes: tuple[int, int]
) -> None:
    text = both(SELECTIVE.replace("{built}", built).replace("{called}", called), (USUAL, WRONG))
    right = make(text)
    assert_conforms(right)
    fitted = fit(Case().sized(num_heads=sizes[0], d_k=11, d_v=11), right.claims)
    assert isinstance(fitted, Case)
    assert (fitted.sizes.num_heads, fitted.sizes.d_k) == sizes
    assert "other numbers or widths of heads not claimed" in right.about
    with pytest.raises(AssertionError):
        assert_conforms(make(text, "g"))


def test_the_next_number_of_heads_is_taken_where_its_own_is_refused(make: Make) -> None:
    claims = make(SELECTIVE.format(name="f", built=EVEN, called="pass", scale=USUAL)).claims
    fitted = fit(Case().sized(num_heads=3), claims)
    assert isinstance(fitted, Case)
    assert fitted.sizes.num_heads == 4
    assert isinstance(fit(Case().sized(num_heads=6, num_kv_heads=2), claims), Unsupported)


def test_the_form_of_a_class_with_parameters_in_half_is_looked_for_in_float32(make: Make) -> None:
    halved = (
        SELECTIVE.replace("{built}", "pass")
        .replace("{called}", "pass")
        .replace("3 * dim)", "3 * dim, dtype=torch.bfloat16)")
    )
    text = both(halved, (USUAL, WRONG))
    assert_conforms(make(text))
    with pytest.raises(AssertionError):
        assert_conforms(make(text, "g"))


WINDOWS = """
class {name}(nn.Module):
    def __init__(self, dim, num_heads, {window}=7):
        super().__init__()
        assert {window} > 1
        self.h, self.w = num_heads, {window}
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x{sides}):
        shape, w = x.shape, self.w
        x = x.view(len(x), {rows} // w, w, {columns} // w, w, -1).transpose(2, 3).flatten(0, 2).flatten(1, 2)
        q, k, v = (split(part, self.h) for part in self.qkv(x).chunk(3, -1))
        x = self.proj(attend(q, k, v, scale={scale})[0].transpose(1, 2).flatten(2))
        return x.view(-1, {rows} // w, {columns} // w, w, w, x.shape[-1]).transpose(2, 3).reshape(shape)
"""


@pytest.mark.parametrize(
    "forms",
    [
        {"window": "window_size", "sides": "", "rows": "shape[1]", "columns": "shape[2]"},
        {"window": "ws", "sides": ", H, W", "rows": "H", "columns": "W"},
    ],
)
def test_windows_of_an_image_are_judged_one_at_a_time(make: Make, forms: dict[str, str]) -> None:
    text = WINDOWS
    for name, form in forms.items():
        text = text.replace(f"{{{name}}}", form)
    text = both(text, (USUAL, "self.proj.in_features ** -0.5"))
    right = make(text)
    assert_conforms(right)
    assert right.claims.premises.length == 16
    with pytest.raises(AssertionError):
        assert_conforms(make(text, "g"))


IN_HEADS = """
def {name}(q, k, v, num_q_heads, num_kv_heads):
    k, v = (x.repeat_interleave(num_q_heads // num_kv_heads, dim=1) for x in (k, v))
    return attend(q, k, v, scale={scale})[0]
"""
BY_TOKENS = """
def {name}(q, k, v, n_heads, n_kv_heads, head_dim):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(n_heads // n_kv_heads, dim=1) for x in (k, v))
    return attend(q, k, v, scale={scale})[0].transpose(1, 2)
"""
SIDE_BY_SIDE = """
def {name}(q, k, v, num_q, num_kv, head_dim, group_size):
    n, out = q.shape[0], np.zeros_like(q).reshape(q.shape[0], num_q, head_dim)
    q, k, v = (x.reshape(len(x), heads, head_dim) for x, heads in ((q, num_q), (k, num_kv), (v, num_kv)))
    for h in range(num_q):
        s = q[:, h] @ k[:, h // group_size].T * {scale}
        e = np.exp(s - s.max(-1, keepdims=True))
        out[:, h] = e / e.sum(-1, keepdims=True) @ v[:, h // group_size]
    return out.reshape(n, -1)
"""


@pytest.mark.parametrize(
    ("text", "scales"),
    [
        (IN_HEADS, (USUAL, WRONG)),
        (BY_TOKENS, ("head_dim ** -0.5", "0.8 * head_dim ** -0.5")),
        (SIDE_BY_SIDE, ("head_dim ** -0.5", "0.8 * head_dim ** -0.5")),
    ],
)
def test_functions_are_given_the_sizes_of_their_inputs(make: Make, text: str, scales: tuple[str, str]) -> None:
    right = make(both(text, scales))
    assert_conforms(right)
    assert "are those of its inputs" in right.about
    assert Feature.GROUPED in right.claims
    assert not isinstance(fit(Case().sized(num_heads=6, num_kv_heads=2), right.claims), Unsupported)
    with pytest.raises(AssertionError):
        assert_conforms(make(both(text, scales), "g"))


BOTTOM_RIGHT = """
def {name}({inputs}, {more}):
    q, k, v = {inputs}
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if is_causal:
        later = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + s.shape[-1] - s.shape[-2])
        s = s.masked_fill(later, -1e9)
    return s.softmax(-1) @ v
"""


@pytest.mark.parametrize("more", ["is_causal=True", "is_causal=False, training=False"])
def test_a_flag_of_another_interface_promises_no_corner(make: Make, more: str) -> None:
    written = BOTTOM_RIGHT.replace("{inputs}", "query, key, value")
    text = "".join(written.format(name=n, more=m) for n, m in (("f", more), ("g", "is_causal=False")))
    own, published = make(text), make(text, "g")
    assert own.claims.conventions.causal_alignment == "bottom-right"
    assert published.claims.conventions.causal_alignment == "top-left"
