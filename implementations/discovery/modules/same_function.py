"""The same function: modules that compute it in another way by an option, or have had a longer sequence before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from attention_conformance.implementations.adapters.as_built import AsBuilt, Call, Run
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.built_otherwise import OF_SLICES, words_of_option
from attention_conformance.implementations.discovery.modules.constructor_names import Size, size_of
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.dropping import RATE
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.harder_inputs import lengthened
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.implementations.discovery.signatures import of_constructor
from attention_conformance.spec.problem import Problem

OF_WAYS = {
    *("flash", "sdpa", "fused", "efficient", "xformers", "absorb", "absorbed", "naive", "eager"),
    *("backend", "impl", "implementation", "upcast", *OF_SLICES),
}
"""Words in the names of options that choose how an answer is computed, and not which."""
LONGER = 40
"""Tokens, more than twice the limit that a module is built with for it."""


@dataclass(frozen=True, eq=False)
class AnotherWay:
    """A whole module, and the one that an option lets compute the same."""

    usual: AsBuilt
    other: AsBuilt

    def __call__(self, problem: Problem, device: str) -> Result:
        """The usual output; its `others` is that of the other one, with the same parameters."""
        found = self.other.output(problem, device)
        return Result(self.usual.output(problem, device), others={"with the same parameters": Result(found)})


@dataclass(frozen=True, eq=False)
class AfterLonger:
    """A whole module that gets a sequence beyond its limit between two calls with the same one."""

    run: AsBuilt

    def __call__(self, problem: Problem, device: str) -> Result:
        """The output of the first call; its `others` is that of the last one."""
        module = self.run.module(problem, device)
        sequences = problem, lengthened(problem, LONGER), problem
        first, _, last = (self.run.answer(module, each, device) for each in sequences)
        return Result(first, others={f"after a sequence of {LONGER} tokens": Result(last)})


@dataclass(frozen=True, eq=False)
class AfterUsual:
    """A whole module that is given an option after a call without it."""

    run: AsBuilt
    call: Call

    def __call__(self, problem: Problem, device: str) -> Result:
        """The output of a new module with the option; its `others` is that of one that was called without before."""
        first = self.run.answer(self.run.module(problem, device), problem, device, self.call)
        module = self.run.module(problem, device)
        self.run.answer(module, problem, device)
        last = self.run.answer(module, problem, device, self.call)
        return Result(first, others={"after a call without": Result(last)})


def after_usual(run: AsBuilt, call: ModuleCall, given: Mapping[str, object]) -> dict[str, Run]:
    """The runs with each of these options of its forward, by a text for messages."""
    calls = {name: replace(call, always={**call.always, name: value}) for name, value in given.items()}
    return {f"called with {name}={given[name]!r}": AfterUsual(run, each) for name, each in calls.items()}


def after_longer(run: AsBuilt, limits: Mapping[str, Constructor]) -> dict[str, Run]:
    """The runs of the class as it is built with each of these limits."""
    return {how: AfterLonger(replace(run, build=partial(built_for, each, True))) for how, each in limits.items()}


def other_ways(
    make: Constructor, usual: AsBuilt, runs: Mapping[str, AsBuilt], makes: Mapping[str, Constructor], problem: Problem
) -> Iterator[tuple[str, AnotherWay]]:
    """The runs of those options that choose a way, where they have the parameters that the usual one has."""
    shapes = _shapes(usual, problem)
    for how, run in runs.items():
        if how in makes and words_of_option(make, makes[how]) & OF_WAYS and _shapes(run, problem) == shapes:
            yield f"{how}, as without", AnotherWay(usual, run)


def dropout_in_evaluation(make: Constructor, usual: AsBuilt, problem: Problem, device: str) -> dict[str, AnotherWay]:
    """The run built with dropout, by a text for messages: in evaluation it is the usual one; none without a rate."""
    signature = safe_call(lambda: of_constructor(make.kind)).value
    rates = [name for name in (signature.parameters if signature else ()) if size_of(name) is Size.RATE]
    other = replace(make, options={**make.options, **dict.fromkeys(rates, RATE)})
    run = replace(usual, build=partial(built_for, other, True))
    if not rates or safe_call(lambda: _shapes(run, problem)).value != safe_call(lambda: _shapes(usual, problem)).value:
        return {}
    way = AnotherWay(usual, run)
    return {} if safe_call(lambda: way(problem, device)).error else {f"with dropout of {RATE}, in evaluation": way}


def _shapes(run: AsBuilt, problem: Problem) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(each.shape)) for name, each in run.build(problem).named_parameters()]
