"""Candidates that are always causal: recognised and judged as such, and a wrong one is still wrong."""

import numpy as np
import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.claim_checks import PLAIN
from attention_conformance.spec.conventions import Alignment, EmptyRow
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.premises import NO_PREMISES, Premises
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing, refused

CAUSAL = Premises(causal=True)
FUNCTIONS = {
    "torch": "def f(q, k, v): return attend(q, k, v, causal=True)[0]",
    "with a mask": "def f(q, k, v, attn_mask=None): return attend(q, k, v, attn_mask, causal=True)[0]",
    "numpy": """
def f(q, k, v):
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
    s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True, initial=-1e9))
    return e / e.sum(-1, keepdims=True) @ v
""",
    "jax": """
import jax, jax.numpy as jnp
def f(q, k, v):
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return jax.nn.softmax(jnp.where(jnp.tri(*s.shape[-2:], dtype=bool), s, -jnp.inf), -1) @ v
""",
}
MODULE = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.heads, self.qkv = num_heads, nn.Linear(embed_dim, 3 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)
    def forward(self, x):
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        return self.proj(attend(q, k, v, causal=True)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("name", "parameters", "promised"),
    [
        ("CausalSelfAttention", "embed_dim, num_heads", True),
        ("NonCausalAttention", "embed_dim, num_heads", False),
        ("CausalSelfAttention", "embed_dim, num_heads, causal=False", False),
    ],
)
def test_a_name_that_promises_is_held_to_it(make: Make, name: str, parameters: str, promised: bool) -> None:
    text = MODULE.replace("f(nn", f"{name}(nn").replace("embed_dim, num_heads", parameters)
    made = make(text.replace("causal=True", "causal=False"), name)
    assert premises(made).causal is promised
    if promised:
        with pytest.raises(AssertionError, match="elements differ"):
            assert_conforms(made)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_takes_a_half_type_alone_is_seen_to_be_causal(make: Make, dtype: str) -> None:
    made = make(f"def f(q, k, v):\n    assert q.dtype is torch.{dtype}\n    return attend(q, k, v, causal=True)[0]")
    assert premises(made).causal


PADDED = """
def f(q, k, v, key_padding_mask=None):
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    if key_padding_mask is not None:
        seen = seen & ~key_padding_mask[:, None, None]
    weights = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, {fill}).softmax(-1)
    return {weights} @ v
"""


@pytest.mark.parametrize("fill", ["-torch.inf", "-1e9"])
def test_what_padding_and_causality_empty_together_is_as_seen(make: Make, fill: str) -> None:
    made = make(PADDED.format(fill=fill, weights="weights"))
    assert premises(made).causal
    assert not failing(made, "masks.key-padding", "masks.empty-row-padding", "causal.padded-start", "gradients.value")


@pytest.mark.parametrize("weights", ["weights.roll(1, 1)", "weights.flip(0)"])
def test_heads_and_samples_of_padded_rows_are_their_own(make: Make, weights: str) -> None:
    assert failing(make(PADDED.format(fill="-torch.inf", weights=weights)), "masks.key-padding")


ALIBI = """
def f(q, k, v):
    h, ahead = q.shape[1], torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
    slopes = BASE ** (-8.0 * torch.arange(1, h + 1, dtype=q.dtype) / h)
    s = q @ k.mT / math.sqrt(q.shape[-1]) - slopes[:, None, None] * ahead.abs()
    return s.masked_fill(ahead > 0, -torch.inf).softmax(-1) @ v
"""


def test_the_slopes_of_alibi_are_a_premise(make: Make) -> None:
    made = make(ALIBI.replace("BASE", "2.0"))
    assert premises(made) == Premises(causal=True, alibi=True)
    assert_conforms(made)


def test_other_slopes_inside_are_refused_with_a_way_out(make: Make) -> None:
    message = refused(make, ALIBI.replace("BASE ** (-8.0", "2.0 ** (-4.0"))
    assert "which are not those of ALiBi: let it take them as `alibi_slopes`" in message


def test_slopes_that_nobody_has_are_judged(make: Make) -> None:
    assert premises(make(ALIBI.replace("BASE", "1.9"))) == CAUSAL


def premises(made: Implementation) -> Premises:
    return made.claims.premises


@pytest.mark.parametrize("text", [*FUNCTIONS.values(), MODULE], ids=[*FUNCTIONS, "module"])
def test_it_is_recognised_and_conforms(make: Make, text: str) -> None:
    if "import jax" in text:
        pytest.importorskip("jax", reason="JAX is not installed: pip install '.[jax]'")
    made = make(text)
    assert premises(made) == CAUSAL
    assert "always causal" in made.about
    assert Feature.CAUSAL not in made.claims.features
    assert_conforms(made)


def test_the_corner_is_recognised_too(make: Make) -> None:
    made = make("""
def f(q, k, v):
    later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1 + k.shape[-2] - q.shape[-2])
    return attend(q, k, v, ~later)[0].nan_to_num(0.0)
""")
    assert premises(made) == CAUSAL
    assert made.claims.conventions.causal_alignment is Alignment.BOTTOM_RIGHT


