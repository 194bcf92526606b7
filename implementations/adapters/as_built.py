"""Modules as built: with the parts that are left out elsewhere, in relations that need no expected answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.results import output_of
from attention_conformance.implementations.adapters.tensors import Tensors, gradients_of, tensors, to_array
from attention_conformance.implementations.adapters.torch_module import (
    FindPlaces,
    built,
    in_mode,
    named_parts,
    places_in,
    stored_at,
)
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.global_state import torch_seeded
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.spec.problem import Array, Problem

Call: TypeAlias = Callable[[nn.Module, Tensors, Problem], Any]
Run: TypeAlias = Callable[[Problem, str], Result]
INPUTS = ("query", "key", "value")
ROUNDINGS = float(np.finfo(np.float64).eps) ** 0.5
"""A part of the largest number that is more than roundings in float64, and less than what a token changes."""


SEED, OTHER_SEED = 7, 11
"""Of the initial weights of a module, and of one that gets the state dict of the first."""


@dataclass(frozen=True, eq=False)
class HeadAxes:
    """Which parameters of a module belong to heads.

    Attributes:
        places: of projections, see `TorchModule`.
        axes: of all other parameters, those that count heads, by path.
    """

    places: FindPlaces
    axes: Mapping[str, tuple[int, ...]]

    def reordered(self, module: nn.Module, problem: Problem, device: str) -> Array | None:
        """Brings the module's heads into another order, which is the same function; that of its output without w_o."""
        places, given = places_in(module, self.places, problem), tensors(problem, device)
        order = np.roll(np.arange(problem.num_heads)[::-1], 1)
        arrays = {path: to_array(module.get_parameter(path)).copy() for path in places}
        parts = named_parts(arrays, places, given)
        named = {name: torch.from_numpy(_reordered(name, part, order)) for name, part in parts.items()}
        with torch.no_grad():
            for path, place in places.items():
                parameter = module.get_parameter(path)
                parameter.copy_(stored_at(place, named).reshape(parameter.shape))
            for path, axes in self.axes.items():
                parameter = module.get_parameter(path)
                for axis in axes:
                    parameter.copy_(parameter.index_select(axis, torch.from_numpy(order.copy())))
        in_new_mode(module)
        return None if "w_o" in named else order


def _reordered(name: str, array: Array, order: Array) -> Array:
    """A weight or bias of a projection with its heads in this order."""
    if name == "b_o":
        return array
    axis = 0 if name == "w_o" else array.ndim - 1
    split = array.reshape(*array.shape[:axis], len(order), -1, *array.shape[axis + 1 :])
    return np.ascontiguousarray(split.take(order, axis).reshape(array.shape))


def _in_place(output: Array, order: Array) -> Array:
    """The output of heads that lie next to each other in this order, with each where it was."""
    heads = output.reshape(*output.shape[:2], len(order), -1)
    return np.ascontiguousarray(heads[:, :, np.argsort(order)]).reshape(output.shape)


