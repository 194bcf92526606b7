"""Functions of one sample, (Lq, H, d) or (H, Lq, d) without an axis of samples: they are called for each sample."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import is_jax
from attention_conformance.implementations.adapters.op_options import BATCHED, OF_AXES
from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.api.safe_call import answer, safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN
from attention_conformance.implementations.discovery.probe import near, parts_of
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.implementations.discovery.vocabulary import (
    INPUTS,
    KNOWN_NAMES,
    NAMES_OF_PADDING,
    OPTIONS,
    is_open_mask,
)
from attention_conformance.spec.inputs import build

NAMES = {name for option in BATCHED for name in OPTIONS[option].parameters}
"""Those of options whose first axis are the samples."""
SHARED_RANK = 2
"""Axes of an attention mask that all samples share."""


@dataclass(frozen=True)
class OneSample:
    """A function of one sample, given (B, H, L, d).

    Attributes:
        function: it.
        heads_first: whether it takes (H, L, d), and not (L, H, d).
    """

    function: Callable[..., Any]
    heads_first: bool

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    @property
    def about(self) -> str:
        """For a note."""
        return f"it takes one sample, {'(H, L, d)' if self.heads_first else '(L, H, d)'}, and is called for each"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answers.

        Raises:
            ValueError: there is no sample, an answer is a tuple of one, or an output has another shape than
                (Lq, H, d_v), (H, Lq, d_v) or (Lq, H * d_v).
        """
        return of_each_sample(self._of_one, (query, key, value), options)

    def _of_one(self, *inputs: Any, **options: Any) -> Any:
        given = inputs if self.heads_first else tuple(x.swapaxes(0, 1) for x in inputs)
        answer = self.function(*given, **options)
        output, *others = parts_of(answer)
        if isinstance(answer, tuple) and not others:
            raise ValueError("its answer is a tuple of one")
        heads, length = inputs[0].shape[:2]
        back = self._heads_first(output, heads, length, inputs[2].shape[-1])
        return (back, *others) if others else back

    def _heads_first(self, output: Any, heads: int, length: int, width: int) -> Any:
        """An output as (H, Lq, d_v)."""
        shape = tuple(output.shape)
        if self.heads_first and shape == (heads, length, width):
            return output
        if shape not in ((length, heads, width), (length, heads * width)):
            raise ValueError(f"its output has shape {shape}, expected {(length, heads, width)}")
        return output.reshape((length, heads, width)).swapaxes(0, 1)


def of_each_sample(answer: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The answers to one sample after the other, stacked; of tuples, each part.

    Raises:
        ValueError: there is no sample.
    """
    answers = [answer(*each, **_at(options, at)) for at, each in enumerate(zip(*inputs, strict=True))]
    if not answers:
        raise ValueError("there is no sample")
    if not isinstance(answers[0], tuple):
        return stacked(answers)
    return tuple(stacked(list(parts)) for parts in zip(*answers, strict=True))


def _at(options: dict[str, Any], sample: int) -> dict[str, Any]:
    """What is given with one sample: its own rows, and those of an axis of 1."""
    own = {name: option for name, option in options.items() if _is_of_each(name, option)}
    return {**options, **{name: option[0 if len(option) == 1 else sample] for name, option in own.items()}}


def _is_of_each(name: str, option: Any) -> bool:
    """Whether samples do not share it; an attention mask of two axes they do."""
    if not hasattr(option, "shape"):
        return False
    known = KNOWN_NAMES.get(name, name)
    of_mask = is_open_mask(name) or known in ("bool_mask", "float_mask")
    of_samples = name in (*NAMES, *NAMES_OF_PADDING) or OF_AXES.get(known) == option.ndim
    return of_samples or (of_mask and option.ndim > SHARED_RANK)


def stacked(parts: list[Any]) -> Any:
    """Arrays of any kind, at least one, along a new first axis; anything else is that of the last one."""
    first = parts[0]
    if hasattr(first, "new_tensor"):
        return sys.modules["torch"].stack(parts)
    if isinstance(first, np.ndarray):
        return np.stack(parts)
    return sys.modules["jax"].numpy.stack(parts) if is_jax(first) else parts[-1]


def of_one_sample(function: Callable[..., Any]) -> Iterator[OneSample]:
    """The function as one of one sample, in both layouts."""
    yield from (OneSample(function, heads_first) for heads_first in (False, True))


def mixes_samples(made: Implementation, device: str) -> bool:
    """Whether a sample gets another answer in a batch than alone, as where samples are taken for further heads."""
    fitted, dtype = fit(PLAIN, made.claims), next(iter(made.claims.dtypes), "")
    if isinstance(fitted, Unsupported) or not dtype or fitted.sizes.batch < 2:
        return False
    problem = build(fitted, dtype).forward_only()
    first = problem.with_arrays({name: getattr(problem, name)[:1] for name in INPUTS})
    whole, alone = (safe_call(partial(answer, made.run, each.fresh(), device)).value for each in (problem, first))
    if whole is None or alone is None:
        return False
    return not near(np.asarray(alone.output, float), np.asarray(whole.output[:1], float), dtype)
