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
    return answer.numbers.cpu().numpy()


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


def _summed(answer: Answer, source: Array) -> tuple[Array, Array] | None:
    """The sum of encoder outputs with the weights, and the context; None where one of both cannot be it."""
    if answer.weights is None or answer.context is None or answer.context.shape[1] != source.shape[2]:
        return None
    return np.einsum("bs,bse->be", _array(answer.weights), source), _array(answer.context)


def _array(tensor: torch.Tensor) -> Array:
    return np.ascontiguousarray(tensor.double().cpu().numpy())


def _weights_of(answer: Answer) -> Array:
    """Its weights, none of them where it returns none."""
    return np.zeros((len(answer.numbers), 0)) if answer.weights is None else _array(answer.weights)


def _with_weights(answer: Answer, weights: Array) -> Array:
    """The numbers of an answer with other weights in the place of its own."""
    return np.concatenate([weights, numbers_of(answer)[:, weights.shape[1] :]], 1)


def _equal(expected: Array, found: Array) -> Result:
    """What has to be, and what is returned; they are compared with each other alone."""
    return Result(expected, others={RETURNED: Result(found)})


@dataclass(frozen=True, eq=False)
class Unmasked:
    """What holds where all source tokens are seen; `unordered`: in any order of them, too."""

    look: Look
    unordered: bool

    def __call__(self, problem: Problem, device: str) -> Result:
        """The numbers of the answer; its `others` have to be the same."""
        module, (hidden, source) = self.look.run.module(problem, device), self.look.inputs(problem)
        usual = self.look.answer(module, hidden, source, device)
        others = {"once more": Result(numbers_of(self.look.answer(module, hidden, source, device)))}
        if self.unordered:
            order = np.roll(np.arange(TOKENS)[::-1], 1)
            answer = self.look.answer(module, hidden, source[:, order].copy(), device)
            weights = _weights_of(answer)
            weights = weights[:, np.argsort(order)] if weights.size else weights
            others["source tokens in another order"] = Result(_with_weights(answer, weights))
        if usual.weights is not None:
            stated = is_distribution(usual.weights, 1) or of_something_else(usual.weights)
            sums = _array(usual.weights).sum(1).round(5) if stated else np.ones(SAMPLES)
            others["the sum of its weights over the source tokens"] = _equal(np.ones(SAMPLES), sums)
        return Result(numbers_of(usual), others=others)


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
        """The numbers of the answer; its `others` have to be the same, or are what each of theirs has to be.

        There are none where no weights are returned and what is hidden may be seen elsewhere.
        """
        module, (hidden, source) = self.look.run.module(problem, device), self.look.inputs(problem)
        usual, found = self.look.answer(module, hidden, source, device), self._answer(module, hidden, source, device)
        shown = usual.weights is not None and is_distribution(usual.weights, 1)
        others = dict(self._of_weights(usual, found, source)) if shown else {}
        if not self.mixes:
            other = np.where(self.left[..., None], source, moved(source))
            answer = self._answer(module, hidden, other, device)
            others["with other encoder outputs there"] = Result(self._numbers(answer, shown))
            if (cut := safe_call(lambda: self._cut(module, hidden, source, device)).value) is not None:
                others["each sample alone without these tokens"] = Result(cut)
        return Result(self._numbers(found, shown), others=others)

    def _answer(self, module: nn.Module, hidden: Array, source: Array, device: str) -> Answer:
        return self.look.answer(module, hidden, source, device, (self.hiding, self.left))

    def _numbers(self, answer: Answer, shown: bool) -> Array:
        """All of it; scores, which are no weights, are anything where they are hidden."""
        weights = _weights_of(answer)
        return _with_weights(answer, weights if shown or not weights.size else np.where(self.left, weights, 0.0))

    def _of_weights(self, usual: Answer, found: Answer, source: Array) -> Iterator[tuple[str, Result]]:
        """Which tokens have a weight, and that the context is their sum, where both hold without a mask."""
        one_off = -1 if self.hiding.needed else None  # which may hide the last one always
        weights, all_seen = _weights_of(found), (_weights_of(usual)[:, :one_off] > WEIGHTY).all()
        seen = np.where(self.left, weights > WEIGHTY, weights > WEIGHTLESS) if all_seen else self.left
        yield "which source tokens have a weight (1) and which have none (0)", _equal(self.left * 1.0, seen * 1.0)
        if (sums := _summed(found, source)) is not None and (before := _summed(usual, source)) is not None:
            summed, context = sums if np.allclose(*before, 0, ROUNDINGS) else sums[:1] * 2
            yield "the sum of the encoder outputs with its weights", _equal(summed, context)

    def _cut(self, module: nn.Module, hidden: Array, source: Array, device: str) -> Array:
        """The numbers of each sample alone, whose hidden tokens are not there; their weights are 0."""
        alone = []
        for sample, count in enumerate(LEFT):
            one = slice(sample, sample + 1)
            answer = self.look.answer(module, hidden[one], source[one, :count].copy(), device)
            weights = _weights_of(answer)
            lacking = TOKENS - count if weights.size else 0
            alone.append(
                np.concatenate([weights, np.zeros((1, lacking)), numbers_of(answer)[:, weights.shape[1] :]], 1)
            )
        return np.concatenate(alone)
