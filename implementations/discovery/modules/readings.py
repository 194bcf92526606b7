"""Readings: which weights each parameter of a module holds, and in which axes, as far as names and one answer show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, permutations, product
from math import prod
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.adapters.arranged import Arranged
from attention_conformance.implementations.adapters.torch_module import Packed, Place
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.parameters import filled, names_of, patterns, place_of
from attention_conformance.implementations.discovery.modules.promises import scales_slopes
from attention_conformance.implementations.discovery.modules.rotated_parts import rotates_a_part
from attention_conformance.implementations.discovery.modules.slots import Slot, is_added, roles_of, slots
from attention_conformance.implementations.discovery.modules.template import (
    ROTATED_IN_PART,
    SLIPPED_IN_PART,
    SLOPES_SCALED,
    Projected,
    Variant,
    output_of_variant,
    projected,
    slipped,
    stacked,
    variants,
)
from attention_conformance.implementations.discovery.probe import HALF

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Answer = Callable[[nn.Module, Inputs], torch.Tensor]
"""A module's output (B, L, E) for query, key and value."""

MOST, FEW, FEWEST = 400, 40, 6
"""Readings of a module that are compared with its answer, those of them that are compared with other variants, and
with mistakes."""
PLAIN_VARIANTS, OTHER_VARIANTS = tuple(islice(variants(), 2)), tuple(islice(variants(), 2, None))
SLIPPED = tuple(slipped())
FILLS = ("initial", "zeros", "ones", "identity", "open", "shut")
"""The values at which a parameter may be held that is no projection."""
APART = ("identity", "open")
"""Those of them that are of weights alone, or of biases alone."""


@dataclass(frozen=True)
class Reading:
    """What the parameters of a module hold.

    Attributes:
        places: by path, in which the number of a head is a star.
        variant: of attention, as which it answers so; None where it answers as none.
        held: parameters that are no projections, and the value at which each has no effect.
        kv_heads: of keys and values, where these are not as many as those of queries; else 0.
    """

    places: Mapping[str, Place]
    variant: Variant | None = None
    held: Mapping[str, str] = field(default_factory=dict)
    kv_heads: int = 0

    @property
    def is_usual(self) -> bool:
        """Whether everything lies as in nn.Linear layers, and as its names state."""
        return all(isinstance(p, Arranged) and p.head is None and _is_usual(path, p) for path, p in self.places.items())


def _is_usual(path: str, place: Arranged) -> bool:
    stated, names = place_of(path), place.names
    axes = {"w_o": ("e", "hd"), "b_o": ("e",)}.get(names[0])
    axes = axes or tuple("r" * (len(names) > 1) + group for group in ("hd",)) + (("e",) if names[0][0] == "w" else ())
    return stated is not None and names == names_of(stated) and place.axes == axes


def arrangements(slot: Slot, roles: str, width: int, heads: int, kv_heads: int = 0) -> Iterator[Arranged | Packed]:
    """The axes in which it can hold the weights of these roles, the usual first; `kv_heads` 0 is one for each head."""
    head_width = width // heads
    if kv_heads and {"q"} < {*roles}:
        yield from _unequal(slot, roles, width, kv_heads * head_width)
        return
    heads = kv_heads if kv_heads and {*roles} <= {*"kv"} else heads
    names = tuple(f"{'b' if slot.is_bias else 'w'}_{role}" for role in roles)
    extents = {"r": len(roles), "e": width, "h": heads, "d": head_width}
    letters = "r" * (len(roles) > 1) + "e" * (not slot.is_bias or roles == "o") + "hd" * (names != ("b_o",))
    letters = letters.replace("h", "") if slot.per_head else letters
    usual = ("e", "hd") if roles == "o" else ("rhd", "e") if len(roles) > 1 else ("hd", "e")
    usual = usual[::-1] if slot.inputs_first else usual
    found = [
        axes
        for order in permutations(letters)
        for axes in _groups("".join(order), len(slot.shape))
        if tuple(prod(extents[letter] for letter in group) for group in axes) == slot.shape
        and not any("e" in group and len(group) > 1 for group in axes)
    ]
    in_order = [axes for axes in found if "".join(axes).find("h") <= "".join(axes).find("d")]
    single = slot.linear and len(roles) == 1
    for axes in sorted(
        dict.fromkeys(in_order if single else found), key=lambda axes: (axes != usual, found.index(axes))
    ):
        if not (single and len(slot.shape) == 2 and not slot.per_head and axes != usual):
            yield Arranged(names, axes)


