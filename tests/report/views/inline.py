"""Styles and scripts inside a page, and the hashes by which its security policy allows them and no others."""

import base64
import hashlib

from markupsafe import Markup


def inline(text: str, element: str) -> Markup:
    """The text of a style or script, which must not end its own element."""
    if f"</{element}" in text.lower() or "<!--" in text:
        raise ValueError(f"a {element} of the page contains </{element} or <!--, which would end or hide it")
    return Markup(text)


def fingerprint(text: str) -> str:
    """The hash as the security policy has it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
