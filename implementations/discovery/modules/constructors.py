"""Constructors: how a module class is built, read from its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from attention_conformance.implementations.adapters.arranged import Arranged
from attention_conformance.implementations.adapters.torch_module import Place, Places
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.bare import Globals, bare, holding, one_group
from attention_conformance.implementations.discovery.modules.constructor_names import (
    EXACT,
    GROUPS,
    IMAGE_SIDES,
    LAYERS,
    LONGEST,
    ROTATIONS,
    SQUARE,
    WINDOWS,
    Size,
    longest,
    settings_of,
    settings_parameter,
    settings_read,
    size_of,
    value_of,
)
from attention_conformance.implementations.discovery.modules.default_parts import default_parts
from attention_conformance.implementations.discovery.modules.drawn_arrays import with_drawn
from attention_conformance.implementations.discovery.modules.dropping import with_dropout
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.given_parts import NO_PARTS, Part, without_parts
from attention_conformance.implementations.discovery.modules.parameters import (
    find_places,
    named_parameters,
    names_of,
    patterns,
)
from attention_conformance.implementations.discovery.modules.promises import refuses_widths
from attention_conformance.implementations.discovery.modules.query_key_norms import FoundNorm
from attention_conformance.implementations.discovery.modules.rotated_parts import rotates_a_part
from attention_conformance.implementations.discovery.signatures import (
    ADAPTER,
    is_variadic,
    of_constructor,
    own_names,
    positional,
    required,
    switched_off,
    takes_any,
)
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import HEAD_COUNTS, Option
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

LOOKS = ((12, 3), (24, 3), (32, 4), (64, 4), (128, 4), (256, 4))
"""Widths and numbers of heads of the instances that are built to look at their parameters: the first not refused."""
WIDTH, HEADS = LOOKS[0]
CONSTRUCTOR_OPTIONS: Mapping[str, Option] = {
    "num_kv_heads": Option(GROUPS, (Feature.GROUPED,)),
    "dropout": Option(
        (
            *("attn_dropout", "attention_dropout", "attn_drop", "attention_probs_dropout_prob", "attn_pdrop"),
            *("att_drop", "attn_dropout_prob", "attention_dropout_prob", "attn_dropout_rate", "attn_dropout_p"),
            *("dropout", "dropout_p", "dropout_rate", "dropout_prob", "drop_rate", "p_dropout", "pdrop"),
        ),
        (Feature.DROPOUT, Feature.EVALUATION),
    ),
    "add_bias_kv": Option(("add_bias_kv",), (Feature.BIAS_KV,)),
    "add_zero_attn": Option(("add_zero_attn",), (Feature.ZERO_ATTN,)),
}
"""What a constructor may take in addition to sizes and widths."""
KEY_WIDTH, VALUE_WIDTH = 10, 11
"""Other widths of key and value than those of the query."""
ONE_HEAD = ("head", "k", "v", "q")
"""Words in the name of a width that may be that of one head, or of all heads together."""


@dataclass(frozen=True)
class Constructor:
    """A class, and how it is built: without dropout, with biases, batch first, as far as its parameters allow.

    Attributes:
        named: whether embed_dim and num_heads are given by name.
        options: its other arguments.
        widths: whether it takes kdim and vdim.
        rates: its parameters that are rates of dropout.
        spelled: its own name for each of `CONSTRUCTOR_OPTIONS` that it takes.
        sizes: what each of its parameters counts, where these have other names or another order.
        settings: its parameter that is an object of settings, which has the sizes.
        changed: its settings that are other than usual.
        left_out: what is taken out of the module, see `bare`.
        held: its parameters that are kept at a value at which they have no effect, see `readings`.
        globals: variables of its file that it reads sizes from, and what they count.
        lenient: whether its object of settings has whatever it reads.
        places: what its parameters hold, by path, with a star for the number of a head; empty: what their names state.
        call: how it is called once, so that it makes its parameters.
        norms: its norms of queries and keys, where they are judged with it.
        guessed: its parameters of unknown names that are given a size.
        tokens: those that it is called with to look at it, and that its window has.
        kv_heads: of keys and values, where it always has so many; 0: as many as those of queries, or as it is given.
        grouped: whether its object of settings states how many these are.
        dropping: whether its rates of dropout are other ones than 0 once it is built.
        of_problem: what it is built with in addition for a problem, by its own names.
        look: the width and the number of heads of an instance that is built to look at it.
        parts: what it is given to call, by parameter.
        completed: its parameters that are given a width, because their default, None, raises.
    """

    kind: Callable[..., nn.Module]
    named: bool = False
    options: Mapping[str, object] = field(default_factory=dict)
    widths: bool = False
    rates: tuple[str, ...] = ()
    spelled: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, Size] = field(default_factory=dict)
    settings: str = ""
    changed: Mapping[str, object] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    globals: Mapping[str, Size] = field(default_factory=dict)
    lenient: bool = False
    places: Mapping[str, Place] = field(default_factory=dict)
    call: ModuleCall | None = None
    norms: FoundNorm | None = None
    guessed: tuple[str, ...] = ()
    tokens: int = 5
    kv_heads: int = 0
    grouped: bool = False
    dropping: bool = False
    of_problem: Callable[[Problem], Mapping[str, object]] | None = None
    look: tuple[int, int] = LOOKS[0]
    parts: Mapping[str, Part] = field(default_factory=dict)
    completed: tuple[str, ...] = ()

    def __call__(self, embed_dim: int, num_heads: int, **options: Any) -> nn.Module:
        """A module of these sizes; `options` are kdim, vdim and what `CONSTRUCTOR_OPTIONS` names."""
        values = {name: value_of(size, embed_dim, num_heads) for name, size in self.globals.items()}
        sizes = Globals.of(self.kind, values)
        with sizes, one_group():
            module = sizes.around(with_drawn(partial(self._whole, embed_dim, num_heads, **options)))
            if self.call is not None and any(map(is_lazy, module.parameters())):
                with torch.no_grad():
                    self.call.plain(module, [torch.zeros(1, 2, embed_dim)] * 3, num_heads)
            if self.dropping:
                with_dropout(module)
            return holding(bare(module, self.left_out), self.held)

    def _whole(self, embed_dim: int, num_heads: int, **options: Any) -> nn.Module:
        given = {self.spelled.get(name, name): value for name, value in options.items()}
        if "num_kv_heads" in self.spelled:
            given.setdefault(self.spelled["num_kv_heads"], num_heads)
        lengths = {name: longest(num_heads) for name, value in self.options.items() if value == LONGEST}
        parts = {name: part(embed_dim, num_heads) for name, part in self.parts.items()}
        given = {**default_parts(self.kind, embed_dim), **parts, **self.options, **lengths, **given}
        sizes = {name: value_of(size, embed_dim, num_heads, self.tokens) for name, size in self.sizes.items()}
        if self.settings:
            groups = {} if "num_kv_heads" in self.spelled else {"kv_heads": given.pop("num_kv_heads", 0)}
            rate = self.spelled.get("dropout", "")
            changed = {**self.changed, **({rate: given.pop(rate)} if rate in given else {})}
            settings = settings_of(
                self.kind, self.settings, embed_dim, num_heads, self.lenient, changed=changed, **groups
            )
            return self.kind(**{self.settings: settings}, **{**sizes, **given})
        if self.sizes or self.globals:
            return self.kind(**{**sizes, **given})
        if self.named:
            return self.kind(embed_dim=embed_dim, num_heads=num_heads, **given)
        return self.kind(embed_dim, num_heads, **given)

    def find_places(self, module: nn.Module, problem: Problem) -> Places:
        """What each parameter of a module holds that is to hold those of a problem."""
        gains = {} if self.norms is None else self.norms.gains
        if not self.places:
            return {**find_places(module), **gains}
        heads, kv_heads = problem.num_heads, problem.num_kv_heads
        found: dict[str, Place] = {**gains}
        for path, _ in module.named_parameters():
            for pattern, head in patterns(path):
                if (place := self.places.get(pattern)) is not None:
                    if isinstance(place, Arranged):
                        place = replace(place, heads=heads, kv_heads=kv_heads, head=head)
                    found[path] = place
                    break
        return found

    def with_norms(self, norms: FoundNorm) -> Constructor:
        """The same, with its norms of queries and keys in place, whose biases are 0."""
        left_out = tuple(path for path in self.left_out if path not in norms.paths)
        biases = {f"{path}.bias": "zeros" for path in norms.paths if norms.has_bias}
        return replace(self, left_out=left_out, held={**self.held, **biases}, norms=norms)

    def held_names(self, module: nn.Module) -> dict[str, str]:
        """The paths of the module's parameters, by their names in `Problem.parameters`; one of those of each head."""
        if not self.places:
            return named_parameters(module)
        return {name: path for path, place in self.places.items() for name in names_of(place)}

    def construct(self, num_heads: int, width: int) -> nn.Module:
        """A module of these sizes, in the order of `Implementation.construct`."""
        return self(width, num_heads)

    @property
    def unrotated(self) -> tuple[str, ...]:
        """Its parameters that are given what rotates nothing."""
        return tuple(name for name, size in self.sizes.items() if size in ROTATIONS)

    @property
    def window(self) -> Size | None:
        """What of its window it is given, if it has one."""
        return next((size for size in self.sizes.values() if size in WINDOWS), None)

    @property
    def one_head(self) -> bool:
        """Whether it takes no number of heads, and has one."""
        counted = {*self.sizes.values(), *self.globals.values()}
        return bool(counted) and not self.settings and Size.HEADS not in counted

    @property
    def heads(self) -> int:
        """Of an instance that is built to look at it."""
        return 1 if self.one_head else self.look[1]

    @property
    def width(self) -> int:
        """Of an instance that is built to look at it."""
        return self.look[0]

    @property
    def constructs(self) -> Callable[[int, int], object] | None:
        """`construct`; None where no total width is given, or it is not promised that any of them is refused."""
        totals = not (Size.HEAD_WIDTH in self.sizes.values() or self.settings or self.globals or self.one_head)
        return self.construct if totals and isinstance(self.kind, type) and refuses_widths(self.kind) else None

    @property
    def features(self) -> frozenset[Feature]:
        """What its parameters claim."""
        named = (feature for option in self.spelled for feature in CONSTRUCTOR_OPTIONS[option].features)
        return frozenset([*named, Feature.GROUPED] if self.kv_heads or self.grouped else named)


