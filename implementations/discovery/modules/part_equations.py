"""Equations of parts: what mixes heads, sinks, gates and gains, judged by their numbers where they are in place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, permutations, product

import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import INPUTS, Call, drawn, in_new_mode
from attention_conformance.implementations.adapters.mha_interface import inputs_of
from attention_conformance.implementations.adapters.results import output_of
from attention_conformance.implementations.adapters.tensors import tensors, to_array
from attention_conformance.implementations.adapters.torch_module import built, in_mode, named_parts, places_in
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.modules.distance_tables import (
    Added,
    Zero,
    mistakes,
    off,
    tables_of_shape,
)
from attention_conformance.implementations.discovery.modules.module_runs import built_for
from attention_conformance.implementations.discovery.modules.parameters import patterns, place_of
from attention_conformance.implementations.discovery.modules.part_uses import (
    BOUND,
    LARGEST,
    LOG_SCALES,
    OF_SINKS,
    OF_TRANSFORMER_XL,
    PUBLISHED,
    PUBLISHED_BIASES,
    RIGHT,
    SMALLEST,
    WRONG_BIASES,
    Held,
    Role,
    Through,
    Use,
    in_named_roles,
    possible,
    role_in_transformer_xl,
)
from attention_conformance.implementations.discovery.modules.promises import text_of
from attention_conformance.implementations.discovery.modules.stated_order import in_stated_order
from attention_conformance.implementations.discovery.modules.template import (
    Projected,
    Variant,
    projected,
    scores_of_variant,
)
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.problem import Array, Problem

MOST = 1024
"""Ways to use the parts of a module that are compared with its answer."""
NEAR = 1e-4
"""How far an answer may be off, whose equation is seen: some modules compute a part in float32 always."""

DISENTANGLED = re.compile(r"disentangle|deberta|\bp2c\b|\bc2p\b", re.IGNORECASE)
"""What the text of a class or function has whose relative positions are those of DeBERTa."""

Expectation = Callable[[nn.Module, Problem], torch.Tensor]
"""The output (B, Lq, E) of a module by an equation, in float64."""
Uses = Mapping[str, Use]
"""By the path of a parameter, or of the layer that has it."""


def output_with_parts(
    given: Projected, x: torch.Tensor, hidden: torch.Tensor, variant: Variant, parts: Mapping[Held, Use]
) -> torch.Tensor:
    """The output (B, Lq, E) with these parts, in the order in which the roles stand.

    Args:
        given: query, key and value in heads.
        x: (B, Lq, E), of which gates are made.
        hidden: broadcasts to (B, 1, Lq, Lk), True = not seen.
        variant: of attention.
        parts: each with its use.
    """
    given = _with_biases(given, parts)
    of = {role: [(held, use.through) for held, use in parts.items() if use.role is role] for role in Role}
    tables = [(held.weight, use.table) for held, use in parts.items() if use.table is not None]
    scores, count = scores_of_variant(_with(given, Role.CONTENT, parts), variant), given.query.shape[1]
    for weight, table in tables:
        scores = scores + table.scores(weight, _with(given, Role.POSITION, parts), variant)
    for held, _ in of[Role.SLOPE]:
        place = torch.arange(scores.shape[-1])
        scores = scores - held.weight[:, None, None] * (place - place[: scores.shape[-2], None]).abs()
    for held, through in of[Role.SCORES]:
        scores = scores * held.of_heads(through, count)
    for held, through in of[Role.BEFORE]:
        scores = held.mixed(scores, through)
    scores = scores.masked_fill(hidden, -torch.inf)
    width = given.query.shape[-1]
    sinks = [held.sinks(through, scores, width) for held, through in of[Role.SINK]]
    weights = torch.cat([scores, *sinks], -1).softmax(-1)[..., : scores.shape[-1]]
    for held, through in of[Role.AFTER]:
        weights = held.mixed(weights, through)
    heads = sum((table.values(weight, weights) for weight, table in tables), weights @ given.value)
    for held, through in of[Role.HEADS]:
        heads = heads * held.of_heads(through, count)
    for held, _ in of[Role.GATE]:
        heads = heads * held.gates(x, count)
    output = given.merged(heads)
    for held, through in of[Role.OUTPUT]:
        output = output * held.taken(through)
    return output


def _with_biases(given: Projected, parts: Mapping[Held, Use]) -> Projected:
    """Query, key and value with the biases among the parts."""
    for held, use in parts.items():
        if (name := use.role.name.lower()) in INPUTS:
            heads: torch.Tensor = getattr(given, name)
            given = replace(given, **{name: heads + held.weight.view(heads.shape[1], 1, -1)})
    return given


def _with(given: Projected, role: Role, parts: Mapping[Held, Use]) -> Projected:
    """The same with what is added to queries in one kind of products."""
    query = given.query
    for held, use in parts.items():
        if use.role in (role, Role.BOTH):
            query = query + held.weight.view(query.shape[1], 1, -1)
    return replace(given, query=query)


@dataclass(frozen=True, eq=False)
class PartEquations:
    """A module with parts in place that are held elsewhere, whose answer is known by the equations of these.

    Attributes:
        make: the class with these parts.
        call: see `TorchModule`.
        variant: of attention.
        uses: of the parts.
        alone: whether keys and values are those of the query's tokens, whatever the problem has.
    """

    make: Constructor
    call: Call
    variant: Variant
    uses: Uses
    alone: bool = False

    def __call__(self, problem: Problem, device: str) -> Result:
        """What the equations give; its `others` are the output."""
        return self.compared(partial(self.expected, uses=self.uses), "by the equations of its parts", problem, device)

    def compared(self, expected: Expectation, how: str, problem: Problem, device: str) -> Result:
        """What an instance is expected to give; its `others` are its output, by this name."""
        module = self.module(problem, device)
        whole = to_array(expected(module, problem)).astype(problem.query.dtype)
        return Result(whole, others={how: Result(self.answer(module, problem, device))})

    def shown(self, problem: Problem, device: str) -> tuple[nn.Module, torch.Tensor] | None:
        """An instance and its output; None where it raises."""
        module = safe_call(partial(self.module, problem, device)).value
        answer = safe_call(partial(self.answer, module, problem, device)).value if module is not None else None
        return None if module is None or answer is None else (module, torch.from_numpy(answer))

    def module(self, problem: Problem, device: str) -> nn.Module:
        """An instance with parameters of its own."""
        return _with_factors(drawn(in_mode(built(partial(built_for, self.make, True), problem, device), False)))

    def answer(self, module: nn.Module, problem: Problem, device: str) -> Array:
        """Its output."""
        with torch.no_grad():
            return to_array(output_of(self.call(module, tensors(problem, device), problem)))

    def expected(self, module: nn.Module, problem: Problem, uses: Uses) -> torch.Tensor:
        """The output with these uses of its parts."""
        shown, hidden = self.projected(module, problem)
        own = {path: to_array(parameter) for path, parameter in module.named_parameters()}
        parts = {_held(own, owner): use for owner, use in uses.items()}
        query = inputs_of(tensors(problem, "cpu"))[0].double()
        return output_with_parts(shown, query, hidden, self.variant, parts)

    def projected(
        self, module: nn.Module, problem: Problem, inputs: tuple[torch.Tensor, ...] = ()
    ) -> tuple[Projected, torch.Tensor]:
        """Query, key and value in heads, of the problem's inputs or of these, and what is hidden; see `_hidden`."""
        given = tensors(problem, "cpu")
        places = places_in(module, self.make.find_places, problem)
        own = {path: to_array(parameter) for path, parameter in module.named_parameters() if path in places}
        double = {n: torch.from_numpy(each).double() for n, each in named_parts(own, places, given).items()}
        query, key, value = inputs or (x.double() for x in inputs_of(given))
        key, value = (query, query) if self.alone and not inputs else (key, value)
        shown = projected((query, key, value), double, problem.num_heads, problem.num_kv_heads)
        times = problem.num_heads // problem.num_kv_heads
        shown = replace(shown, **{n: getattr(shown, n).repeat_interleave(times, 1) for n in ("key", "value")})
        return shown, _hidden(problem, given, self.variant)


