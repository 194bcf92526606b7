"""Forwards: how a module is called, read from the parameters of its forward, and tried where these state too little."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.adapters.mha_interface import inputs_of, mask_options, polarised
from attention_conformance.implementations.adapters.op_options import extra_options
from attention_conformance.implementations.adapters.results import kept
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.api.safe_call import repeatable, safe_call
from attention_conformance.implementations.discovery.modules.bare import tapped
from attention_conformance.implementations.discovery.modules.emptying import emptied, emptied_by
from attention_conformance.implementations.discovery.modules.latents import LATENTS, Latents, latents_of
from attention_conformance.implementations.discovery.modules.mask_forms import in_form
from attention_conformance.implementations.discovery.modules.neutrals import (
    LETTERS,
    MASKS,
    OF_KEYS,
    ROTATIONS,
    TABLE_WORDS,
    Given,
    Neutral,
    combined,
    is_empty_place,
    is_input,
)
from attention_conformance.implementations.discovery.modules.packed_samples import Packing, packing_of
from attention_conformance.implementations.discovery.modules.single_samples import each_sample_alone
from attention_conformance.implementations.discovery.modules.spatial import (
    SPATIAL,
    alone_output,
    batch_first,
    output_first,
    restored,
)
from attention_conformance.implementations.discovery.probe import parts_of, shape_of
from attention_conformance.implementations.discovery.signatures import (
    ADAPTER,
    Options,
    by_keyword,
    check_order,
    known_names,
    positional,
    read_options,
    required,
    role,
    takes_any,
)
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import (
    INPUTS,
    KNOWN_NAMES,
    KWARGS_OF_FORWARD,
    LENGTH_NAMES,
    WEIGHTS_RETURNED,
    MaskForm,
    words_of,
)
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.problem import Problem

NO_OPTIONS = Options({})
OF_LISTS = {"inputs", "qkv", "tensors", "xs"}
"""Words in the name of an only input that may be a list of query, key and value."""
LISTED = (INPUTS, ("query", "value", "key"), ("value", "key", "query"))
"""The orders in which such a list may come."""
MOST_TABLES = 200
"""Combinations of what is given so that it changes nothing."""


@dataclass(frozen=True)
class ModuleCall:
    """How a module is called.

    Attributes:
        inputs: 3, query, key and value; 2, the input of the query and that of key and value; or 1, of all of them.
        order: in which the three come.
        options: the other parameters of its forward.
        polarity: what True means in its boolean masks.
        length_first: whether its layout is (L, B, E), not (B, L, E).
        form: the shape in which it takes attention masks.
        flag_with_mask: whether its causal flag describes a mask that is passed with it, as in nn.MultiheadAttention.
        float_padding: whether a padding mask together with a float mask is one of floats, as in nn.MultiheadAttention.
        padding_added: whether added numbers of keys come as the padding mask.
        always: given in every call, such as that it shall return the weights.
        tap: the layer whose output is taken, where the module adds its input to that.
        keywords: its own names for its inputs, where it takes them by keyword only.
        optional: whether the input of key and value is left out where it is that of the query.
        of_context: its masks where that input is given, by the names of those where it is left out.
        own_open: whether these come next to masks of its own tokens that hide nothing.
        tables: more that it needs, and what is given there so that it changes nothing.
        unread: the one of these that lies where a second input would, and that it must not read.
        true_as: the number, next to 0 for False, as which True is given in its boolean masks; 0: they are booleans.
        alone: whether it is an error that it returns another tensor than the output.
        part: where in its answer the output is.
        named_parts: whether its answer is no tuple, but a list, a dictionary or an object of fields.
        each_sample: whether it takes one sample at a time, (L, E).
        listed: whether it takes its inputs in one list.
        resets: its method that empties a cache which it holds, called before each call; empty for none.
        spatial: where its layout is another one: 1 for (B, E, L), 2 for (B, E, L, 1), 3 for (B, L, 1, E), 4 for a
            square of tokens, (B, L ** 0.5, L ** 0.5, E), 5 for (B, 1, L, E); see `spatial` for answers in heads.
        gates_axes: whether factors of heads come as (1, H, 1, 1), not as (H,).
        packing: how it takes all samples in one sequence, (B * L, E); None: it takes batches.
        latents: its parameters of latents, which attend to themselves, too, and of all other tokens.
        bias_form: the shape in which it takes added numbers by a parameter that is not that of masks; None: as masks.
    """

    inputs: int = 3
    order: tuple[str, ...] = INPUTS
    options: Options = NO_OPTIONS
    polarity: Polarity = Polarity.MASKED_OUT
    length_first: bool = False
    form: MaskForm = MaskForm.FLAT
    flag_with_mask: bool = True
    float_padding: bool = True
    padding_added: bool = False
    always: Mapping[str, object] = field(default_factory=dict)
    tap: str = ""
    keywords: tuple[str, ...] = ()
    optional: bool = False
    of_context: Mapping[str, str] = field(default_factory=dict)
    own_open: bool = False
    tables: Mapping[str, Given] = field(default_factory=dict)
    unread: str = ""
    true_as: float = 0.0
    alone: bool = False
    part: int = 0
    named_parts: bool = False
    each_sample: bool = False
    listed: bool = False
    resets: str = ""
    spatial: int = 0
    gates_axes: bool = False
    packing: Packing | None = None
    bias_form: MaskForm | None = None
    latents: Latents | None = None

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Any:
        """The module's answer to the problem's tensors, with the output as (B, Lq, width)."""
        inputs, options = self._arguments(given, problem)
        names = {name: own for name, own in self._own_masks(len(inputs)) if own in options}
        call = self._prepared(module, inputs, options, problem.num_heads)
        with kept({name: options[own] for name, own in names.items()}):
            return call()

    def bound_call(self, module: nn.Module, given: Tensors, problem: Problem) -> Callable[[], Any]:
        """The same, prepared."""
        return self._prepared(module, *self._arguments(given, problem), problem.num_heads)

    def _arguments(self, given: Tensors, problem: Problem) -> tuple[list[torch.Tensor], dict[str, Any]]:
        """Its inputs and what else it is given, with layout, masks and options converted."""
        arranged = {x: x.transpose(0, 1) if self.length_first else x for x in dict.fromkeys(inputs_of(given))}
        by_role = dict(zip(INPUTS, (arranged[x] for x in inputs_of(given)), strict=True))
        inputs = [by_role[name] for name in self.order[: self.inputs]]
        inputs = inputs[:1] if self.optional and inputs[0] is inputs[1] else inputs
        options = {**self.options.renamed(self._options(given, problem)), **self.always}
        if len(inputs) > 1:
            options = {self.of_context.get(name, name): option for name, option in options.items()}
            if self.own_open and {*self.of_context.values()} & {*options}:
                options |= dict.fromkeys(self.of_context, self._open(given["query"]))
        return inputs, options

    def _own_masks(self, inputs: int) -> Iterator[tuple[str, str]]:
        """Masks of a problem, each with its own name for it, of so many inputs."""
        of_problem = {"bool_mask": "attn_mask", "float_mask": "attn_mask", "key_padding_mask": "key_padding_mask"}
        for option, name in of_problem.items():
            own = self.options.spelled.get(option, "")
            yield name, self.of_context.get(own, own) if inputs > 1 else own

    def _open(self, query: torch.Tensor) -> torch.Tensor:
        """A mask of the queries' tokens, (B, Lq), that hides none, as its masks are given."""
        mask = polarised(query.new_ones(query.shape[:2]).bool(), self.polarity)
        return query.new_zeros(mask.shape).masked_fill(mask, self.true_as) if self.true_as else mask

    @property
    def rotates(self) -> bool:
        """Whether it is given a table of rotations, which pairs the components of a head."""
        return any(neutral in ROTATIONS for neutral in self.tables.values())

    def alone_with_itself(self) -> ModuleCall:
        """The call without the input of key and value, where that may be left out; the same where it may not."""
        return replace(self, inputs=1, keywords=self.keywords[:1], optional=False) if self.optional else self

    def plain(self, module: nn.Module, inputs: Sequence[torch.Tensor], heads: int) -> torch.Tensor:
        """The output (B, Lq, width) for query, key and value (B, L, width) without masks and options."""
        named = dict(zip(INPUTS, inputs, strict=True))
        arranged = [named[name].transpose(0, 1) if self.length_first else named[name] for name in self.order]
        options = {**self.options.renamed({}), **self.always}
        answer = self._prepared(module, arranged[: self.inputs], options, heads)()
        output: torch.Tensor = answer[0] if isinstance(answer, tuple) else answer
        return output

    def reads(self, module: nn.Module, width: int, heads: int, tokens: int) -> bool:
        """Whether what lies where a second input would changes its answer, or whether it raises with an input there."""
        x, other = torch.randn(2, 2, tokens, width)
        both = replace(self, inputs=2, tables={n: each for n, each in self.tables.items() if n != self.unread})
        alone, given = (safe_call(partial(each.plain, module, (x, other, other), heads)).value for each in (self, both))
        return alone is None or given is None or not torch.equal(alone, given)

    def _prepared(
        self, module: nn.Module, inputs: list[torch.Tensor], options: dict[str, Any], heads: int
    ) -> Callable[[], Any]:
        if self.latents is not None:
            rows = partial(self._of_latents, module, options, heads)
            return partial(self.latents.together, rows, inputs[0], int(not self.length_first))
        named = dict(zip(self.order, inputs, strict=False))
        query, key = named.get("query", inputs[0]), named.get("key", inputs[0])
        if self.packing is not None:
            whole, options = query, options | self.packing.counts(query, key)
            inputs = [self.packing.packed(x, n != "query") for n, x in zip(self.order, inputs, strict=False)]
            query, key = (self.packing.packed(x, x is not query)[None] for x in (query, key))
        for name, neutral in self.tables.items():
            if options.get(name) is None:
                first = (query.transpose(0, 1), key.transpose(0, 1)) if self.length_first else (query, key)
                options[name] = neutral.given(*first, heads)
        if self.spatial:
            inputs = [SPATIAL[self.spatial](x) for x in inputs]
        if self.keywords:
            options |= dict(zip(self.keywords, inputs, strict=not self.optional))
        positional: list[Any] = [] if self.keywords else [inputs] if self.listed else inputs
        call: Callable[[], Any] = partial(module, *positional, **options)
        if self.resets:
            call = partial(emptied, getattr(module, self.resets), call)
        if self.each_sample:
            call = partial(each_sample_alone, module, positional, options, len(inputs[0]), self.tap)
        elif self.tap:
            call = partial(tapped, module, self.tap, call)
        if self.alone:
            call = partial(alone_output, call)
        if self.part or self.named_parts:
            call = partial(output_first, call, self.part)
        if self.spatial:
            linear = bool(self.tap) and isinstance(module.get_submodule(self.tap), nn.Linear)
            call = partial(restored, call, self.spatial, linear)
        if self.packing is not None:
            call = partial(self.packing.unpacked, call, *whole.shape[:2])
        return (lambda: batch_first(call())) if self.length_first else call

    def _of_latents(self, module: nn.Module, options: dict[str, Any], heads: int, *inputs: torch.Tensor) -> Any:
        """The answer for latents and other tokens."""
        assert self.latents is not None
        two = replace(self, inputs=2, keywords=self.latents.names, latents=None)
        return two._prepared(module, [*inputs], {**options}, heads)()

    def _options(self, given: Tensors, problem: Problem) -> dict[str, Any]:
        if problem.causal and "is_causal" in self.options.implied:
            problem = problem.but(causal=False)
        options = dict(mask_options(given, problem, self.polarity, self.padding_added))
        if not self.float_padding and "key_padding_mask" in given:
            options["key_padding_mask"] = polarised(given["key_padding_mask"], self.polarity)
        if problem.causal and not (self.flag_with_mask and "bool_mask" in self.options):
            options.pop("attn_mask")
        if "attn_mask" in options:
            own, mask = given.get("attn_mask"), options["attn_mask"]
            form = self.form if self.bias_form is None or mask.dtype is torch.bool else self.bias_form
            options["attn_mask"] = in_form(form, mask, own, problem, self.polarity)
        for name in ("attn_mask", "key_padding_mask"):
            if self.true_as and name in options and options[name].dtype is torch.bool:
                options[name] = given["query"].new_zeros(options[name].shape).masked_fill(options[name], self.true_as)
        if "valid_lens" in given:
            options["valid_lens"] = given["valid_lens"]
        extra = extra_options(problem, given).items()
        options |= {name: option for name, option in extra if name in self.options}
        if self.gates_axes and "head_gates" in options:
            options["head_gates"] = options["head_gates"].view(1, -1, 1, 1)
        return options | ({} if problem.scale is None else {"scale": problem.scale})