def _unequal(slot: Slot, roles: str, width: int, of_keys: int) -> Iterator[Packed]:
    """The rows of nn.Linear for these roles, one role after the other, of which key and value have fewer."""
    rows = sum(of_keys if role in "kv" else width for role in roles)
    if slot.shape == ((rows,) if slot.is_bias else (rows, width)) and not slot.per_head:
        yield Packed(tuple(f"{'b' if slot.is_bias else 'w'}_{role}" for role in roles))


def _groups(letters: str, count: int) -> Iterator[tuple[str, ...]]:
    if count <= 1:  # 0 of a layer without rows
        yield from [(letters,) if letters else ()] * count
        return
    for end in range(1, len(letters) - count + 2):
        for rest in _groups(letters[end:], count - 1):
            yield (letters[:end], *rest)


def readings(found: Sequence[Slot], width: int, heads: int, kv_heads: int = 0) -> Iterator[Reading]:
    """What the parameters may hold: as their names state, and where these state nothing, in any way that fits."""
    for assigned in _assignments(found):
        alike: dict[object, list[Slot]] = {}
        for slot, roles in assigned.items():
            if roles and not slot.is_bias:
                alike.setdefault((slot.shape, slot.linear, roles == "o", len(roles)), []).append(slot)
        choices = [list(arrangements(group[0], assigned[group[0]], width, heads, kv_heads)) for group in alike.values()]
        for chosen in product(*choices):
            weights = {
                slot: replace(place, names=tuple(f"w_{role}" for role in assigned[slot]))
                for group, place in zip(alike.values(), chosen, strict=True)
                for slot in group
            }
            yield from _with_biases(assigned, weights, width, heads, kv_heads)


def _with_biases(
    assigned: Mapping[Slot, str], weights: Mapping[Slot, Arranged | Packed], width: int, heads: int, kv_heads: int
) -> Iterator[Reading]:
    """The biases lie as the weights of their owners do, or as they can."""
    places: dict[str, Place] = {slot.pattern: place for slot, place in weights.items()}
    for slot, roles in assigned.items():
        if not roles or not slot.is_bias:
            continue
        owners = [w for s, w in weights.items() if s.owner == slot.owner]
        owners += [w for s, w in weights.items() if assigned[s] == roles and len(roles) > 1]  # a parameter of its own
        owner = next(iter(owners), None)
        possible = list(arrangements(slot, roles, width, heads, kv_heads))
        order = "".join(owner.axes).replace("e", "") if isinstance(owner, Arranged) else ""
        alike = (each for each in possible if isinstance(each, Arranged) and "".join(each.axes) == order)
        best = next(alike, possible[0] if possible else None)
        if best is None:
            return
        places[slot.pattern] = replace(best, names=tuple(f"b_{n[2]}" for n in owner.names)) if owner else best
    yield Reading(places, kv_heads=kv_heads)