def _hidden(problem: Problem, given: Mapping[str, torch.Tensor], variant: Variant) -> torch.Tensor:
    """(B or 1, 1 or H, Lq, Lk), True = not seen; of boolean masks."""
    hidden = torch.zeros(1, 1, problem.query.shape[1], problem.key.shape[1], dtype=torch.bool)
    always, far = variant.premises, torch.ones(hidden.shape[2:], dtype=torch.bool)
    if problem.causal or always.causal:
        hidden = hidden | far.triu(1)
    if always.window_left is not None:
        hidden = hidden | far.tril(-always.window_left - 1)
    if always.window_right is not None:
        hidden = hidden | far.triu(always.window_right + 1)
    if "key_padding_mask" in given:
        hidden = hidden | ~given["key_padding_mask"][:, None, None]
    return hidden | ~given["attn_mask"] if "attn_mask" in given else hidden


def _with_factors(module: nn.Module) -> nn.Module:
    """The module with logarithms of factors that a bound leaves as they are."""
    with torch.no_grad():
        for path, each in module.named_parameters():
            if path.endswith(LOG_SCALES):
                each.copy_(torch.linspace(LARGEST, SMALLEST, each.numel()).view(each.shape))
    return in_new_mode(module)


def _held(arrays: Mapping[str, object], owner: str) -> Held:
    """The part at this path: of a parameter alone, or of a layer."""

    def tensor(path: str) -> torch.Tensor:
        whole = torch.as_tensor(arrays[path]).double()
        return whole.squeeze() if whole.numel() > 1 else whole.reshape(whole.shape[:2] if whole.ndim > 2 else ())

    if owner in arrays:
        return Held(tensor(owner))
    return Held(tensor(f"{owner}.weight"), tensor(f"{owner}.bias") if f"{owner}.bias" in arrays else None)


