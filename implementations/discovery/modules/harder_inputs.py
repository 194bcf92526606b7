"""Harder inputs for whole modules: sequences beyond usual blocks and windows, and keys that a mask hides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from attention_conformance.implementations.adapters.as_built import INPUTS, AsBuilt, Run, moved_at
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.api.contract import Claims, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.claim_checks import MASKED
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem

OF_MEMORY = {"mem", "memory", "null"}
"""Words in the names of keys and values that are parameters."""
TOKENS = 134
"""More than two blocks of 64, and no multiple of a power of two."""
Change = Callable[[Problem], Problem]


def lengthened(problem: Problem, tokens: int = TOKENS) -> Problem:
    """The problem with more tokens, in two samples; each of them holds the numbers of one of those that it has."""
    arrays = {}
    for name in INPUTS:
        usual = getattr(problem, name)[:2]
        blocks = [np.roll(usual, 5 * n, -1) * (-1) ** n for n in range(-(-tokens // usual.shape[1]))]
        arrays[name] = np.ascontiguousarray(np.concatenate(blocks, 1)[:, :tokens])
    return problem.with_arrays(arrays)


@dataclass(frozen=True)
class Hiding:
    """How a problem states that keys are hidden: by the padding of each sample, or by a mask of one of these shapes.

    Attributes:
        axes: of a mask, 1 where all are alike; None: by the padding.
        middle: whether one token amid the others is hidden, and not the last ones.
    """

    axes: tuple[int, ...] | None = None
    middle: bool = False

    def visible(self, problem: Problem) -> Array:
        """(B, L), True = may be seen: all but two of the first sample, and all but one of the others."""
        tokens = np.arange(problem.query.shape[1])
        if self.middle:
            return np.broadcast_to(tokens != len(tokens) // 2, problem.query.shape[:2])
        of_samples = self.axes is None or (len(self.axes) == 4 and self.axes[0] > 1)
        hidden = np.where(np.arange(len(problem.query)) == 0, 2, 1) if of_samples else [2]
        return np.broadcast_to(tokens < len(tokens) - np.array(hidden)[:, None], problem.query.shape[:2])

    def __call__(self, problem: Problem) -> Problem:
        """The problem, in which they are hidden."""
        visible = self.visible(problem)
        if self.axes is None:
            return problem.but(key_padding_mask=visible.copy())
        length, heads = visible.shape[1], problem.num_heads
        whole = np.broadcast_to(visible[:, None, None], (len(visible), heads, length, length))
        firsts = tuple(slice(None) if extent > 1 else slice(1) for extent in ((1,) * 4 + self.axes)[-4:])
        mask = whole[firsts]
        return problem.but(attn_mask=mask.reshape(mask.shape[-len(self.axes) :]).copy(), causal=False)


def hiding(claims: Claims) -> Hiding | None:
    """How keys may be hidden; None where the claims have no boolean mask."""
    if Feature.KEY_PADDING in claims:
        return Hiding()
    fitted = fit(MASKED, claims)
    if isinstance(fitted, Unsupported) or (mask := build(fitted, "float64").attn_mask) is None:
        return None
    return Hiding(mask.shape)


@dataclass(frozen=True, eq=False)
class Changed:
    """A run with other inputs, which follow from those of the problem."""

    run: Run
    change: Change

    def __call__(self, problem: Problem, device: str) -> Result:
        """What the run gives for the changed problem."""
        return self.run(self.change(problem), device)


@dataclass(frozen=True, eq=False)
class Unseen:
    """A run of which only what visible tokens get is compared, with keys that a mask hides."""

    run: Run
    hiding: Hiding

    def __call__(self, problem: Problem, device: str) -> Result:
        """The run's output, and its `others` with the same rows where nothing has to be the same."""
        found, visible = self.run(self.hiding(problem), device), self.hiding.visible(problem)[..., None]
        others = {how: Result(np.where(visible, each.output, found.output)) for how, each in found.others.items()}
        return Result(found.output, others=others)


@dataclass(frozen=True, eq=False)
class OthersHidden:
    """What a whole module answers where a mask hides tokens, and where these are other ones."""

    run: AsBuilt
    hiding: Hiding

    def __call__(self, problem: Problem, device: str) -> Result:
        """The output; its `others` have the rows of visible tokens as they are with other hidden ones."""
        visible, moved = self.hiding.visible(problem), {}
        for name in INPUTS:
            array = getattr(problem, name)
            for token in range(array.shape[1]):
                array = np.where(visible[:, token, None, None], array, moved_at(array, token))
            moved[name] = array
        usual, other = (self.run.output(self.hiding(each), device) for each in (problem, problem.with_arrays(moved)))
        kept = np.where(visible[..., None], other, usual)
        return Result(usual, others={"with other hidden tokens": Result(kept)})


@dataclass(frozen=True)
class WithCounts:
    """A call that is given counts of each sample, (B,), which follow from the sample alone."""

    call: ModuleCall
    names: tuple[str, ...]

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Any:
        """The answer with these counts."""
        x = given["query"]
        counts = (x[:, 0] > 0.0).sum(-1) % x.shape[1] + 1
        return replace(self.call, always={**self.call.always, **dict.fromkeys(self.names, counts)})(
            module, given, problem
        )


def mixes_tokens(module: nn.Module) -> bool:
    """Whether a part of it may bring tokens together outside of its attention: a convolution, or what pools."""
    for part in module.modules():
        words = type(part).__name__.lower()
        wide = any(extent > 1 for extent in np.ravel(getattr(part, "kernel_size", 1)))
        if wide or any(word in words for word in ("pool", "conv1d", "lstm", "gru", "rnn", "mixer", "shift")):
            return True
    named = ((words_of(name), parameter) for name, parameter in module.named_parameters())
    kernels = (parameter.shape for words, parameter in named if parameter.ndim > 2 and not words & OF_MEMORY)
    return any(shape[-1] > 1 for shape in kernels)