class OwnRefusalError(TargetError):
    """A statement of its own raises as it is called: other sizes may be what it takes."""


def forward_calls(kind: type[nn.Module], polarity: Polarity) -> Iterator[ModuleCall]:
    """The ways in which the class's forward may be called, the likelier first.

    Raises:
        TargetError: it has none, or takes no inputs.
    """
    if kind.forward is nn.Module.forward:
        raise TargetError(f"it defines no forward: define forward(query, key, value), {ADAPTER}")
    whole = inspect.signature(kind.forward)
    signature = whole.replace(parameters=list(whole.parameters.values())[1:])
    signature, packing = packing_of(signature)
    inputs = inputs_in(signature)
    keywords = by_keyword(signature, inputs)
    kwargs = {**KWARGS_OF_FORWARD, **{name: name for name in ("key_padding_mask", *WEIGHTS_RETURNED)}}
    others = [p for p in signature.parameters.values() if p not in inputs and (required(p) or is_empty_place(p))]
    of_tables = {p.name for p in others if words_of(p.name) & TABLE_WORDS or p.name in LENGTH_NAMES}
    names = known_names(signature)
    unknown = [p.name for p in others if p.name in of_tables or (p.name not in names and "drop" not in p.name)]
    known = signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in unknown])
    options = read_options(known, inputs, kwargs)
    count = 3 if takes_any(signature, inspect.Parameter.VAR_POSITIONAL) else len(inputs)
    call = ModuleCall(count, _order(inputs), options, polarity, always=options.weights_returned, keywords=keywords)
    call = replace(call, resets=emptied_by(kind), packing=packing)
    masks = [p.name for p in others if names.get(p.name) in ("bool_mask", "float_mask")]
    calls = [call]
    if count == 1 and inputs and words_of(inputs[0].name) & OF_LISTS:
        calls += [replace(call, inputs=3, order=order, listed=True) for order in LISTED]
    every = list(islice(combined((*unknown, *masks)), MOST_TABLES))
    yield from (replace(each, tables=tables) for each, tables in product(calls, every))
    if count == 2 and packing is None and (latents := latents_of([p.name for p in inputs])) is not None:
        yield ModuleCall(1, polarity=polarity, latents=latents)
    second = inputs[1].name if count == 2 and not keywords else ""
    of_keys = role(second) in ("key", "value") or words_of(second) & OF_KEYS
    if second and not of_keys and (role(second) is None or role(inputs[0].name) is None):
        alone = replace(call, inputs=1, unread=second)
        yield from (replace(alone, tables={second: Neutral.NONE, **tables}) for tables in every)
        masked = product(MASKS if second.lower() in LETTERS else (), every)
        yield from (replace(alone, unread="", tables={second: mask, **tables}) for mask, tables in masked)


