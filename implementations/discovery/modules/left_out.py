"""What a module is judged without, and which of its flags are set: parts taken out, parameters held, nothing given."""

import inspect
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial

import torch

from attention_conformance.implementations.adapters.torch_module import in_mode
from attention_conformance.implementations.api.contract import Claims
from attention_conformance.implementations.api.global_state import torch_seeded
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.constructor_names import Size, size_of
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.neutrals import (
    ADDITIVE,
    ROTATIONS,
    Neutral,
    is_input,
)
from attention_conformance.implementations.discovery.modules.own_cache import PAST
from attention_conformance.implementations.discovery.modules.parameters import SHUT
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.implementations.discovery.values_tried import ANYTHING, ARRAYS, FEW, NOT_JUDGED, other_values
from attention_conformance.implementations.discovery.vocabulary import words_of

MOST_NAMED = 6
"""What is left out that is named."""
SEVERAL = FEW[1:]
"""Whole numbers that are tried."""
OF_PLACES = {"start", "offset", "pos", "position", "step", "index", "idx", "layer", "seen"}
"""Words in the names of numbers that state where tokens lie, or which layer it is."""
NOT_ADDED = "not judged: its answer with it is not the sum of it and its answer without it"
"""Why that is of an input of the layer that is not added to its answer."""
NARROW = "float16"
"""The dtype of the smallest range."""
USUAL = ("bias", "batch_first")
"""Flags that are set wherever there are any."""


def left_out(make: Constructor, call: ModuleCall, judged: Collection[str] = ()) -> list[str]:
    """The notes on it; nothing where there is none. `judged`: what is given elsewhere."""
    flags = [f"{name}={given}" for name, given in make.options.items() if _is_stated(name, given)]
    outside = [*make.left_out, *(f"{path!r} ({fill})" for path, fill in make.held.items())]
    outside += [f"the rotation of {name!r}" for name in make.unrotated]
    outside += [f"{n!r} ({each})" for n, each in call.tables.items() if each in ADDITIVE or each in ROTATIONS]
    outside += [f"{call.unread!r}, which changes nothing"] if call.unread else []
    outside += ["the input that it adds"] if call.tap else []
    outside += ["returned weights, which it refuses"] if _refuses_weights(make, call) else []
    outside += [repr(name) for name in never_given(make.kind, call) if name not in judged]
    more = [f"and {len(outside) - MOST_NAMED} more"] if len(outside) > MOST_NAMED else []
    built = [f"built with {', '.join(flags)}"] if flags else []
    halves = [f"each half of its tokens is its {call.latents.names[0]!r} once"] if call.latents else []
    return [*built, *halves, *([f"judged without {', '.join([*outside[:MOST_NAMED], *more])}"] if outside else [])]


def _refuses_weights(make: Constructor, call: ModuleCall) -> bool:
    """Whether it is not asked for weights, and raises where it is."""
    flag = call.options.spelled.get("need_weights", "")
    if call.always.get(flag) is not False:
        return False
    x, asked = torch.ones(2, make.tokens, make.width), replace(call, always={**call.always, flag: True})
    return bool(safe_call(partial(asked.plain, in_mode(built(make), False), (x, x, x), make.heads)).error)


def without_narrow(make: Constructor, claims: Claims, notes: tuple[str, ...]) -> tuple[Claims, tuple[str, ...]]:
    """The claims without the dtype in which the logit of a sink that is shut is no number."""
    if "shut" not in make.held.values() or NARROW not in claims.dtypes:
        return claims, notes
    dtypes = tuple(dtype for dtype in claims.dtypes if dtype != NARROW)
    return replace(claims, dtypes=dtypes), (*notes, unclaimed(NARROW, f"{SHUT:g} is none of its numbers"))


def _is_stated(name: str, given: object) -> bool:
    """Whether an option of its constructor is a flag that is set, or a text."""
    return (given is True and name not in USUAL) or (isinstance(given, str) and name != "device")


def never_given(kind: object, call: ModuleCall) -> list[str]:
    """Parameters of its forward that are None by default, and that no problem of the suite has anything for."""
    forward = safe_call(lambda: inspect.signature(kind.forward)).value  # type: ignore[attr-defined]
    given = {*call.options.spelled.values(), *call.keywords, *call.always, *call.tables, *call.of_context.values()}
    first = 1 if call.keywords else 1 + call.inputs
    parameters = list(forward.parameters.values())[first:] if forward else []
    return [p.name for p in parameters if p.default is None and p.name not in given and not words_of(p.name) & PAST]


