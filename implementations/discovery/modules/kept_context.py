"""Keys and values of another sequence that an earlier call has made: with these in its place the answer is the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.adapters.mha_interface import inputs_of
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import in_mode
from attention_conformance.implementations.api.safe_call import CallOutcome
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck, near_outputs
from attention_conformance.implementations.discovery.modules.cache_forms import MOST_PARTS, empties
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.own_cache import (
    first,
    holds,
    parameters_of,
    pasts_of,
    wanted_of,
)
from attention_conformance.implementations.discovery.probe import first_part, shape_of
from attention_conformance.implementations.discovery.vocabulary import INPUTS
from attention_conformance.spec.problem import Problem

Empty = Callable[[nn.Module, torch.Tensor, int], object]
KEPT = "with the keys and values of an earlier call through {}"
UNEQUAL = PLAIN.sized(query_length=5, key_length=7)
OF_CONTEXT = re.compile(
    r"\b(?:cross|encoder|context|memory)\b[^.]{0,60}\b(?:kept|cached?|re-?used?|once)\b"
    r"|\b(?:keeps?|caches?|re-?uses?)\b[^.]{0,60}\b(?:cross|encoder|context|memory)\b",
    re.IGNORECASE,
)
"""How a text states that what is made of another sequence is kept for later calls."""


@dataclass(frozen=True)
class WithKept:
    """A call that is given what one with other queries has kept.

    Attributes:
        call: one with another sequence for key and value.
        past: the parameter that takes what is kept.
        names: of its inputs.
        wanted: what makes the first call keep something.
        part: where that is in the answer, after the output; 0: in the object that it is given.
        empty: makes such an object.
        again: whether the other sequence is given once more.
        other: whether it is another one then, which shows that what is kept comes first.
    """

    call: ModuleCall
    past: str
    names: tuple[str, ...]
    wanted: Mapping[str, object] = field(default_factory=dict)
    part: int = 0
    empty: Empty | None = None
    again: bool = False
    other: bool = False

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Any:
        """The answer of the later call; that of the usual one where there is nothing to keep."""
        query, key, value = inputs_of(given)
        alone = self.call.optional and query is key
        if alone or problem.causal or (problem.extension.has_dropout and module.training):
            return self.call(module, given, problem)
        mode = module.training
        in_mode(module, False)  # in which some modules use their cache alone
        try:
            kept = self._kept(module, {**given, "query": query.flip(1), "key": key, "value": value}, problem)
            moved = {"key": key.flip(0, 1), "value": value.flip(0, 1)} if self.other else {}
            return self._later(kept)(module, {**given, **moved}, problem)
        finally:
            in_mode(module, mode)

    def _kept(self, module: nn.Module, given: Tensors, problem: Problem) -> object:
        held = None if self.empty is None else self.empty(module, given["query"], problem.num_heads)
        always = {**self.call.always, **self.wanted, **({} if held is None else {self.past: held})}
        answer = first(replace(self.call, always=always)(module, given, problem))
        if self.part and not holds(answer[self.part], given["key"].shape[1]):
            raise ValueError(f"it returns no keys and values of {given['key'].shape[1]} tokens there")
        return answer[self.part] if self.part else held

    def _later(self, kept: object) -> ModuleCall:
        call = self.call if self.again else self.without()
        return replace(call, always={**call.always, self.past: kept})

    def without(self) -> ModuleCall:
        """The call without the other sequence."""
        always = {**self.call.always, **dict.fromkeys(self.names[1:])}
        return replace(self.call, inputs=1, keywords=self.names[:1], always=always)


def with_kept_context(make: Constructor, call: ModuleCall, check: ClaimCheck) -> Iterator[tuple[str, WithKept]]:
    """The calls with what is kept of another sequence, by a name for messages, as far as it is known what that means.

    It is where the sequence is needed, and is not next to what is kept; where other numbers in its place change nothing
    then; and where the documentation states it.
    """
    names = _names(make, call)
    if not names or call.order[0] != INPUTS[0] or check.claims.premises.hides_later:
        return
    usual = replace(check, function=call).run(UNEQUAL)
    for past in pasts_of(make.kind) if not usual.error else ():
        whole = WithKept(call, past, names, wanted_of(parameters_of(make.kind)))
        if (way := _known(make, whole, check, usual)) is not None:
            yield KEPT.format(past), way


def _names(make: Constructor, call: ModuleCall) -> tuple[str, ...]:
    """Those of the inputs of a call with another sequence for key and value; none where it is no plain one."""
    plain = not (call.tap or call.spatial or call.each_sample or call.listed or call.resets or call.tables)
    if call.inputs < 2 or not plain or call.packing is not None:
        return ()
    return call.keywords or tuple(each.name for each in parameters_of(make.kind)[: call.inputs])


def _known(make: Constructor, whole: WithKept, check: ClaimCheck, usual: CallOutcome[Any]) -> WithKept | None:
    """The call that is right, or else one of which it is certain that it should be."""
    with torch.random.fork_rng(devices=[]):
        objects = [*empties(make.kind, built(make))]
    returned = [replace(whole, part=part) for part in range(1, 1 + MOST_PARTS)]
    sources = [*returned, *(replace(whole, empty=empty) for empty in objects)]
    needed = not whole.call.optional and bool(replace(check, function=whole.without()).run(UNEQUAL).error)

    def answers(way: WithKept) -> CallOutcome[Any]:
        return replace(check, function=way).run(UNEQUAL)

    def is_right(way: WithKept) -> bool:
        return _is_alike(usual, found := answers(way)) and near_outputs(usual, found, check.dtype)

    for way in sources:
        if needed and is_right(way):
            return way
        if is_right(replace(way, again=True, other=True)):
            return replace(way, again=True)
    certain = returned if needed else []
    if states_kept_context(make.kind):
        certain = [*certain, *(replace(each, again=True) for each in sources)]
    return next((each for each in certain if _is_alike(usual, answers(each))), None)


def _is_alike(one: CallOutcome[Any], other: CallOutcome[Any]) -> bool:
    """Whether both answer, in the same shape."""
    return not (one.error or other.error) and shape_of(first_part(one.value)) == shape_of(first_part(other.value))


def states_kept_context(kind: object) -> bool:
    """Whether its documentation states that what is made of another sequence is kept."""
    every = (kind, getattr(kind, "__init__", None), getattr(kind, "forward", None))
    return any(OF_CONTEXT.search(each.__doc__ or "") for each in every)