def inputs_in(signature: inspect.Signature) -> list[inspect.Parameter]:
    """The parameters that are inputs: those called query, key and value, or else those by position that are required.

    Raises:
        TargetError: there are none.
    """
    others = [p for p in positional(signature) if p.name not in KNOWN_NAMES]
    by_role = [p for p in signature.parameters.values() if role(p.name)]
    if {role(p.name) for p in by_role} == set(INPUTS) and len(by_role) == 3:
        return by_role
    grid = {p.name for p in others if p.name.lower() in ("h", "w")}  # of an image: one of them alone is an input
    others = [p for p in others if len(grid) < 2 or p.name not in grid]
    inputs = [p for p in others if required(p) and is_input(p.name)][:3]
    inputs = inputs or [p for p in others if required(p) and "mask" not in words_of(p.name)][:1]
    if not inputs and not takes_any(signature, inspect.Parameter.VAR_POSITIONAL):
        names = ", ".join(signature.parameters)
        raise TargetError(f"its forward takes ({names}): let it take query, key, value or x, {ADAPTER}")
    return inputs


def _order(inputs: list[inspect.Parameter]) -> tuple[str, ...]:
    """As their names state; query, key and value where these state nothing."""
    names = [words_of(p.name) for p in inputs]
    if len(inputs) == 2 and names[0] & OF_KEYS and not names[1] & OF_KEYS:
        return "key", "query", "value"
    if len(inputs) == 2 and names[1] & LATENTS and not names[0] & LATENTS:
        return "key", "query", "value"
    named = tuple(role(p.name) or "" for p in inputs)
    if set(named) == set(INPUTS):
        return named
    if len(inputs) == 3:
        check_order(inputs)
    return INPUTS