def owners(module: nn.Module, held: Mapping[str, str]) -> dict[str, tuple[int, ...]] | None:
    """The paths of parts whose parameters are held, with the shape of their weights; None where one is of each head."""
    found: dict[str, tuple[int, ...]] = {}
    for path, parameter in module.named_parameters():
        if any(pattern in held and pattern != path for pattern, _ in patterns(path)):
            return None
        if path in held:
            owner, _, last = path.rpartition(".")
            name = owner if last in ("weight", "bias") and owner else path
            shape = tuple(extent for extent in parameter.shape if extent != 1)
            found.setdefault(name, ())
            if last != "bias" or not owner:
                found[name] = shape
    return found


def equations(
    make: Constructor, call: Call, variant: Variant, problem: Problem, device: str, alone: bool = False
) -> PartEquations | None:
    """The module with its held parts in place, if its answer to a problem shows what these do; `alone`: see there."""
    biases = {path: fill for path, fill in make.held.items() if place_of(path) is not None}
    released = replace(make, held=biases)
    whole = PartEquations(released, call, variant, {}, alone)
    if (seen := whole.shown(problem, device)) is None:
        return None
    module, shown = seen
    parts = owners(module, {p: f for p, f in make.held.items() if p not in biases})
    if not parts:
        return None
    heads, width = problem.num_heads, problem.query.shape[-1]
    bounded = BOUND.search(text_of(make.kind)) is not None
    choices = [
        [use for use in possible(path, shape, heads, width) if bounded or use.through is not Through.TENTHS]
        for path, shape in parts.items()
    ]
    for chosen in islice(product(*choices), MOST):
        uses = dict(zip(parts, chosen, strict=True))
        if gives(partial(whole.expected, uses=uses), module, problem, shown):
            uses = in_named_roles({path: RIGHT.get(use, use) for path, use in uses.items()})
            ordered = {path: _in_published_order(path, use) for path, use in uses.items()}
            return replace(whole, uses={path: in_stated_order(make.kind, use) for path, use in ordered.items()})
    return _mistaken(whole, module, problem, parts, shown)


def gives(expected: Expectation, module: nn.Module, problem: Problem, shown: torch.Tensor) -> bool:
    """Whether an equation gives an output (B, Lq, E); it does not where it raises."""
    whole = safe_call(partial(expected, module, problem)).value
    return whole is not None and whole.shape == shown.shape and torch.allclose(whole, shown.double(), NEAR, NEAR)


