"""Plain classes that keep their weights in dictionaries, and those of JAX whose inputs come by name alone."""

from typing import Any

import numpy as np
import pytest
import torch

from attention_conformance.implementations.discovery.modules.held_arrays import plain_class
from attention_conformance.implementations.discovery.modules.parameters import place_of
from attention_conformance.tests.selftest.discovery.test_array_holders import OfJax


class InContainers:
    """Keeps its parts and its numbers in dictionaries, as some modules of JAX do."""

    def __init__(self, d_model: int, depth: int = 2) -> None:
        self._children = {"linear": InContainers(d_model, depth - 1)} if depth else {}
        self._params = {} if depth else {"weight": np.linspace(-1.0, 1.0, d_model * d_model).reshape(d_model, d_model)}

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_children"][name]  # no AttributeError

    def __call__(self, x: Any) -> Any:
        return self._children["linear"](x) if self._children else x @ self._params["weight"]


def test_weights_in_dictionaries_of_nested_parts_are_found() -> None:
    kind = plain_class(InContainers)
    assert kind is not None
    assert [name for name, _ in kind(d_model=4).named_parameters()] == [
        "_children.linear._children.linear._params.weight"
    ]
    assert place_of("_children.output._params.weight") == "w_o"
    assert place_of("_children.query._children.linear._params.bias") == "b_q"


class ByName:
    """The same with an input that can be given by name alone."""

    def __init__(self, rnd_key: Any, d_model: int) -> None:
        self.inside = OfJax(rnd_key, d_model)

    def __call__(self, *, query: Any) -> Any:
        return self.inside(query)


def test_inputs_by_name_have_gradients_in_jax() -> None:
    pytest.importorskip("jax", reason="JAX is not installed: pip install '.[jax]'")
    usual, named = plain_class(OfJax), plain_class(ByName)
    assert usual is not None
    assert named is not None
    x, same = (torch.linspace(-1.0, 1.0, 24).view(2, 3, 4).requires_grad_() for _ in range(2))
    (usual(d_model=4)(x) ** 2).sum().backward()
    (named(d_model=4)(query=same) ** 2).sum().backward()
    assert x.grad is not None
    assert same.grad is not None
    assert x.grad.abs().max() > 0.0
    assert torch.allclose(x.grad, same.grad)
