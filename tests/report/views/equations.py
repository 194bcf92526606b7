"""Equations: those of the specification by their numbers, and the text of clauses, as HTML with MathML."""

import re
from collections.abc import Iterator
from functools import cache
from html import escape

from latex2mathml.converter import convert
from markupsafe import Markup

from attention_conformance.spec.clauses import equations, load

ENTITY = re.compile("&#x([0-9A-Fa-f]+);")
NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'
MARKED = re.compile(r"\$(?P<math>[^$]+)\$|`(?P<code>[^`]+)`")


@cache
def mathml(latex: str, display: bool = False) -> Markup:
    """The `<math>` element of an equation, which browsers show by themselves.

    Raises:
        ValueError: a command of it is unknown.
    """
    converted = convert(latex, display="block" if display else "inline").replace(NAMESPACE, "")
    # The characters themselves are shorter; those to which HTML gives a meaning stay entities.
    element = ENTITY.sub(lambda entity: escape(chr(int(entity[1], 16))), converted)
    if left := re.search(r"\\[A-Za-z]+", re.sub("<[^>]*>", " ", element)):
        raise ValueError(f"{left[0]} is unknown in the equation {latex.strip()!r}: write it with other commands")
    return Markup(element)


def equation(tag: str) -> Markup:
    """A numbered equation on a line of its own."""
    return mathml(equations()[tag], True)


@cache
def prose(text: str) -> Markup:
    """A sentence of the specification: `$x$` as an equation, names in backticks as code, those of clauses as links."""
    return Markup("").join(_pieces(text))


def _pieces(text: str) -> Iterator[Markup]:
    end = 0
    for match in MARKED.finditer(text):
        yield Markup(escape(text[end : match.start()]))
        yield mathml(match["math"]) if match["math"] else _code(match["code"])
        end = match.end()
    yield Markup(escape(text[end:]))


def _code(name: str) -> Markup:
    code = Markup("<code>{}</code>").format(name)
    return Markup('<a href="#clause:{}">{}</a>').format(name, code) if name in load() else code
