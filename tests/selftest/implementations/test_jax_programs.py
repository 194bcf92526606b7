"""Programs of JAX: what may be traced, that the answers are those of plain calls, and that equal calls compile once."""

from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest

from attention_conformance.implementations.adapters import jax_programs
from attention_conformance.implementations.adapters.jax_programs import Compiled, can_be_traced, evaluated, plainly
from attention_conformance.implementations.discovery.shipped.shipped import as_shipped
from attention_conformance.implementations.discovery.shipped.shipped_others import interfaces

jax = pytest.importorskip("jax")
Function = Any
MASKS: dict[int, Any] = {}
LAST = None


def weighted(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    scores = query @ key.swapaxes(-1, -2)
    return jax.nn.softmax(scores if mask is None else jax.numpy.where(mask, scores, -jax.numpy.inf)) @ value


def calling(query: Any, key: Any, value: Any) -> Any:
    return weighted(query, key, value)


def keeping_masks(query: Any, key: Any, value: Any) -> Any:
    length = query.shape[-2]
    mask = MASKS.setdefault(length, jax.numpy.tril(jax.numpy.ones((length, length), bool)))
    return weighted(query, key, value, mask)


@lru_cache
def triangle(length: int) -> Any:
    return jax.numpy.tril(jax.numpy.ones((length, length), bool))


def with_a_cache(query: Any, key: Any, value: Any) -> Any:
    return weighted(query, key, value, triangle(query.shape[-2]))


def remembering(query: Any, key: Any, value: Any) -> Any:
    global LAST
    LAST = weighted(query, key, value)
    return LAST


def deciding(query: Any, key: Any, value: Any) -> Any:
    return weighted(query, key, value) if float(query.max()) > 0 else value


class Stateful:
    def __call__(self, query: Any, key: Any, value: Any) -> Any:
        self.last = weighted(query, key, value)
        return self.last


@pytest.mark.parametrize("function", [weighted, calling, deciding, Compiled(weighted), jax.nn.softmax])
def test_what_keeps_nothing_may_be_traced(function: Function) -> None:
    assert can_be_traced(function)


def test_what_is_called_by_a_shipped_interface_may_be_traced_like_the_function() -> None:
    shipped = as_shipped(jax.nn.dot_product_attention, interfaces())
    assert shipped is not None
    assert can_be_traced(shipped)

    def keeping(
        query: Any, key: Any, value: Any, bias: Any, mask: Any, is_causal: Any, key_value_seq_lengths: Any
    ) -> Any:
        return keeping_masks(query, key, value)

    shipped = as_shipped(keeping, interfaces())
    assert shipped is not None
    assert not can_be_traced(shipped)


def test_a_function_that_belongs_to_no_module_can_be_traced() -> None:
    made: dict[str, Any] = {}
    exec("def attention(query, key, value):\n    return value", made)  # as the auditor makes adapters
    made["attention"].__module__ = None
    assert can_be_traced(made["attention"])


@pytest.mark.parametrize("function", [keeping_masks, with_a_cache, remembering, Stateful()])
def test_what_could_keep_a_trace_may_not(function: Function) -> None:
    assert not can_be_traced(function)


@pytest.fixture
def inputs() -> list[Any]:
    numbers = np.random.default_rng(3).normal(size=(3, 2, 5, 4)).astype(np.float32)
    return [jax.numpy.asarray(each) for each in numbers]


def test_equal_calls_are_compiled_once_and_masks_are_not_mixed_up() -> None:
    query, key = jax.numpy.arange(10.0).reshape(2, 5, 1), jax.numpy.ones((2, 5, 1))
    jax_programs._program.cache_clear()
    for diagonal in (0, 1):
        mask = jax.numpy.tri(5, k=diagonal, dtype=bool)
        masked = partial(_masked_products, mask)
        assert np.array_equal(evaluated(masked, [query, key]), masked([query, key]))  # whole numbers: no rounding
    assert jax_programs._program.cache_info().misses == 1


def _masked_products(mask: Any, arrays: list[Any]) -> Any:
    query, key = arrays
    return jax.numpy.where(mask, query @ key.swapaxes(-1, -2), 0)


def test_a_function_whose_numbers_decide_is_called_plainly(inputs: list[Any]) -> None:
    assert np.array_equal(evaluated(lambda arrays: deciding(*arrays), inputs), deciding(*inputs))


def test_inside_a_trace_and_where_time_is_measured_the_function_itself_is_called(inputs: list[Any]) -> None:
    jax_programs._program.cache_clear()
    jax.grad(lambda query: Compiled(weighted)(query, *inputs[1:]).sum())(inputs[0])
    with plainly():
        Compiled(weighted)(*inputs)
    assert jax_programs._program.cache_info().misses == 0


def test_an_error_is_that_of_the_function(inputs: list[Any]) -> None:
    with pytest.raises(TypeError, match="contracting dimensions"):
        Compiled(weighted)(inputs[0], inputs[1][:, :, :3], inputs[2])


def test_a_program_that_calls_another_is_one() -> None:
    query, key = jax.numpy.arange(10.0).reshape(2, 5, 1), jax.numpy.ones((2, 5, 1))
    jax_programs._program.cache_clear()
    mask = jax.numpy.tri(5, dtype=bool)
    inner = Compiled(partial(_masked_products, mask))
    answer = evaluated(lambda _: inner([query, key]), {})
    assert np.array_equal(answer, _masked_products(mask, [query, key]))  # whole numbers: no rounding
    assert jax_programs._program.cache_info().misses == 1


def test_kernels_that_read_other_tiles_are_other_programs() -> None:
    from jax.experimental import pallas

    def doubled(rows: Any, answer: Any) -> None:
        answer[...] = rows[...] * 2

    def reading(step: int) -> Function:
        tile, shape = pallas.BlockSpec((1, 4), lambda i: (i, 0)), jax.ShapeDtypeStruct((3, 4), "float32")
        given = [pallas.BlockSpec((1, 4), lambda i: (i * step, 0))]
        return lambda rows: pallas.pallas_call(
            doubled, grid=(3,), in_specs=given, out_specs=tile, out_shape=shape, interpret=True
        )(rows)

    rows, before = jax.numpy.arange(12.0).reshape(3, 4), jax_programs._program.cache_info().misses
    answers = [np.asarray(evaluated(reading(step), rows))[:, 0].tolist() for step in (0, 1, 0, 1)]
    assert answers == [[0.0, 0.0, 0.0], [0.0, 8.0, 16.0]] * 2
    assert jax_programs._program.cache_info().misses == before + 2
