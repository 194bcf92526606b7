"""Distances: where these alone are read, the weights of tokens among each other do not change farther on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import INPUTS, ROUNDINGS, AsBuilt, Call, drawn
from attention_conformance.implementations.adapters.results import output_of
from attention_conformance.implementations.adapters.tensors import Tensors, tensors, to_array
from attention_conformance.implementations.adapters.torch_module import built, in_mode
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.extras import Chosen
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.harder_inputs import mixes_tokens
from attention_conformance.spec.problem import Array, Problem

OF_DISTANCES = re.compile(
    r"rotary|\brope|_rope|rotate_|inv_freq|freqs_cis|relative|\brel_|_rel_|alibi|distance|skew", re.IGNORECASE
)
"""What the text of a class has whose scores depend on where two tokens are from each other, and on nothing else."""
OF_PLACES = re.compile(
    r"axial|2d|grid|height|spatial|frame|\bfire|global|dilat|stride|longformer|log_?n\b|logn|ssmax|temperature"
    r"|token_shift|time_shift|segment|absolute_pos|abs_pos|pos_embed\b|\bwpe\b",
    re.IGNORECASE,
)
"""What it has where they may depend on more: places in an image, tokens of their own kind, a scale by the length."""
TOKENS, PLACES, FAR = 6, (4, 7, 13), (4, 67, 131)
"""How many tokens are looked at, and how many others come before them; as many tokens come before and after them."""
LATER = 5
"""By how much positions that are given are larger."""
FAINT = 1e-6
"""Of the weight of a row, what tokens have together that is too little to see how it is divided among them."""


def reads_distances(kind: object, module: nn.Module) -> bool:
    """Whether its text states that its scores depend on distances, and nothing else that they may depend on."""
    classes = {type(part) for part in module.modules() if type(part).__module__.partition(".")[0] != "torch"}
    every = [kind, *classes]
    text = "\n".join(map(code_of, every))
    return bool(OF_DISTANCES.search(text)) and not OF_PLACES.search(text) and not mixes_tokens(module)


@dataclass(frozen=True, eq=False)
class Moved:
    """A module with one head, whose weights are seen in its answers: tokens of one kind, and then others among them.

    Attributes:
        build: makes a module of one head, for a problem.
        call: see `TorchModule`.
        places: how many others come before the tokens that are looked at.
        added: whether the input is a part of the answer.
    """

    build: Callable[[Problem], nn.Module]
    call: Call
    places: Sequence[int] = PLACES
    added: bool = False

    def __call__(self, problem: Problem, device: str) -> Result:
        """How much weight each token gives the others, (1, n, n); its `others` are that with other tokens before."""
        weights = self.weights(problem, device)
        if weights is None:
            same = Result(problem.query[:1, :TOKENS])
            return replace(same, others={"the same tokens farther on": same})
        first, *others = _shares(weights)
        farther = {f"the same tokens {n} places farther on": n for n in np.subtract(self.places[1:], self.places[0])}
        return Result(first[None], others={how: Result(x[None]) for how, x in zip(farther, others, strict=True)})

    def weights(self, problem: Problem, device: str) -> Array | None:
        """(places, n, n) of the tokens among each other; None where answers are no means of values that tokens have."""
        x = problem.query
        if len(x) < 2 or x.shape[1] < TOKENS or x.shape[2] <= TOKENS:
            return None
        kinds, length = np.concatenate([x[1:2, 0], x[0, :TOKENS]]), max(self.places) + TOKENS
        rows = [np.full(length, kind) for kind in range(TOKENS + 1)]
        for place in self.places:
            row = np.zeros(length, np.int64)
            row[place : place + TOKENS] = np.arange(1, TOKENS + 1)
            rows.append(row)
        output = self._output(problem, kinds[np.stack(rows)], device)
        alike, mixed = output[: TOKENS + 1], output[TOKENS + 1 :]
        values, most = alike[:, 0], ROUNDINGS * np.abs(output).max()
        if not np.isfinite(output).all() or np.abs(alike - values[:, None]).max() > most:
            return None
        seen = np.stack([each[at : at + TOKENS] for each, at in zip(mixed, self.places, strict=True)])
        centred = (values - values[0])[1:]
        found = np.linalg.lstsq(centred.T, (seen - values[0]).reshape(-1, values.shape[1]).T, rcond=None)[0].T
        if np.abs(found @ centred - (seen - values[0]).reshape(-1, values.shape[1])).max() > most:
            return None
        weights: Array = found.reshape(len(self.places), TOKENS, TOKENS)
        return weights if weights.min() > -FAINT and weights.sum(-1).max() < 1.0 + FAINT else None

    def _output(self, problem: Problem, x: Array, device: str) -> Array:
        module = drawn(in_mode(built(self.build, problem, device), False))
        given = problem.with_arrays({name: x.astype(problem.query.dtype) for name in INPUTS})
        with torch.no_grad():
            output = to_array(output_of(self.call(module, tensors(given, device), given)))
        return output - x if self.added else output


def _shares(weights: Array) -> Array:
    """The weights of what is seen in each place, divided by their sum; rows that are faint are as in the first one."""
    seen = (weights > FAINT).all(0)
    kept = np.where(seen, weights, 0.0)
    totals = kept.sum(-1, keepdims=True)
    shares = kept / np.where(totals > FAINT, totals, 1.0)
    faint = (totals < FAINT).any(0, keepdims=True)
    shared: Array = np.where(faint, shares[:1], shares)
    return shared


def with_one_head(make: Constructor, problem: Problem) -> nn.Module:
    """A module with one head as wide as the inputs of a problem."""
    return make(problem.query.shape[-1], 1)


def moved_tokens(makes: Sequence[Constructor], call: Call, problem: Problem | None, device: str) -> Mapping[str, Moved]:
    """What of a class that reads distances can be looked at, by a text for messages.

    It is built in the first of these ways in which it shows its weights.
    """
    module = safe_call(lambda: built(partial(with_one_head, makes[0]), problem, device)).value if problem else None
    if problem is None or module is None or not reads_distances(makes[0].kind, module):
        return {}
    attempts = (Moved(partial(with_one_head, make), call, added=added) for make in makes for added in (False, True))
    shown = next((each for each in attempts if _is_shown(each, problem, device)), None)
    if shown is None:
        return {}
    far = replace(shown, places=FAR)
    runs = {"with one head": shown}
    return runs | ({"with one head, in a long sequence": far} if _is_shown(far, problem, device) else {})


def moved_otherwise(
    calls: Mapping[str, tuple[Constructor, Call]], problem: Problem | None, device: str
) -> Mapping[str, Moved]:
    """The same of a class as it is built otherwise, by the texts for these ways to build it."""
    return {
        f"{how}, {where}": run
        for how, (make, call) in calls.items()
        for where, run in moved_tokens((make,), call, problem, device).items()
    }


@dataclass(frozen=True, eq=False)
class AtPositions:
    """A call that is given the positions of its tokens, (B, L), from this one on."""

    call: ModuleCall
    name: str
    first: int

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Any:
        """The answer at these positions."""
        samples, tokens = given["query"].shape[:2]
        ids = (self.first + torch.arange(tokens, device=given["query"].device)).expand(samples, tokens)
        return replace(self.call, always={**self.call.always, self.name: ids})(module, given, problem)


@dataclass(frozen=True, eq=False)
class FartherOn:
    """A whole module that is given positions: where distances alone are read, all of them may be larger."""

    run: AsBuilt
    call: ModuleCall
    name: str

    def __call__(self, problem: Problem, device: str) -> Result:
        """The output at positions from 0 on; its `others` is that at larger ones."""
        calls = (Chosen(AtPositions(self.call, self.name, first), ()) for first in (0, LATER))
        usual, later = (replace(self.run, call=call).output(problem, device) for call in calls)
        return Result(usual, others={f"with all of them {LATER} larger": Result(later)})


def at_larger_positions(run: AsBuilt, make: Constructor, module: nn.Module, call: ModuleCall) -> dict[str, FartherOn]:
    """The run with positions, where it takes them and reads distances; nothing else."""
    name = call.options.named.spelled.get("query_positions", "")
    if not name or name in call.tables or not reads_distances(make.kind, module):
        return {}
    return {f"with {name} from 0 on": FartherOn(run, call, name)}


def _is_shown(run: Moved, problem: Problem, device: str) -> bool:
    weights = safe_call(partial(run.weights, problem.fresh(), device)).value
    return weights is not None and bool((weights.sum(-1) > FAINT).all())
