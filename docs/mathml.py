"""Equations as MathML, which browsers show by themselves: no script, no font and no network."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any

from docutils import nodes

from attention_conformance.tests.report.views.equations import mathml

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

__all__ = ["displayed", "setup"]

TAG = re.compile(r"\s*\\tag\{(.*?)\}")


def displayed(latex: str) -> str:
    """An equation on a line of its own, as wide as it is, with its number as a link to itself."""
    body, tag = TAG.sub("", latex), TAG.search(latex)
    label = f"equation {tag[1]}" if tag else "equation"
    number = f'<a class="number" href="#{anchor(tag[1])}">({tag[1]})</a>' if tag else ""
    place = f' id="{anchor(tag[1])}"' if tag else ""
    region = f'<div class="wide" role="group" aria-label="{escape(label)}" tabindex="0">{mathml(body, True)}</div>'
    return f'<div class="equation"{place}>{region}{number}</div>'


def anchor(tag: str) -> str:
    """The id of an equation: 8.1 is equation-8-1."""
    return f"equation-{tag.replace('.', '-')}"


def _inline(translator: HTML5Translator, node: nodes.Element) -> None:
    translator.body.append(str(mathml(node.astext())))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.Element) -> None:
    translator.body.append(displayed(node.astext()))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Makes this a renderer of equations that html_math_renderer can name."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
