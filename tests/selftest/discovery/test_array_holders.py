"""Weights as arrays: plain classes, functions that take weights, and modules for one sample, judged as modules."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_conformance.implementations.adapters.arranged import Arranged
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.candidates import wrapped
from attention_conformance.implementations.discovery.modules.array_modules import weighs_late
from attention_conformance.implementations.discovery.modules.held_arrays import plain_class
from attention_conformance.implementations.discovery.modules.promises import STATED
from attention_conformance.implementations.discovery.modules.readings import arrangements
from attention_conformance.implementations.discovery.modules.slots import Slot
from attention_conformance.implementations.discovery.targets.loading import TargetError, load_target
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, write

NUMPY = """
def shares(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)

def joined(q, k, v, h):
    b, n, e = q.shape
    q, k, v = (x.reshape(b, -1, h, e // h).transpose(0, 2, 1, 3) for x in (q, k, v))
    out = shares(q @ k.swapaxes(-1, -2) / math.sqrt(e // h)) @ v
    return out.transpose(0, 2, 1, 3).reshape(b, n, e)
"""
ONE_HEAD = """
class f:
    def __init__(self, emb_size: int):
        self.W_q, self.W_k, self.W_v = (np.random.randn(emb_size, emb_size) for _ in range(3))
    def forward(self, x):
        q, k, v = (np.dot(x, w) for w in (self.W_q, self.W_k, self.W_v))
        return shares(np.dot(q, k.T) / math.sqrt({width})) @ v
"""
STREAM = """
class f:
    def __init__(self, embed_dim, num_heads):
        self.h, self.seen = num_heads, []
        self.Wq, self.Wk, self.Wv, self.Wo = np.random.randn(4, embed_dim, embed_dim)
    def reset(self):
        self.seen = []
    def __call__(self, x):
        outputs = []
        for n in range(x.shape[1]):
            self.seen.append(x[:, n])
            past = np.stack(self.seen, 1)
            out = joined(x[:, n:n + 1] @ self.Wq, past @ self.Wk, past @ self.Wv, self.h)
            outputs.append(out @ self.Wo)
        return np.concatenate(outputs, 1)
"""
"""Causal, token by token, in one sequence until it is reset."""
WITH_WEIGHTS = """
def f(Q, K, V, W_q, W_k, W_v, W_o, num_heads):
    return joined(Q @ W_q, K @ W_k, V @ W_v, num_heads) @ W_o
"""
OWN_WIDTHS = """
class f:
    def __init__(self, query_embed_dim, key_embed_dim, value_embed_dim, attention_embed_dim=256, num_heads=4):
        assert attention_embed_dim % num_heads == 0
        self.h, self.params, dims = num_heads, {{}}, (query_embed_dim, key_embed_dim, value_embed_dim)
        for name, dim in zip("QKV", dims):
            self.params[f"W_{{name}}"] = np.random.randn(dim, attention_embed_dim)
            self.params[f"b_{{name}}"] = np.zeros(attention_embed_dim)
    def __call__(self, q, k, v):
        given = zip("QKV", (q, k, v))
        q, k, v = (x @ self.params[f"W_{{name}}"] + self.params[f"b_{{name}}"] for name, x in given)
        return {joined}
"""
OBJECT = """
class f:
    def forward(self, Q, K, V):
        scores = np.matmul(Q, K.swapaxes(-1, -2)) / math.sqrt(Q.shape[-1])
        return np.matmul(shares(scores), V)
"""
WRONG = """
class f:
    def __init__(self, embed_size, num_heads):
        self.h = num_heads
        self.Wq, self.Wk, self.Wv, self.Wo = (np.random.randn(embed_size, embed_size) for _ in range(4))
    def forward(self, x):
        late = joined(x @ self.Wq, (x @ self.Wk) * np.arange(1, 1 + x.shape[1])[:, None], x @ self.Wv, self.h)
        return late @ self.Wo
"""
ONE_SAMPLE = """
class f(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Parameter(torch.rand(d_in, d_out)) for _ in range(3))
    def forward(self, x):
        scores = (x @ self.W_query) @ (x @ self.W_key).T
        return (scores / self.W_key.shape[-1] ** 0.5).softmax(-1) @ (x @ self.W_value)
"""
LISTS = """
class Linear:
    def __init__(self, n):
        self.weight, self.bias = np.random.randn(n, n), np.zeros(n)
    def __call__(self, x):
        return x @ self.weight + self.bias

class f:
    def __init__(self, d_model, n_heads):
        self.h = n_heads
        self.query, self.key, self.value, self.out = (Linear(d_model) for _ in range(4))
    def __call__(self, query, key, value):
        return self.out(joined(self.query(query), self.key(key), self.value(value), self.h))
"""
APPLIED = """
class f(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        assert q.shape[-2] % 16 == 0
        ctx.save_for_backward(q, k, v)
        ctx.causal = is_causal
        return attend(q, k, v, causal=is_causal)[0]
    @staticmethod
    def backward(ctx, gradient):
        given = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            output = attend(*given, causal=ctx.causal)[0]
        return (*torch.autograd.grad(output, given, gradient), None)
"""
OF_AN_IMAGE = """
class f(nn.Module):
    def __init__(self, dim, num_heads=8):
        super().__init__()
        self.h, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, H, W):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        return self.proj(attend(q, k, v)[0].transpose(1, 2).flatten(2))
"""
LENGTHS_FIRST = """
class f(nn.Module):
    def __init__(self, heads, d_model):
        super().__init__()
        self.h = heads
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model) for _ in range(4))
    def forward(self, query, key, value, mask=None):
        q, k, v = (p(x).unflatten(-1, (self.h, -1)) for p, x in
                   ((self.query, query), (self.key, key), (self.value, value)))
        s = torch.einsum("ibhd,jbhd->ijbh", q, k) / q.shape[-1] ** 0.5
        s = s if mask is None else s.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf)
        return self.output(torch.einsum("ijbh,jbhd->ibhd", s.softmax(1), v).flatten(2))
"""


class OfJax:
    """Attention of one head, of JAX arrays."""

    def __init__(self, rnd_key: Any, d_model: int) -> None:
        import jax

        keys = jax.random.split(rnd_key, 3)
        self.wq, self.wk, self.wv = (jax.random.normal(key, (d_model, d_model)) for key in keys)

    def __call__(self, x: Any) -> Any:
        import jax

        q, k, v = (x @ w for w in (self.wq, self.wk, self.wv))
        return jax.nn.softmax(q @ k.swapaxes(-1, -2), -1) @ v


@pytest.mark.parametrize(
    "text",
    [
        *(NUMPY + ONE_HEAD.format(width="x.shape[-1]"), NUMPY + LISTS, ONE_SAMPLE, NUMPY + STREAM),
        NUMPY + OWN_WIDTHS.format(joined="joined(q, k, v, self.h)"),
    ],
)
def test_weights_in_attributes_are_set(make: Make, text: str) -> None:
    implementation = make(text)
    assert implementation.claims.scope is Scope.MODULE
    assert_conforms(implementation)


@pytest.mark.parametrize(
    "text", [ONE_HEAD.format(width="2 * x.shape[-1]"), OWN_WIDTHS.format(joined="joined(q, k, v, 1)")]
)
def test_a_wrong_plain_class_is_seen(make: Make, text: str) -> None:
    with pytest.raises(AssertionError, match="expected"):
        assert_conforms(make(NUMPY + text))


def test_a_function_that_takes_weights_is_a_module(make: Make) -> None:
    implementation = make(NUMPY + WITH_WEIGHTS)
    assert {
        Feature.HEADS,
        Feature.CROSS,
        Feature.KEY_VALUE,
        Feature.OUTPUT_PROJECTION,
    } <= implementation.claims.features
    assert_conforms(implementation)


def test_a_class_of_arrays_of_jax_has_gradients() -> None:
    pytest.importorskip("jax", reason="JAX is not installed: pip install '.[jax]'")
    kind = plain_class(OfJax)
    assert kind is not None
    module, x = kind(d_model=4), torch.randn(2, 3, 4, requires_grad=True)
    weights = [module.get_parameter(name).detach().clone().requires_grad_() for name in ("wq", "wk", "wv")]
    q, k, v = (x @ weight for weight in weights)
    for output in (module(x), (q @ k.mT).softmax(-1) @ v):
        output.sum().backward()
    for mirrored, weight in zip(module.parameters(), weights, strict=True):
        assert mirrored.grad is not None
        assert weight.grad is not None
        assert torch.allclose(mirrored.grad, weight.grad, atol=1e-4)


def test_height_and_width_are_no_inputs(make: Make) -> None:
    implementation = make(OF_AN_IMAGE)
    assert Feature.CROSS not in implementation.claims
    assert_conforms(implementation)


def test_an_autograd_function_is_applied(make: Make) -> None:
    implementation = make(APPLIED)
    assert {Feature.CAUSAL, Feature.GRADIENTS} <= implementation.claims.features
    assert_conforms(implementation)


def test_masks_with_the_samples_last_are_given_so(make: Make) -> None:
    implementation = make(LENGTHS_FIRST)
    assert Feature.BOOL_MASK in implementation.claims
    assert_conforms(implementation)


def test_a_file_of_a_project_finds_what_lies_in_it(make: Make, tmp_path: Path) -> None:
    write(tmp_path, "project/parts/helping.py", "def same(x):\n    return x\n")
    write(tmp_path, "project/__init__.py", "")
    write(tmp_path, "project/relative.py", "from .parts.helping import same\n\ndef f(q, k, v):\n    return same(v)\n")
    write(tmp_path, "project/absolute.py", "from project.parts.helping import same\nf = same\n")
    for name in ("relative", "absolute"):
        assert callable(load_target(f"project/{name}.py:f"))


def test_a_project_with_the_name_of_a_library_leaves_the_library(make: Make, tmp_path: Path) -> None:
    write(tmp_path, "torch/mine.py", "from .absent import same\n")
    with pytest.raises(TargetError, match="ImportError"):
        load_target("torch/mine.py:same")
    assert sys.modules["torch"] is torch


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("# Divide each embedding into multiple heads", False),
        ("the number of heads divides the width", True),
        ("embed_dim must be divisible by num_heads", True),
    ],
)
def test_a_promise_to_refuse_widths_is_stated(text: str, stated: bool) -> None:
    assert bool(STATED.search(text)) is stated


@pytest.mark.parametrize(("name", "axes"), [("q.kernel", ("e", "hd")), ("q.w", ("e", "hd")), ("q.weight", ("hd", "e"))])
def test_names_tell_which_axis_of_a_square_is_that_of_inputs(name: str, axes: tuple[str, ...]) -> None:
    place = next(arrangements(Slot(name, (6, 6), "q", linear=False, is_bias=False), "q", 6, 2))
    assert isinstance(place, Arranged)
    assert place.axes == axes


LIBRARIES = {
    "keras": """
import keras
class f(keras.layers.Layer):
    def __init__(self, d_model, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.h = num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (keras.layers.Dense(d_model) for _ in range(4))
    def call(self, query, key, value, training=None):
        shape = (keras.ops.shape(query)[0], -1, self.h, query.shape[-1] // self.h)
        given = (self.w_q(query), self.w_k(key), self.w_v(value))
        q, k, v = (keras.ops.transpose(keras.ops.reshape(x, shape), (0, 2, 1, 3)) for x in given)
        s = keras.ops.matmul(q, keras.ops.transpose(k, (0, 1, 3, 2))) / math.sqrt(WIDTH)
        x = keras.ops.transpose(keras.ops.matmul(keras.ops.softmax(s), v), (0, 2, 1, 3))
        return self.w_o(keras.ops.reshape(x, keras.ops.shape(query)))
""",
    "mlx": """
import mlx.core as mx, mlx.nn
class f(mlx.nn.Module):
    def __init__(self, dims: int, num_heads: int):
        super().__init__()
        self.h = num_heads
        self.query_proj, self.key_proj, self.value_proj, self.out_proj = (mlx.nn.Linear(dims, dims) for _ in range(4))
    def __call__(self, query, key, value):
        given = (self.query_proj(query), self.key_proj(key), self.value_proj(value))
        q, k, v = (x.reshape(*x.shape[:2], self.h, -1).transpose(0, 2, 1, 3) for x in given)
        s = q @ k.transpose(0, 1, 3, 2) / math.sqrt(WIDTH)
        x = (mx.softmax(s, axis=-1) @ v).transpose(0, 2, 1, 3)
        return self.out_proj(x.reshape(*x.shape[:2], -1))
""",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # keras makes arrays of tensors in an old way
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("width", ["q.shape[-1]", "query.shape[-1]"], ids=["right", "wrong"])
def test_a_class_of_another_library_is_a_module(make: Make, library: str, width: str) -> None:
    pytest.importorskip(library)
    made = make(LIBRARIES[library].replace("WIDTH", width))
    assert {Feature.CROSS, Feature.KEY_VALUE, Feature.OUTPUT_PROJECTION} <= made.claims.features
    if width == "q.shape[-1]":
        assert_conforms(made)
        return
    with pytest.raises(AssertionError, match="expected"):
        assert_conforms(made)


LATE = """
class Module:
    __module__ = "flax.linen.module"

class f(Module):
    def __init__(self, num_heads: int, features: int = 8):
        self.num_heads, self.features = num_heads, features
    def __call__(self, inputs_q, inputs_k, inputs_v):
        raise RuntimeError("its weights are made by init")
"""


def test_what_makes_its_weights_in_the_first_call_is_no_function(tmp_path: Path) -> None:
    """Flax is not installed here: a class of its name."""
    write(tmp_path, "late.py", LATE)
    kind = load_target(f"{tmp_path / 'late.py'}:f")
    assert isinstance(kind, type)
    assert weighs_late(kind)
    assert not weighs_late(torch.nn.MultiheadAttention)
    with pytest.raises(TargetError) as refused:
        wrapped("late", kind, {}, "cpu")
    assert "(B, H, L, d)" not in str(refused.value)  # as of a function


SCORES_TOO = """
import dataclasses
@dataclasses.dataclass
class Answer:
    output: object
    scores: object

class f:
    def __init__(self, emb_size: int):
        self.W_q, self.W_k, self.W_v = (np.random.randn(emb_size, emb_size) for _ in range(3))
    def forward(self, x):
        q, k, v = (x @ w for w in (self.W_q, self.W_k, self.W_v))
        qk = q @ k.swapaxes(-1, -2) / math.sqrt(x.shape[-1])
        return Answer(shares(qk) @ v, scores=qk)
"""


def test_fields_of_arrays_are_read_and_scores_are_no_weights(make: Make) -> None:
    made = make(NUMPY + SCORES_TOO)
    assert Feature.WEIGHTS not in made.claims
    assert_conforms(made)


def test_an_object_without_weights_is_a_function(make: Make) -> None:
    made = make(NUMPY + OBJECT)
    assert made.claims.scope is Scope.OP
    assert_conforms(made)


def test_matrices_of_a_wrong_class_are_read_as_the_inputs_are_multiplied_with_them(make: Make) -> None:
    made = make(NUMPY + WRONG)
    case = fit(Case().sized(query_length=1, key_length=1), made.claims)
    assert isinstance(case, Case)
    problem = build(case, "float64").forward_only()
    expected = solve(problem, made.claims.conventions).parts["output"]
    assert compare("output", made.run(problem, "cpu").output, expected, "float64").kind is None
