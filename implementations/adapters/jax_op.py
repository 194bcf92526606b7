"""JAX adapters: a function of JAX arrays becomes an implementation, in one line. JAX is an extra: `pip install jax`."""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_programs import Evaluation, evaluation
from attention_conformance.implementations.adapters.op_options import inputs_of, op_options, seeded
from attention_conformance.implementations.adapters.results import output_of, result_of
from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.problem import Array, Problem


@dataclass(frozen=True, eq=False)
class JaxOp:
    """A `run` for a function of JAX arrays, float64 included; gradients are those of `jax.vjp`.

    Attributes:
        function: called as function(query, key, value, attn_mask=..., is_causal=..., scale=...).
        extras: what it returns after the output, by the names of `Result`.
        polarity: what True means in its boolean masks.
        implied: options that it is not given, because it always does what they state, such as `is_causal`.
    """

    function: Callable[..., Any]
    _: KW_ONLY
    extras: tuple[str, ...] = ()
    polarity: Polarity = Polarity.MAY_ATTEND
    implied: tuple[str, ...] = ()

    def __call__(self, problem: Problem, device: str) -> Result:
        """Answers the problem."""
        import jax

        with _wide_enough(problem.dtype), seeded(problem), jax.default_device(jax.devices(device.partition(":")[0])[0]):
            given = {name: jax_array(array) for name, array in problem.arrays().items()}

            def call(leaves: Mapping[str, Any]) -> tuple[Any, Any]:
                arrays = {**given, **leaves}
                options = op_options(problem, arrays, self.polarity, self.implied)
                answer = self.function(*inputs_of(arrays), **options)
                return output_of(answer), answer

            def backward(leaves: Mapping[str, Any]) -> tuple[Any, Any]:
                output, pulled_back, answer = jax.vjp(call, leaves, has_aux=True)
                return answer, pulled_back(given["cotangent"].astype(output.dtype))[0]

            if problem.cotangent is None:
                return result_of(self._evaluated(call, {})[1], self.extras, _checked)
            answer, gradients = self._evaluated(backward, {name: given[name] for name in problem.needs})
            checked = {name: _checked(gradient) for name, gradient in gradients.items()}
            return result_of(answer, self.extras, _checked, gradients=checked)

    @cached_property
    def _evaluated(self) -> Evaluation:
        return evaluation(self.function)


jax_op = JaxOp
"""The name by which adapters call it."""


def _wide_enough(dtype: str) -> AbstractContextManager[object]:
    """Without this option JAX computes in float32; with it, numbers without a dtype are float64."""
    import jax

    return jax.enable_x64(True) if dtype == "float64" else nullcontext()


def jax_array(array: Array) -> Any:
    """It as an array of JAX with memory of its own: `jax.numpy.asarray` compiles a program for every new shape."""
    return sys.modules["jax"].device_put(np.array(array))


def is_jax(answer: object) -> bool:
    """Whether it is an array of JAX, without importing JAX."""
    return type(answer).__module__.partition(".")[0] in ("jax", "jaxlib")


def library_of(array: Any) -> Any:
    """jax.numpy for an array of JAX, which may be traced, so that NumPy can do nothing with it; NumPy for any other."""
    return sys.modules["jax"].numpy if is_jax(array) else np


def _checked(array: Any) -> Array:
    if not is_jax(array):
        raise TypeError(f"a JAX array was expected, got {type(array).__name__}")
    return np.asarray(array)