def _in_published_order(path: str, use: Use) -> Use:
    """The use, with rows in the order that the name of a layer of biases promises."""
    owner = path.removesuffix(".weight")
    of_both = use.table is not None and use.table.zero is Zero.MIDDLE
    if use.table is None or not of_both or not owner.endswith(PUBLISHED_BIASES):
        return use
    return replace(use, table=replace(use.table, forward=True))


def _published(path: str, shape: tuple[int, ...], problem: Problem) -> Iterator[tuple[Use, Use]]:
    """The use that a part has by its published name, each with one that is a known mistake in it."""
    if path.endswith(PUBLISHED):
        for right in tables_of_shape(shape, problem.num_heads, problem.query.shape[-1]):
            yield from ((Use(Role.TABLE, table=right), Use(Role.TABLE, table=wrong)) for wrong in mistakes(right))
    if words_of(path.rpartition(".")[2]) & OF_SINKS and shape == (problem.num_heads,):
        yield from ((Use(Role.SINK), Use(Role.SINK, through)) for through in (Through.SCALED, Through.SHIFTED))


def _mistaken(
    whole: PartEquations,
    module: nn.Module,
    problem: Problem,
    parts: Mapping[str, tuple[int, ...]],
    shown: torch.Tensor,
) -> PartEquations | None:
    """The equation that parts have by their published names, where a known mistake in it gives the answer."""
    disentangled = DISENTANGLED.search(text_of(whole.make.kind)) is not None
    of_deberta = _of_deberta(parts, problem) if disentangled else ()
    for right, wrong in chain(_of_one_part(parts, problem), _of_transformer_xl(parts, problem), of_deberta):
        if gives(partial(whole.expected, uses=wrong), module, problem, shown):
            return replace(whole, uses=right)
    return None


def _of_one_part(parts: Mapping[str, tuple[int, ...]], problem: Problem) -> Iterator[tuple[Uses, Uses]]:
    if len(parts) == 1:
        ((path, shape),) = parts.items()
        yield from (({path: right}, {path: wrong}) for right, wrong in _published(path, shape, problem))


def _of_transformer_xl(parts: Mapping[str, tuple[int, ...]], problem: Problem) -> Iterator[tuple[Uses, Uses]]:
    """A table of its positions and its two biases, by their names, each time with one mistake."""
    named = {path: role_in_transformer_xl(path) for path in parts}
    left = [path for path, role in named.items() if role is None]
    by_role = {role: path for path, role in named.items() if role is not None}
    if len(parts) != len(by_role) + 1 or len(by_role) < len(OF_TRANSFORMER_XL):
        return
    tables = tables_of_shape(parts[left[0]], problem.num_heads, problem.query.shape[-1])
    for table in (each for each in tables if each.added is Added.OF_QUERY):
        biases = {path: Use(role) for role, path in by_role.items()}
        right = {**biases, left[0]: Use(Role.TABLE, table=table)}
        wrong_tables = (replace(table, scaled=False), *off(table))
        yield from ((right, {**right, left[0]: Use(Role.TABLE, table=each)}) for each in wrong_tables)
        for content, position in WRONG_BIASES:
            wrong = {by_role[Role.CONTENT]: Use(content), by_role[Role.POSITION]: Use(position)}
            yield right, {**right, **wrong}


def _of_deberta(parts: Mapping[str, tuple[int, ...]], problem: Problem) -> Iterator[tuple[Uses, Uses]]:
    """Tables for queries and for keys, whose distances are those of the key to the query, with one mistake in these."""
    heads, width = problem.num_heads, problem.query.shape[-1]
    for of_query, of_key in permutations(parts) if len(parts) == 2 else ():
        for table in (each for each in tables_of_shape(parts[of_query], heads, width) if each.added is Added.OF_QUERY):
            keys = replace(table, added=Added.OF_KEY, forward=not table.forward)
            right = {of_query: Use(Role.TABLE, table=table), of_key: Use(Role.TABLE, table=keys)}
            wrong = [replace(keys, forward=table.forward), replace(keys, scaled=False)]
            wrong += [replace(keys, added=Added.OF_KEY_ELSEWHERE, forward=side) for side in (True, False)]
            yield from ((right, {**right, of_key: Use(Role.TABLE, table=each)}) for each in wrong)