def constructor(kind: type[nn.Module], parts: Mapping[str, Part] = NO_PARTS) -> Constructor:
    """How the class is built, with these parts.

    Raises:
        TargetError: its constructor takes something else than embed_dim and num_heads.
    """
    return replace(_constructor(kind, without_parts(of_constructor(kind), parts), parts), parts=parts)


def _constructor(kind: type[nn.Module], signature: inspect.Signature, parts: Mapping[str, Part]) -> Constructor:
    parameters = dict(signature.parameters)
    if takes_any(signature, inspect.Parameter.VAR_KEYWORD) and issubclass(kind, nn.MultiheadAttention):
        parameters = {**inspect.signature(nn.MultiheadAttention).parameters, **parameters}
    if name := settings_parameter(signature):
        needed = [p.name for p in parameters.values() if required(p) and p.name != name]
        counted = {each: size for each in needed if (size := size_of(each)) and size is not Size.FLAG}
        flags = {each: False for each in needed if each not in counted} | _scaling(parameters) | _layer(parameters)
        rates = own_names({"dropout": CONSTRUCTOR_OPTIONS["dropout"]}, {*settings_read(kind, name)})
        return Constructor(kind, settings=name, options=flags, sizes=counted, spelled=rates)
    named = {"embed_dim", "num_heads"} <= set(parameters)
    known_sizes = {} if named else _known_sizes(signature)
    if known_sizes:
        own = own_names(CONSTRUCTOR_OPTIONS, set(parameters))
        usual = _scaling(parameters) | _layer(parameters)
        make = Constructor(kind, options=usual, sizes=known_sizes, rates=_rates(parameters), spelled=own)
        return replace(make, tokens=SQUARE) if make.window in EXACT else make
    sizes = [] if named else positional(signature)[:2]
    if not named:
        _check_sizes(kind, signature, sizes)
    options: dict[str, object] = {name: True for name in ("bias", "batch_first") if name in parameters}
    options |= switched_off([p for p in signature.parameters.values() if "drop" in p.name])
    options |= _scaling(parameters) | _layer(parameters)
    options |= dict.fromkeys(_short_lengths(signature), LONGEST)
    others = set(parameters) - {p.name for p in sizes}
    spelled = own_names(CONSTRUCTOR_OPTIONS, others)
    known = {"embed_dim", "num_heads", "kdim", "vdim", *options, *spelled.values(), *(p.name for p in sizes)}
    for parameter in signature.parameters.values():
        if required(parameter) and parameter.name not in known:
            raise TargetError(f"its constructor needs {parameter.name!r} too: give it a default, {ADAPTER}")
    make = Constructor(kind, named, options, {"kdim", "vdim"} <= set(parameters), _rates(parameters), spelled)
    alone = replace(make, widths=False, parts=parts)
    return replace(make, widths=make.widths and not without_other_widths(alone)[0])


