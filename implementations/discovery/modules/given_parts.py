"""Given parts: what a constructor is given to call as a module: a class or function of its file that attends."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.code_text import tree_of
from attention_conformance.implementations.discovery.modules.constructor_names import Size, size_of, value_of
from attention_conformance.implementations.discovery.signatures import of_constructor, required, switched_off
from attention_conformance.implementations.discovery.vocabulary import words_of

MOST_PARTS, MOST_GIVEN = 3, 4
"""Parts that are tried for one parameter, and for all of them together."""
OF_ATTENTION = {"attention", "attn", "attend"}
"""Words in the names of what attends."""
OF_PARTS = {*OF_ATTENTION, "inner", "core", "mechanism", "kernel"}
"""Words in the names of parameters that are given such a part."""
LEAST_INPUTS = 3
"""Positional parameters of a function that attends."""


@dataclass(frozen=True)
class Part:
    """What is given for a parameter of a constructor.

    Attributes:
        name: its own.
        source: a class or a function of the file.
        built: whether an instance of the class is given, and not the source itself.
        sizes: what its constructor needs.
        options: what it is built with in addition.
    """

    name: str
    source: Any
    built: bool = False
    sizes: Mapping[str, Size] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, width: int, heads: int) -> object:
        """A new one for inputs of this width, and so many heads."""
        if not self.built:
            return self.source
        return self.source(**{name: value_of(size, width, heads) for name, size in self.sizes.items()}, **self.options)


NO_PARTS: Mapping[str, Part] = {}


def parts_given(kind: Any) -> Iterator[dict[str, Part]]:
    """Parts for all parameters that want one, by parameter, the likelier first; none where no parameter does."""
    signature = safe_call(partial(of_constructor, kind)).value or inspect.Signature()
    wanting = [p for p in signature.parameters.values() if _is_called(kind, p)]
    choices = [list(islice(_parts(kind, p), MOST_PARTS)) for p in wanting]
    for chosen in islice(product(*choices), MOST_GIVEN) if wanting else ():
        yield {p.name: part for p, part in zip(wanting, chosen, strict=True)}


def _is_called(kind: Any, parameter: inspect.Parameter) -> bool:
    """Whether it has to be given what the class calls: in its constructor, or under the name where it is kept."""
    name = parameter.name
    if size_of(name) is not None or not required(parameter) or not words_of(name) & OF_PARTS:
        return False
    called = _called(kind)
    return name in called or any(own in called for own, kept in _kept(kind) if kept == name)


def _called(kind: Any) -> set[str]:
    """What the code of a class calls: variables, and attributes of the instance with `self.` before their names."""
    tree = tree_of(kind)
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)} if tree else set()


def _kept(kind: Any) -> Iterator[tuple[str, str]]:
    """What the code of a class assigns to a name as it is, both written as there."""
    tree = tree_of(kind)
    for node in ast.walk(tree) if tree else ():
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                yield from zip(map(ast.unparse, names), map(ast.unparse, values), strict=False)
            case ast.Assign(targets=targets, value=value):
                yield from ((ast.unparse(target), ast.unparse(value)) for target in targets)


def _parts(kind: Any, parameter: inspect.Parameter) -> Iterator[Part]:
    """Those of its file that may be given for a parameter: first those of a class that its annotation names."""
    inside = parameter.name in _called(kind)
    space = vars(sys.modules.get(kind.__module__, sys))
    own = [each for each in space.values() if getattr(each, "__module__", "") == kind.__module__ and each is not kind]
    classes = [each for each in own if isinstance(each, type) and not issubclass(each, kind)]
    found = (Part(each.__name__, each) if inside else _built(each) for each in _in_order(classes, parameter))
    yield from (part for part in found if part is not None)
    if not inside:
        yield from (Part(each.__name__, each) for each in _in_order([f for f in own if _attends(f)], parameter))


def _in_order(sources: list[Any], parameter: inspect.Parameter) -> list[Any]:
    """Those whose names say that they attend, or that the parameter's annotation names, which come first."""
    written = parameter.annotation
    annotated = {*re.findall(r"\w+", written.__name__ if isinstance(written, type) else str(written))}

    def is_named(source: Any) -> bool:
        return bool(annotated & {base.__name__ for base in getattr(source, "__mro__", (source,))})

    likely = [each for each in sources if is_named(each) or words_of(each.__name__) & OF_ATTENTION]
    return sorted(likely, key=lambda each: not is_named(each))


def _built(kind: Any) -> Part | None:
    """An instance of a class that can be called and needs nothing but sizes."""
    signature = safe_call(partial(of_constructor, kind)).value
    if signature is None or not callable(getattr(kind, "forward", vars(kind).get("__call__"))):
        return None
    parameters = list(signature.parameters.values())
    sizes = {p.name: size_of(p.name) for p in parameters if required(p)}
    known = {name: size for name, size in sizes.items() if size is not None}
    options = switched_off([p for p in parameters if (required(p) or "drop" in p.name) and p.name not in known])
    part = Part(kind.__name__, kind, True, known, options)
    return part if {*sizes} <= {*known, *options} else None


def _attends(source: Any) -> bool:
    """Whether it is a function of query, key and value, by the number of its parameters."""
    if not inspect.isfunction(source):
        return False
    parameters = safe_call(lambda: inspect.signature(source).parameters.values()).value or ()
    return sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) >= LEAST_INPUTS


def without_parts(signature: inspect.Signature, parts: Mapping[str, Callable[..., object]]) -> inspect.Signature:
    """The signature without the parameters of these parts."""
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in parts])
