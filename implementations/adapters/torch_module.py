"""Module adapters: a torch module with projections inside becomes an implementation in a few lines."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.arranged import Arranged
from attention_conformance.implementations.adapters.native import Native, bound, indirect
from attention_conformance.implementations.adapters.native_torch import native_call
from attention_conformance.implementations.adapters.op_options import seeded
from attention_conformance.implementations.adapters.results import changing_with_copies, differing, output_of, result_of
from attention_conformance.implementations.adapters.tensors import (
    Tensors,
    forms,
    gradients_of,
    require_readable,
    second_products,
    tensors,
    to_array,
    to_tensor,
    watched,
)
from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.features import Packing
from attention_conformance.spec.problem import Array, Problem


@dataclass(frozen=True)
class Packed:
    """A parameter that holds several of the problem's weights or biases, one after the other along its first axis."""

    names: tuple[str, ...]


Place = str | Packed | Arranged
Places = Mapping[str, Place]
"""Where a module keeps what: attribute path -> name in `Problem.parameters`, transposed as in nn.Linear."""
FindPlaces = Callable[[nn.Module, Problem], Places]
"""Finds the places of a module that is to hold the parameters of a problem."""


def linears(**layers: str) -> dict[str, str]:
    """Places of nn.Linear layers by role: `q="proj_q"` is {"proj_q.weight": "w_q", "proj_q.bias": "b_q"}."""
    return {f"{layer}.{part}": f"{part[0]}_{role}" for role, layer in layers.items() for part in ("weight", "bias")}


@dataclass(frozen=True, eq=False)
class TorchModule:
    """A `run` for a module.

    Attributes:
        build: makes the module for a problem's widths and dropout; dtype, device and mode are set here.
        call: calls it with the problem's tensors by name (`query`, `attn_mask`, ...); its first answer is the
            output, (B, Lq, width).
        places: where its parameters are, or a function that finds them.
        extras: what the call returns after the output, by the names of `Result`.
        context: entered around each forward call.
        twice: gradients are differentiated again, see `second_products`.
        of_length: a module is built for one number of tokens.
        of_options: a module is built for options of the problem, such as its causal flag or its scale.
        modules: those that are kept from call to call; another run may have them, too.
    """

    build: Callable[[Problem], nn.Module]
    call: Callable[[nn.Module, Tensors, Problem], torch.Tensor | tuple[torch.Tensor, ...]]
    places: Places | FindPlaces
    _: KW_ONLY
    extras: Sequence[str] = ()
    context: Callable[[], AbstractContextManager[object]] = nullcontext
    twice: bool = False
    of_length: bool = False
    of_options: bool = False
    modules: dict[tuple[object, ...], nn.Module] = field(default_factory=dict)
    timed: dict[tuple[object, ...], nn.Module] = field(default_factory=dict, init=False)

    def __call__(self, problem: Problem, device: str) -> Result:
        """Answers the problem, with one module a shape, kept from call to call as a user would keep it."""
        given, key = tensors(problem, device), self._key(problem, device)
        if key not in self.modules:
            self.modules[key] = built(self.build, problem, device)
        module = self.modules[key]
        where = places_in(module, self.places, problem)
        load(module, where, given)
        return answer_of(module, problem, given, self.call, where, self.extras, self.context, self.twice)

    def native(self, problem: Problem, device: str) -> Native:
        """The module's own call; second derivatives have none."""
        if self.twice:
            return indirect(self, problem, device)
        given = tensors(problem, device)
        module = self._loaded(problem, device, given)
        where = places_in(module, self.places, problem)
        needed = _needed(where, problem)

        def context() -> AbstractContextManager[object]:
            return _both(_as_needed(module, where, problem), self.context())

        def named(found: dict[str, Array]) -> dict[str, Array]:
            return _of_arrays(problem, found, needed, given)

        leaves = _leaves(problem, module, needed, given)
        forward = bound(self.call, module, given, problem)
        return native_call(forward, problem, given, leaves, context, self.extras, named)

    def _key(self, problem: Problem, device: str) -> tuple[object, ...]:
        options = (problem.causal, problem.scale) if self.of_options else ()
        return (*_key(problem, device), problem.query.shape[-2] if self.of_length else 0, *options)

    def _loaded(self, problem: Problem, device: str, given: Tensors) -> nn.Module:
        """The module of the last native call where it holds these very parameters, as a user's does; or a new one."""
        key = self._key(problem, device)
        module = self.timed.get(key)
        if module is None or not _holds_all(module, places_in(module, self.places, problem), given):
            self.timed.clear()  # one is enough, and it may be large
            module = self.timed[key] = built(self.build, problem, device)
            load(module, places_in(module, self.places, problem), given)
        return module