@dataclass(frozen=True, eq=False)
class AsBuilt:
    """A `run` of a module with parameters of its own, in evaluation mode; its `Result.others` are its output, too.

    Attributes:
        build: makes the module, with all of its parts, for a problem's sizes.
        call: see `TorchModule`.
        prefixes: whether the first tokens alone get their rows where no token sees a later one.
        causal: whether none does, whatever a problem states; None or False: where a problem states it.
        unordered: whether no part knows the place of a token, so that tokens in another order get their rows.
        pieces: calls with the same tokens in pieces, by a name for messages.
        trained: whether it answers the same in training mode, where nothing is dropped.
        heads: moves the heads of a module in all of its parameters; None: it is unknown which belong to a head.
        otherwise: runs of other functions, such as of the module as it is built with other options, by a text for
            messages: what has to be the same as their output are their own `Result.others`.
    """

    build: Callable[[Problem], nn.Module]
    call: Call
    prefixes: bool = True
    causal: bool | None = None
    unordered: bool = False
    pieces: Mapping[str, Call] = field(default_factory=dict)
    trained: bool = False
    heads: HeadAxes | None = None
    otherwise: Mapping[str, Run] = field(default_factory=dict)

    def __call__(self, problem: Problem, device: str) -> Result:
        """The output with its gradients of inputs; without a cotangent, with the outputs that have to be the same."""
        module = self.module(problem, device)
        if problem.cotangent is None:
            output = self.answer(module, problem, device)
            others = {how: Result(x) for how, x in self._others(module, problem, device, output)}
            return Result(output, others=others | {how: each(problem, device) for how, each in self.otherwise.items()})
        if not problem.needs:
            return Result(self.answer(module, problem, device))
        given = tensors(problem, device)
        output = output_of(self.call(module, given, problem))
        leaves = {name: given[name] for name in problem.needs}
        return Result(to_array(output), gradients=gradients_of(output, leaves, given["cotangent"]))

    def module(self, problem: Problem, device: str) -> nn.Module:
        """A module for a problem's sizes, with its parameters drawn."""
        return drawn(self._built(problem, device, SEED))

    def _built(self, problem: Problem, device: str, seed: int) -> nn.Module:
        """In float64 by default: what is not registered is not converted, and its initial weights are kept."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch_seeded(seed):
                return in_mode(built(self.build, problem, device), False)
        finally:
            torch.set_default_dtype(before)

    def output(self, problem: Problem, device: str, call: Call | None = None) -> Array:
        """The output alone, or that of another call."""
        return self.answer(self.module(problem, device), problem, device, call)

    def without_effect(self, problem: Problem, device: str, known: Collection[str] = ()) -> tuple[str, ...]:
        """The paths of parameters whose values the output does not depend on, but for those that are known."""
        module = self.module(problem, device)
        output, idle = self.answer(module, problem, device), []
        for path, parameter in module.named_parameters():
            if path in known:
                continue
            before = parameter.detach().clone()
            with torch.no_grad():
                _change(parameter)
                idle += [path] if np.array_equal(self.answer(module, problem, device), output) else []
                parameter.copy_(before)
        return tuple(idle)

    def sees_later(self, problem: Problem, device: str) -> bool:
        """Whether a row depends on a later token, in the order of the tokens."""
        return bool(np.triu(self.seen(problem, device), 1).any())

    def seen(self, problem: Problem, device: str) -> Array:
        """(L, L), True = the row of the first token depends on the second one."""
        module = self.module(problem, device)
        whole, columns = self.answer(module, problem, device), []
        for token in range(problem.query.shape[1]):
            moved = problem.with_arrays({name: moved_at(getattr(problem, name), token) for name in INPUTS})
            changed = np.abs(self.answer(module, moved, device) - whole).max((0, 2))
            columns.append(changed > ROUNDINGS * np.abs(whole).max())
        return np.stack(columns, -1)

    def answer(self, module: nn.Module, problem: Problem, device: str, call: Call | None = None) -> Array:
        """The output of this very module."""
        with torch.no_grad():
            return to_array(output_of((call or self.call)(module, tensors(problem, device), problem)))

    def _restored(self, module: nn.Module, problem: Problem, device: str) -> nn.Module | None:
        """Another module, which has answered before, with the state dict of this one; None where that is refused.

        One of kept sequences may be.
        """
        other = self._built(problem, device, OTHER_SEED)
        safe_call(partial(self.answer, other, problem, device))
        refused = safe_call(lambda: other.load_state_dict(module.state_dict())).error
        return None if refused else in_new_mode(other)

    def _copied(self, problem: Problem, device: str) -> nn.Module | None:
        """A copy of another instance, whose own parameters are changed then; None where it cannot be copied."""
        first = self.module(problem, device)
        other: nn.Module | None = safe_call(partial(deepcopy, first)).value
        with torch.no_grad():
            for parameter in first.parameters():
                _change(parameter)
        return other

    def _others(self, module: nn.Module, problem: Problem, device: str, whole: Array) -> Iterator[tuple[str, Array]]:
        samples, tokens = range(whole.shape[0]), whole.shape[1]
        alone = [self.answer(module, _taken(problem, 0, [sample]), device) for sample in samples]
        yield "each sample alone", np.concatenate(alone)
        yield "after other calls", self.answer(module, problem, device)
        yield "in evaluation mode, chosen twice", self.answer(in_mode(module, False), problem, device)
        if (restored := self._restored(module, problem, device)) is not None:
            yield (
                "as its state dict restores it in one that has answered before",
                self.answer(restored, problem, device),
            )
        if (copied := self._copied(problem, device)) is not None:
            yield "as a copy of one that is changed then", self.answer(copied, problem, device)
        if shared := listed_twice(module):
            yield (
                f"with a layer of its own as {', '.join(shared)}, which is an earlier one of its list once more",
                self.answer(held_apart(module), problem, device),
            )
        causal = problem.causal or bool(self.causal)
        if causal and self.prefixes:
            for count in sorted({1, tokens // 2, tokens - 1} - {0}):
                first = self.answer(module, _taken(problem, 1, range(count)), device)
                yield (
                    f"the first {count} tokens alone" if count > 1 else "the first token alone",
                    np.concatenate([first, whole[:, count:]], 1),
                )
        elif self.unordered and not causal:
            order = np.roll(np.arange(tokens)[::-1], 1)
            moved = self.answer(module, _taken(problem, 1, order), device)
            yield "tokens in another order", moved[:, np.argsort(order)]
        for how, call in self.pieces.items():
            yield how, self.answer(module, problem, device, call)
        if self.heads is not None:
            other = self.module(problem, device)
            apart = self.heads.reordered(other, problem, device)
            output = self.answer(other, problem, device)
            yield "heads in another order", output if apart is None else _in_place(output, apart)
        if self.trained:
            yield "in training mode", self.answer(in_mode(module, True), problem, device)


@dataclass(frozen=True, eq=False)
class SeenTogether:
    """What a module sees that is built with two options: all that each of them leaves where it is alone."""

    both: AsBuilt
    alone: tuple[AsBuilt, AsBuilt]

    def __call__(self, problem: Problem, device: str) -> Result:
        """Which tokens each one sees, (1, L, L), and has to see; its `others` are those that it sees."""
        seen, one, other = (run.seen(problem, device) for run in (self.both, *self.alone))
        whole, found = ((each[None]).astype(np.float64) for each in (seen | one & other, seen))
        return Result(whole, others={"all that both leave": Result(found)})


def _taken(problem: Problem, axis: int, positions: Sequence[int] | range | Array) -> Problem:
    """The problem with only these samples or tokens of its inputs."""
    inputs = {name: array for name, array in problem.arrays().items() if name in INPUTS}
    return problem.with_arrays({name: array.take(list(positions), axis) for name, array in inputs.items()})


def moved_at(array: Array, token: int) -> Array:
    """The array with another token there, which no norm makes the same: components are reversed, and a ramp added."""
    moved = array.copy()
    moved[:, token] = 1.5 * array[:, token, ::-1] + np.linspace(-1.0, 2.0, array.shape[-1])
    return moved


def strays(module: nn.Module) -> list[torch.Tensor]:
    """Its tensors that are learnt by their gradients, and are no parameters: nothing saves, moves or trains them."""
    held = (value for each in module.modules() for value in vars(each).values())
    return [each for each in held if isinstance(each, torch.Tensor) and each.requires_grad and each.is_leaf]


def listed_twice(module: nn.Module) -> dict[str, tuple[nn.ModuleList, int]]:
    """The places in lists of layers where a layer with parameters stands that stands in an earlier one, too.

    Whoever lists layers means several: their copies are one, and its parameters cannot differ.
    """
    found: dict[str, tuple[nn.ModuleList, int]] = {}
    for path, each in module.named_modules():
        before: set[int] = set()
        for number, layer in enumerate(each if isinstance(each, nn.ModuleList) else ()):
            if id(layer) in before and next(layer.parameters(), None) is not None:
                found[f"{path}.{number}".strip(".")] = each, number
            before.add(id(layer))
    return found


def keeps_wrongly(module: nn.Module) -> bool:
    """Whether something that it learns is no parameter, or a parameter in several places that should each have one."""
    return bool(strays(module) or listed_twice(module))


def _change(parameter: torch.Tensor) -> None:
    """Gives it other numbers, none of which is as it was."""
    parameter.mul_(-1.5).add_(0.25)


def held_apart(module: nn.Module) -> nn.Module:
    """A copy in which each place of a list has a layer of its own, with other parameters than the first has."""
    other = deepcopy(module)
    with torch.no_grad():
        for layers, number in listed_twice(other).values():
            layers[number] = deepcopy(layers[number])
            for parameter in layers[number].parameters():
                _change(parameter)
    return in_new_mode(other)


def drawn(module: nn.Module) -> nn.Module:
    """The module with parameters drawn anew, always the same; what was a constant is moved from where it was."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in (*module.parameters(), *strays(module)):
            size = max(1, parameter.shape[-1:].numel()) ** -0.5
            noise = (torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * size).to(parameter)
            start = parameter.flatten()[:1]
            constant = bool(start.isfinite().all()) and bool((parameter == start).all())
            parameter.copy_(parameter + noise if constant else noise)
    return in_new_mode(module)


def in_new_mode(module: nn.Module) -> nn.Module:
    """The module, put into its mode anew: some keep there what they compute from their parameters."""
    training = module.training
    return in_mode(in_mode(module, not training), training)
