"""Masks of samples in a class of unknown form: each sample has the answer that it has alone with its own mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from attention_conformance.implementations.adapters.as_built import INPUTS, ROUNDINGS, drawn
from attention_conformance.implementations.adapters.results import output_of
from attention_conformance.implementations.adapters.tensors import tensors, to_array
from attention_conformance.implementations.adapters.torch_module import built, in_mode
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.implementations.discovery.modules.own_cache import parameters_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES, is_open_mask
from attention_conformance.spec.problem import Array, Problem

SAMPLES = 3
AXES = ("BK", "BQK", "B1QK", "B11K")
"""Of masks whose first axis is that of the samples; their number is the length of no other axis."""
TOGETHER = "samples with masks of their own"


@dataclass(frozen=True, eq=False)
class MaskedSamples:
    """A module whose forward takes boolean masks by this name; whether True hides a key does not matter.

    Attributes:
        make: the class.
        call: without a mask.
        name: of the parameter.
        axes: of a mask.
    """

    make: Constructor
    call: ModuleCall
    name: str
    axes: str

    def __call__(self, problem: Problem, device: str) -> Result:
        """The output for several samples; its `others` are the outputs of each alone."""
        x = np.concatenate([np.roll(problem.query[:1], 5 * n, -1) for n in range(SAMPLES)])
        mask, module = self._mask(x.shape[1]), self._module(problem, device)
        together = self._output(module, problem, x, mask, device)
        each = (self._output(module, problem, *rows, device) for rows in zip(x[:, None], mask[:, None], strict=True))
        return Result(together, others={"each sample alone": Result(np.concatenate([*each]))})

    def acts(self, problem: Problem, device: str) -> bool:
        """Whether each sample alone is answered, and a mask changes it."""
        module, rows = self._module(problem, device), problem.query[:1]
        masks = (each[None] for each in self._mask(rows.shape[1]))
        one, other, *_ = (self._output(module, problem, rows, mask, device) for mask in masks)
        finite = np.isfinite(one).all() and np.isfinite(other).all() and one.shape == other.shape
        return bool(finite and np.abs(one - other).max() > ROUNDINGS * np.abs(one).max())

    def _module(self, problem: Problem, device: str) -> torch.nn.Module:
        return drawn(in_mode(built(partial(built_for, self.make, True), problem, device), False))

    def _mask(self, tokens: int) -> Array:
        """True for another half of the keys in each sample."""
        keys = np.arange(tokens) + np.arange(SAMPLES)[:, None]
        shape = {"B": SAMPLES, "Q": tokens, "K": tokens, "1": 1}
        rows = (keys // 2 % 2 == 0).reshape(SAMPLES, *[1] * (len(self.axes) - 2), tokens)
        return np.ascontiguousarray(np.broadcast_to(rows, [shape[axis] for axis in self.axes]))

    def _output(self, module: torch.nn.Module, problem: Problem, rows: Array, mask: Array, device: str) -> Array:
        given = problem.with_arrays({name: rows.astype(problem.query.dtype) for name in INPUTS})
        call = replace(self.call, always={**self.call.always, self.name: torch.from_numpy(mask.copy()).to(device)})
        with torch.no_grad():
            return to_array(output_of(call(module, tensors(given, device), given)))


def masked_samples(make: Constructor, call: ModuleCall, problem: Problem, device: str) -> Mapping[str, MaskedSamples]:
    """What can be looked at of its masks, by a text for messages: the first form of each that has an effect."""
    found = {}
    for name in () if call.spatial else names_of_masks(make):
        forms = (MaskedSamples(make, call, name, axes) for axes in AXES)
        if (first := next((each for each in forms if _is_of_samples(each, problem, device)), None)) is not None:
            found[f"{TOGETHER} in {name}"] = first
    return found


def _is_of_samples(run: MaskedSamples, problem: Problem, device: str) -> bool:
    """Whether its masks act, and several are answered: one alone may be taken for that of all queries."""
    acts = safe_call(partial(run.acts, problem.fresh(), device)).value
    return bool(acts) and not safe_call(partial(run, problem.fresh(), device)).error


def names_of_masks(make: Constructor) -> Iterator[str]:
    """The parameters of its forward that take masks of tokens, by their names."""
    for parameter in parameters_of(make.kind):
        option = KNOWN_NAMES.get(parameter.name)
        if is_open_mask(parameter.name) or option in ("bool_mask", "key_padding_mask"):
            yield parameter.name