torch_module = TorchModule
"""The name by which adapters call it."""


def _key(problem: Problem, device: str) -> tuple[object, ...]:
    shapes = tuple((name, array.shape) for name, array in problem.parameters.items())
    return problem.dtype, device, problem.num_heads, problem.sharing, shapes, _of_construction(problem)


@contextmanager
def _both(outer: AbstractContextManager[object], inner: AbstractContextManager[object]) -> Iterator[None]:
    with outer, inner:
        yield


def _of_construction(problem: Problem) -> object:
    """What a module may take when it is built, and not in a call."""
    extension = replace(problem.extension, query_start=None, dropout_seed=0, evaluation=False, packing=Packing.NONE)
    return extension, problem.extension.has_dropout


def answer_of(
    module: nn.Module,
    problem: Problem,
    given: Tensors,
    call: Callable[[nn.Module, Tensors, Problem], torch.Tensor | tuple[torch.Tensor, ...]],
    where: Places,
    extras: Sequence[str] = (),
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
    twice: bool = False,
) -> Result:
    """What a module that holds the problem's parameters answers, in the mode that the problem needs."""
    with seeded(problem), changing_with_copies(problem):
        with _as_needed(module, where, problem):  # also in the backward pass, in which checkpoints compute once more
            with context(), torch.set_grad_enabled(problem.cotangent is not None):
                mode, before = module.training, forms(given)
                answer = call(module, given, problem)
                disturbed = differing(before, forms(given)) + _moved(module, where, given, mode)
            require_readable(output_of(answer), given)
            slopes = partial(_gradients, problem, module, where, given, output_of(answer), twice)
            gradients, drawn = watched(slopes, problem)
        return result_of(answer, extras, to_array, gradients=gradients, disturbed=(*disturbed, *drawn))


UNFELT = "b_k"
"""The bias that adds one number to all scores of a row, which changes no weight: some modules have the others alone."""
CASTS: Mapping[str, Callable[[nn.Module], nn.Module]] = {
    "float64": nn.Module.double,
    "float32": nn.Module.float,
    "bfloat16": nn.Module.bfloat16,
    "float16": nn.Module.half,
}
"""What makes the real parameters and buffers of a module of a dtype; `to` would make complex ones real, too."""


def built(build: Callable[[Problem], nn.Module], problem: Problem, device: str) -> nn.Module:
    """A new module; that building it draws initial weights is no effect of calling it."""
    with torch.random.fork_rng(devices=[]):
        return CASTS[problem.dtype](build(problem).to(device))


def in_mode(module: nn.Module, training: bool) -> nn.Module:
    """The module in this mode; a `train` of its own may return nothing."""
    module.train(training)
    return module


@contextmanager
def _in_its_mode(module: nn.Module, problem: Problem) -> Iterator[None]:
    """Training or evaluation where it matters to the problem, and put back; otherwise the mode it was built in."""
    extension, mode = problem.extension, module.training
    matters = extension.has_dropout or extension.evaluation
    if matters:
        module.train(not extension.evaluation)
    try:
        yield
    finally:
        if matters:
            module.train(mode)


