"""Masks of the windows of an image: every image of a batch has the same ones, in the order of its windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from attention_conformance.implementations.adapters.as_built import INPUTS, drawn
from attention_conformance.implementations.adapters.results import output_of
from attention_conformance.implementations.adapters.tensors import tensors, to_array
from attention_conformance.implementations.adapters.torch_module import built, in_mode
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.documented import states_images_first
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.implementations.discovery.probe import HALF
from attention_conformance.spec.problem import Array, Problem

IMAGES, WINDOWS = 2, 3
UNKNOWN_ORDER = "it takes the first windows of all images first, (nW * B, N, E): whether they come so is not known"


@dataclass(frozen=True, eq=False)
class WindowMasks:
    """A module of windows, whose forward takes a mask of each window of an image by this name.

    Attributes:
        windows_first: whether the first windows of all images come first, (nW * B, N, E), not (B * nW, N, E).
    """

    make: Constructor
    call: ModuleCall
    name: str
    windows_first: bool = False

    def __call__(self, problem: Problem, device: str) -> Result:
        """The output for several images, whose windows lie next to each other; its `others` are those of each alone."""
        tokens = problem.query.shape[1]
        x = np.concatenate([np.roll(problem.query[:1], 5 * n, -1) for n in range(IMAGES * WINDOWS)])
        numbers = 2.0 * np.random.default_rng(5).standard_normal((WINDOWS, tokens, tokens))
        mask = torch.from_numpy(numbers.astype(problem.query.dtype)).to(device)
        call = replace(self.call, always={**self.call.always, self.name: mask})
        module = drawn(in_mode(built(partial(built_for, self.make, True), problem, device), False))

        def output(rows: Array) -> Array:
            given = problem.with_arrays({name: rows.astype(problem.query.dtype) for name in INPUTS})
            with torch.no_grad():
                return to_array(output_of(call(module, tensors(given, device), given)))

        alone = np.concatenate([output(rows) for rows in np.split(x, IMAGES)])
        together = output(_first_axis_moved(x, IMAGES)) if self.windows_first else output(x)
        together = _first_axis_moved(together, WINDOWS) if self.windows_first else together
        return Result(together, others={"each image alone": Result(alone)})

    def in_its_order(self, problem: Problem, device: str) -> WindowMasks:
        """The same, with the windows first where the images are right in that order alone, and none is documented."""
        if states_images_first(self.make.kind):
            return self
        other = replace(self, windows_first=True)
        outcomes = [safe_call(partial(run, problem.fresh(), device)).value for run in (self, other)]
        usual, unusual = (each is not None and _is_alone(each) for each in outcomes)
        return other if unusual and not usual else self


def _first_axis_moved(rows: Array, count: int) -> Array:
    """Rows that are counted by two numbers, `count` of the first, counted by the other one first."""
    return rows.reshape(count, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)


def _is_alone(result: Result) -> bool:
    """Whether several images give the answers of each, roughly."""
    (alone,) = result.others.values()
    return bool(np.allclose(result.output, alone.output, rtol=HALF, atol=HALF))


def window_masks(make: Constructor, call: ModuleCall) -> Mapping[str, WindowMasks]:
    """What can be looked at of a class of windows that adds a mask, by a text for messages."""
    name = call.options.spelled.get("float_mask")
    return {"with a mask for each window": WindowMasks(make, call, name)} if make.window and name else {}
