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
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.spec.problem import Array, Problem

IMAGES, WINDOWS = 2, 3


@dataclass(frozen=True, eq=False)
class WindowMasks:
    """A module of windows, whose forward takes a mask of each window of an image by this name."""

    make: Constructor
    call: ModuleCall
    name: str

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
        return Result(output(x), others={"each image alone": Result(alone)})


def window_masks(make: Constructor, call: ModuleCall) -> Mapping[str, WindowMasks]:
    """What can be looked at of a class of windows that adds a mask, by a text for messages."""
    name = call.options.spelled.get("float_mask")
    return {"with a mask for each window": WindowMasks(make, call, name)} if make.window and name else {}
