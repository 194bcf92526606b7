"""Attempts: ways to build a module class whose constructor does not state clearly what it counts."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import Parameter
from itertools import islice, product

from torch import nn

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.causal_names import flags_of_name
from attention_conformance.implementations.discovery.modules.constructor_names import (
    EXACT,
    GROUPS,
    LONGEST,
    ROTARY,
    ROTATIONS,
    SQUARE,
    SQUARES,
    Size,
    compared,
    size_of,
    texts_compared,
)
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built, constructor
from attention_conformance.implementations.discovery.modules.file_sizes import sizes_in_file
from attention_conformance.implementations.discovery.modules.given_parts import (
    NO_PARTS,
    Part,
    parts_given,
    without_parts,
)
from attention_conformance.implementations.discovery.modules.parameters import LAYERS
from attention_conformance.implementations.discovery.signatures import is_variadic, of_constructor, own_names, required
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import Option, words_of

MOST = 24
"""Attempts at one class."""
GUESSES = (Size.NOTHING, Size.WIDTH, Size.HEADS, Size.FLAG)
"""What is tried for a parameter whose name states nothing."""
OF_A_HEAD = {"d", "k", "v", "q", "head", "key", "keys", "value", "values", "query", "queries"}
WIDTHS = {"dim", "size", "width", "features", "channels", "units", "embed", "embd", "emb", "d", "hidden", "model", "c"}
"""Words in the names of widths: of one head perhaps, and of any."""
RANKS = {"rank", "latent"}
"""Words in the names of widths of what is projected twice; as wide as the inputs, one of both can be the identity."""
OF_IMAGES = {"spatial", "spacial"}
OF_WINDOWS = {"window", "resolution", "ws", *OF_IMAGES}
"""Words in the names of the sides of images, one of them misspelt in a class that many copy, and of windows too."""
CAUSAL = {"causal", "casual"}
"""Words in the names of flags for masks, one of them misspelt."""
OF_INPUTS = re.compile(r"[qkv]_?dim")
"""Names of the width of one input."""
OF_MODES = {"self", "cross", "encoder"}
"""Words in the names of flags for what a module attends to."""
OF_WAYS = {"impl", "implementation", "backend", "kernel", "attention", "attn"}
"""Words in the names of texts for how something is computed."""
OF_TOKENS = {"length", "len", "seq", "tokens", "token", "patches", "frames", "nodes", "points", "joints", "steps"}
"""Words in the names of numbers of tokens, which may be the most, or the only one that is taken."""
MOST_WORDS = {"max", "maximum"}
"""Words in the names of numbers of tokens, where they state nothing else."""


def attempts(kind: type[nn.Module]) -> Iterator[Constructor]:
    """The ways in which the class may be built, the likelier first; as causal as it is called.

    Raises:
        TargetError: in the end, where its constructor states too little, and none of the attempts was taken.
    """
    flags = dict.fromkeys(flags_of_name(kind), True)
    yield from (replace(make, options={**make.options, **flags}) for make in _in_parts(kind))


def _in_parts(kind: type[nn.Module]) -> Iterator[Constructor]:
    """The same without the flags that its name speaks of.

    Raises:
        TargetError: in the end, where its constructor states too little, and none of the attempts was taken.
    """
    for parts in parts_given(kind):
        with suppress(TargetError):
            yield from _attempts(kind, parts)
    yield from _attempts(kind, NO_PARTS)


def _attempts(kind: type[nn.Module], parts: Mapping[str, Part]) -> Iterator[Constructor]:
    """The same with these parts."""
    refused: TargetError | None = None
    first: Constructor | None = None
    try:
        first = constructor(kind, parts)
        yield first
    except TargetError as error:
        refused = error
    if first is not None and first.settings:
        yield (first := replace(first, lenient=True))
    if first is not None:
        yield from _completed(first)
        yield from (replace(first, options={**first.options, flag: True}) for flag in _modes(kind))
        yield from (replace(first, options={**first.options, **given}) for given in _ways(kind))
    if first is None or not (first.settings or first.named):
        yield from (each for each in islice(_tried(kind, parts), MOST) if first is None or each.sizes != first.sizes)
    if refused is not None:
        raise refused


def with_one_wide_head(kind: type[nn.Module]) -> Iterator[Constructor]:
    """The class built with one head alone, if each of its heads is as wide as its inputs: more are wider than these."""
    make = safe_call(lambda: constructor(kind)).value
    if make is None or make.settings:
        return
    counted = _counted(make)
    heads = [name for name, size in counted.items() if size is Size.HEADS]
    if len(heads) != 1:
        return
    rest = {name: size for name, size in counted.items() if size is not Size.HEADS}
    alone = replace(make, named=False, sizes=rest, options={**make.options, heads[0]: 1})
    numbers = [_numbers(each) for each in (alone, make)]
    if None not in numbers and numbers[0] < numbers[1]:  # type: ignore[operator]
        yield alone


def _counted(make: Constructor) -> dict[str, Size]:
    """What its parameters count, by their names also where it is built by position."""
    usual = ("embed_dim", "num_heads") if make.named else [*of_constructor(make.kind).parameters][:2]
    return dict(make.sizes) or dict(zip(usual, (Size.WIDTH, Size.HEADS), strict=False))


def _completed(make: Constructor) -> Iterator[Constructor]:
    """The class with the widths that are None by default, each alone and all, where it cannot be built without them."""
    none = [p.name for p in of_constructor(make.kind).parameters.values() if p.default is None]
    widths = [name for name in none if size_of(name) is Size.WIDTH or OF_INPUTS.fullmatch(name)]
    if not widths or make.settings or not safe_call(lambda: built(make)).error:
        return
    for names in [*([each] for each in widths), *([widths] if len(widths) > 1 else [])]:
        sizes = _counted(make) | dict.fromkeys(names, Size.WIDTH)
        yield replace(make, named=False, sizes=sizes, widths=False, completed=tuple(names))


def _numbers(make: Constructor) -> int | None:
    """In its parameters; None where it cannot be built."""
    module = safe_call(lambda: built(make)).value
    return None if module is None else sum(each.numel() for each in module.parameters())


def _modes(kind: type[nn.Module]) -> list[str]:
    """Its flags for attention to another sequence, and then to the same one: some classes want one of the two."""
    off = [p.name for p in of_constructor(kind).parameters.values() if p.default is False]
    found = [name for name in off if "attention" in words_of(name) and words_of(name) & OF_MODES]
    return sorted(found, key=lambda name: "self" in words_of(name))


def _ways(kind: type[nn.Module]) -> Iterator[dict[str, str]]:
    """Other texts for what is computed how, which its code compares with what it is by default, one at a time."""
    for parameter in of_constructor(kind).parameters.values():
        if type(parameter.default) is str and words_of(parameter.name) & OF_WAYS:
            others = texts_compared(kind, parameter.name)
            yield from ({parameter.name: text} for text in others if text != parameter.default)


def _tried(kind: type[nn.Module], given_parts: Mapping[str, Part]) -> Iterator[Constructor]:
    signature = without_parts(of_constructor(kind), given_parts)
    parameters = [p for p in signature.parameters.values() if not is_variadic(p)]
    in_file = sizes_in_file(kind)
    groups = own_names({"num_kv_heads": Option(GROUPS)}, {p.name for p in parameters})
    texts = {p.name: text for p in parameters if required(p) and isinstance(text := compared(kind, p.name), str)}
    given: dict[str, object] = {**texts, **_parts(kind, parameters)}
    choices = {p.name: possible for p in parameters if p.name not in given and (possible := _choices(p))}
    counted = {size for name, possible in choices.items() if name not in GROUPS for size in possible}
    # what counts groups next to nothing that counts heads are those of a norm
    of_norms = [p.name for p in parameters if p.name in GROUPS and not required(p) and Size.HEADS not in counted]
    choices = {name: possible for name, possible in choices.items() if name not in of_norms}
    groups = {option: name for option, name in groups.items() if name not in of_norms}
    groups = {} if any(possible == (Size.LAYER,) for possible in choices.values()) else groups
    widths = [p.name for p in parameters if required(p) and choices.get(p.name) == (Size.WIDTH,)]
    if len(widths) > 1:  # that of the inputs is another one
        of_a_head = [*widths[1:], *(name for name in widths[:1] if "hidden" in words_of(name))]
        choices |= dict.fromkeys(of_a_head, (Size.WIDTH, Size.HEAD_WIDTH))
    for chosen in product(*choices.values()):
        sizes = {name: size for name, size in zip(choices, chosen, strict=True) if size is not None}
        counted = {*sizes.values(), *in_file.values()}
        if Size.WIDTH in counted | ({Size.WIDTH} if Size.HEAD_WIDTH in counted and not in_file else set()):
            others = {n: s for n, s in in_file.items() if s not in sizes.values()}
            guessed = tuple(
                n for n, possible in choices.items() if possible is GUESSES and sizes.get(n) in GUESSES[1:3]
            )
            made = Constructor(
                kind, sizes=sizes, globals=others, spelled=groups, guessed=guessed, options=given, parts=given_parts
            )
            yield replace(made, tokens=SQUARE) if counted & {*EXACT} else made


def _is_depth(words: set[str]) -> bool:
    """Whether they name the width of something, as tensor2tensor does."""
    return "depth" in words and len(words) > 1


def _is_layer(parameter: Parameter) -> bool:
    """Whether it is given the layer of a projection, by its name and annotation."""
    written = str(parameter.annotation)
    return required(parameter) and "Module" in written and len(LAYERS.get(parameter.name.lower(), "")) == 1


def _parts(kind: type[nn.Module], parameters: Sequence[Parameter]) -> dict[str, object]:
    """What is given where a class of the same file is annotated that needs nothing: the one of the shortest name."""
    module = sys.modules.get(kind.__module__)
    own = vars(module) if module is not None else {}
    found: dict[str, object] = {}
    for parameter in parameters:
        names = re.findall(r"\w+", _written(parameter.annotation)) if required(parameter) else []
        kinds = [own[name] for name in sorted(names, key=len) if isinstance(own.get(name), type)]
        plain = [each for each in kinds if each.__module__ == kind.__module__ and not issubclass(each, nn.Module)]
        made = (safe_call(each).value for each in plain)
        if (part := next((each for each in made if each is not None), None)) is not None:
            found[parameter.name] = part
    return found


def _written(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _is_pair(default: object) -> bool:
    return isinstance(default, tuple) and [type(each) for each in default] == [int, int]


def _choices(parameter: Parameter) -> tuple[Size | None, ...]:
    """What it may count, None where it may be left out as well; nothing where it is left out."""
    size, words = size_of(parameter.name), words_of(parameter.name)
    short = size is Size.LENGTH and type(parameter.default) is int and 0 < parameter.default < LONGEST
    if size in (Size.LENGTH, Size.FLAG) and not required(parameter) and not short:
        return ()
    if "head" in words and "size" in words:
        return Size.HEAD_WIDTH, Size.HEADS, Size.WIDTH
    if size is None and words & {"c", "hidden"} and required(parameter):
        return Size.WIDTH, Size.HEAD_WIDTH
    if _is_layer(parameter):
        return (Size.LAYER,)
    if required(parameter) and words & OF_TOKENS and size in (None, Size.LENGTH) and not words & WIDTHS:
        return Size.LENGTH, Size.TOKENS
    of_a_head = words & (OF_A_HEAD - {"d"} if size is Size.WIDTH else OF_A_HEAD)
    if of_a_head and _is_depth(words) and "total" in words:
        return Size.WIDTH, Size.HEAD_WIDTH
    if size is Size.HEAD_WIDTH or (of_a_head and words & WIDTHS and size is not Size.HEADS):
        return Size.HEAD_WIDTH, Size.WIDTH
    if size is not None or parameter.name in GROUPS:
        return (size or Size.HEADS,)
    if not required(parameter):
        of_number = (
            {Size.WINDOW_SIDE: OF_WINDOWS | {"feat"}, Size.WIDTH: RANKS} if type(parameter.default) is int else {}
        )
        of_pair = {Size.WINDOW: OF_WINDOWS, Size.WINDOW_SIDES: OF_WINDOWS} if _is_pair(parameter.default) else {}
        found = [each for each, names in (of_number | of_pair).items() if words & names]
        return (None, *found) if found else ()
    if words & OF_WINDOWS and "dims" not in words:  # which counts the axes of an image
        return (Size.WINDOW, *SQUARES, *(() if words & OF_IMAGES else (Size.LENGTH,)))
    if words & ROTARY:
        return (Size.TURNS, *ROTATIONS[:2]) if words & {"freqs", "cis"} else ROTATIONS
    if "head" in words or "heads" in words:
        return Size.HEADS, Size.HEAD_WIDTH
    if words & WIDTHS or words & RANKS or _is_depth(words):
        return (Size.WIDTH,)
    if parameter.annotation in (bool, "bool") or words & CAUSAL:
        return (Size.FLAG,)
    if words & MOST_WORDS:
        return (Size.LENGTH,)
    return GUESSES
