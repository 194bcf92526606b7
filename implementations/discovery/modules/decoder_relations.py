"""Decoder relations: what holds of the weights and the context of one decoder step, whatever its scores are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import ROUNDINGS, AsBuilt, moved_at
from attention_conformance.implementations.adapters.tensors import to_tensor
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.decoder_calls import (
    SAMPLES,
    TOKENS,
    Answer,
    DecoderCall,
    Hiding,
)
from attention_conformance.spec.problem import Array, Problem

LEFT = (TOKENS, TOKENS - 2, TOKENS - 3)
"""Source tokens of each sample where some are hidden: the longest first, as packed sequences have them."""
WEIGHTLESS, WEIGHTY = 1e-6, 1e-12
"""What is hidden has a smaller weight than the first, and what is seen a larger one than the second."""
RETURNED = "as they are returned"


Hidden: TypeAlias = tuple[Hiding, Array]
"""By which input, and which source tokens are left, (B, S)."""


@dataclass(frozen=True, eq=False)
class Look:
    """A module as it is called, of which more is looked at than its numbers."""

    run: AsBuilt
    call: DecoderCall

    def inputs(self, problem: Problem) -> tuple[Array, Array]:
        """The hidden state, (B, D), and the encoder outputs, (B, S, E), of the one input of self-attention."""
        hidden, source = self.call.widths
        return problem.query[:, -1, ::-1][:, :hidden].copy(), problem.query[..., :source].copy()

    def answer(
        self, module: nn.Module, hidden: Array, source: Array, device: str, hidden_by: Hidden | None = None
    ) -> Answer:
        """What it returns for these inputs."""
        given = {} if hidden_by is None else {hidden_by[0].name: hidden_by[0].of(to_tensor(hidden_by[1], device))}
        with torch.no_grad():
            return self.call(module, to_tensor(hidden, device), to_tensor(source, device), **given)


def numbers_of(answer: Answer) -> Array:
    return answer.numbers.double().cpu().numpy()


def moved(source: Array) -> Array:
    """With all tokens others."""
    for token in range(source.shape[1]):
        source = moved_at(source, token)
    return source


def of_something_else(weights: torch.Tensor | None) -> bool:
    """Whether weights add up to 1 over samples, or each is 1: of whatever else than the source tokens."""
    if weights is None or is_distribution(weights, 1):
        return False
    return is_distribution(weights, 0) or bool((weights - 1).abs().max() < WEIGHTLESS)


def is_distribution(weights: torch.Tensor, axis: int) -> bool:
    """Whether they are not negative and add up to 1."""
    return bool((weights >= 0).all()) and bool((weights.sum(axis) - 1).abs().max() < WEIGHTLESS)


def _summed(answer: Answer, source: Array) -> Array | None:
    """The sum of encoder outputs with the weights; None where there are none, or no context as wide."""
    if answer.weights is None or answer.context is None or answer.context.shape[1] != source.shape[2]:
        return None
    return np.einsum("bs,bse->be", _array(answer.weights), source)


def _array(tensor: torch.Tensor) -> Array:
    return np.ascontiguousarray(tensor.double().cpu().numpy())


def _weights(rows: Array, weights: torch.Tensor | None) -> tuple[Array, Array]:
    """The numbers of an answer in two parts: weights, which may be none, and the rest."""
    count = 0 if weights is None else weights.shape[1]
    return rows[:, :count], rows[:, count:]


@dataclass(frozen=True, eq=False)
class Unmasked:
    """What holds where all source tokens are seen; `unordered`: in any order of them, too."""

    look: Look
    unordered: bool

    def __call__(self, problem: Problem, device: str) -> Result:
        """The numbers of the answer; its `others` have to be the same."""
        module, (hidden, source) = self.look.run.module(problem, device), self.look.inputs(problem)
        usual = self.look.answer(module, hidden, source, device)
        rows, others = numbers_of(usual), {}
        if self.unordered:
            order = np.roll(np.arange(TOKENS)[::-1], 1)
            moved_rows = numbers_of(self.look.answer(module, hidden, source[:, order].copy(), device))
            weights, context = _weights(moved_rows, usual.weights)
            weights = weights[:, np.argsort(order)] if weights.size else weights
            others["source tokens in another order"] = Result(np.concatenate([weights, context], 1))
        if usual.weights is not None and (is_distribution(usual.weights, 1) or of_something_else(usual.weights)):
            sums = _array(usual.weights).sum(1).round(5)
            others["the sum of its weights over the source tokens"] = Result(
                np.ones(SAMPLES), others={RETURNED: Result(sums)}
            )
        return Result(rows, others=others or {"once more": Result(rows)})


@dataclass(frozen=True, eq=False)
class Masked:
    """What holds where an input hides the last source tokens of some samples.

    Attributes:
        look: the module.
        hiding: the input.
        mixes: whether it brings source tokens together outside of its attention: what is hidden may be seen there.
    """

    look: Look
    hiding: Hiding
    mixes: bool

    @property
    def left(self) -> Array:
        """The source tokens that are left, (B, S)."""
        return np.arange(TOKENS) < np.array(LEFT)[:, None]

    def acts(self, module: nn.Module, problem: Problem, device: str) -> bool:
        """Whether it is taken in this form, and changes the answer."""
        usual = self.look.answer(module, *self.look.inputs(problem), device)
        found = self._answer(module, *self.look.inputs(problem), device)
        return found.shapes == usual.shapes and not np.allclose(numbers_of(found), numbers_of(usual), 0, ROUNDINGS)

    def __call__(self, problem: Problem, device: str) -> Result:
        """The numbers of the answer; its `others` have to be the same, or are what each of theirs has to be."""
        module, (hidden, source) = self.look.run.module(problem, device), self.look.inputs(problem)
        found = self._answer(module, hidden, source, device)
        rows, others = numbers_of(found), dict(self._of_weights(module, hidden, source, found, device))
        if not self.mixes:
            other = np.where(self.left[..., None], source, moved(source))
            others["with other encoder outputs there"] = Result(numbers_of(self._answer(module, hidden, other, device)))
        cut = safe_call(lambda: self._cut(module, hidden, source, found, device)).value
        if cut is not None and not self.mixes:
            others["each sample alone without these tokens"] = Result(cut)
        return Result(rows, others=others or {"once more": Result(rows)})

    def _answer(self, module: nn.Module, hidden: Array, source: Array, device: str) -> Answer:
        return self.look.answer(module, hidden, source, device, (self.hiding, self.left))

    def _of_weights(
        self, module: nn.Module, hidden: Array, source: Array, found: Answer, device: str
    ) -> Iterator[tuple[str, Result]]:
        """Which tokens have a weight, and that the context is their sum, where both hold without a mask."""
        usual = self.look.answer(module, hidden, source, device)
        if usual.weights is None or found.weights is None or not is_distribution(usual.weights, 1):
            return
        weights = _array(found.weights)
        seen_at = _array(usual.weights)[:, : -1 if self.hiding.needed else None]  # one off may hide the last one always
        if (seen_at > WEIGHTY).all():
            seen = np.where(self.left, weights > WEIGHTY, weights > WEIGHTLESS)
            yield (
                "which source tokens have a weight (1) and which have none (0)",
                Result(self.left.astype(float), others={RETURNED: Result(seen.astype(float))}),
            )
        summed, again = (_summed(each, source) for each in (usual, found))
        if summed is not None and again is not None and np.allclose(summed, _array(usual.context), 0, ROUNDINGS):  # type: ignore[arg-type]
            context = _array(found.context)  # type: ignore[arg-type]
            how = "the sum of the encoder outputs with its weights"
            yield how, Result(again, others={"the context as it is returned": Result(context)})

    def _cut(self, module: nn.Module, hidden: Array, source: Array, found: Answer, device: str) -> Array:
        """The numbers of each sample alone, whose hidden tokens are not there; their weights are 0."""
        alone = []
        for sample, count in enumerate(LEFT):
            one = slice(sample, sample + 1)
            answer = self.look.answer(module, hidden[one], source[one, :count].copy(), device)
            weights, context = _weights(numbers_of(answer), answer.weights)
            lacking = 0 if found.weights is None else TOKENS - count
            alone.append(np.concatenate([weights, np.zeros((1, lacking)), context], 1))
        return np.concatenate(alone)
