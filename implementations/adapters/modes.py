"""Modes: runs of a function or module of torch in another state, or under a transform."""

import copy
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import nn

from attention_conformance.implementations.adapters.tensors import Tensors, tensors, to_array, to_tensor
from attention_conformance.implementations.adapters.torch_module import (
    FindPlaces,
    Places,
    answer_of,
    built,
    load,
    places_in,
    torch_module,
)
from attention_conformance.implementations.adapters.torch_op import Answer, torch_op
from attention_conformance.implementations.adapters.transforms import (
    BACKEND,
    Through,
    Transform,
    compiled_by,
    exported,
    in_autocast,
    in_evaluation,
    in_inference_mode,
    in_no_grad,
    through,
    unbatched,
    vmapped,
)
from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.cases import Layout
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import AFTER_AUTOCAST, Problem, lay_out

Run: TypeAlias = Callable[[Problem, str], Result]
Modes: TypeAlias = dict[Feature, Run]
Call: TypeAlias = Callable[[nn.Module, Tensors, Problem], Answer]

TRANSFORMS: Mapping[Feature, Mapping[str, Transform]] = {
    Feature.UNBATCHED: {"without a batch axis": unbatched},
    Feature.AUTOCAST: {"under autocast": in_autocast},
    Feature.VMAP: {"under vmap": vmapped},
    Feature.EXPORTED: {"exported": exported},
    Feature.NO_GRAD: {"in no_grad": in_no_grad, "in inference mode": in_inference_mode},
}
OF_MODULES: Mapping[Feature, Mapping[str, Transform]] = {
    **TRANSFORMS,
    Feature.NO_GRAD: {**TRANSFORMS[Feature.NO_GRAD], "in evaluation mode, without gradients": in_evaluation},
}


def op_modes(function: Callable[..., Answer], *wanted: Feature, backend: str = BACKEND, **options: Any) -> Modes:
    """The wanted modes of a function, or all that it can have.

    Args:
        function: as `torch_op` takes it.
        wanted: names of modes; those that take a module do not belong to them.
        backend: of torch.compile.
        options: those of `torch_op`.
    """
    transforms = {**TRANSFORMS, Feature.COMPILED: {"compiled": compiled_by(backend)}}
    modes = {
        mode: together({how: torch_op(through(each, function), **options) for how, each in hows.items()})
        for mode, hows in transforms.items()
    }
    modes[Feature.AUTOCAST] = _with_next(modes[Feature.AUTOCAST], torch_op(function, **options))
    modes[Feature.DOUBLE_BACKWARD] = torch_op(function, twice=True, **options)
    if Feature.LOG_SUM_EXP_GRADIENT in wanted:
        modes[Feature.LOG_SUM_EXP_GRADIENT] = torch_op(function, of_log=True, **options)
    return {mode: run for mode, run in modes.items() if not wanted or mode in wanted}


def module_modes(
    build: Callable[[Problem], nn.Module],
    call: Call,
    places: Places | FindPlaces,
    *wanted: Feature,
    extras: Sequence[str] = (),
    backend: str = BACKEND,
    whole: bool = True,
) -> Modes:
    """The wanted modes of a module, or all of them; the arguments are those of `torch_module` and `op_modes`.

    `whole`: copies are those of `copy.deepcopy` and of `pickle`, and not of the first alone.
    """

    def calling(transform: Transform) -> Call:
        return lambda module, given, problem: call(Through(transform, module), given, problem)

    transforms = {**OF_MODULES, Feature.COMPILED: {"compiled": compiled_by(backend)}}
    modes = {
        mode: together({how: torch_module(build, calling(t), places, extras=extras) for how, t in hows.items()})
        for mode, hows in transforms.items()
    }
    modes[Feature.AUTOCAST] = _autocast_and_next(build, call, places, extras)
    modes[Feature.DOUBLE_BACKWARD] = torch_module(build, call, places, extras=extras, twice=True)
    modules = _Modules(build, call, places, extras, whole)
    modes |= {Feature.SAVED: modules.saved, Feature.COPIED: modules.copied}
    return {mode: run for mode, run in modes.items() if not wanted or mode in wanted}


