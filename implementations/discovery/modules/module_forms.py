"""Forms: the way to build, call and fill a module class as which it answers like attention, among those that work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from itertools import chain, islice
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from attention_conformance.implementations.adapters.torch_module import in_mode
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.documented import states_norms_first
from attention_conformance.implementations.discovery.documented_equations import states_torchs_parameters
from attention_conformance.implementations.discovery.modules.attempts import attempts, with_one_wide_head
from attention_conformance.implementations.discovery.modules.bare import around, tap_of
from attention_conformance.implementations.discovery.modules.constructor_names import SQUARES
from attention_conformance.implementations.discovery.modules.constructors import (
    KEY_WIDTH,
    VALUE_WIDTH,
    Constructor,
    built,
    looked_at,
)
from attention_conformance.implementations.discovery.modules.forwards import (
    ModuleCall,
    OwnRefusalError,
    forward_calls,
    settled,
)
from attention_conformance.implementations.discovery.modules.layout import length_first
from attention_conformance.implementations.discovery.modules.more_inputs import with_context, with_needed
from attention_conformance.implementations.discovery.modules.more_than_attention import refuse_more_than_attention
from attention_conformance.implementations.discovery.modules.parameters import check_parameters, find_places, names_of
from attention_conformance.implementations.discovery.modules.query_key_norms import (
    ALIKE,
    FoundNorm,
    as_called,
    query_key_norms,
    role_of,
)
from attention_conformance.implementations.discovery.modules.readings import (
    Answer,
    Inputs,
    Reading,
    read,
    with_whole_biases,
)
from attention_conformance.implementations.discovery.modules.rotated_parts import rotates_a_part
from attention_conformance.implementations.discovery.modules.slots import roles_of, slots
from attention_conformance.implementations.discovery.modules.spatial import CHANNELS_FIRST, SURE, by_view, of_answer
from attention_conformance.implementations.discovery.modules.template import Slip, Variant
from attention_conformance.implementations.discovery.signatures import REMEDY
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import WEIGHTS_RETURNED
from attention_conformance.spec.conventions import NormOrder, Polarity

MOST_CALLS, MOST_FORMS = 24, 12
"""Ways to call a module, and all in all, that are tried."""
FEW_CALLS = 4
"""Ways to call it that are tried at other sizes than the first."""
Form = tuple[Constructor, ModuleCall, Variant | None]
"""How it is built, with its places, how it is called, and the variant of attention as which it then answers."""


def found_form(kind: type[nn.Module], polarity: Polarity) -> Form:
    """The first form in which the class answers as attention does; else the first that its names state.

    Raises:
        TargetError: it cannot be built or called, or what its parameters hold is unknown.
    """
    calls = list(islice(forward_calls(kind, polarity), MOST_CALLS))
    first: Form | None = None
    refused: list[TargetError] = []
    try:
        for form in islice(_every_form(attempts(kind), calls, refused), MOST_FORMS):
            if form[2] is not None:
                return form
            first = first or form
    except TargetError as error:
        refused.insert(0, error)
    wide = next(_every_form(with_one_wide_head(kind), calls, []), None)
    if wide is not None and wide[2] is not None:
        return wide
    if first is None:
        raise reduce(_telling, refused)
    refuse_more_than_attention(first[0], first[1])
    return first


class UnknownFormError(TargetError):
    """It could be built and called, and answers as no attention that is known."""


def _telling(one: TargetError | None, other: TargetError) -> TargetError:
    """Of two reasons the first; but that of a form that could be built and called before the others."""
    further = isinstance(other, UnknownFormError) and not isinstance(one, UnknownFormError)
    return other if one is None or further else one


def _every_form(makes: Iterator[Constructor], calls: list[ModuleCall], refused: list[TargetError]) -> Iterator[Form]:
    """The forms of all ways to build it; errors are appended to `refused`."""
    for make in makes:
        try:
            yield from _forms(make, calls)
        except TargetError as error:
            refused.append(error)


def _forms(make: Constructor, calls: list[ModuleCall]) -> Iterator[Form]:
    """The forms for one way to build it, with masks or positions given only where it raises without.

    At other sizes only where a statement of its own refuses the first ones, or a part of each head that it rotates may
    be larger than all of it.

    Raises:
        TargetError: there is none.
    """
    refused: TargetError | None = None
    needed = list(islice(with_needed(calls, make.kind), MOST_CALLS))
    looks = looked_at(make)
    first = next(looks)
    usual = [(first, each, False) for each in (calls, needed, _without_weights(calls))]
    elsewhere = ((look, few, False) for look in looks for few in (calls[:FEW_CALLS], needed[:FEW_CALLS]))
    larger = rotates_a_part(make.kind)
    for look, several, any_error in chain(usual, elsewhere, [(first, calls[:1], len(calls) == 1)]):
        if look is not first and not larger and not isinstance(refused, OwnRefusalError):
            continue
        try:
            return (yield from _forms_of(look, several, any_error))
        except TargetError as error:
            refused = _telling(refused, error)
    assert refused is not None
    raise refused


def _without_weights(calls: list[ModuleCall]) -> list[ModuleCall]:
    """The calls that ask for weights, which may be refused, without asking for any."""
    names = {option: call.options.spelled.get(option) for call in calls[:1] for option in WEIGHTS_RETURNED}
    flags = {name: not WEIGHTS_RETURNED[option] for option, name in names.items() if name is not None}
    return [replace(call, always={**call.always, **flags}) for call in calls if flags]


def _forms_of(make: Constructor, calls: list[ModuleCall], any_error: bool) -> Iterator[Form]:
    refused: TargetError | None = None if calls else TargetError("there is no call")
    done = False
    lazy = any(map(is_lazy, built(make).parameters()))
    for call in calls:
        try:
            make = replace(make, call=call if lazy else None, left_out=())
            make = replace(make, left_out=around(built(make)))
            module = built(make)
            named = _named(make, module)
            answering = list(_answering(call, make, module, any_error))
        except TargetError as error:
            refused = _telling(refused, error)
            continue
        for each in answering:
            try:
                form = _form(make, each, named)
            except TargetError as error:
                refused = _telling(refused, error)
            else:
                done = True
                yield _with_context(form, make, named)
    if refused is not None and not done:
        raise refused


def _with_context(form: Form, make: Constructor, refused: TargetError | None) -> Form:
    """The form with another sequence for key and value, if it may be given one and is the same attention then."""
    _, call, variant = form
    if variant is None or make.window or not isinstance(make.kind, type):
        return form
    for other in with_context(call, make.kind):
        with suppress(TargetError):
            wider = _form(make, other, refused)
            if wider[2] == variant:
                return wider
    return form


def _answering(call: ModuleCall, make: Constructor, module: nn.Module, any_error: bool) -> Iterator[ModuleCall]:
    """The call as it answers; in other layouts only where it raises with tokens before channels.

    Raises:
        TargetError: it raises in each.
    """
    try:
        found = settled(call, module, make.width, make.heads, make.tokens)
        if not (spatial := _layout_of_answer(found, make, module)):
            return (yield found)
        return (yield settled(replace(call, spatial=spatial), module, make.width, make.heads, make.tokens))
    except TargetError as error:
        refused = error
    answered = False
    others = [replace(call, length_first=True)] if call.tables else []  # as many rows as tokens
    layouts = (replace(call, spatial=axes) for axes in (2, 1, 3, *([4] if make.window in SQUARES else [])))
    others += [] if call.packing else [replace(call, each_sample=True), *layouts]
    for other in others:
        if other.each_sample and _has_convolutions(module):
            continue
        with suppress(TargetError):
            yield settled(other, module, make.width, make.heads, make.tokens)
            answered = True
    if not answered and not any_error:
        raise refused
    if not answered:
        yield settled(call, module, make.width, make.heads, make.tokens, any_error)


def _layout_of_answer(call: ModuleCall, make: Constructor, module: nn.Module) -> int:
    """The layout that its answer shows by an axis more than its inputs have."""
    x = torch.zeros(2, make.tokens, make.width)
    with torch.no_grad():
        output = safe_call(lambda: call.plain(in_mode(module, False), (x, x, x), make.heads)).value
    shape = tuple(output.shape) if isinstance(output, torch.Tensor) else ()
    return of_answer(shape, 2, make.tokens, make.heads, make.width)


def norms_inside(make: Constructor, call: ModuleCall) -> FoundNorm | None:
    """The norms of queries and keys that have been taken out, if they are known ones behind the projections."""
    with torch.random.fork_rng(devices=[]):
        module = built(replace(make, left_out=()))
    found = query_key_norms(module, make.heads, make.width)
    if found is None or not {*found.paths} <= {*make.left_out}:
        return None
    tokens = torch.full((1, make.tokens, make.width), ALIKE)
    seen = as_called(
        found, in_mode(module, False), lambda inside: call.plain(inside, (tokens,) * 3, make.heads), make.width
    )
    first = states_norms_first(make.kind)
    if seen is None or first is None:
        return seen
    return replace(seen, order=NormOrder.FIRST if first else NormOrder.LAST)


def _named(make: Constructor, module: nn.Module) -> TargetError | None:
    """Why its parameters are not what their names state in nn.Linear layers; None if they are.

    Raises:
        TargetError: it takes widths of key and value, and cannot be built with them.
    """
    wide = built(make, kdim=KEY_WIDTH, vdim=VALUE_WIDTH) if make.widths else None
    try:
        check_parameters(module, (make.width,) * 3)
        if wide is not None:
            check_parameters(wide, (make.width, KEY_WIDTH, VALUE_WIDTH))
    except TargetError as error:
        return error
    return None


def _form(make: Constructor, call: ModuleCall, refused: TargetError | None) -> Form:
    """The form of one way to build and call it.

    Raises:
        TargetError: its parameters are not what their names state, and no reading of them was found.
    """

    def answer(module: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        query, key, value = inputs
        if call.optional:  # all keys twice give the same answer, and show that another length is read
            key, value = (torch.cat([x, x], 1) for x in (key, value))
        return call.plain(module, (query, key, value), make.heads)

    if call.unread and call.reads(in_mode(built(make), False), make.width, make.heads, make.tokens):
        raise UnknownFormError(f"what its {call.unread!r} is, is unknown: {REMEDY}")
    if not call.optional and not call.length_first:
        call = replace(call, length_first=length_first(built(make), answer, make.tokens, make.width))
    reading = read(in_mode(built(make), False), answer, call.inputs, make.width, make.heads, make.tokens)
    if call.latents is not None and not call.latents.single and (reading is None or reading.variant is None):
        single = replace(call, latents=replace(call.latents, single=True))
        make, _, variant = _form(make, single, refused)  # next to mistakes that only several latents show
        return make, call, variant
    if reading is not None and any(map(role_of, make.left_out)):
        reading = with_whole_biases(reading, direct=False)
    unsure = call.spatial not in SURE and not _has_convolutions(built(make))
    if unsure and (reading is None or reading.variant is None):
        reading = _read_by_view(make, answer, call)
    if unsure and reading is None:
        raise UnknownFormError(f"its layout is unknown: {REMEDY}")
    if make.guessed and (reading is None or reading.variant is None):
        raise TargetError(f"what its constructor's {make.guessed[0]!r} is, is unknown: {REMEDY}")
    if make.window and (reading is None or reading.variant is None):
        raise UnknownFormError(f"in a window of {make.tokens} tokens it is no attention: {REMEDY}")
    if make.unrotated and (reading is None or reading.variant is None):
        raise UnknownFormError(f"without the rotation of its {make.unrotated[0]!r} it is no attention: {REMEDY}")
    usual = reading is None or reading.variant is None or (reading.is_usual and not reading.held)
    if reading is not None and states_torchs_parameters(make.kind):
        named = find_places(built(make))
        stated = named.keys() == reading.places.keys()
        reading = replace(reading, places=named) if stated else reading
        usual = usual or (stated and not reading.held)
    if refused is not None and (reading is None or (reading.variant is None and not _all_named(make, reading.held))):
        raise refused
    if reading is not None and (refused is not None or not usual):
        make = replace(make, places=reading.places, held=reading.held, widths=False, kv_heads=reading.kv_heads)
    if not call.tap:  # one that is known already is taken where it is called with another sequence, too
        call = replace(call, tap=tap_of(built(make), _last_layer(make), answer, make.width, make.tokens))
    if call.tap and not _answers_tokens(make, call):
        raise UnknownFormError(f"its {call.tap!r} answers in another layout than the whole: {REMEDY}")
    return make, call, None if reading is None else reading.variant


def _read_by_view(make: Constructor, answer: Answer, call: ModuleCall) -> Reading | None:
    """The reading of one that takes channels for tokens by a view alone, a mistake; None where it is none of these."""
    for back in (lambda x: x, by_view) if call.spatial in CHANNELS_FIRST else ():

        def answer_by_view(module: nn.Module, inputs: Inputs, back: Callable[..., Any] = back) -> torch.Tensor:
            query, key, value = map(by_view, inputs)
            output: torch.Tensor = back(answer(module, (query, key, value)))
            return output

        module = in_mode(built(make), False)
        found = read(module, answer_by_view, call.inputs, make.width, make.heads, make.tokens)
        if found is not None and found.variant is not None:
            return replace(found, variant=replace(found.variant, known=False, slip=Slip.CHANNELS))
    return None


def _answers_tokens(make: Constructor, call: ModuleCall) -> bool:
    """Whether what is taken of its answer has samples, tokens and widths as its inputs have them."""
    x = torch.zeros(2, make.tokens, make.width)
    with torch.no_grad():
        output = safe_call(lambda: call.plain(in_mode(built(make), False), (x, x, x), make.heads)).value
    return output is None or output.shape[:2] == x.shape[:2]


def _has_convolutions(module: nn.Module) -> bool:
    """Whether it projects by convolutions, which states that its channels come first."""
    return any(isinstance(each, nn.Conv1d | nn.Conv2d) for each in module.modules())


def _all_named(make: Constructor, held: Mapping[str, str]) -> bool:
    """Whether the names of all parameters that are not held state what they hold."""
    every = (s for s in slots(built(make), make.width, make.heads) if s.pattern not in held)
    return all(roles_of(slot) for slot in every if not slot.is_bias)


def _last_layer(make: Constructor) -> str:
    """The path of the layer of the output projection; nothing where it is no layer."""
    places = make.places or find_places(built(make))
    path = next((path for path, place in places.items() if names_of(place) == ("w_o",)), "")
    return path.removesuffix(".weight") if path.endswith(".weight") else ""
