"""Forms in which published modules and functions come: each is read, and one with a mistake is none of them."""

from pathlib import Path

import numpy as np
import pytest

from attention_conformance.implementations.discovery.always import UNEQUAL_LENGTHS
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.modules.emptying import emptied
from attention_conformance.implementations.discovery.modules.module_forms import found_form
from attention_conformance.implementations.discovery.modules.promises import takes_float_padding
from attention_conformance.implementations.discovery.modules.template import Variant
from attention_conformance.implementations.discovery.targets.loading import TargetError, load_target
from attention_conformance.spec.cases import Case, MaskKind, MaskShape
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.premises import NO_PREMISES, Premises
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import START, Make, assert_conforms, make, refused
from attention_conformance.tests.selftest.discovery.test_other_sizes import USUAL, WRONG, both
from attention_conformance.tests.selftest.discovery.test_whole_modules import is_caught

__all__ = ["make"]

GIVEN = "self.q, self.k, self.v, self.out = q_proj, k_proj, v_proj, output_proj"
LAYERS = "self.q, self.k, self.v, self.out = (nn.Linear({sizes}) for _ in range(4))"
ROWS = "q, k, v = (split(layer(x), self.h) for layer in (self.q, self.k, self.v))"
SHOWN = "return self.out(attend(q, k, v, {mask}scale={scale})[0].transpose(1, 2).flatten(2))"
FORMS = {
    "a mask of one letter, and a flag that is misspelt": (
        "dim, num_heads, casual",
        "dim, dim",
        "x, m",
        f"{ROWS}; seen = (m * m.mT)[:, None] > 0; {SHOWN.replace('{mask}', 'seen, ')}",
    ),
    "another query that is not read": ("dim, num_heads", "dim, dim", "x, q_global", f"{ROWS}; {SHOWN}"),
    "another input that may not be left out": (
        "dim, num_heads",
        "dim, dim",
        "x, y=None",
        f"""q, k, v = (split(layer(z), self.h) for layer, z in ((self.q, x), (self.k, y), (self.v, y)))
        {SHOWN}""",
    ),
    "layers that are given": (
        "dim, num_heads, q_proj: nn.Module, k_proj: nn.Module, v_proj: nn.Module, output_proj: nn.Module",
        "",
        "x",
        f"{ROWS}; {SHOWN}",
    ),
    "a part of the same file": ("attend_by: Part | str, dim, num_heads", "dim, dim", "x", f"{ROWS}; {SHOWN}"),
    "depths": ("input_depth, total_key_depth, num_heads", "input_depth, total_key_depth", "x", f"{ROWS}; {SHOWN}"),
    "widths of a head named as hidden": (
        "d_query, d_key, num_heads, d_hidden, d_out",
        "d_query, num_heads * d_hidden",
        "x",
        f"{ROWS}; {SHOWN}",
    ),
    "matrices that rotate": (
        "dim, num_heads",
        "dim, dim",
        "x, freqs_cis",
        f"""{ROWS}
        assert freqs_cis.shape[0] == x.shape[1] and freqs_cis.shape[2:] == (2, 2)
        q, k = ((freqs_cis @ y.unflatten(-1, (-1, 2, 1))).flatten(-3) for y in (q, k))
        {SHOWN}""",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_a_module_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    built, sizes, called, body = FORMS[form]
    layers = LAYERS.replace("{sizes}", sizes) if sizes else GIVEN
    text = f"""
class Part:
    pass

class {{name}}(nn.Module):
    def __init__(self, {built}):
        super().__init__()
        self.h = num_heads
        {layers}

    def forward(self, {called}):
        {body.replace("{mask}", "")}
"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(START + both(text, (USUAL, WRONG)))
    right, wrong = (variant_of(f"mine.py:{name}") for name in "fg")
    assert right is not None
    assert right.premises == NO_PREMISES
    assert wrong is None


def variant_of(target: str) -> Variant | None:
    """The variant of attention as which a class answers; None where it answers as none, or is refused."""
    kind = load_target(target)
    assert isinstance(kind, type)
    try:
        return found_form(kind, Polarity.MASKED_OUT)[2]
    except TargetError:
        return None


ONE_KEY_HEAD = """
class {name}(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.out = num_heads, nn.Linear(dim, dim)
        self.q, self.k, self.v = (nn.Linear(dim, width) for width in (dim, dim // num_heads, dim // num_heads))

    def forward(self, x):
        q, k, v = split(self.q(x), self.h), self.k(x)[:, None], self.v(x)[:, None]
        q, k = (y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
        return self.out(attend(q, k, v, causal=True, scale={scale})[0].transpose(1, 2).flatten(2))
"""


def test_what_a_class_with_one_key_head_always_does_is_recognised(make: Make) -> None:
    made = make(ONE_KEY_HEAD.replace("{name}", "f").replace("{scale}", USUAL))
    assert made.claims.premises == Premises(causal=True, qk_norm=True, norm_epsilon=1e-6)
    assert_conforms(made)


MATRIX_B = """
class f:
    def __init__(self, d_model, n_heads, d_hidden, rng):
        self.q, self.k, self.v = rng.normal(size=(3, d_model, n_heads, d_hidden))
        self.b = rng.normal(size=(n_heads, d_hidden, d_model))

    def forward(self, x):
        q, k, v = (np.einsum("bsd,dhm->bhsm", x, w) for w in (self.q, self.k, self.v))
        s = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
        return np.einsum("bhsm,hmd->bsd", s / s.sum(-1, keepdims=True) @ v, self.b)
"""


def test_a_matrix_may_have_the_letter_of_a_bias(make: Make) -> None:
    assert_conforms(make(MATRIX_B), "float64")


ONE_LENGTH = """
def f(Q, K, V, n_heads):
    T, D = Q.shape
    q, k, v = (x.reshape(T, n_heads, D // n_heads).transpose(1, 0, 2) for x in (Q, K, V))
    s = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(D // n_heads))
    return (s / s.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(T, D)
"""


def test_one_length_for_queries_and_keys_is_no_failure_and_named(make: Make) -> None:
    made = make(ONE_LENGTH)
    assert made.findings[UNEQUAL_LENGTHS].startswith(
        "not judged: with fewer and with more queries than keys it raises V"
    )
    assert_conforms(made, "float64")


ROWS_OF_BIAS = """
def f(query, key, value, attn_bias=None):
    if attn_bias is not None and attn_bias.size(2) != query.shape[2]:
        attn_bias = attn_bias[:, :, -query.shape[2]:]
    return attend(query, key, value, attn_bias)[0]
"""


def test_a_bias_whose_third_axis_is_read_is_given_with_four(make: Make) -> None:
    made = make(ROWS_OF_BIAS)
    shared = Case(mask=MaskKind.FLOAT, mask_shape=MaskShape.SHARED)
    assert Feature.FLOAT_MASK in made.claims
    assert np.isfinite(made.run(build(shared, "float32"), "cpu").output).all()
    assert_conforms(made)


IN_BLOCKS = """
def f(Q, K, V, block_size, causal=False):
    starts = range(0, K.shape[-2], block_size)
    pieces = [Q @ K[..., i : i + block_size, :].mT for i in starts]
    s = torch.cat(pieces, -1) / Q.shape[-1] ** 0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return s.softmax(-1) @ V
"""


def test_the_size_of_blocks_is_given(make: Make) -> None:
    made = make(IN_BLOCKS)
    assert "its 'block_size' is 4" in made.about
    assert Feature.CAUSAL in made.claims
    assert_conforms(made)


SCALE_BETWEEN = """
def f(query, key, scale, value, bias=None):
    return attend(query, key, value, bias, scale=scale)[0]
"""


def test_inputs_are_found_by_their_names_wherever_they_stand(make: Make) -> None:
    assert_conforms(make(SCALE_BETWEEN))


def test_a_module_without_a_cache_may_refuse_to_empty_it() -> None:
    assert emptied(lambda: 1 / 0, lambda: "answer") == "answer"


PADDED = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()

    def forward(self, query, key, value, key_padding_mask=None, {float_mask}=None{flag}):
        {body}
"""


@pytest.mark.parametrize(
    ("float_mask", "flag", "body", "takes"),
    [
        ("attn_mask", ", is_causal=False", "return query", True),
        ("attn_mask", "", "return query", False),
        ("attn_bias", ", is_causal=False", "return query", False),
        (
            "attn_mask",
            ", is_causal=False",
            "return query.masked_fill(key_padding_mask[..., None].to(torch.bool), 0.0)",
            False,
        ),
    ],
)
def test_numbers_in_a_padding_mask_are_promised_by_names_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, float_mask: str, flag: str, body: str, takes: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(START + PADDED.format(float_mask=float_mask, flag=flag, body=body))
    kind = load_target("mine.py:f")
    assert isinstance(kind, type)
    assert takes_float_padding(kind, {"key_padding_mask": "key_padding_mask", "float_mask": float_mask}) is takes


KEPT = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.to_gate = nn.Linear(dim, heads)
    def train(self, mode=True):
        super().train(mode)
        self.kept = None if mode else self.to_gate.weight + 0.0
        return self
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        weight = self.to_gate.weight if self.kept is None else self.kept{wrong}
        gate = (x @ weight.mT + self.to_gate.bias).sigmoid().mT[..., None]
        return self.out((attend(q, k, v)[0] * gate).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize("wrong", ["", " * 1.01"])
def test_what_is_computed_as_its_mode_changes_is_that_of_its_weights(make: Make, wrong: str) -> None:
    assert is_caught(make, KEPT.format(wrong=wrong)) is bool(wrong)


def test_a_class_of_arrays_is_judged_by_relations_too(make: Make) -> None:
    assert "rank" in refused(make, OF_ARRAYS)
    (found,) = run(candidate("mine.py:f", {}, in_part=True), dtypes=("float32",))
    assert (found.clause, found.status) == ("modules.as-built", Status.PASS)


OF_ARRAYS = """
class f:
    def __init__(self, dim, heads, rank):
        sizes = ((dim, heads * rank), (dim, rank), (rank, heads * rank), (rank, heads * rank), (heads * rank, dim))
        self.h, (self.mixed, self.down, self.k, self.v, self.out) = heads, [np.random.randn(*each) for each in sizes]
    def forward(self, x):
        held = x @ self.down
        rows = (x @ self.mixed, held @ self.k, held @ self.v)
        q, k, v = (y.reshape(*y.shape[:2], self.h, -1).swapaxes(1, 2) for y in rows)
        s = np.exp(q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]))
        y = s / s.sum(-1, keepdims=True) @ v
        return y.swapaxes(1, 2).reshape(*x.shape[:2], -1) @ self.out
"""
