"""Which classes rotate a part of each head, by the names in their text."""

import re

from attention_conformance.implementations.discovery.code_text import code_of

ROTATED_PART = re.compile(
    r"\b(?:partial_)?(?:rotary|rope|rot)_?(?:emb(?:edding)?_?)?(?:n?dims?|pct|percent(?:age)?|fraction|factor|ratio)\b"
    r"|\bpartial_rot\w*",
    re.IGNORECASE,
)
"""Names of the part of each head that is rotated: how wide it is, or as a share."""


def rotates_a_part(kind: object) -> bool:
    """Whether the text of a class names a part of each head that it rotates."""
    return ROTATED_PART.search(code_of(kind)) is not None