def without_other_widths(make: Constructor) -> tuple[str, str]:
    """Why other widths of key and value are not claimed, though it takes them by name; empty where they are.

    The first where a statement of its own refuses them, the second where they raise otherwise.
    """
    if make.widths or not {"kdim", "vdim"} <= set(of_constructor(make.kind).parameters):
        return "", ""
    wide = safe_call(partial(make, make.width, make.heads, kdim=KEY_WIDTH, vdim=VALUE_WIDTH))
    error = wide.error or "a call with other widths of key and value raises"
    return (error, "") if wide.refused else ("", error)


def _scaling(parameters: Mapping[str, inspect.Parameter]) -> dict[str, object]:
    """Its flag that scores are divided by the root of their width, where that is off by default."""
    return {name: True for name in ("scale", "scaled") if name in parameters and parameters[name].default is False}


def _layer(parameters: Mapping[str, inspect.Parameter]) -> dict[str, object]:
    """Its number of the layer that it is, where that is unknown, and some count with it."""
    own = {name: p for name, p in parameters.items() if name in LAYERS}
    return {name: LAYERS[name] for name, p in own.items() if p.default is None or required(p)}


def _rates(parameters: Mapping[str, inspect.Parameter]) -> tuple[str, ...]:
    return tuple(p.name for p in parameters.values() if "drop" in p.name and isinstance(p.default, float))