def together(runs: Mapping[str, Run]) -> Run:
    """One run for several: the first gives the result, those of the others go into `Result.others`."""

    def run(problem: Problem, device: str) -> Result:
        answers = {how: each(problem.fresh(), device) for how, each in runs.items()}
        first, *others = answers
        return replace(answers[first], others={how: answers[how] for how in others})

    return run


def _autocast_and_next(
    build: Callable[[Problem], nn.Module], call: Call, places: Places | FindPlaces, extras: Sequence[str]
) -> Run:
    """A module under autocast, and its next call without."""
    cast = torch_module(build, lambda m, given, p: call(Through(in_autocast, m), given, p), places, extras=extras)
    usual = torch_module(build, call, places, extras=extras, modules=cast.modules)
    return _with_next(cast, usual)


def _with_next(run: Run, usual: Run) -> Run:
    """A run under autocast, with the answer of the next call without it among the others."""

    def both(problem: Problem, device: str) -> Result:
        first = run(problem, device)
        return replace(first, others={**first.others, AFTER_AUTOCAST: usual(problem.fresh(), device)})

    return both


@dataclass(frozen=True)
class _Modules:
    """Modules of one kind, that are saved, loaded, copied and changed."""

    build: Callable[[Problem], nn.Module]
    call: Call
    places: Places | FindPlaces
    extras: Sequence[str]
    whole: bool

    def saved(self, problem: Problem, device: str) -> Result:
        """Loaded from a file, and from the live state of another module; each is used before, and changed after."""
        first = self._loaded(problem, device)
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        from_file = self._used(built(self.build, problem, device), problem, device)
        self._take(from_file, torch.load(file, weights_only=True), problem)
        from_live = self._used(built(self.build, problem, device), problem, device)
        from_live.load_state_dict(first.state_dict())
        scramble(first)
        answer = self._answer(from_file, problem, device)
        others = {"loaded from a live state": self._answer(from_live, problem, device)}
        first.load_state_dict(from_live.state_dict())
        scramble(from_live)
        others["loaded back"] = self._answer(first, problem, device)
        return replace(answer, others=others)

    def copied(self, problem: Problem, device: str) -> Result:
        """Copies of a module that has been used answer once it is changed, and it answers once its copy is."""
        first, second = (self._loaded(problem, device) for _ in range(2))
        copies = {"a copy": copy.deepcopy(first)}
        if self.whole:
            copies["stored whole"] = pickle.loads(pickle.dumps(first))
        other = copy.deepcopy(second)
        scramble(first)
        scramble(other)
        answer, *others = (self._answer(each, problem, device) for each in (*copies.values(), second))
        return replace(answer, others=dict(zip([*copies, "the original"][1:], others, strict=True)))

    def _loaded(self, problem: Problem, device: str) -> nn.Module:
        """A new module with the problem's parameters, after a call with gradients."""
        module = built(self.build, problem, device)
        load(module, places_in(module, self.places, problem), tensors(problem, device))
        return self._used(module, problem, device)

    def _used(self, module: nn.Module, problem: Problem, device: str) -> nn.Module:
        self.call(module, tensors(problem, device), problem)
        return module

    def _take(self, module: nn.Module, state: Tensors, problem: Problem) -> None:
        """Loads a state; where the problem's arrays lie otherwise than in one piece, its tensors become parameters."""
        if problem.layout is Layout.CONTIGUOUS:
            module.load_state_dict(state)
            return
        laid = {name: to_tensor(lay_out(to_array(x), problem.layout)).to(x.device) for name, x in state.items()}
        module.load_state_dict(laid, assign=True)

    def _answer(self, module: nn.Module, problem: Problem, device: str) -> Result:
        given = tensors(problem.fresh(), device)
        return answer_of(module, problem, given, self.call, places_in(module, self.places, problem), self.extras)


def scramble(module: nn.Module) -> None:
    """Changes all parameters of a module in place; its buffers may be tables that all modules of its class share."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(-0.5).add_(1.0)