def inputs_left_out(
    make: Constructor, call: ModuleCall, judged: Collection[str], felt: Collection[str]
) -> dict[str, str]:
    """Why it is judged without an input that it may be given, by the name of that: as tokens it changes the answer.

    `judged`: those that are given elsewhere; `felt`: see `felt_numbers`.
    """
    if not (isinstance(make.kind, type) and issubclass(make.kind, torch.nn.Module)):
        return {}
    others = [name for name in never_given(make.kind, call) if name not in judged]
    x = _inputs(make)
    names = [name for name in others if is_input(name) and _felt(name, make, call, [x[1]]) is not None]
    options = [name for name in others if name not in names and _felt(name, make, call, _anything(x)) is not None]
    options += felt
    inputs = dict.fromkeys(names, "not judged: another input that changes the answer")
    inputs |= dict.fromkeys(options, NOT_JUDGED)
    inputs |= {
        name: NOT_ADDED
        for name, each in call.tables.items()
        if each is Neutral.RESIDUAL and not _adds(name, make, call)
    }
    return inputs | dict.fromkeys(_held_heads(make), "not judged with several heads: each is as wide as the inputs")


def _adds(name: str, make: Constructor, call: ModuleCall) -> bool:
    """Whether it adds what it is given there to its answer: with the opposite of that, roundings are left."""
    module, x = in_mode(built(make), False), (_inputs(make)[0],) * 3
    answer = safe_call(partial(call.plain, module, x, make.heads)).value
    if answer is None:
        return False
    opposite = -answer.transpose(0, 1) if call.length_first else -answer
    given = replace(call, always={**call.always, name: opposite})
    added = safe_call(partial(given.plain, module, x, make.heads)).value
    return added is not None and near((answer + added).detach().numpy(), answer.detach().numpy())


def _held_heads(make: Constructor) -> list[str]:
    """Its parameter of heads, where it is always built with one."""
    return [name for name, given in make.options.items() if given == 1 and size_of(name) is Size.HEADS]


def _anything(x: torch.Tensor) -> list[object]:
    """What an option may be given of whose kind nothing is known, next to two inputs (2, B, L, E)."""
    arrays = (torch.from_numpy(made(x.shape[1], x.shape[2], x.shape[2])) for made in ARRAYS)
    return [*ANYTHING, *(each.to(x.dtype) if each.is_floating_point() else each for each in arrays)]


def felt_numbers(make: Constructor, call: ModuleCall) -> dict[str, object]:
    """Flags and numbers that its forward takes, and that the suite does not know: another value that is felt, of each.

    As they come first in a new module: one that keeps what it made for a value may never feel the next one.
    """
    forward = safe_call(lambda: inspect.signature(make.kind.forward)).value  # type: ignore[attr-defined]
    given = {*call.options.spelled.values(), *call.keywords, *call.always, *call.tables, *call.of_context.values()}
    own = [p for p in (forward.parameters.values() if forward else ()) if p.name not in given]
    values = {p.name: other_values(p.default, SEVERAL) for p in own if not words_of(p.name) & (PAST | OF_PLACES)}
    felt = {name: _felt(name, make, call, others) for name, others in values.items() if others}
    return {name: value for name, value in felt.items() if value is not None}


def _inputs(make: Constructor) -> torch.Tensor:
    """(2, B, L, E), two inputs."""
    return torch.randn((2, 2, make.tokens, make.width), generator=torch.Generator().manual_seed(0))


def _felt(name: str, make: Constructor, call: ModuleCall, values: Iterable[object]) -> object:
    """The first of these values with which the answer is another one of the same shape than without; None for none."""

    def answer(each: ModuleCall) -> torch.Tensor | None:
        with torch_seeded(0):
            module = in_mode(built(make), False)
        return safe_call(partial(each.plain, module, (_inputs(make)[0],) * 3, make.heads)).value

    first = answer(call)
    for value in values if first is not None else ():
        other, again = (answer(replace(call, always={**call.always, name: value})) for _ in range(2))
        if (
            first is None
            or other is None
            or again is None
            or other.shape != first.shape
            or not torch.equal(other, again)
        ):
            continue  # it raises, answers in another form, or draws numbers
        if other.isfinite().all() and not torch.allclose(first, other, rtol=1e-3, atol=1e-3):
            return value
    return None