def _assignments(found: Sequence[Slot]) -> Iterator[dict[Slot, str]]:
    """The roles of each slot; biases have those of the weights of their owners."""
    stated = {slot: roles_of(slot) for slot in found}
    weights = [slot for slot in found if not slot.is_bias]
    counts = {role: sum(role in stated[slot] for slot in weights) for role in "qkvo"}
    doubtful = [s for s in weights if not stated[s] or any(counts[role] > 1 for role in stated[s])]
    sure = {role for slot in weights if slot not in doubtful for role in stated[slot]}
    missing = [role for role in "qkvo" if role not in sure]
    biggest = max((prod(slot.shape) for slot in weights), default=0)
    given = list(_distributed(doubtful, missing, biggest, stated))
    packed = next((slot for slot in weights if slot not in doubtful and len(stated[slot]) == 3), None)
    orders = ["".join(order) for order in permutations(stated[packed])] if packed is not None else [""]
    for order, roles in product(orders, given):
        assigned = {**stated, **roles} | ({packed: order} if packed is not None else {})
        owners = {slot.owner: assigned[slot] for slot in weights}
        yield {**assigned, **{slot: owners.get(slot.owner, stated[slot]) for slot in found if slot.is_bias}}


def _distributed(
    doubtful: Sequence[Slot], missing: Sequence[str], biggest: int, stated: Mapping[Slot, str]
) -> Iterator[dict[Slot, str]]:
    """The missing roles given to the doubtful slots: what these state, then in order, then in any order."""
    if not doubtful:
        yield {}
        return
    rest = "".join(missing)
    packed = [slot for slot in doubtful if len(slot.shape) > 1 and prod(slot.shape) == biggest]
    if len(doubtful) <= 2 and packed and len(missing) >= 3:
        other = [slot for slot in doubtful if slot is not packed[0]]
        for order in permutations("qkv"):
            yield {packed[0]: "".join(order), **dict.fromkeys(other, "o")}
        return
    count = min(len(doubtful), len(rest))
    needed = [order for order in permutations(rest, count) if {"q", "k", "v"} & set(rest) <= set(order)]
    by_names = sorted(needed, key=lambda order: sum(r not in stated[s] for s, r in zip(doubtful, order, strict=False)))
    for order in by_names:
        yield {**dict.fromkeys(doubtful, ""), **dict(zip(doubtful, order, strict=False))}


def read(module: nn.Module, answer: Answer, inputs: int, width: int, heads: int, tokens: int) -> Reading | None:
    """The first reading as which the module answers as attention does; else the likeliest; None where there is none.

    Its parameters are drawn anew. `inputs` of the three differ, see `ModuleCall`.
    """
    likeliest: Reading | None = None
    nestings = [slots(module, width, heads, outer) for outer in (False, True)]
    nested = chain.from_iterable(
        ((found, *each) for each in _held(found, module, (width, heads)))
        for found in nestings[: 1 + (nestings[0] != nestings[1])]
    )
    for found, fill, held in nested:
        rest = [slot for slot in found if slot.pattern not in held]
        possible = [each for each in islice(readings(rest, width, heads), MOST) if _complete(each, rest)]
        if not possible and heads > 1:
            one_key_head = islice(readings(rest, width, heads, 1), MOST)
            possible = [each for each in one_key_head if _complete(each, rest)]
        filling = _filling(found, held, fill)
        possible.sort(key=_orders)
        added = all(is_added(slot) for slot in found if slot.pattern in held)
        if possible and likeliest is None and (not held or (added and fill == "zeros")):
            likeliest = replace(possible[0], held=filling)
        if possible and (matched := _matched(module, answer, possible, inputs, (tokens, width, heads), filling)):
            return matched
    return likeliest


def _held(found: Sequence[Slot], module: nn.Module, sizes: tuple[int, int]) -> Iterator[tuple[str, list[str]]]:
    """None held, and then those without a role, each at the same kind of value; initial ones only if not drawn."""
    roles = {slot: roles_of(slot) for slot in found}
    unfit = {slot.owner for slot in found if roles[slot] and not slot.is_bias and not _fits(slot, roles[slot], *sizes)}
    owned = {roles[slot] for slot in found if slot.is_bias and slot.owner != slot.pattern}
    second = {s.owner for s in found if s.is_bias and s.owner == s.pattern and roles[s] in owned}  # next to a layer's
    unknown = [slot.pattern for slot in found if not roles[slot] or slot.owner in unfit | second]
    first = {pattern: parameter for path, parameter in module.named_parameters() for pattern, _ in patterns(path)}
    drawn = any(bool((first[pattern].flatten()[1:] != first[pattern].flatten()[:-1]).any()) for pattern in unknown)
    yield FILLS[0], []
    yield from ((fill, unknown) for fill in (FILLS[drawn:] if unknown else ()))


