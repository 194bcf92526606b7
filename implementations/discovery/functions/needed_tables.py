"""Functions that have to be given tables, or the gradient of their output: they are given what changes nothing."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import is_jax, jax_array
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.signatures import positional, required, signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES, words_of

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.modules.neutrals import Neutral

GRADIENTS = {"dout", "do", "d_out", "d_o", "grad_output", "grad_out", "dy"}
"""Names of the gradient of the output, in lower case."""
FEWER_AXES = [(6, 5, 4), (5, 4)]
"""Shapes of inputs that have heads in the first axis, or one head."""
MOST = 24
"""Combinations that are tried."""


@dataclass(frozen=True)
class NeededTables:
    """A function that is given these in each call.

    Attributes:
        function: it.
        tables: what its parameters are given.
        gradients: its parameters that are gradients of its output.
        axis: that of the tokens in its query.
    """

    function: Callable[..., Any]
    tables: Mapping[str, Neutral]
    gradients: tuple[str, ...]
    axis: int

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function)
        left = [p for p in own.parameters.values() if p.name not in {*self.tables, *self.gradients}]
        inputs = [p.name for p in positional(own)[:3]]
        return own.replace(parameters=[_named(p) if p.name not in inputs else p for p in left])

    @property
    def about(self) -> str:
        """For a note."""
        tables = [f"{name!r} ({neutral})" for name, neutral in self.tables.items()]
        return f"judged without {', '.join([*tables, *map(repr, self.gradients)])}"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        given = {name: self._like(neutral, query) for name, neutral in self.tables.items()}
        given |= dict.fromkeys(self.gradients, query[..., :1] * 0 + value[..., :1, :] * 0 + 1)
        return self.function(query, key, value, **options, **given)

    def _like(self, neutral: Neutral, query: Any) -> Any:
        import torch

        of_torch = isinstance(query, torch.Tensor)
        device = query.device if of_torch else "cpu"
        dtype = query.dtype if of_torch else getattr(torch, str(query.dtype), torch.float32)
        x = torch.empty((query.shape[0], query.shape[self.axis], query.shape[-1]), dtype=dtype, device=device)
        return _into(neutral.given(x, x, 1), query)


def _named(parameter: inspect.Parameter) -> inspect.Parameter:
    named = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) if named else parameter


def _into(given: Any, query: Any) -> Any:
    """Tensors as the kind of arrays that the query is."""
    if isinstance(given, tuple):
        return tuple(_into(each, query) for each in given)
    if not hasattr(given, "numpy") or hasattr(query, "new_tensor"):
        return given
    array = given.numpy()
    return sys.modules["jax"].numpy.asarray(array) if is_jax(query) else array


def with_needed_tables(function: Callable[..., Any]) -> NeededTables | None:
    """The function, given the tables of rotations and gradients that it needs; None where it needs none of these."""
    from attention_conformance.implementations.discovery.modules.neutrals import ROTARY_WORDS, combined

    signature = safe_call(lambda: signature_of(function)).value
    own = [] if signature is None else [p for p in signature.parameters.values() if required(p)][3:]
    unknown = [p.name for p in own if p.name not in KNOWN_NAMES]
    gradients = tuple(name for name in unknown if name.lower() in GRADIENTS)
    tables = [name for name in unknown if name not in gradients and words_of(name) & {*ROTARY_WORDS, "pe"}]
    if not unknown or len(gradients) + len(tables) < len(unknown):
        return None
    for given, axis in product(list(islice(combined(tables), MOST)) or [{}], (-2, 1)):
        made = NeededTables(function, given, gradients, axis)
        shapes = [(2, 3, 5, 4), *([] if tables else FEWER_AXES)] if axis == -2 else [(2, 5, 3, 4)]
        arrays = (x for shape in shapes for x in of_each_kind(shape))
        if any(safe_call(partial(made, x, x, x)).value is not None for x in arrays):
            return made
    return None


def of_each_kind(shape: tuple[int, ...]) -> list[Any]:
    """Arrays of each kind that may be taken."""
    import torch

    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    jax = [jax_array(array)] if "jax" in sys.modules else []
    return [torch.from_numpy(array), array, *jax]
