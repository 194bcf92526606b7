"""JAX functions as candidates: options are detected, every dtype is judged with gradients, wrong ones fail."""

from pathlib import Path

import numpy as np
import pytest

from attention_conformance.implementations.adapters.jax_op import jax_array
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.spec.cases import Case, MaskKind
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.judge import Judge

pytest.importorskip("jax", reason="JAX is not installed: pip install '.[jax]'")

FUNCTION = """
import jax
import jax.numpy as jnp

def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        scores = jnp.where(attn_mask, scores, -jnp.inf) if attn_mask.dtype == bool else scores + attn_mask
    if is_causal:
        scores = jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), value)

def strict(query, key, value):
    return attention(query.at[:].mul(1), key, value)  # a method that NumPy arrays do not have

def narrow(query, key, value):
    return attention(query, key, value).astype(jnp.float32).astype(query.dtype)

def constant(query, key, value):
    return jax.lax.stop_gradient(attention(query, key, value))
"""
SMALL = Case(mask=MaskKind.FLOAT)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jax") / "written.py"
    path.write_text(FUNCTION)
    return path


def written(file: Path, name: str) -> Implementation:
    return candidate(f"{file}:{name}", {})


def failures(judge: Judge, case: Case) -> list[str]:
    judge.assert_conforms(case, "output", "gradients")
    assert judge.tally.checks > 1
    return [failure.message for failure in judge.tally.failures]


def test_arrays_have_memory_of_their_own() -> None:
    numbers = np.zeros((3, 4), np.float32)
    made = jax_array(numbers)
    numbers[:] = 1.0
    assert not np.asarray(made).any()
    assert str(made.dtype) == "float32"


def test_the_options_of_a_function_are_detected(file: Path) -> None:
    implementation = written(file, "attention")
    assert implementation.about.startswith("a function of JAX arrays")
    assert implementation.claims.dtypes == tuple(DTYPES)
    expected = {Feature.GRADIENTS, Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.MASK_GRADIENT, Feature.CAUSAL}
    assert expected <= implementation.claims.features


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_one_conforms(file: Path, dtype: str) -> None:
    assert failures(Judge(written(file, "attention"), dtype), SMALL) == []


def test_one_that_takes_nothing_but_arrays_of_jax(file: Path) -> None:
    assert failures(Judge(written(file, "strict"), "float64"), Case()) == []


def test_float32_inside_is_detected(file: Path) -> None:
    assert "computes in float32 for inputs in float64" in written(file, "narrow").about


def test_gradients_that_are_cut_are_detected(file: Path) -> None:
    assert any("gradients." in message for message in failures(Judge(written(file, "constant"), "float64"), Case()))