def _filling(found: Sequence[Slot], held: Sequence[str], fill: str) -> dict[str, str]:
    """The value of each that is held: with biases of 0 besides the identity, and weights of 0 before an open gate."""
    biases = {slot.pattern for slot in found if slot.is_bias}
    other = {path for path in held if (path in biases) is (fill == "identity")} if fill in APART else set()
    return {path: "zeros" if path in other else fill for path in held}


def _fits(slot: Slot, roles: str, width: int, heads: int) -> bool:
    """Whether it has the shape of weights of these roles, for as many key heads as query heads or for one."""
    return any(any(arrangements(slot, roles, width, heads, kv_heads)) for kv_heads in (0, 1))


def _orders(reading: Reading) -> int:
    """How many orders of axes its matrices have, inputs or outputs first: one is the likeliest."""
    places = [p for p in reading.places.values() if isinstance(p, Arranged) and p.names[0][0] == "w"]
    return len({p.axes[::-1] if p.names == ("w_o",) else p.axes for p in places})


def _complete(reading: Reading, found: Sequence[Slot]) -> bool:
    names = [name for place in reading.places.values() for name in names_of(place)]
    every = {"w_q", "w_k", "w_v"} <= set(names) and len(names) == len(set(names))
    return every and all(slot.pattern in reading.places for slot in found)


def _matched(
    module: nn.Module,
    answer: Answer,
    possible: Sequence[Reading],
    count: int,
    sizes: tuple[int, int, int],
    held: Mapping[str, str],
) -> Reading | None:
    tokens, width, heads = sizes
    generator = torch.Generator().manual_seed(3)
    different = [torch.randn(2, tokens, width, generator=generator) for _ in range(3)]
    inputs = [different[min(at, count - 1)] for at in range(3)]
    with torch.no_grad():
        for path, parameter in module.named_parameters():
            fill = next((held[pattern] for pattern, _ in patterns(path) if pattern in held), "")
            drawn = torch.randn(parameter.shape, generator=generator) * max(1, parameter.shape[-1:].numel()) ** -0.5
            parameter.copy_(filled(parameter, fill) if fill else drawn)
        output = safe_call(lambda: answer(module, (inputs[0], inputs[1], inputs[2]))).value
    if not isinstance(output, torch.Tensor) or output.shape[:2] != inputs[0].shape[:2] or not output.isfinite().all():
        return None
    outputs = [output.double()]
    if output.shape == inputs[0].shape:
        outputs.append(output.double() - inputs[0])  # without the input that it may add
    parameters = {path: parameter.detach().double() for path, parameter in module.named_parameters()}
    given = [x.double() for x in inputs]
    # one of fewer numbers than heads have, such as values that all heads share, is no part of each head
    possible = [each for each in possible if not safe_call(partial(_weights, each, parameters, width, heads)).error]
    shown = list[Projected]()  # made as they are needed: the first reading is mostly the right one
    others = (*OTHER_VARIANTS, *((*ROTATED_IN_PART, *SLIPPED_IN_PART) if rotates_a_part(type(module)) else ()))
    slips = SLIPPED if scales_slopes(type(module)) else (*SLIPPED, *SLOPES_SCALED)
    for several, first, end in _attempts(len(possible), others, slips):
        for each in possible[len(shown) : end]:
            held_in = _weights(each, parameters, width, heads)
            shown.append(projected((given[0], given[1], given[2]), held_in, heads, each.kv_heads))
        if found := _first_near(shown[first:end], several, outputs):
            return with_whole_biases(replace(possible[first + found[0]], variant=several[found[1]], held=held))
    return None