def _known_sizes(signature: inspect.Signature) -> dict[str, Size]:
    """What each parameter counts, if all that have to be given are known, and width and heads are among them.

    In the order of the suite, embed_dim and num_heads, unknown names do no harm: that is the usual case.
    """
    parameters = [p for p in signature.parameters.values() if not is_variadic(p)]
    sizes = {p.name: size for p in parameters if (size := size_of(p.name)) and "Module" not in str(p.annotation)}
    sizes |= dict.fromkeys(IMAGE_SIDES, Size.WINDOW_SIDE) if {*signature.parameters} >= IMAGE_SIDES else {}
    options = {name for option in CONSTRUCTOR_OPTIONS.values() for name in option.parameters}
    unknown = [p.name for p in parameters if required(p) and p.name not in {*sizes, *options, *LAYERS}]
    usual = [sizes.get(p.name) for p in parameters[:2]] == [Size.WIDTH, Size.HEADS]
    simple = usual and not any(required(p) or sizes.get(p.name) is Size.HEAD_WIDTH for p in parameters[2:])
    if unknown or simple or not {Size.WIDTH, Size.HEADS} <= set(sizes.values()):
        return {}
    kept = {p.name for p in parameters if required(p)} | set(_short_lengths(signature))
    kept |= {name for name, size in sizes.items() if size not in (Size.LENGTH, Size.FLAG)}
    return {name: size for name, size in sizes.items() if name in kept and (size is Size.RATE or name not in options)}


def _short_lengths(signature: inspect.Signature) -> list[str]:
    """The parameters that are numbers of tokens, and by default fewer than the suite gives."""
    numbers = [p for p in signature.parameters.values() if type(p.default) is int and 0 < p.default < LONGEST]
    return [p.name for p in numbers if size_of(p.name) is Size.LENGTH and p.name != "window"]


def _check_sizes(kind: type[nn.Module], signature: inspect.Signature, sizes: list[inspect.Parameter]) -> None:
    written = f"{kind.__name__}{signature}"
    if len(sizes) < 2 and not takes_any(signature, inspect.Parameter.VAR_POSITIONAL):
        raise TargetError(f"its constructor is {written}: it has to take embed_dim, num_heads, {ADAPTER}")
    first, second = ([p.name for p in sizes] + ["", ""])[:2]
    if second and not counts_heads(second) and (counts_heads(first) or second in GROUPS):
        raise TargetError(f"its constructor is {written}: take embed_dim first, then num_heads, {ADAPTER}")


def counts_heads(name: str) -> bool:
    """Whether a parameter of this name is the number of heads."""
    return name in HEAD_COUNTS or ("head" in name.lower() and not {"size", "dim", "width"} & {*name.lower().split("_")})


def looked_at(make: Constructor) -> Iterator[Constructor]:
    """The same, at each of `LOOKS` that no statement of its own refuses as it is built; at least at the first.

    Where a part of each head is rotated, at the wider ones alone: of a small head it may be no pair, or more than all.
    """
    looks = (replace(make, look=look) for look in (LOOKS[3:] if rotates_a_part(make.kind) else LOOKS))
    accepted = (each for each in looks if not safe_call(partial(each, each.width, each.heads)).refused)
    yield next(accepted, make)
    yield from accepted


def built(make: Constructor, **widths: int) -> nn.Module:
    """An instance of small sizes, in float32 also where its class makes parameters of a half type.

    Raises:
        TargetError: it cannot be built.
    """
    with torch.random.fork_rng(devices=[]):
        outcome = safe_call(lambda: make(make.width, make.heads, **widths))
    if outcome.value is None:
        sizes = ", ".join(f"{n}={x}" for n, x in {"embed_dim": make.width, "num_heads": make.heads, **widths}.items())
        raise TargetError(f"it cannot be built with {sizes}: {outcome.error}")
    return outcome.value.float()
