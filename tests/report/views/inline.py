"""Styles and scripts inside a page, and the hashes by which its security policy allows them and no others."""

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup


def inline(text: str, element: str) -> Markup:
    """The text of a style or script, which must not end its own element."""
    if f"</{element}" in text.lower() or "<!--" in text:
        raise ValueError(f"a {element} of the page contains </{element} or <!--, which would end or hide it")
    return Markup(text)


def embedded(style: Path, script: Path) -> Mapping[str, object]:
    """A style and a script as a template has them, and the hashes that allow them."""
    texts = {"style": inline(style.read_text("utf-8"), "style"), "script": inline(script.read_text("utf-8"), "script")}
    return {**texts, "allowed": {name: fingerprint(text) for name, text in texts.items()}}


def fingerprint(text: str) -> str:
    """The hash as the security policy has it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