def _attempts(
    count: int, others: Sequence[Variant], slips: Sequence[Variant]
) -> Iterator[tuple[Sequence[Variant], int, int]]:
    """Variants, and the first and the end of the readings that are compared with them: the likeliest alone at first."""
    for several, most in ((PLAIN_VARIANTS, count), (others, FEW), (slips, FEWEST)):
        yield several, 0, 1
        if count > 1:
            yield several, 1, most


def _first_near(
    shown: Sequence[Projected], several: Sequence[Variant], outputs: Sequence[torch.Tensor]
) -> tuple[int, int] | None:
    """The first of these that gives one of the outputs, and the first of the variants as which it does."""
    found = list[tuple[int, int]]()
    alike: dict[object, list[int]] = {}
    for at, each in enumerate(shown):
        alike.setdefault(each.shapes, []).append(at)
    for places in alike.values():
        together = stacked([shown[at] for at in places])
        for number, variant in enumerate(several):
            expected = safe_call(partial(output_of_variant, together, variant)).value
            if expected is not None and (near := _near(expected.unflatten(0, (len(places), -1)), outputs)):
                found.append((places[near[0]], number))
    return min(found, default=None)


def with_whole_biases(reading: Reading, direct: bool = True) -> Reading:
    """Without the biases of query, key and value, held at 0, where only some of the three have one.

    That of the key alone may be missing: it changes no weight, if it is `direct`, and nothing stands between it and the
    scores.
    """
    biases = {
        p: names_of(place) for p, place in reading.places.items() if set(names_of(place)) <= {"b_q", "b_k", "b_v"}
    }
    variant, held = reading.variant, {name for names in biases.values() for name in names}
    altered = variant is None or variant.premises.rotary_base or variant.part or variant.normalised or variant.cosine
    if len(held) in (0, 3) or (direct and not altered and held == {"b_q", "b_v"}):
        return reading
    places = {path: place for path, place in reading.places.items() if path not in biases}
    return replace(reading, places=places, held={**reading.held, **dict.fromkeys(biases, "zeros")})


def _near(expected: torch.Tensor, outputs: Sequence[torch.Tensor]) -> list[int]:
    """The places of those of the expected outputs (N, B, Lq, E) that are one of these."""
    alike = [
        torch.isclose(expected, each, rtol=HALF, atol=HALF).flatten(1).all(1)
        for each in outputs
        if each.shape == expected.shape[1:]
    ]
    return [at for at, near in enumerate(zip(*alike, strict=True)) if any(near)]


def _weights(
    reading: Reading, parameters: Mapping[str, torch.Tensor], width: int, heads: int
) -> dict[str, torch.Tensor]:
    """The parameters by their names in `Problem.parameters`."""
    found: dict[str, Any] = {}
    of_keys = width if not reading.kv_heads else width // heads * reading.kv_heads
    for path, parameter in parameters.items():
        for pattern, head in patterns(path):
            place = reading.places.get(pattern)
            if isinstance(place, Packed):
                rows = [of_keys if name[2] in "kv" else width for name in place.names]
                parts = (each.numpy() for each in parameter.split(rows))
                found |= {name: part.T for name, part in zip(place.names, parts, strict=True)}
                break
            if isinstance(place, Arranged):
                whole = replace(place, heads=heads, kv_heads=reading.kv_heads or heads, head=head)
                mixed = {name: of_keys if name[2] in "kv" else width for name in whole.names}
                like = {name: (width, mixed[name]) if name[0] == "w" else (mixed[name],) for name in whole.names}
                for name, part in whole.unpacked(parameter.numpy(), like).items():
                    found[name] = found[name] + part if name in found else part
                break
    return {name: torch.from_numpy(array) for name, array in found.items()}