@pytest.mark.parametrize("diagonal", [0, 2])
def test_one_that_sees_a_key_too_many_or_too_few_is_wrong(make: Make, diagonal: int) -> None:
    made = make(f"""
def f(q, k, v):
    return attend(q, k, v, ~torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu({diagonal}))[0].nan_to_num(0.0)
""")
    assert premises(made) == CAUSAL
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(made)


@pytest.mark.parametrize(
    "text",
    [
        "def f(q, k, v): return attend(q, k, v)[0]",
        "def f(q, k, v, is_causal=False): return attend(q, k, v, causal=True)[0]",
        "def f(q, k, v): return attend(q, k, v, causal=True)[0].flip(-2)",
        "def f(q, k, v): return torch.full_like(v, torch.nan)",
    ],
    ids=["not causal", "a flag is ignored", "other rows", "no numbers"],
)
def test_nothing_else_is_taken_for_it(make: Make, text: str) -> None:
    assert premises(make(text)) == NO_PREMISES


ROTATED = """
def rotated_rows(x):
    angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    cos, sin = torch.cat([angles.cos()] * 2, -1).to(x.dtype), torch.cat([angles.sin()] * 2, -1).to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
"""
BANDED = """
def band(q, k, left, right):
    ahead = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
    return (ahead <= right) & (-ahead <= left)
"""
CAPPED = """
def f(q, k, v):
    return (20.0 * torch.tanh(q @ k.mT * q.shape[-1] ** -0.5 / 20.0)).softmax(-1) @ v
"""
ALWAYS = {
    "window=4:0": BANDED + "def f(q, k, v): return attend(q, k, v, band(q, k, 4, 0))[0]",
    "window=3:7": BANDED + "def f(q, k, v): return attend(q, k, v, band(q, k, 3, 7))[0]",
    "softcap=20": CAPPED,
    "rotary=10000": ROTATED + "def f(q, k, v): return attend(rotated_rows(q), rotated_rows(k), v)[0]",
    "causal, rotary=10000": (
        ROTATED + "def f(q, k, v): return attend(rotated_rows(q), rotated_rows(k), v, causal=True)[0]"
    ),
}
CROSS = PLAIN.sized(query_length=13, key_length=4)


def test_what_a_query_beyond_its_window_gets_is_recognised(make: Make) -> None:
    made = make(ALWAYS["window=4:0"])
    assert made.claims.conventions.empty_row_causal is EmptyRow.NAN
    problem = build(made.claims.premises.under(CROSS), "float32").forward_only()
    assert np.isnan(made.run(problem, "cpu").output[:, :, -1]).all()


AT_THE_END = "def f(q, k, v): return attend(q, k, v, band(q, k, 4 + len(q[0, 0]) - len(k[0, 0]), {right}))[0]"


@pytest.mark.parametrize(("right", "wrong"), [("len(k[0, 0]) - len(q[0, 0])", False), ("0", True)])
def test_a_window_that_starts_at_the_last_key(make: Make, right: str, wrong: bool) -> None:
    made = make(BANDED + AT_THE_END.format(right=right))
    assert ("its window starts bottom-right" in made.stated) is not wrong
    assert bool(failing(made, "cross-attention.lengths")) is wrong


CAPPED_MODULE = MODULE.replace("attend(q, k, v, causal=True)[0]", "capped(q, k, v)") + CAPPED.replace(" f(", " capped(")


@pytest.mark.parametrize("always", ALWAYS)
def test_windows_rotations_and_bounds_of_scores_are_recognised(make: Make, always: str) -> None:
    made = make(ALWAYS[always])
    assert made.claims.premises.settings() == tuple(always.split(", "))
    assert_conforms(made)


IN_HALF = """
def f(q, k, v):
    assert q.dtype in (torch.bfloat16, torch.float16)
    return inside(q.float(), k.float(), v.float()).to(q.dtype)
"""
OF_HALF = {
    **{always: ALWAYS[always] for always in ("softcap=20", "causal, rotary=10000")},
    "softcap=100": CAPPED.replace("20.0", "100.0"),
    "causal, alibi": ALIBI.replace("BASE", "2.0"),
    "": "def f(q, k, v): return attend(q, k, v, scale=1.1 * q.shape[-1] ** -0.5)[0]",
}
"""The last is a mistake."""


@pytest.mark.parametrize("always", OF_HALF)
def test_they_are_recognised_in_half_types_alone(make: Make, always: str) -> None:
    made = make(OF_HALF[always].replace(" f(", " inside(") + IN_HALF)
    assert made.claims.dtypes == ("bfloat16", "float16")
    assert ", ".join(made.claims.premises.settings()) == always