@contextmanager
def _as_needed(module: nn.Module, where: Places, problem: Problem) -> Iterator[None]:
    """In the mode that matters, with the parameters frozen of whose arrays no gradient is wanted; put back."""
    idle = [] if problem.cotangent is None else [path for path in where if path not in _needed(where, problem)]
    frozen = [each for path in idle if (each := module.get_parameter(path)).requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        with _in_its_mode(module, problem):
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def _needed(places: Places, problem: Problem) -> Places:
    """The places that hold an array of which a gradient is wanted."""
    return {path: place for path, place in places.items() if not {*problem.needs}.isdisjoint(_names(place))}


def places_in(module: nn.Module, places: Places | FindPlaces, problem: Problem) -> Places:
    """The places that this module really has: a layer without bias has none for one."""
    held = dict(module.named_parameters())
    return {p: place for p, place in (places(module, problem) if callable(places) else places).items() if p in held}


def load(module: nn.Module, places: Places, given: Tensors) -> None:
    """Copies the problem's weights and biases into the module.

    Raises:
        ValueError: a parameter of the module has no place, or a weight fits none.
    """
    used: set[str] = set()
    for path, parameter in module.named_parameters():
        if path not in places:
            raise ValueError(f"the suite does not know what parameter {path!r} {tuple(parameter.shape)} is")
        names = _names(places[path])
        used.update(names)
        with torch.no_grad():
            parameter.copy_(stored_at(places[path], given).reshape(parameter.shape))
    lost = sorted(n for n in given if n.startswith(("w_", "b_", "bias_")) and n not in used)
    lost = [name for name in lost if name != UNFELT or "b_q" not in used]
    if lost:
        raise ValueError(f"the module has no parameter for {', '.join(lost)}")


def _holds_all(module: nn.Module, places: Places, given: Tensors) -> bool:
    return all(_holds(module, path, stored) for path, stored in _stored(module, places, given).items())


def _moved(module: nn.Module, places: Places, given: Tensors, mode: bool) -> tuple[str, ...]:
    """What a call has changed of the module itself; its mode is put back."""
    moved = [path for path, stored in _stored(module, places, given).items() if not _holds(module, path, stored)]
    if module.training is not mode:
        moved.append("the training mode of the module")
        module.train(mode)
    return tuple(moved)


def _stored(module: nn.Module, places: Places, given: Tensors) -> Tensors:
    return {path: stored_at(place, given) for path, place in places.items()}


def stored_at(place: Place, given: Tensors) -> torch.Tensor:
    """What a parameter at this place holds of the problem's weights and biases."""
    if isinstance(place, Arranged):
        return place.stored(given)
    return torch.cat([_as_stored(given, name) for name in _names(place)])


def _holds(module: nn.Module, path: str, stored: torch.Tensor) -> bool:
    parameter = module.get_parameter(path)
    return parameter.numel() == stored.numel() and torch.equal(parameter.detach().reshape(stored.shape), stored)


def _as_stored(given: Tensors, name: str) -> torch.Tensor:
    return given[name].detach().T if name.startswith("w_") else given[name].detach()


def _names(place: Place) -> tuple[str, ...]:
    return (place,) if isinstance(place, str) else place.names


def _gradients(
    problem: Problem, module: nn.Module, places: Places, given: Tensors, output: torch.Tensor, twice: bool
) -> dict[str, Array]:
    if problem.cotangent is None:
        return {}
    places = _needed(places, problem)
    leaves = _leaves(problem, module, places, given)
    if not leaves:
        return _of_arrays(problem, {}, places, given)
    if twice:
        directions = {name: to_tensor(array, str(output.device)) for name, array in problem.direction().items()}
        directions |= {p: x.view_as(leaves[p]) for p, x in _stored(module, places, directions).items()}
        found = second_products(output, leaves, directions, given["cotangent"])
    else:
        found = gradients_of(output, leaves, given["cotangent"])
    return _of_arrays(problem, found, places, given)


def _leaves(problem: Problem, module: nn.Module, places: Places, given: Tensors) -> Tensors:
    """What gradients are taken of: the problem's inputs by name, the module's parameters by path."""
    leaves = {n: given[n] for n in problem.needs if n in given and n not in problem.parameters}
    return leaves | {path: module.get_parameter(path) for path in places}


def _of_arrays(problem: Problem, found: dict[str, Array], places: Places, given: Tensors) -> dict[str, Array]:
    """The gradients of leaves as those of the problem's arrays."""
    every = {**found, **named_parts({path: found[path] for path in places}, places, given)}
    if UNFELT not in every and UNFELT in given:  # its output does not depend on what it has no place for
        every[UNFELT] = np.zeros_like(problem.arrays()[UNFELT])
    return {name: every[name] for name in problem.needs}


def named_parts(arrays: Mapping[str, Array], places: Places, given: Tensors) -> dict[str, Array]:
    """Arrays like parameters, by path, as arrays like those of the problem, by name; several of one name are added."""
    found: dict[str, Array] = {}
    for path, place in places.items():
        parts = _unpacked(arrays[path], place, given)
        found |= {name: found[name] + part if name in found else part for name, part in parts.items()}
    return found


def _unpacked(gradient: Array, place: Place, given: Tensors) -> dict[str, Array]:
    names = _names(place)
    if isinstance(place, Arranged):
        return place.unpacked(gradient, {name: tuple(given[name].shape) for name in names})
    ends = np.cumsum([_as_stored(given, name).shape[0] for name in names])[:-1]
    parts = np.split(gradient, ends)
    return {
        n: part.T if n.startswith("w_") else part.reshape(given[n].shape) for n, part in zip(names, parts, strict=True)
    }
