"""Plain mathematics: the specification's LaTeX as one line of characters, for terminals."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from latex2mathml.converter import convert

RELATIONS = frozenset("=≤≥<>∈∉⇒⟹⟺≪≫←≠⊆∧")
SIGNS = frozenset("+−×∘±")
"""Of two operands; with one only, where nothing but an operator or an opening bracket stands before."""
SMALL = str.maketrans("0123456789+−()", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾")
ACCENTS = {"~": "\u0303", "˙": "\u0307", "¯": "\u0304", "^": "\u0302"}
WIDE = frozenset({"1em", "2em"})
TAG = re.compile(r"\s*\\tag\{.*?\}")
TEXT = re.compile(r"(\\text\{[^{}]*\})")
GAP = re.compile(r"(?<!\\tilde)(?<!\\dot)(?<!\\bar)\s+")
"""White space of the source, but for that before what an accent stands on."""


@dataclass(frozen=True)
class Token:
    """A piece of a formula. `kind`: atom, function, relation, sign, point, open, close, fraction or space."""

    text: str
    kind: str = "atom"


def line(source: str) -> str:
    """A text with formulas between dollar signs, such as the statement of a clause."""
    return re.sub(r"\$+(.+?)\$+", lambda match: formula(match[1]), source)


def formula(latex: str) -> str:
    """A formula, without its number.

    Raises:
        ValueError: it has a command, or yields an element, that is not known here.
    """
    parts = TEXT.split(TAG.sub("", latex).strip())
    # Two adjacent letters are one name or a product; in the source, a space marks a product.
    spaced = "".join(part if TEXT.fullmatch(part) else GAP.sub(r"\\,", part) for part in parts)
    written = _joined(list(_tokens(ET.fromstring(convert(spaced)))))
    if "\\" in written:
        raise ValueError(f"{written!r} has a command that is not known: write it in other words")
    return written


def _tokens(element: ET.Element) -> Iterator[Token]:
    children = list(element)
    match element.tag.rpartition("}")[2]:
        case "math" | "mrow" | "mstyle" | "mtd":
            for child in children:
                yield from _tokens(child)
        case "mi" | "mo" | "mn":
            yield _symbol(element.text or "")
        case "mtext":
            yield Token(re.sub(r"\s+", " ", element.text or ""), "text")
        case "mspace":
            yield Token(_width(element.get("width", "")), "space")
        case "msub" | "msup" | "msubsup" | "munder" | "munderover":
            yield _scripted(element.tag.rpartition("}")[2], children)
        case "mover":
            yield Token(_tight(children[0]) + ACCENTS[_tight(children[1])])
        case "mfrac":
            yield Token("/".join(_operand(_joined(list(_tokens(child)))) for child in children), "fraction")
        case "msqrt":
            yield Token(f"√({_joined([token for child in children for token in _tokens(child)])})")
        case "mtable":
            rows = (", ".join(_joined(list(_tokens(cell))) for cell in row) for row in children)
            yield Token("; ".join(rows))
        case other:
            raise ValueError(f"the element {other} of MathML is not known here")


def _symbol(text: str) -> Token:
    if text in RELATIONS or text in (":", "mod"):
        return Token(text, "relation")
    kinds = {"sign": SIGNS, "point": frozenset(",;"), "open": frozenset("([{⌊"), "close": frozenset(")]}⌋")}
    kind = next((kind for kind, symbols in kinds.items() if text in symbols), "")
    return Token(text, kind or ("function" if text == "∑" or (len(text) > 1 and text.isalpha()) else "atom"))


def _width(width: str) -> str:
    return "" if width.startswith(("negative", "-")) else "\u2003" if width in WIDE else " "


def _scripted(tag: str, children: Sequence[ET.Element]) -> Token:
    base = _joined(list(_tokens(children[0])))
    below = _tight(children[1]) if tag != "msup" else ""
    above = _tight(children[-1]) if tag in ("msup", "msubsup", "munderover") else ""
    if tag == "munderover" or (base == "∑" and above):
        below, above = f"{below} … {above}", ""
    kind, named = _symbol(base).kind, base.replace("∑", "Σ")
    prime, raised = ("′", "") if above == "′" else ("", _raised(above))
    return Token(f"{named}{prime}{_lowered(below)}{raised}", kind if kind in ("function", "close") else "atom")


def _lowered(text: str) -> str:
    return f"_{text}" if text.isalnum() else f"_({text})" if text else ""


def _raised(text: str) -> str:
    if text == "⊤":
        return "ᵀ"
    small = text.translate(SMALL)
    if re.fullmatch(r"[⁰-⁹⁺⁻⁽⁾¹²³]+", small):
        return small
    return f"^{text}" if text.isalnum() else f"^({text})" if text else ""


def _operand(text: str) -> str:
    """A side of a fraction, in brackets where it has several parts."""
    return f"({text})" if re.search(r"[\s/]", text) else text


def _tight(element: ET.Element) -> str:
    """A script: without the spaces around operators."""
    return re.sub(r"\s*([=≠≤≥<>∈∉+−×,:])\s*", r"\1", _joined(list(_tokens(element))))


def _joined(tokens: Sequence[Token]) -> str:
    solid = [None, *(token for token in tokens if token.kind != "space"), None]
    around = iter(zip(solid, solid[2:], strict=False))
    text = "".join(token.text if token.kind == "space" else _placed(token, *next(around)) for token in tokens)
    text = re.sub(r" *\u2003[ \u2003]*", "\u2003", re.sub(" +", " ", text))
    return re.sub(r"(?<=[(\[{⌊]) | (?=[,;)\]}⌋])|\x00 ?|(?<=∂) ", "", text).replace("\u2003", "   ").strip()


def _placed(token: Token, before: Token | None, after: Token | None) -> str:
    """The text of a token with the spaces that its kind needs between the tokens around it."""
    alone = before is None or before.kind in ("relation", "sign", "point", "open")
    in_product = {each.kind for each in (before, after) if each is not None} & {"atom", "function", "fraction"}
    match token.kind:
        case "relation":
            return f" {token.text} "
        case "sign":
            return f"{token.text}\x00" if alone else f" {token.text} "
        case "point":
            return f"{token.text} "
        case "function":
            return token.text if after is not None and after.kind == "open" else f"{token.text} "
        case "fraction":
            opens = after is not None and after.kind == "open"
            return f"({token.text})" if in_product or opens else token.text
    return token.text