def settled(
    call: ModuleCall, module: nn.Module, width: int, heads: int, tokens: int, any_error: bool = False
) -> ModuleCall:
    """The call with the place of the output in its answer; unchanged where `any_error` is and it raises.

    Raises:
        TargetError: it raises.
    """
    x = torch.randn(2, tokens, width)
    x = x.transpose(0, 1) if call.length_first else x
    with torch.no_grad():
        prepared = call._prepared(module, [x] * call.inputs, {**call.options.renamed({}), **call.always}, heads)
        outcome = repeatable(prepared)
    if outcome.error and any_error:
        return call  # it may take half types only
    if outcome.error:
        kind = OwnRefusalError if outcome.refused else TargetError
        raise kind(f"its forward cannot be called: {outcome.error}")
    shapes = [shape_of(part) for part in parts_of(outcome.value)]
    first = (2, tokens)
    places = [at for at, shape in enumerate(shapes) if shape[:2] == first and len(shape) == 3 and shape[2] != tokens]
    if call.inputs == 1 and shapes and shapes[0] == (2, 1, width):
        raise TargetError(
            f"its output has one token where its input has {tokens}: attention from one alone is not judged"
        )
    if shapes and len(shapes[0]) == 2 and 2 in shapes[0]:
        raise TargetError("its output has no axis of tokens: what pools them is not judged as attention of each")
    named_parts = not isinstance(outcome.value, tuple | torch.Tensor)
    if not places:
        return replace(call, named_parts=named_parts and len(shapes) > 1)
    return replace(call, part=places[0], named_parts=named_parts)