def test_rotations_of_as_many_keys_as_queries_are_a_limit(make: Make) -> None:
    """One table for both, as many are written, says nothing of other keys."""
    one_table = (
        ROTATED
        + """
def f(q, k, v):
    table = rotated_rows(torch.ones_like(q)) - rotated_rows(torch.ones_like(q))
    return attend(rotated_rows(q), rotated_rows(k) + table, v)[0]
"""
    )
    made = make(one_table)
    assert "fewer or more queries than keys not claimed: RuntimeError" in made.about
    assert premises(made) == Premises(rotary_base=10000.0)
    assert_conforms(made)


ROTATED_MODULE = """
class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def rotated(self, x):
        at, pairs = torch.arange(x.shape[-2], dtype=DTYPE).float(), torch.arange(0, x.shape[-1], 2).float()
        cos, sin = ((f(at[:, None] * 10000.0 ** (-pairs / x.shape[-1]))).to(x.dtype) for f in (torch.cos, torch.sin))
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def forward(self, x):
        q, k, v = (split(y, self.heads) for y in self.qkv(x).chunk(3, -1))
        return self.out(attend(self.rotated(q), self.rotated(k), v, causal=True)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("dtype", "status"), [("torch.float32", Status.PASS), ("x.dtype", Status.FAIL)])
def test_positions_that_a_module_makes_in_a_half_type_are_seen(make: Make, dtype: str, status: Status) -> None:
    made = make(ROTATED_MODULE.replace("DTYPE", dtype), "Layer")
    assert premises(made) == Premises(causal=True, rotary_base=10000.0)
    (verdict,) = run(made, ("shapes.large",), ("bfloat16",))
    assert verdict.status is status


def test_a_bound_of_the_scores_of_a_module_is_recognised(make: Make) -> None:
    made = make(CAPPED_MODULE)
    assert premises(made) == Premises(softcap=20.0)
    assert_conforms(made)


@pytest.mark.parametrize(
    "text",
    [
        BANDED + "def f(q, k, v): return attend(q, k, v, band(q, k, -1, 200))[0].nan_to_num(0.0)",
        "def f(q, k, v): return attend(q, k, v, scale=1.0)[0]",
        "def f(q, k, v): return (attend(q, k, v)[1] * 0.9) @ v",
        "def f(q, k, v, softcap=None): return CAP(q, k, v)",
    ],
    ids=["its own key is not seen", "another scale", "weights do not sum to one", "a flag is ignored"],
)
def test_mistakes_are_no_premises(make: Make, text: str) -> None:
    assert premises(make(CAPPED.replace(" f(", " CAP(") + text)) == NO_PREMISES


def test_masks_that_lift_it_take_its_place(make: Make) -> None:
    made = make("""
def f(q, k, v, mask=None):
    return attend(q, k, v, mask, causal=mask is None)[0]
""")
    assert premises(made) == CAUSAL
    assert Feature.BOOL_MASK in made.claims.features
    assert "a mask takes the place of its own causal one" in made.about
    assert_conforms(made)


SQUARE = """
class Triangle:
    def __init__(self, n):
        self.mask = torch.ones(n, n, dtype=torch.bool).triu(1)
def f(q, k, v, attn_mask=None):
    s = q @ k.mT * q.shape[-1] ** -0.5
    attn_mask = Triangle(q.shape[-2]) if attn_mask is None else attn_mask
    return s.masked_fill(attn_mask.mask, -torch.inf).softmax(-1) @ v
"""


@pytest.mark.parametrize(("held", "judged"), [("mask", True), ("table", False)])
def test_a_square_triangle_takes_as_many_queries_as_keys_and_masks_as_its_own_object(
    make: Make, held: str, judged: bool
) -> None:
    made = make(SQUARE.replace("self.mask", f"self.{held}").replace("attn_mask.mask", f"attn_mask.{held}"))
    assert made.claims.premises == CAUSAL
    assert (Feature.BOOL_MASK in made.claims) is judged
    assert made.as_seen == (("with True in 'attn_mask' as masked out",) if judged else ())
    assert ("its 'attn_mask' is read as .mask" in made.about) is judged
    assert ("it takes an object with 'table', and no array" in made.about) is not judged
    assert "fewer or more queries than keys not claimed" in made.about
    assert_conforms(made)


def test_a_mask_that_breaks_is_still_claimed(make: Make) -> None:
    broken = SQUARE.replace("attn_mask.mask", "attn_mask.mask if type(attn_mask) is Triangle else absent")
    assert Feature.BOOL_MASK in make(broken).claims


BOTH_AT_ONCE = """
def f(q, k, v, mask=None):
    s = q @ k.mT * q.shape[-1] ** -0.5
    seen = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
    return s.masked_fill(~(seen if mask is None else seen & mask), -1e30).softmax(-1) @ v
"""


def test_a_row_that_triangle_and_mask_leave_empty_gets_the_mean_of_all_values(make: Make) -> None:
    made = make(BOTH_AT_ONCE)
    assert made.claims.premises == CAUSAL
    assert made.claims.conventions.empty_row_bool is EmptyRow.UNIFORM
    assert_conforms(made)
